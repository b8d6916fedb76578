"""Splits: seeded, disjoint, complete; Data refuses what does not fit together."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dissensus.data import HELD_OUT, data_places, load, split_rows
from dissensus.data.dataset import Data

OFFLINE = ["digits", "breast_cancer", "wine", "diabetes"]


@given(
    count=st.integers(10, 300),
    val=st.one_of(st.just(0), st.floats(0.1, 0.45), st.integers(1, 3)),
    test=st.one_of(st.just(0), st.floats(0.1, 0.45), st.integers(1, 3)),
    seed=st.integers(0, 2**31),
)
def test_every_row_is_in_exactly_one_part(count: int, val: float, test: float, seed: int) -> None:
    parts = split_rows(count, val=val, test=test, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    again = split_rows(count, val=val, test=test, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize(
    ("count", "val", "test", "message"),
    [
        (10, 0.2, 1.5, r"test must be a share below 1 or a whole number, got 1.5"),
        (10, -0.1, 0.2, "val must be a share below 1 or a number of rows, got -0.1"),
        (10, True, 0.2, "val must be a share below 1 or a number of rows, got True"),
        (10, float("nan"), 0.2, "val must be a share"),
        (10, 5, 5, "test=5 and val=5 of 10 rows leave none for training"),
        (3, 0.1, 0.2, "val=0.1 of 2 rows is none; raise it, or set it to 0"),
    ],
)
def test_impossible_splits(count: int, val: float, test: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_rows(count, val=val, test=test)


@pytest.mark.parametrize("name", OFFLINE)
def test_loaded_splits_are_disjoint_and_seeded(name: str) -> None:
    one, same, other = load(name, seed=3), load(name, seed=3), load(name, seed=4)
    rows = torch.cat([one.rows[part] for part in ("train", "val", "test")])
    assert len(rows.unique()) == len(rows) == sum(len(x) for x, _ in one.splits().values())
    for part, (x, y) in one.splits().items():
        assert len(x) == len(one.rows[part])
        assert torch.equal(x, same.splits()[part][0])
        assert torch.equal(y, same.splits()[part][1])
    assert not torch.equal(one.rows["train"], other.rows["train"])
    assert one.train[0].dtype == torch.float32
    assert one.input_shape == tuple(one.train[0].shape[1:])


def test_digits_are_the_pixels_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    data = load("digits", seed=5)
    for part, (x, y) in data.splits().items():
        rows = data.rows[part].numpy()
        torch.testing.assert_close(x[:, 0] * 16, torch.tensor(bunch.images[rows]).float())
        assert np.array_equal(y.numpy(), bunch.target[rows])
    assert data.outputs == 10
    assert data.classes == tuple("0123456789")


def test_data_refuses_what_does_not_fit() -> None:
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    empty = (x[:0], y[:0])
    rows = {"train": torch.tensor([0, 1, 2]), "test": torch.tensor([2])}
    with pytest.raises(ValueError, match="a row is in more than one split"):
        Data("toy", "classification", (x, y), empty, (x[:1], y[:1]), rows=rows)
    with pytest.raises(ValueError, match="train has 3 inputs and 2 targets"):
        Data("toy", "classification", (x, y[:2]), empty, empty)
    with pytest.raises(ValueError, match="no rows are left for training"):
        Data("toy", "classification", empty, empty, empty)
    with pytest.raises(ValueError, match="train inputs hold 6 NaN"):
        Data("toy", "classification", (x * float("nan"), y), empty, empty)
    with pytest.raises(ValueError, match="task must be"):
        Data("toy", "ranking", (x, y), empty, empty)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, r"no data set 'digit'; did you mean 'digits'\?"),
        ("wine", {"target": "y"}, "'wine' has no option 'target'"),
        ("digits", {"limit": 3}, "'digits' has no option 'limit'; it has none"),
        ("abalone", {"limits": 3}, r"no option 'limits'; did you mean 'limit'\?"),
    ],
)
def test_unknown_names_and_options(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(name, **options)


# ---- held-out classes ---------------------------------------------------------------------------


def test_every_row_is_either_kept_or_held_out() -> None:
    whole = load("digits", seed=3)
    part = load("digits", seed=3, hold_out="2,7")
    assert part.classes == ("0", "1", "3", "4", "5", "6", "8", "9")
    strange, labels = part.extra[HELD_OUT]
    assert labels is None
    held = 0
    for name, (x, y) in whole.splits().items():
        kept = (y != 2) & (y != 7)
        held += int((~kept).sum())
        inputs, targets = part.splits()[name]
        assert torch.equal(inputs, x[kept])
        # The same digit, by its name.
        assert [part.classes[i] for i in targets] == [whole.classes[i] for i in y[kept]]
        assert torch.equal(part.rows[name], whole.rows[name][kept])
    assert len(strange) == held
    assert "classes held out: 2, 7" in part.preprocessing["notes"]


@pytest.mark.parametrize(
    ("name", "classes", "message"),
    [
        ("digits", "8,ten", "no class 'ten'; known are 0, 1"),
        ("wine", ["class_0", "class_1"], "must name a class and leave two"),
        ("wine", [], "must name a class and leave two"),
        ("diabetes", "1", "is a regression"),
    ],
)
def test_what_cannot_be_held_out_is_said(name: str, classes: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(name, hold_out=classes)  # type: ignore[arg-type]


# ---- places and packages ------------------------------------------------------------------------


def test_where_data_sets_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "cache" / "dissensus" / "data"
    monkeypatch.delenv("DISSENSUS_DATA", raising=False)
    assert data_places() == (own,)
    monkeypatch.setenv("DISSENSUS_DATA", str(tmp_path / "none"))
    assert data_places() == (tmp_path / "none", own)
    assert data_places(tmp_path / "mine") == (tmp_path / "mine",)
    (tmp_path / "second").mkdir()
    listed = [tmp_path / "none", tmp_path / "second"]  # of a list, those that exist
    monkeypatch.setenv("DISSENSUS_DATA", os.pathsep.join([*map(str, listed), ""]))
    assert data_places() == (tmp_path / "second", own)


@pytest.mark.parametrize(
    ("package", "file", "install"),
    [
        ("PIL", "folder/cat/a.png", "pip install pillow"),
        ("pyarrow", "t.parquet", r'pip install "dissensus\[tables\]"'),
        ("datasets", "a.tar", r'pip install "dissensus\[disk\]"'),
    ],
)
def test_without_a_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, file: str, install: str
) -> None:
    (tmp_path / "folder" / "cat").mkdir(parents=True)
    (tmp_path / file).write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    options = {"val": 0, "test": 0} if package == "PIL" else {"target": "a"}
    with pytest.raises(ValueError, match=f"which is not installed: {install}"):
        load(tmp_path / file.partition("/")[0], **options)
