"""Examples streamed from disk: the same batches whatever the workers, taken up at any of them."""

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import dissensus as ds
from dissensus import data
from dissensus.data import Data, Examples
from dissensus.ensemble import Ensemble
from dissensus.training import Stopped, fit
from dissensus.training.batches import as_batches
from dissensus.training.run_folder import read_checkpoint
from dissensus.training.step import Trainer
from tests.data.shard_files import jpg, write_parquet, write_pictures, write_tar, write_vectors
from tests.training.problems import same_bits, state

# More workers than cores are no harm here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def opened(kind: str, folder: Path, **options: Any) -> Data:
    """40 examples of each kind, of which 32 train."""
    options = {"val": 0, "test": 8, **options}
    if kind == "pictures":
        write_pictures(folder, {"ant": 20, "bee": 20})
        return data.load(folder, stream=True, size=8, **options)
    write = write_vectors if kind == "tar" else write_parquet
    return data.load(write(folder, [15, 25]), window=12, **options)


def shown(train: Any, seed: int = 1, start: int = 0, size: int = 5) -> list[tuple[Tensor, Tensor]]:
    found = as_batches(train, size, shuffle=True, device=CPU)
    return [(x, y) for x, y in found.epoch(seed, start) if y is not None]


def with_workers(found: Data, workers: int) -> Any:
    assert isinstance(found.train[0], Examples)
    found.train[0].workers = workers
    return found.train


