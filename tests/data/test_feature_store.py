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


def written(folder: Path, dtype: str = "float16", shard_rows: int = 10, **facts: Any) -> Path:
    with FeatureWriter(
        folder, (6,), dtype=dtype, classes="abc", shard_rows=shard_rows, **facts
    ) as writer:
        writer.add("train", features(), labels())
        writer.add("test", features(8, seed=1), labels(8))
        writer.add("svhn", features(12, seed=2))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


# ---- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "error"), [("float32", 0.0), ("float16", 2**-11)])
def test_what_was_written_is_read(tmp_path: Path, dtype: str, error: float) -> None:
    parts = FeatureStore(written(tmp_path / "store", dtype), verify=True).parts
    x, y = parts["train"]
    assert y is not None
    assert torch.equal(y, torch.from_numpy(labels()))
    assert x.shape == (25, 6)
    assert x[:].dtype is torch.float32
    np.testing.assert_allclose(x[:].numpy(), features(), rtol=error, atol=1e-7)
    assert parts["svhn"][1] is None


@pytest.mark.parametrize(
    "index",
    [
        3,
        -1,
        slice(8, 22),  # over three shards
        slice(30, 40),
        slice(0, 25, 7),
        [24, 0, 11, 11],
        torch.tensor([19, 9, 20]),
        torch.arange(25) % 2 == 0,
    ],
    ids=str,
)
def test_an_index_gives_what_a_tensor_would(tmp_path: Path, index: Any) -> None:
    x, _ = FeatureStore(written(tmp_path / "store", "float32")).parts["train"]
    assert torch.equal(x[index], torch.from_numpy(features())[index])


def test_a_store_is_a_data_set(tmp_path: Path) -> None:
    found = data.load(written(tmp_path / "store", "float32", backbone={"name": "b"}))
    assert repr(found) == (
        "Data('store': classification, (6,), 3 classes; train 25, val 0, test 8, extra svhn)"
    )
    assert isinstance(found.train[0], StoredRows)
    assert found.preprocessing["backbone"] == {"name": "b"}
    in_memory = data.load(tmp_path / "store", in_memory=True)
    for one, other in zip(found.splits().values(), in_memory.splits().values(), strict=True):
        assert isinstance(other[0], torch.Tensor)
        assert torch.equal(one[0][:], other[0])
    with pytest.raises(ValueError, match="has been divided already; leave test out"):
        data.load(tmp_path / "store", test=0.3)


# ---- damage -------------------------------------------------------------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def lengthened(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"12345")


def pickled(file: Path) -> None:
    np.save(file, np.array([print, 1], dtype=object), allow_pickle=True)


def as_npz(file: Path) -> None:
    with file.open("wb") as raw:
        np.savez(raw, x=np.zeros((10, 6), np.float16))


def doubles(file: Path) -> None:
    np.save(file, np.zeros((10, 6)))


def fortran(file: Path) -> None:
    np.save(file, np.asfortranarray(np.zeros((10, 6), np.float16)))


def text(file: Path) -> None:
    file.write_text("not an array")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (Path.unlink, "is missing from the features"),
        (cut, "damaged or cut short"),
        (lengthened, "longer than its header says"),
        (pickled, "damaged or cut short .*Python objects"),
        (as_npz, "damaged or cut short"),
        (text, "damaged or cut short"),
        (doubles, r"must hold float16 \(10, 6\), got float64 \(10, 6\)"),
        (fortran, "must hold float16"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_a_harmed_shard_is_refused(tmp_path: Path, harm: Any, message: str) -> None:
    folder = written(tmp_path / "store")
    harm(folder / "train" / "pass0-00001.npy")
    with pytest.raises(ValueError, match=message):
        FeatureStore(folder)


def test_a_changed_number_is_found_on_request(tmp_path: Path) -> None:
    folder = written(tmp_path / "store")
    file = folder / "train" / "pass0-00001.npy"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(bytes(raw))
    FeatureStore(folder)
    with pytest.raises(ValueError, match=r"pass0-00001\.npy is damaged: its sha256"):
        FeatureStore(folder, verify=True)


def test_a_shard_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    folder = written(tmp_path / "store")
    x, _ = FeatureStore(folder).parts["train"]
    cut(folder / "train" / "pass0-00002.npy")
    with pytest.raises(ValueError, match=r"pass0-00002\.npy is damaged: its sha256"):
        x[:]
    cut(folder / "train" / "pass0-00000.npy")  # which was whole when it was first read
    with pytest.raises(ValueError, match="cut short since it was opened"):
        x[:]


def test_half_written_files_of_a_kill_are_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    half = [folder / ".unfinished.json.0123456789abcdef.part"]
    half[0].write_text("{")
    with FeatureWriter(folder, (6,), classes="abc") as writer:
        half += [folder / "train" / ".pass0-00000.npy.0123456789abcdef.part"]
        half[1].parent.mkdir()
        half[1].write_text("half")
        writer.add("train", features(), labels())
    assert not any(file.exists() for file in half)
    FeatureStore(folder, verify=True)


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "store")
    np.save(folder / "train" / "labels.npy", np.full(25, 3))
    with pytest.raises(ValueError, match="labels from 3 to 3, of 3 classes"):
        FeatureStore(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "its format is not"),
        ({"version": 2}, "version 2 is not known"),
        ({"dtype": "object"}, "dtype must be one of float16, float32"),
        ({"shape": [-6]}, "positive whole numbers"),
        ({"shard_rows": 0}, "positive whole numbers"),
        ({"more": 1}, "unexpected keyword"),
        ({"parts": {"../train": None}}, "damaged or not of this format"),
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


