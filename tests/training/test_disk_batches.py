"""Batches of rows on disk: every row once an epoch, whatever the workers, from any batch on."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import dissensus as ds
from dissensus import data
from dissensus.data import Data, FeatureWriter
from dissensus.ensemble import Ensemble
from dissensus.training import Stopped, disk_batches, fit
from dissensus.training.batches import as_batches
from dissensus.training.run_folder import read_checkpoint
from dissensus.training.step import Trainer
from tests.data.shard_files import jpg, write_parquet, write_pictures, write_tar, write_vectors
from tests.training.problems import same_bits, state

# More workers than cores are no harm here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
KINDS = ("features", "tar", "parquet", "pictures")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 rows of 16 bytes, 3 blocks a window."""
    monkeypatch.setattr(disk_batches, "_BLOCK", 64)
    monkeypatch.setattr(disk_batches, "_WINDOW", 192)


def write_store(folder: Path, rows: int, passes: int = 1) -> Path:
    """Row ``i`` of pass ``p`` is ``(i, i², p, 1)`` of class ``i % 3``."""

    def compute(number: int, start: int, stop: int) -> np.ndarray:
        i = np.arange(start, stop)
        return np.stack([i, i**2, 0 * i + number, 0 * i + 1], 1)

    with FeatureWriter(folder, (4,), dtype="float32", classes="abc") as writer:
        writer.compute("train", rows, np.arange(rows) % 3, compute, passes=passes)
    return folder


def opened(kind: str, folder: Path, rows: int = 32, **options: Any) -> Data:
    """So many training examples of each kind, of which the first number is its own."""
    if kind == "features":
        return data.load(write_store(folder, rows))
    if kind == "pictures":
        write_pictures(folder, {"ant": 25, "bee": rows - 17})
        return data.load(folder, stream=True, size=8, val=0, test=8, **options)
    pytest.importorskip("datasets")
    write = write_vectors if kind == "tar" else write_parquet
    return data.load(write(folder, [15, rows - 7]), **{"val": 0, "test": 8, **options})


def shown(
    train: Any, seed: int = 1, start: int = 0, size: int = 5, workers: int = 0
) -> list[tuple[Tensor, Tensor]]:
    train[0].workers = workers
    found = as_batches(train, size, shuffle=True, device=CPU)
    return [(x, y) for x, y in found.epoch(seed, start) if y is not None]


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_the_same_whatever_the_workers_and_wherever_it_is_taken_up(
    tmp_path: Path, kind: str, workers: int
) -> None:
    train = opened(kind, tmp_path / "data").train
    alone = shown(train)
    assert [len(y) for _, y in alone] == [5] * 6 + [2]
    x, y = (torch.cat(each) for each in zip(*alone, strict=True))
    rows = torch.cat([x.flatten(1), y[:, None].float()], 1)
    wanted = torch.cat([train[0][:].flatten(1), train[1][:, None].float()], 1)
    assert torch.equal(rows.unique(dim=0), wanted.unique(dim=0))  # each with its label
    assert len(rows) == len(wanted) == 32
    train[0].workers = workers  # type: ignore[attr-defined]
    source = as_batches(train, 5, shuffle=True, device=CPU)
    for start in range(0, 7, 2 if workers else 1):  # one after the other by the same processes
        again = list(source.epoch(1, start))
        assert len(again) == len(alone) - start
        for (a, b), (c, d) in zip(again, alone[start:], strict=True):
            assert torch.equal(a, c)
            assert torch.equal(b, d)  # type: ignore[arg-type]
    others = [shown(train, seed)[0][0] for seed in range(2, 6)]
    assert not any(torch.equal(other, alone[0][0]) for other in others)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("rows", [1, 3, 11, 12, 13, 100])
def test_an_epoch_shows_every_row_once(tmp_path: Path, rows: int) -> None:
    batches = as_batches(data.load(write_store(tmp_path / "f", rows)).train, 16, shuffle=True,
                         device=CPU)  # fmt: skip
    found = [torch.stack([a[:, 0].long(), b], 1) for a, b in batches.epoch(3) if b is not None]
    assert sorted(torch.cat(found).tolist()) == [[i, i % 3] for i in range(rows)]
    assert len(batches) == len(found)