@pytest.mark.parametrize("counts", [(0,), pytest.param((1, 2, 3), marks=pytest.mark.slow)])
@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("kind", ["tar", "parquet", "pictures"])
def test_an_epoch_is_the_same_whatever_the_workers_and_wherever_it_is_taken_up(
    tmp_path: Path,
    kind: str,
    together: int,
    counts: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = 5 * (192 if kind == "pictures" else 4)
    monkeypatch.setattr("dissensus.training.disk_batches._PIECE", together * numbers)
    found = opened(kind, tmp_path / "data")
    alone = shown(found.train)
    assert [len(y) for _, y in alone] == [5] * 6 + [2]
    every = torch.cat([x.flatten(1) for x, _ in alone])
    wanted = found.train[0][:].flatten(1)
    assert torch.equal(every.unique(dim=0), wanted.unique(dim=0))
    assert len(every) == len(wanted) == 32
    for workers in counts:
        train = with_workers(found, workers)
        source = as_batches(train, 5, shuffle=True, device=CPU)
        for start in (0, 4):
            again = list(source.epoch(1, start))  # twice by the same processes
            assert len(again) == len(alone) - start
            for (x, y), (kept_x, kept_y) in zip(again, alone[start:], strict=True):
                assert torch.equal(x, kept_x)
                assert torch.equal(y, kept_y)
    others = [shown(with_workers(found, 0), seed)[0][0] for seed in range(2, 6)]
    assert not any(torch.equal(other, alone[0][0]) for other in others)


@pytest.mark.parametrize("kind", ["tar", "parquet", "pictures"])
def test_examples_can_be_sent_to_a_process_that_was_not_forked(tmp_path: Path, kind: str) -> None:
    train = opened(kind, tmp_path / "data").train
    first = shown(train)[2]  # which leaves files open and row groups held
    sent = pickle.loads(pickle.dumps(train[0]))
    again = shown((sent, sent.targets))[2]
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_a_batch_to_predict_has_no_more_numbers_than_memory_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = opened("tar", tmp_path / "data").train
    monkeypatch.setattr("dissensus.training.disk_batches._NUMBERS", 40)
    plain = as_batches(train, 1024, shuffle=False, device=CPU)
    assert [len(x) for x, _ in plain.epoch(0)] == [10, 10, 10, 2]


def test_a_single_example_left_over_joins_the_batch_before(tmp_path: Path) -> None:
    train = opened("tar", tmp_path / "data", test=9).train  # 31 of them
    assert [len(y) for _, y in shown(train, size=10)] == [10, 10, 11]
    plain = as_batches(train, 10, shuffle=False, device=CPU)
    assert [len(x) for x, _ in plain.epoch(0)] == [10, 10, 10, 1]


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_each_rank_gets_its_share_of_every_batch(tmp_path: Path, kind: str) -> None:
    train = opened(kind, tmp_path / "data").train
    whole = shown(train)
    parts = [shown((train[0].for_rank(rank, 3), train[1])) for rank in range(3)]  # type: ignore[attr-defined]
    assert [len(part) for part in parts] == [len(whole)] * 3
    for number, (x, y) in enumerate(whole):
        for rank in range(3):
            assert torch.equal(parts[rank][number][0], x[rank::3])
            assert torch.equal(parts[rank][number][1], y[rank::3])
    with pytest.raises(ValueError, match="rank must be from 0 to 2, got 3"):
        train[0].for_rank(3, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_example_that_cannot_be_read_is_told_or_left_out(tmp_path: Path, workers: int) -> None:
    samples = [(f"{i:04d}", {"jpg": jpg(10 * i), "cls": b"%d" % (i % 2)}) for i in range(12)]
    samples[7][1]["jpg"] = samples[7][1]["jpg"][:200]
    spec = str(write_tar(tmp_path / "train.tar", samples))
    options = {"size": 8, "val": 0, "test": 0, "workers": workers}
    strict = data.load(spec, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"train\.tar: 0007\.jpg cannot be read as an image.*skip"):
        shown(strict.train)
    loose = data.load(spec, on_error="skip", **options)  # type: ignore[arg-type]
    ens = Ensemble(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), members=2)
    with pytest.warns(UserWarning, match=r"1 examples could not be read.*0007\.jpg"):
        history = fit(ens, loose.train, epochs=1, batch_size=5, progress=False)
    assert history.column("train/examples") == [11]


def test_training_and_prediction_are_those_of_the_same_data_in_memory(tmp_path: Path) -> None:
    """In batches of everything, as the order within one makes a difference of rounding alone."""
    found = opened("parquet", tmp_path / "data", val=8)
    inside = [(x[:], y[:]) for x, y in (found.train, found.val)]

    def trained(train: Any, val: Any) -> tuple[Ensemble, Any]:
        ens = Ensemble(lambda: nn.Linear(4, 3), members=2)
        return ens, fit(ens, train, val=val, epochs=3, batch_size=64, progress=False)

    streamed, history = trained(found.train, found.val)
    kept, kept_history = trained(*inside)
    for name, values in state(streamed).items():
        torch.testing.assert_close(values, state(kept)[name], rtol=1e-4, atol=1e-5)
    assert history.column("val/accuracy") == kept_history.column("val/accuracy")
    predictions = ds.predict(streamed, found.test, progress=True)
    x, y = found.test
    assert torch.equal(predictions.targets, y[:])  # type: ignore[arg-type]
    torch.testing.assert_close(predictions.outputs, ds.predict(streamed, x[:]).outputs)
    assert ds.predict(streamed, x).outputs.shape == (2, 8, 3)


# ---- stopped in the middle of an epoch ----------------------------------------------------------


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))


def train(folder: Path, found: Data, objective: str = "ldr:active=2", **options: Any) -> Ensemble:
    """With an objective that draws members, or one whose strangers are drawn."""
    ens = Ensemble(dropout_net, members=3)
    settings = {"batch_size": 3, "epochs": 3, "progress": False, "seed": 4, **options}
    if objective == "a2d":
        settings["disagreement"] = "strangers"
    fit(ens, found.train, objective, val=found.val, out=folder, **settings)
    return ens


def check_same_files(one: Path, two: Path) -> None:
    metrics = [(run / "metrics.jsonl").read_bytes() for run in (one, two)]
    assert metrics[0] == metrics[1]
    assert same_bits(*(load_file(run / "checkpoint.safetensors") for run in (one, two)))


class Enough(Exception):
    """Raised in place of a kill."""


