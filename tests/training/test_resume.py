"""A run that was stopped goes on to the bits it would have had: weights, moments, figures, all."""

import json
import os
import signal
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import SGD, NAdam
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from dissensus.ensemble import Ensemble
from dissensus.tools.records import read_record
from dissensus.training import Stopped, TorchSchedule, fit
from tests.training.problems import blobs, dropout_mlp, norm_mlp, state
from tests.training.test_determinism import Noisy, flip

EPOCHS = 5
BATCHES = 4  # of 16 among 60 examples


class Run:
    """A way to train, called anew for each part of a run: nothing is kept in memory."""

    def __init__(
        self,
        make: Callable[[], Ensemble],
        objective: str,
        settings: dict[str, Any],
        train: Callable[[], Any] = lambda: blobs(60),
        extra: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.make, self.objective, self.settings = make, objective, settings
        self.train, self.extra = train, extra

    def __call__(self, out: Path, epochs: int = EPOCHS, **options: Any) -> tuple[Any, Any]:
        ens = self.make()
        settings = {"val": blobs(40, seed=5), "batch_size": 16, "seed": 2, "progress": False}
        settings |= self.settings | self.extra() | options
        history = fit(ens, self.train(), self.objective, out=out, epochs=epochs, **settings)
        return ens, history


def ensemble(make: Callable[[], nn.Module], **options: Any) -> Callable[[], Ensemble]:
    return lambda: Ensemble(make, **{"members": 4, **options})


def unlike() -> Ensemble:
    torch.manual_seed(5)
    return Ensemble.from_members([dropout_mlp(), norm_mlp(), dropout_mlp()])


def noisy() -> Any:
    return DataLoader(Noisy(), 16, shuffle=True)


dropped = ensemble(dropout_mlp)
RUNS = {
    "adam, dropout, drawn members": Run(
        dropped, "ldr:active=2", {"augment": flip, "optimizer": "adam:lr=0.03"}
    ),
    "sgd, momentum, schedule, patience, freezing": Run(
        ensemble(norm_mlp, members=3, execution="looped"),
        "independent",
        {
            "optimizer": "sgd:lr=0.3/0.5/0.9,nesterov=true,weight_decay=1e-3",
            "schedule": "multistep:at=1.5/3,warmup=0.5",
            "patience": 3,
            "freeze_patience": 1,
            "exact_train": True,
        },
    ),
    "loader with transforms": Run(dropped, "joint", {}, noisy),
    "unlabelled loader": Run(dropped, "a2d", {}, extra=lambda: {"disagreement": noisy()}),
    "strangers": Run(dropped, "a2d", {"disagreement": "strangers"}),
    # Products of matrices depend, in their last bits, on where in memory a batch lies.
    "rows of an odd length": Run(
        ensemble(lambda: nn.Linear(13, 3), execution="looped"),
        "joint",
        {"batch_size": 15, "val": None},
        lambda: blobs(60, features=13),
    ),
    "lower precision": Run(dropped, "joint", {"amp": True}),
    "unlike members": Run(unlike, "learner_dropout:drop=0.4/joint", {"clip": 0.1}),
    "own batches": Run(dropped, "independent", {"shuffle": "members", "bootstrap": True}),
    "shared weights": Run(ensemble(dropout_mlp, sharing="adapters"), "ldr:active=2", {}),
    "shared weights, optimizer of torch": Run(
        ensemble(norm_mlp, sharing="adapters"), "joint", {"optimizer": NAdam}
    ),
    "schedule of torch by epochs": Run(
        unlike,
        "learner_dropout:drop=0.4/joint",
        {"optimizer": "adam:lr=0.5", "schedule": lambda o: ReduceLROnPlateau(o, patience=0)},
    ),
    "schedule of torch by batches": Run(
        dropped,
        "learner_dropout:drop=0.5/joint",
        {
            "optimizer": lambda p: SGD([{"params": p[:1]}, {"params": p[1:]}], 0.1, 0.9),
            "schedule": TorchSchedule(lambda o: OneCycleLR(o, 0.3, total_steps=99), "batch"),
        },
    ),
}
every_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def result(out: Path, ens: Ensemble, history: Any) -> dict[str, Any]:
    """All that a run leaves, without times."""
    record = read_record(out / "record.json")
    for key in ("seconds", "environment"):
        del record[key]
    return {
        "weights": {name: tensor.tolist() for name, tensor in state(ens).items()},
        "checkpoint": {n: t.tolist() for n, t in load_file(out / "checkpoint.safetensors").items()},
        "metrics": (out / "metrics.jsonl").read_text(),
        "history": (history.epochs, history.best_epoch, history.ended, history.execution),
        "record": record,
        "config": tomllib.loads((out / "config.toml").read_text()),
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Run], dict[str, Any]]:
    known: dict[int, dict[str, Any]] = {}

    def get(run: Run) -> dict[str, Any]:
        if id(run) not in known:
            out = tmp_path_factory.mktemp("whole")
            known[id(run)] = result(out, *run(out))
        return known[id(run)]

    return get


@every_run
def test_training_longer_is_going_on(run: Run, tmp_path: Path, uninterrupted: Any) -> None:
    run(tmp_path, epochs=2)
    got = result(tmp_path, *run(tmp_path, resume=True))
    wanted = uninterrupted(run)
    assert got == wanted
    again = result(tmp_path, *run(tmp_path, resume=True))  # of a run that is complete
    assert again == wanted