@pytest.mark.parametrize("name", ["../outside", "/etc", "a/b", "..", ".", ""])
def test_no_part_lies_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "store")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["parts"][name] = manifest["parts"].pop("train")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="a part must be named with"):
        FeatureStore(folder)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "store")
    shard = folder / "train" / "pass0-00000.npy"
    shard.rename(tmp_path / "elsewhere.npy")
    shard.symlink_to(tmp_path / "elsewhere.npy")
    with pytest.raises(ValueError, match="leads out of"):
        FeatureStore(folder)


def test_a_folder_without_a_manifest_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no features: there is no manifest.json"):
        FeatureStore(tmp_path)


# ---- writing ------------------------------------------------------------------------------------


class Interrupted(Exception):
    """What stands for a kill."""


def half_written(folder: Path, **facts: Any) -> list[int]:
    """Write until the third shard; returns where the shards that were computed begin."""
    computed: list[int] = []

    def compute(number: int, start: int, stop: int) -> np.ndarray:
        if len(computed) == 2:
            raise Interrupted
        computed.append(start)
        return features()[start:stop]

    with (
        pytest.raises(Interrupted),
        FeatureWriter(folder, (6,), classes="abc", shard_rows=10, **facts) as writer,
    ):
        writer.compute("train", 25, labels(), compute)
    return computed


def test_an_interrupted_store_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    assert half_written(folder) == [0, 10]
    with pytest.raises(ValueError, match="are not finished: run the command"):
        data.load(folder)
    before = (folder / "train" / "pass0-00000.npy").stat().st_mtime_ns
    written(folder)
    assert (folder / "train" / "pass0-00000.npy").stat().st_mtime_ns == before
    assert contents(folder) == contents(written(tmp_path / "unbroken"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone": {"name": "other"}}, 'backbone was {"name": "one"}, now it is {"name": "ot'),
        ({"transform": {"size": 8}}, "transform was {}, now it is"),
        ({"data": {"sha256": "1"}}, "data was {}, now it is"),
        ({"dtype": "float32"}, 'dtype was "float16", now it is "float32"'),
    ],
    ids=str,
)
def test_something_else_is_not_mixed_into_it(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    half_written(tmp_path / "store", backbone={"name": "one"})
    with pytest.raises(ValueError, match=message):
        written(tmp_path / "store", **{"backbone": {"name": "one"}, **change})


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and holds no features"):
        FeatureWriter(tmp_path, (6,))
    finished = written(tmp_path / "store")
    with pytest.raises(ValueError, match=r"there are features in .* already"):
        FeatureWriter(finished, (6,))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.full((4, 6), 1e6), None, "24 features are too large for float16; store them as"),
        (np.full((4, 6), np.nan), None, "hold 24 NaN or infinite"),
        (np.zeros((4, 5)), None, r"must be \(4, 6\), got \(4, 5\)"),
        (np.zeros((0, 6)), None, "at least one row"),
        (np.zeros((4, 6)), np.zeros(4), r"labels must be whole numbers \[4\]"),
        (np.zeros((4, 6)), np.full(4, 3), "labels of train run from 3 to 3, of 3 classes"),
    ],
)
def test_what_cannot_be_stored_is_said(tmp_path: Path, x: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeatureWriter(tmp_path / "store", (6,), classes="abc").add("train", x, y)