@pytest.mark.parametrize("kind", ["tar", "parquet"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_goes_on_at_the_exact_batch(
    tmp_path: Path, kind: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dissensus.training.disk_batches._PIECE", 2 * 3 * 4)  # two batches at once
    found, objective = opened(kind, tmp_path / "data", val=6), {"parquet": "a2d"}.get(kind, "ldr")
    whole = train(tmp_path / "whole", found, objective)
    found.train[0].workers = workers  # type: ignore[attr-defined]
    steps, read = [0], []
    original = data.Examples.read

    def counted(self: Any, start: int, *rest: Any) -> Any:
        read.append(start)
        return original(self, start, *rest)

    plain = Trainer.step

    def step(self: Any, *given: Any, **named: Any) -> Any:
        steps[0] += 1
        if steps[0] == 9 + 8:  # the eighth batch of the second epoch, of 9
            raise Enough
        return plain(self, *given, **named)

    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(Enough):
        train(tmp_path / "cut", found, objective, checkpoint_every=2)
    kept = read_checkpoint(tmp_path / "cut")
    assert kept is not None
    assert (kept[1]["epoch"], kept[1]["batch"]) == (1, 6)
    assert json.loads((tmp_path / "cut" / "state.json").read_text())["batch"] == 6
    monkeypatch.setattr(data.Examples, "read", counted)
    found.train[0].workers = 0  # type: ignore[attr-defined]
    again = train(tmp_path / "cut", found, objective, resume=True, checkpoint_every="1h")
    assert read[0] == 6 * 3  # what went before is not read again
    assert same_bits(state(again), state(whole))
    check_same_files(tmp_path / "cut", tmp_path / "whole")


def test_a_first_look_at_the_data_changes_nothing(tmp_path: Path) -> None:
    """``tune`` asks the workers for one batch and leaves the rest."""
    found = opened("parquet", tmp_path / "data", val=6, workers=2)
    stream = as_batches(found.train, 3, shuffle=True, device=CPU)
    first = next(stream.epoch(1))[0]
    again = [x for x, _ in stream.epoch(1)]
    assert len(again) == len(stream)
    assert torch.equal(again[0], first)
    ens = Ensemble(dropout_net, members=3, execution="tune")
    fit(ens, found.train, val=found.val, epochs=1, batch_size=3, progress=False)


@pytest.mark.slow
def test_ctrl_c_amid_an_epoch_with_workers(tmp_path: Path) -> None:
    found = opened("parquet", tmp_path / "data", val=6, workers=2)
    whole = train(tmp_path / "whole", found)

    def stop(x: Tensor, generator: torch.Generator) -> Tensor:
        stop.calls += 1  # type: ignore[attr-defined]
        if stop.calls == 13:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)
        return x

    stop.calls = 0  # type: ignore[attr-defined]
    with pytest.raises(Stopped, match="stopped in epoch 2 after 4 of 9 batches"):
        train(tmp_path / "cut", found, augment=stop)
    assert same_bits(state(train(tmp_path / "cut", found, resume=True)), state(whole))


# One child after the other trains, and kills itself at the batch that it is told.
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import torch
from tests.training.test_example_batches import train
from dissensus import data

torch.set_num_threads(1)
top = Path(sys.argv[1])
for name, kill in [("whole", 0), ("cut", 6), ("cut", 8), ("cut", 0)]:
    child = os.fork()
    if child == 0:
        calls = 0
        def augment(x, generator):
            global calls
            calls += 1
            if calls == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            return x
        found = data.load(top / "data", val=6, test=8, window=12, workers=2)
        train(top / name, found, resume=True, checkpoint_every=2, augment=augment)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    state = json.loads((top / name / "state.json").read_text())
    print(json.dumps([status, state["epoch"], state["batch"]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_kill_9_amid_an_epoch_costs_nothing_but_time(tmp_path: Path) -> None:
    write_vectors(tmp_path / "data", [15, 25])
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    killed = -signal.SIGKILL
    # Of 9 batches an epoch: in the first one at batch 6, in the second at batch 3.
    told = [json.loads(line) for line in run.stdout.splitlines()]
    assert told == [[0, 3, 0], [killed, 0, 4], [killed, 1, 2], [0, 3, 0]]
    check_same_files(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("every", [0, -3, "soon", "0s", True, 1.5])
def test_a_pace_that_makes_no_sense_is_refused(every: Any) -> None:
    with pytest.raises(ValueError, match="checkpoint_every must be batches"):
        ds.Recipe(checkpoint_every=every)