class Interrupt:
    """An augmentation that presses Ctrl-C in the batch of this number, once."""

    def __init__(self, batch: int, inner: Any = None, number: int = signal.SIGINT) -> None:
        self.left, self.inner, self.number = batch, inner, number

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.left == 0:
            os.kill(os.getpid(), self.number)
        self.left -= 1
        return x if self.inner is None else self.inner(x, generator)


@every_run
@pytest.mark.parametrize("batch", [5, *(pytest.param(b, marks=pytest.mark.slow) for b in (0, 7))])
def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(
    run: Run, batch: int, tmp_path: Path, uninterrupted: Any
) -> None:
    """In the first, a middle and the last batch of an epoch; figures of the epoch included."""
    inner = run.settings.get("augment")
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    epoch, done = batch // BATCHES + 1, batch % BATCHES + 1
    text = f"stopped in epoch {epoch} after {done} of {BATCHES} batches; saved, go on with resume="
    number = signal.SIGTERM if batch == 7 else signal.SIGINT
    with pytest.raises(Stopped, match=text) as caught:
        run(tmp_path, augment=Interrupt(batch, inner, number))
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert result(tmp_path, *run(tmp_path, resume=True)) == uninterrupted(run)


def test_figures_that_are_judged_in_parts_are_interrupted_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Any
) -> None:
    run = RUNS["loader with transforms"]
    monkeypatch.setattr("dissensus.training.evaluation.KEPT", 500)  # three of the four batches
    whole = result(tmp_path / "whole", *run(tmp_path / "whole"))
    for record, at_once in zip(whole["history"][0], uninterrupted(run)["history"][0], strict=True):
        for name, value in record["train"].items():
            assert value == pytest.approx(at_once["train"][name], rel=1e-6)
    for batch in (5, 6, 7):
        out = tmp_path / str(batch)
        with pytest.raises(Stopped):
            run(out, augment=Interrupt(batch))
        assert result(out, *run(out, resume=True)) == whole


class Falling:
    """Batches whose workers get the Ctrl-C as well and are gone when the next one is asked for."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(DataLoader(TensorDataset(*blobs(60)), 16)):
            if number == self.at:
                os.kill(os.getpid(), signal.SIGINT)
                raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")
            yield batch


@pytest.mark.parametrize("at", [0, 2])
def test_workers_that_fall_to_the_same_ctrl_c_cost_nothing(at: int, tmp_path: Path) -> None:
    run = Run(dropped, "joint", {}, lambda: Falling(99))
    whole = result(tmp_path / "whole", *run(tmp_path / "whole"))
    with pytest.raises(Stopped, match=f"stopped in epoch 1 after {at} of 4 batches"):
        Run(dropped, "joint", {}, lambda: Falling(at))(tmp_path / "run")
    assert result(tmp_path / "run", *run(tmp_path / "run", resume=True)) == whole


def test_more_patience_takes_up_a_run_that_had_ended(tmp_path: Path) -> None:
    settings = {"optimizer": "adam:lr=0.2"}
    run = Run(dropped, "joint", settings)
    _, short = run(tmp_path / "a", epochs=30, patience=1)
    assert short.ended == "patience"
    again = run(tmp_path / "a", epochs=30, patience=1, resume=True)[1]
    assert again.epochs == short.epochs
    patient = result(tmp_path / "a", *run(tmp_path / "a", epochs=30, patience=4, resume=True))
    whole = result(tmp_path / "b", *run(tmp_path / "b", epochs=30, patience=4))
    assert patient == whole
    assert len(whole["history"][0]) > len(short.epochs)


def test_what_tuning_chose_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(faster: str) -> None:
        found = {"stacked": 1.0, "looped": 1.0} | {faster: 0.5}
        monkeypatch.setattr("dissensus.ensemble.module.measure", lambda run: found)

    measured("looped")
    tuned = Run(lambda: Ensemble(norm_mlp, members=2, execution="tune"), "joint", {})
    ens, _ = tuned(tmp_path, epochs=1)
    measured("stacked")
    _, history = tuned(tmp_path, epochs=2, resume=True)
    assert history.execution == "looped"
    assert read_record(tmp_path / "record.json")["execution"] == "looped"
    settings = {"val": blobs(40, seed=5), "batch_size": 16, "seed": 2, "progress": False}
    fit(ens, blobs(60), "joint", out=tmp_path, resume=True, epochs=3, **settings)  # the same object


def test_the_folder_holds_what_the_design_says(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "a"
    run = RUNS["adam, dropout, drawn members"]
    config = {"data": {"name": "blobs"}, "ensemble": {"model": "mlp"}, "note": "x"}
    _, history = run(out, config=config)
    assert sorted(path.name for path in out.iterdir()) == [
        "checkpoint.previous.safetensors",
        "checkpoint.safetensors",
        "config.toml",
        "metrics.jsonl",
        "record.json",
        "state.json",
    ]
    written = tomllib.loads((out / "config.toml").read_text())
    assert written["note"] == "x"
    assert written["data"] == {"name": "blobs"}
    assert written["ensemble"] == {
        "model": "mlp",
        "members": 4,
        "combine": "probability",
        "execution": "auto",
    }
    assert written["training"]["objective"] == "ldr"
    assert written["training"]["epochs"] == EPOCHS
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == history.epochs
    assert json.loads((out / "state.json").read_text())["epoch"] == len(history.epochs)
    record = read_record(out / "record.json")
    assert record["best"] == history.epochs[history.best_epoch - 1]
    assert record["seed"] == 2
    run(out, resume=True, epochs=EPOCHS + 1)  # without config=: what was written stays
    written["training"]["epochs"] += 1
    assert tomllib.loads((out / "config.toml").read_text()) == written
