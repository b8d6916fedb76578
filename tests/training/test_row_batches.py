"""Features streamed from disk: every row once an epoch, the same numbers as from memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dissensus as ds
from dissensus.data import FeatureStore, FeatureWriter, StoredRows
from dissensus.training import disk_batches
from dissensus.training.batches import as_batches

CPU = torch.device("cpu")


def store(folder: Path, rows: int, passes: int = 1, shard_rows: int = 64) -> FeatureStore:
    """Row ``i`` of pass ``p`` is ``(i, p, …)``."""

    def compute(number: int, start: int, stop: int) -> np.ndarray:
        x = np.random.default_rng([number, start]).normal(size=(stop - start, 8))
        x[:, 0], x[:, 1] = np.arange(start, stop), number
        return x

    with FeatureWriter(
        folder, (8,), dtype="float32", classes="abcd", shard_rows=shard_rows
    ) as writer:
        writer.compute("train", rows, np.arange(rows) % 4, compute, passes=passes)
    return FeatureStore(folder)


def train_part(opened: FeatureStore) -> tuple[StoredRows, Tensor]:
    x, y = opened.parts["train"]
    assert y is not None
    return x, y


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 rows of 32 bytes, 10 blocks a window."""
    monkeypatch.setattr(disk_batches, "_BLOCK", 128)
    monkeypatch.setattr(disk_batches, "_WINDOW", 1280)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("rows", [1, 3, 39, 40, 41, 300])
def test_an_epoch_shows_every_row_once_with_its_label(tmp_path: Path, rows: int) -> None:
    x, y = train_part(store(tmp_path / "store", rows))
    batches = as_batches((x, y), 16, shuffle=True, device=CPU)
    shown = [torch.stack([a[:, 0].long(), b], 1) for a, b in batches.epoch(3) if b is not None]
    assert sorted(torch.cat(shown).tolist()) == [[i, i % 4] for i in range(rows)]
    assert len(batches) == len(list(batches.epoch(3)))


@pytest.mark.usefixtures("small_windows")
def test_the_order_is_the_seeds_and_mixes_the_whole_set(tmp_path: Path) -> None:
    x, y = train_part(store(tmp_path / "store", 2000))
    batches = as_batches((x, y), 20, shuffle=True, device=CPU)

    def order(seed: int) -> list[int]:
        return torch.cat([a[:, 0] for a, _ in batches.epoch(seed)]).long().tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)
    # A batch of 20 out of 10 random blocks reaches over the set: its spread is near that of 20
    # random rows, 577, where rows in turn would have 6.
    spread = torch.tensor(order(1)).double().view(-1, 20).std(1).mean()
    assert 500 < spread < 620
    firsts = {int(next(batches.epoch(seed))[0][0, 0]) // 400 for seed in range(15)}
    assert firsts == {0, 1, 2, 3, 4}  # any part of the set can come first


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_can_be_taken_up_anywhere(
    tmp_path: Path, shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dissensus.training.batches._PICKED", 300)
    part = train_part(store(tmp_path / "store", 203))
    batches = as_batches(part, 13, shuffle=shuffle, device=CPU)
    whole = list(batches.epoch(5))
    for start in range(len(whole)):
        rest = list(batches.epoch(5, start))
        assert len(rest) == len(whole) - start
        for (a, b), (c, d) in zip(rest, whole[start:], strict=True):
            assert torch.equal(a, c)
            assert torch.equal(b, d)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_windows")
def test_two_epochs_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dissensus.training.batches._PICKED", 1)
    batches = as_batches(train_part(store(tmp_path / "store", 203)), 13, shuffle=True, device=CPU)
    alone = [[a for a, _ in batches.epoch(seed)] for seed in (1, 2)]
    both = zip(batches.epoch(1), batches.epoch(2), strict=True)
    for number, ((a, _), (b, _)) in enumerate(both):
        assert torch.equal(a, alone[0][number])
        assert torch.equal(b, alone[1][number])


def test_in_turn_it_is_the_part_itself(tmp_path: Path) -> None:
    x, y = train_part(store(tmp_path / "store", 150))
    shown = list(as_batches((x, y), 32, shuffle=False, device=CPU).epoch(0))
    assert torch.equal(torch.cat([a for a, _ in shown]), x[:])


def test_an_epoch_uses_one_pass_and_epochs_use_all(tmp_path: Path) -> None:
    part = train_part(store(tmp_path / "store", 50, passes=3))
    batches = as_batches(part, 16, shuffle=True, device=CPU)
    used = [{int(row[1]) for a, _ in batches.epoch(seed) for row in a} for seed in range(20)]
    assert all(len(one) == 1 for one in used)
    assert set.union(*used) == {0, 1, 2}


def members() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 4))


def test_training_on_a_set_that_fits_a_window_is_training_in_memory(tmp_path: Path) -> None:
    found = ds.data.load(store(tmp_path / "store", 150).folder)
    in_memory = ds.data.load(tmp_path / "store", in_memory=True)
    ensembles = []
    for data in (found, in_memory):
        ens = ds.Ensemble(members, 3)
        history = ds.fit(ens, data.train, "ldr", val=data.train, epochs=3, batch_size=16,
                         progress=False)  # fmt: skip
        ensembles.append((ens, history))
    (one, told), (other, known) = ensembles
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert told.epochs == known.epochs
    outputs = [ds.predict(one, data.train) for data in (found, in_memory)]
    assert torch.equal(outputs[0].outputs, outputs[1].outputs)
    assert torch.equal(outputs[0].targets, outputs[1].targets)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_windows")
def test_a_stopped_run_on_stored_features_ends_with_the_same_bits(tmp_path: Path) -> None:
    part = train_part(store(tmp_path / "store", 203, passes=2))
    settings = {"epochs": 3, "batch_size": 16, "progress": False}
    whole = ds.Ensemble(members, 3)
    ds.fit(whole, part, out=tmp_path / "whole", **settings)

    def stop(record: dict[str, object], ens: ds.Ensemble) -> None:
        raise KeyboardInterrupt

    again = ds.Ensemble(members, 3)
    with pytest.raises(KeyboardInterrupt):
        ds.fit(again, part, out=tmp_path / "run", callbacks=[stop], **settings)
    again = ds.Ensemble(members, 3)
    ds.fit(again, part, out=tmp_path / "run", resume=True, **settings)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_strangers_of_streamed_rows_are_those_of_rows_in_memory(tmp_path: Path) -> None:
    folder = store(tmp_path / "store", 90).folder
    trained = []
    for data in (ds.data.load(folder), ds.data.load(folder, in_memory=True)):
        ens = ds.Ensemble(members, 3)
        settings = {"disagreement": "strangers", "epochs": 2, "batch_size": 16, "progress": False}
        ds.fit(ens, data.train, "a2d", **settings)
        trained.append(torch.cat([p.detach().flatten() for p in ens.parameters()]))
    assert torch.equal(*trained)


def test_unlabelled_rows_to_disagree_on_are_streamed(tmp_path: Path) -> None:
    x, y = train_part(store(tmp_path / "store", 60))
    ens = ds.Ensemble(members, 2)
    history = ds.fit(ens, (x, y), "a2d", disagreement=x, epochs=1, progress=False)
    assert history.epochs[0]["train"]["examples"] == 60
