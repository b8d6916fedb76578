"""Features on disk: whole or refused, never executed, and given back as they were."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dissensus import data
from dissensus.data import FeatureStore, FeatureWriter, StoredRows


def features(rows: int = 25, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 6)).astype(np.float32)


def labels(rows: int = 25) -> np.ndarray:
    return np.arange(rows) % 3


def written(folder: Path, dtype: str = "float16", **facts: Any) -> Path:
    with FeatureWriter(folder, (6,), dtype=dtype, classes="abc", **facts) as writer:
        writer.add("train", features(), labels())
        writer.add("test", features(8, seed=1), labels(8))
        writer.add("svhn", features(12, seed=2))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


# ---- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "error"), [("float32", 0.0), ("float16", 2**-11)])
def test_a_store_is_a_data_set_of_what_was_written(
    tmp_path: Path, dtype: str, error: float
) -> None:
    found = data.load(written(tmp_path / "store", dtype, backbone={"name": "b"}), verify=True)
    assert repr(found) == (
        "Data('store': classification, (6,), 3 classes; train 25, val 0, test 8, extra svhn)"
    )
    x, y = found.train
    assert isinstance(x, StoredRows)
    assert x[:].dtype is torch.float32
    np.testing.assert_allclose(x[:].numpy(), features(), rtol=error, atol=1e-7)
    assert torch.equal(y, torch.from_numpy(labels()))
    assert found.extra["svhn"][1] is None
    assert found.preprocessing["backbone"] == {"name": "b"}
    in_memory = data.load(tmp_path / "store", in_memory=True)
    for one, other in zip(found.splits().values(), in_memory.splits().values(), strict=True):
        assert isinstance(other[0], torch.Tensor)
        assert torch.equal(one[0][:], other[0])
    with pytest.raises(ValueError, match="has been divided already; leave test out"):
        data.load(tmp_path / "store", test=0.3)


@pytest.mark.parametrize(
    "index",
    [3, -1, slice(8, 22), slice(30, 40), slice(0, 25, 7), [24, 0, 11, 11],
     torch.tensor([19, 9, 20]), torch.arange(25) % 2 == 0],
    ids=str,
)  # fmt: skip
def test_an_index_gives_what_a_tensor_would(tmp_path: Path, index: Any) -> None:
    x, _ = FeatureStore(written(tmp_path / "store", "float32")).parts["train"]
    assert torch.equal(x[index], torch.from_numpy(features())[index])
    with pytest.raises(IndexError):
        _ = x[25]


# ---- damage -------------------------------------------------------------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def linked(file: Path) -> None:
    outside = file.rename(file.parents[2] / "elsewhere.npy")
    file.symlink_to(outside)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (Path.unlink, "there is no file"),
        (cut, r"pass0.npy cannot be read as .npy: it is damaged, cut short"),
        (lambda file: np.save(file, np.array([print, 1], object)), "which are never loaded"),
        (lambda file: file.write_text("not an array"), "cannot be read as .npy"),
        (lambda file: np.save(file, np.zeros((10, 6))), "must hold features or labels, got float6"),
        (lambda file: np.save(file, np.zeros((25, 7), "f2")), "test are of another form"),
        (lambda file: file.rename(file.parents[1] / "x"), "there is no file"),
        (linked, "leads out of"),
    ],
)
def test_a_harmed_file_is_refused(tmp_path: Path, harm: Any, message: str) -> None:
    folder = written(tmp_path / "store")
    harm(folder / "train" / "pass0.npy")
    with pytest.raises(ValueError, match=message):
        FeatureStore(folder)
    np.save(folder / "test" / "labels.npy", np.full(8, 3))
    (folder / "train" / "pass0.npy").unlink(missing_ok=True)
    np.save(folder / "train" / "pass0.npy", features().astype("f2"))
    with pytest.raises(ValueError, match="must be whole numbers below 3, got int64 3 to 3"):
        FeatureStore(folder)


def test_a_changed_number_is_found_on_request_and_a_cut_while_reading(tmp_path: Path) -> None:
    folder = written(tmp_path / "store")
    file = folder / "train" / "pass0.npy"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(bytes(raw))
    x, _ = FeatureStore(folder).parts["train"]
    with pytest.raises(ValueError, match=r"pass0\.npy is damaged: its checksum"):
        FeatureStore(folder, verify=True)
    cut(file)
    with pytest.raises(ValueError, match=r"pass0\.npy cannot be read as \.npy: .*cut short"):
        _ = x[:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is not of the format"),
        ({"files": [1]}, "files must be a mapping"),
        ({"files": {"../outside/pass0.npy": 1}}, "leads out of its folder"),
        ({"files": {"/etc/pass0.npy": 1}}, "leads out of its folder"),
        ({"files": {"a/passwd": 1}}, "leads out of its folder"),
    ],
    ids=str,
)
def test_a_foreign_manifest_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = written(tmp_path / "store")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(ValueError, match=message):
        FeatureStore(folder)


# ---- writing ------------------------------------------------------------------------------------


class Interrupted(Exception):
    """What stands for a kill."""


def half_written(folder: Path, stop: int = 2, **facts: Any) -> list[int]:
    """Write until chunk ``stop``; returns where the chunks that were computed begin."""
    computed: list[int] = []

    def compute(number: int, start: int, end: int) -> np.ndarray:
        if len(computed) == stop:
            raise Interrupted
        computed.append(start)
        return features()[start:end]

    try:
        with FeatureWriter(folder, (6,), classes="abc", **facts) as writer:
            writer.compute("train", 25, labels(), compute, chunk=10)
            writer.add("test", features(8, seed=1), labels(8))
            writer.add("svhn", features(12, seed=2))
    except Interrupted:
        pass
    return computed


def test_an_interrupted_store_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    assert half_written(folder) == [0, 10]
    with pytest.raises(ValueError, match="are not finished: run the command again"):
        data.load(folder)
    halves = [folder / ".unfinished.json.0123456789abcdef.part", folder / "train" / ".labels.part"]
    for half in halves:  # of a kill amid a file
        half.write_text("half")
    assert half_written(folder, 9) == [20]
    assert not any(half.exists() for half in halves)
    assert contents(folder) == contents(written(tmp_path / "unbroken"))


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and holds no features"):
        written(tmp_path)
    finished = written(tmp_path / "store")
    with pytest.raises(ValueError, match=r"there are features in .* already"):
        written(finished)


@pytest.mark.parametrize(
    ("name", "x", "y", "message"),
    [
        ("train", np.full((4, 6), 1e6), None, "too large for float16; store them as float32"),
        ("train", np.full((4, 6), np.nan), None, "features must be finite, got 24 NaN"),
        ("train", np.zeros((4, 5)), None, r"features must be .* = \(4, 6\), got \(4, 5\)"),
        ("train", np.zeros((0, 6)), None, "rows must be an integer of at least 1, got 0"),
        ("train", np.zeros((4, 6)), np.zeros(4), "labels of train must be whole numbers below 3"),
        ("train", np.zeros((4, 6)), np.full(4, 3), "below 3, got int64 3 to 3"),
        ("../outside", np.zeros((4, 6)), None, "a part needs a new name of letters"),
    ],
)
def test_what_cannot_be_stored_is_said(
    tmp_path: Path, name: str, x: Any, y: Any, message: str
) -> None:
    store = FeatureWriter(tmp_path / "store", (6,), classes="abc")
    with pytest.raises(ValueError, match=message), store as writer:
        writer.add(name, x, y)
