"""Objectives of one's own: functions, classes by import path, and what a run says about them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dissensus as ds
from dissensus.objectives import Independent, Objective, Terms, as_objective, parse

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(30, 4, generator=GENERATOR), torch.randint(3, (30,), generator=GENERATOR)

FILE = """
from dataclasses import dataclass
from dissensus.losses import mean_cross_entropy
from dissensus.objectives import Objective, Terms

@dataclass(frozen=True)
class Spread(Objective):
    strength: float = 0.5
    def check(self, outputs, targets):
        pass
    def terms(self, outputs, targets, weights=None):
        spread = outputs.var(0).mean()
        return Terms(mean_cross_entropy(outputs, targets) - self.strength * spread, {})

def loss(outputs, targets):
    return mean_cross_entropy(outputs, targets)

NUMBER = Spread(3.0)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_file.py"
    path.write_text(FILE)
    return path


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.stack([cross_entropy(own, targets) for own in logits]).mean()


def train(objective: object, **settings: object) -> ds.Ensemble:
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=3)
    ds.fit(ens, (X, Y), objective, epochs=2, progress=False, **settings)  # type: ignore[arg-type]
    return ens


def test_a_function_trains_as_the_objective_that_it_is() -> None:
    torch.testing.assert_close(train(mean_loss)(X), train("independent")(X))


def test_a_function_with_a_value_for_each_example_takes_weights() -> None:
    def each(logits: Tensor, targets: Tensor) -> Tensor:
        return -logits.log_softmax(-1)[:, torch.arange(len(targets)), targets].mean(0)

    weights = torch.arange(30.0)
    ends = []
    for objective in (each, "independent"):
        ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=3)
        ds.fit(ens, (X, Y, weights), objective, epochs=2, progress=False)
        ends.append(ens(X))
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (cross_entropy, r"cross_entropy failed for outputs \(3, 30, 3\).*own in logits\]\).mean"),
        (lambda z, y: z.sum(-1), r"must return a scalar tensor or \[batch\], got \(3, 30\)"),
        (lambda z, y: 0.5, r"must return a scalar tensor or \[batch\], got float"),
        (Independent, r"a name, an object or a function"),
        (3, "an objective is a name, an object"),
    ],
)
def test_functions_that_are_no_objective(function: object, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        train(function)


def test_import_paths_give_classes_with_settings_objects_and_functions(file: Path) -> None:
    spread = parse(f"{file}:Spread:strength=2", trust=True)
    assert spread.strength == 2  # type: ignore[attr-defined]
    assert spread.spec() == f"{file}:Spread:strength=2"
    assert parse(spread.spec(), trust=True) == spread
    assert parse(f"{file}:NUMBER", trust=True).spec() == f"{file}:Spread:strength=3"
    assert parse(f"{file}:loss", trust=True).spec() == f"{file}:loss"
    wrapped = parse(f"learner_dropout:drop=0.4/{file}:Spread:strength=2", trust=True)
    assert parse(wrapped.spec(), trust=True) == wrapped
    assert as_objective("dissensus.objectives:ADP:alpha=1") == ds.objectives.ADP(alpha=1.0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{file}:Spread:strenth=2", "has no setting 'strenth'; did you mean 'strength'"),
        ("{file}:Spred", "has no 'Spred'; did you mean 'Spread'"),
        ("{file}:loss:strength=2", "has no settings, got 'strength=2'"),
        ("agmented:beta", "there is no objective 'agmented'|expected key=value"),
        ("ldr:strength", "ldr: expected key=value, got 'strength'"),
    ],
)
def test_mistakes_in_import_paths(file: Path, text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse(text.format(file=file), trust=True)


def test_code_that_a_text_names_runs_only_with_trust(tmp_path: Path) -> None:
    """A config may come from a stranger: reading it must not run what it names."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef loss(): pass\n")
    with pytest.raises(ValueError, match=r"code from outside.*pass --trust"):
        parse(f"{evil}:loss")
    assert not (tmp_path / "ran").exists()


@dataclass(frozen=True)
class Far(Objective):
    """An objective without a way to write itself down, with a field that has no default."""

    strength: float

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        pass

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        return Terms(self.strength * mean_loss(outputs, targets), {})


@pytest.mark.parametrize("objective", [Far(2.0), mean_loss])
def test_a_run_of_an_own_objective_loads_and_goes_on(objective: object, tmp_path: Path) -> None:
    ens = train(objective, out=tmp_path)
    loaded = ds.load(tmp_path, make_member=lambda: nn.Linear(4, 3))
    assert torch.equal(loaded(X), ens(X))
    train(objective, out=tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"training.objective was '.*test_own:"):
        train("independent", out=tmp_path, resume=True)


def test_a_command_trains_with_an_own_objective(file: Path, tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "data.npz", x=X.numpy(), y=Y.numpy())
    out = tmp_path / "run"
    common = {"out": out, "quiet": True}
    settings = {"data": tmp_path / "data.npz", "members": 2, "epochs": 1, **common}
    run = ds.runs.train(objective=f"{file}:Spread:strength=0.1", **settings)
    assert run.config["training"]["objective"] == f"{file}:Spread:strength=0.1"
    assert "--trust" not in str(run)
    assert len(ds.load(out)) == 2
    with pytest.raises(ValueError, match=r"the objective is .*my_file.py:Spread, code from"):
        ds.runs.train(resume=True, epochs=2, **common)
    assert "--trust" in str(ds.runs.resume_command(ds.runs.Train(out=str(out), resume=True)))
    assert len(ds.runs.train(resume=True, epochs=2, trust=True, **common).history.epochs) == 2
