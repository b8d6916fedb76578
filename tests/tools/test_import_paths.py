"""Architectures by import path: found, run once, and every failure explained."""

import pickle
import sys
from pathlib import Path

import pytest
import torch

from dissensus.models import make_factory, resolve

SOURCE = """
from torch import nn
from helper_layers import SIZE

RUNS = []
RUNS.append(1)
NUMBER = 3

class Nets:
    @staticmethod
    def small(outputs):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))

def make_member(input_shape, outputs, hidden=SIZE):
    return nn.Sequential(nn.Linear(input_shape[0], hidden), nn.ReLU(), nn.Linear(hidden, outputs))

def make_fixed(num_classes=1000):
    return nn.Linear(4, num_classes)

def make_number():
    return 3

def make_with_batch_norm(outputs):
    return nn.Sequential(nn.Linear(4, outputs), nn.BatchNorm1d(outputs), nn.Dropout(0.5))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "helper_layers.py").write_text("SIZE = 7\n")
    path = tmp_path / "my_file.py"
    path.write_text(SOURCE)
    return path


def test_a_file_is_run_once_and_again_when_it_changes(file: Path) -> None:
    paths = list(sys.path)
    make = resolve(f"{file}:make_member")
    assert make is resolve(f"{file}:make_member")
    assert resolve(f"{file}:Nets.small")(outputs=2)(torch.zeros(3, 5)).shape == (3, 2)
    assert make((4,), 2)[0].out_features == 7
    assert sys.path == paths
    file.write_text(SOURCE.replace("hidden=SIZE", "hidden=9"))
    assert resolve(f"{file}:make_member")((4,), 2)[0].out_features == 9


def test_a_factory_passes_shape_outputs_and_options(file: Path) -> None:
    make = make_factory(f"{file}:make_member", (4,), 3, hidden=5, normalize=(0.5, 2.0))
    member = pickle.loads(pickle.dumps(make))()
    assert [tuple(p.shape) for p in member.model.parameters()] == [(5, 4), (5,), (3, 5), (3,)]
    assert make_factory(f"{file}:make_fixed", (4,), 3, num_classes=3)().out_features == 3


def test_the_check_of_a_member_changes_nothing_in_it(file: Path) -> None:
    torch.manual_seed(3)
    member = make_factory(f"{file}:make_with_batch_norm", (4,), 2)()
    after = torch.rand(2)
    torch.manual_seed(3)
    plain = resolve(f"{file}:make_with_batch_norm")(2)
    assert torch.equal(after, torch.rand(2))
    assert member.training
    for key, value in plain.state_dict().items():
        assert torch.equal(value, member.state_dict()[key])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("make_member", {"hidden": 2.5}, "failed: .*; pass its arguments as options"),
        ("make_fixed", {}, r"must give \[batch, outputs\] = \(2, 3\).*got \(2, 1000\).*num_cl"),
        ("make_fixed", {"num_classes": 3, "depth": 2}, "unexpected keyword argument 'depth'"),
        ("make_number", {}, "must return an nn.Module, got int"),
    ],
)
def test_a_factory_reports_a_member_that_does_not_fit(
    file: Path, name: str, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_factory(f"{file}:{name}", (4,), 3, **options)()


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (SOURCE, "my_fill.py:make_member", r"no file .*my_fill.py; did you mean 'my_file.py'\?"),
        (SOURCE, "my_file.py:make_membre", "has no 'make_membre'; did you mean 'make_member"),
        (SOURCE, "my_file.py:NUMBER", "must be a function or a class, got int"),
        (SOURCE, "my_file.py:", "an import path is module:name or file.py:name"),
        (
            "import no_such.part",
            "my_file.py:a",
            "running .*failed: .*pip install no_such",
        ),
        ("1 / 0", "my_file.py:a", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_gives_nothing(file: Path, source: str, name: str, message: str) -> None:
    file.write_text(source)
    with pytest.raises(ValueError, match=message):
        resolve(f"{file.parent / name}")


@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        (None, "somevision.models:a", "there is no somevision; `pip install"),
        ("raise RuntimeError('operator nms')", "somevision.models:a", "operator nms; does it fit"),
        ("import no_such", "somevision:a", "there is no no_such; `pip install"),
        ("", "somevision.models:a", "somevision has no module somevision.models"),
        ("", "somevision", "an import path is module:name"),
    ],
)
def test_a_module_that_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, path: str, message: str
) -> None:
    """A package that is missing, half installed, or broken against this torch."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "somevision", raising=False)
    if source is not None:
        (tmp_path / "somevision").mkdir()
        (tmp_path / "somevision" / "__init__.py").write_text(source)
    with pytest.raises(ValueError, match=message):
        resolve(path)