@pytest.mark.usefixtures("small_windows")
def test_windows_mix_the_whole_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_batches, "_WINDOW", 640)
    train = data.load(write_store(tmp_path / "f", 2000)).train
    # A batch of 20 out of 10 random blocks reaches over the set: its spread is near that of 20
    # random rows, 577, where rows in turn would have 6.
    order = torch.cat([x[:, 0] for x, _ in shown(train, size=20)])
    assert 500 < order.double().view(-1, 20).std(1).mean() < 620
    firsts = {int(shown(train, seed, size=20)[0][0][0, 0]) // 400 for seed in range(15)}
    assert firsts == {0, 1, 2, 3, 4}  # any part of the set can come first


def test_without_a_shuffle_rows_come_in_turn_in_batches_that_memory_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = opened("features", tmp_path / "f").train
    monkeypatch.setattr(disk_batches, "_NUMBERS", 40)
    plain = [x for x, _ in as_batches(train, 1024, shuffle=False, device=CPU).epoch(0)]
    assert [len(x) for x in plain] == [10, 10, 10, 2]
    assert torch.equal(torch.cat(plain), train[0][:])


def test_an_epoch_uses_one_pass_and_epochs_use_all(tmp_path: Path) -> None:
    batches = as_batches(
        data.load(write_store(tmp_path / "f", 50, passes=3)).train, 16, shuffle=True, device=CPU
    )
    used = [{int(row[2]) for x, _ in batches.epoch(seed) for row in x} for seed in range(20)]
    assert all(len(one) == 1 for one in used)
    assert set.union(*used) == {0, 1, 2}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_example_that_cannot_be_read_is_told_or_left_out(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("datasets")
    samples = [(f"{i:04d}", {"jpg": jpg(10 * i), "cls": b"%d" % (i % 2)}) for i in range(12)]
    samples[7][1]["jpg"] = samples[7][1]["jpg"][:200]
    spec = str(write_tar(tmp_path / "train.tar", samples))
    options = {"size": 8, "val": 0, "test": 0, "workers": workers}
    strict = data.load(spec, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"train\.tar: 0007\.jpg cannot be read as an image.*skip"):
        shown(strict.train, workers=workers)
    loose = data.load(spec, on_error="skip", **options)  # type: ignore[arg-type]
    ens = Ensemble(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), members=2)
    with pytest.warns(UserWarning, match=r"1 examples could not be read.*0007\.jpg"):
        history = fit(ens, loose.train, epochs=1, batch_size=5, progress=False)
    assert history.column("train/examples") == [11]


def test_images_that_are_too_large_are_left_out(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"ant": 4, "bee": 4})  # 32 × 24 pixels
    (tmp_path / "ant" / "wide.jpg").write_bytes(jpg(0, 64))
    options = {"stream": True, "size": 8, "test": 0, "val": 0, "on_error": "skip"}
    found = data.load(tmp_path, max_pixels=1000, **options)
    with pytest.warns(UserWarning, match=r"1 examples could not be read.*wide\.jpg .*max_pixels"):
        assert [len(y) for _, y in shown(found.train, size=9)] == [8]
    found = data.load(tmp_path, max_pixels=80, **options)
    with pytest.raises(ValueError, match=r"no example of batch 0 can be read: .*max_pixels=80"):
        shown(found.train)


def members() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))


@pytest.mark.parametrize("objective", ["ldr", "a2d"])  # with members, or strangers, drawn by chance
def test_training_on_a_set_that_fits_a_window_is_training_in_memory(
    tmp_path: Path, objective: str
) -> None:
    folder = write_store(tmp_path / "f", 150)
    options = {"disagreement": "strangers"} if objective == "a2d" else {}
    trained = []
    for found in (data.load(folder), data.load(folder, in_memory=True)):
        ens = Ensemble(members, 3)
        history = ds.fit(ens, found.train, objective, val=found.train, epochs=3, batch_size=16,
                         progress=False, **options)  # fmt: skip
        predicted = ds.predict(ens, found.train, progress=True)
        trained.append((state(ens), history.epochs, predicted.outputs, predicted.targets))
    (one, told, outputs, targets), (other, known, kept, wanted) = trained
    assert same_bits(one, other)
    assert told == known
    assert torch.equal(outputs, kept)
    assert torch.equal(targets, wanted)  # type: ignore[arg-type]


def test_any_dataset_of_hugging_face_is_trained_on_and_predicted(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    i = np.arange(60)
    columns = {"features": np.stack([i, i**2, 0 * i, 0 * i + 1], 1).tolist(), "label": i % 3}
    own = datasets.Dataset.from_dict(columns).with_format("torch").shuffle(seed=1).select(range(50))
    rows = torch.tensor(own.with_format(None)["features"][:]).float()
    ens = Ensemble(members, 2)
    history = ds.fit(ens, own, val=own, epochs=1, batch_size=8, progress=False)
    assert history.column("train/examples") == [50]
    predicted = ds.predict(ens, own)
    assert torch.equal(predicted.targets, rows[:, 0].long() % 3)  # type: ignore[arg-type]
    torch.testing.assert_close(predicted.outputs, ds.predict(ens, rows).outputs)
    with pytest.raises(ValueError, match="streamed dataset cannot be resumed exactly; load it"):
        ds.fit(ens, own.with_format(None).to_iterable_dataset(), epochs=1)


# ---- stopped in the middle of an epoch ----------------------------------------------------------


def train(folder: Path, found: Data, objective: str = "ldr:active=2", **options: Any) -> Ensemble:
    ens = Ensemble(members, members=3)
    settings = {"batch_size": 3, "epochs": 3, "progress": False, "seed": 4, **options}
    if objective == "a2d":
        settings["disagreement"] = "strangers"
    fit(ens, found.train, objective, out=folder, **settings)
    return ens


def check_same_files(one: Path, two: Path) -> None:
    metrics = [(run / "metrics.jsonl").read_bytes() for run in (one, two)]
    assert metrics[0] == metrics[1]
    assert same_bits(*(load_file(run / "checkpoint.safetensors") for run in (one, two)))


class Enough(Exception):
    """Raised in place of a kill."""


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("kind", ["features", "tar", "parquet"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_at_the_exact_batch(
    tmp_path: Path, kind: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, objective = opened(kind, tmp_path / "data"), {"parquet": "a2d"}.get(kind, "ldr")
    whole = train(tmp_path / "whole", found, objective)
    x: Any = found.train[0]
    x.workers = 0 if kind == "features" else workers
    steps, read = [0], []
    plain, original = Trainer.step, type(x).read

    def counted(self: Any, places: Any) -> Any:
        read.append(len(places))
        return original(self, places)

    def step(self: Any, *given: Any, **named: Any) -> Any:
        steps[0] += 1
        if steps[0] == 11 + 9:  # the ninth batch of the second epoch, of 11
            raise Enough
        return plain(self, *given, **named)

    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(Enough):
        train(tmp_path / "cut", found, objective, checkpoint_every=2)
    kept = read_checkpoint(tmp_path / "cut")
    assert kept is not None
    assert (kept[1]["epoch"], kept[1]["batch"]) == (1, 8)
    monkeypatch.setattr(type(x), "read", counted)
    x.workers = 0  # which may be others than before
    again = train(tmp_path / "cut", found, objective, resume=True, checkpoint_every="1h")
    assert sum(read[:1]) < 32  # what went before is not read again
    assert same_bits(state(again), state(whole))
    check_same_files(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_amid_an_epoch_with_workers(tmp_path: Path) -> None:
    found = opened("parquet", tmp_path / "data", workers=2)
    whole = train(tmp_path / "whole", found)

    def stop(x: Tensor, generator: torch.Generator) -> Tensor:
        stop.calls += 1  # type: ignore[attr-defined]
        if stop.calls == 15:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)
        return x

    stop.calls = 0  # type: ignore[attr-defined]
    with pytest.raises(Stopped, match="stopped in epoch 2 after 4 of 11 batches"):
        train(tmp_path / "cut", found, augment=stop)
    assert same_bits(state(train(tmp_path / "cut", found, resume=True)), state(whole))
