"""Shards and folders on disk: every format, every part, and nothing of a stranger's is run."""

import gc
import io
import json
import pickle
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dissensus import data
from dissensus.data import Examples, OnDisk
from dissensus.data.shards import expand, find_parts, open_shards
from tests.data.shard_files import (
    jpg,
    npy,
    vectors,
    write_parquet,
    write_pictures,
    write_tar,
    write_vectors,
)

datasets = pytest.importorskip("datasets")


def examples(part: Any) -> Examples:
    assert isinstance(part[0], Examples)
    return part[0]


def pairs(part: Any) -> list[tuple[float, int]]:
    """First number and label of all examples of a part."""
    x, y = part
    return list(zip(x[:][:, 0].tolist(), y[:].tolist(), strict=True))


# ---- finding ------------------------------------------------------------------------------------


def test_patterns_and_folders_name_shards(tmp_path: Path) -> None:
    for name in ("train-08.tar", "train-09.tar", "train-10.tar", "val-00.tar", "b/train/x.tar"):
        write_tar(tmp_path / name, vectors(0, 1))
    assert [p.name for p in expand(tmp_path / "train-{08..10}.tar")] == [
        "train-08.tar",
        "train-09.tar",
        "train-10.tar",
    ]
    assert len(expand(f"{tmp_path}/{{train,val}}-*.tar")) == 4
    assert {part: len(own) for part, own in find_parts(tmp_path).items()} == {"train": 3, "val": 1}
    assert [p.name for p in find_parts(tmp_path / "b")["train"]] == ["x.tar"]
    with pytest.raises(ValueError, match=r"there is no shard .*train-11\.tar, which"):
        expand(tmp_path / "train-{10..11}.tar")
    with pytest.raises(ValueError, match="no file fits"):
        expand(tmp_path / "none-*.tar")
    write_tar(tmp_path / "other.tar", vectors(0, 1))
    with pytest.raises(ValueError, match=r"such as other\.tar; name a pattern"):
        find_parts(tmp_path)


# ---- formats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_vectors, write_parquet])
def test_shards_are_divided_without_overlap(tmp_path: Path, write: Any) -> None:
    found = data.load(write(tmp_path / "shards", [23, 40, 7]), seed=3)
    assert (found.task, found.classes, found.input_shape) == (
        "classification",
        ("0", "1", "2"),
        (4,),
    )
    parts = {name: pairs(part) for name, part in found.splits().items()}
    assert {name: len(own) for name, own in parts.items()} == {"train": 45, "val": 11, "test": 14}
    every = sorted(pair for own in parts.values() for pair in own)
    assert every == [(float(i), i % 3) for i in range(70)]
    assert pairs(data.load(tmp_path / "shards", seed=4).test) != parts["test"]


def test_two_formats_of_the_same_data_are_the_same(tmp_path: Path) -> None:
    tar = data.load(write_vectors(tmp_path / "tar", [30, 20]), val=0, test=10)
    parquet = data.load(write_parquet(tmp_path / "parquet", [30, 20]), val=0, test=10)
    assert torch.equal(examples(tar.train)[:], examples(parquet.train)[:])
    assert torch.equal(tar.test[1][:], parquet.test[1][:])
    assert torch.equal(tar.train[0][[7, -1, 3]], tar.train[0][:][[7, 39, 3]])
    assert torch.equal(parquet.train[0][5], parquet.train[0][:][5])
    with pytest.raises(IndexError):
        _ = tar.train[0][40]


def test_what_webdataset_writes_is_what_it_reads(tmp_path: Path) -> None:
    """Both ways: its files are read here as by itself, and its names are divided as it does."""
    webdataset = pytest.importorskip("webdataset")
    pytest.importorskip("PIL")
    generator = np.random.default_rng(0)
    pattern = str(tmp_path / "train-%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=7, verbose=0) as writer:
        for i in range(20):
            pixels = generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            long = "x" * 120 if i == 3 else ""  # a name that needs a header of its own
            writer.write(
                {
                    "__key__": f"some.dir/{long}{i:04d}",
                    "png": pixels,
                    "seg.npy": generator.normal(size=3).astype(np.float32),
                    "cls": i % 5,
                    "json": {"age": i / 2, "who": f"c{i % 2}"},
                }
            )
    shards = sorted(str(path) for path in tmp_path.glob("*.tar"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves a file open
        theirs = list(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"))
        gc.collect()
    spec = tmp_path / "train-{000..002}.tar"
    ours, labels = open_shards(spec, size=14, classes="01234")
    assert torch.equal(labels, torch.tensor([sample["cls"] for sample in theirs]))
    for x, sample in zip(ours[:], theirs, strict=True):
        # 14 × 256/224 is 16: nothing is resized, the middle is cut out.
        cut = sample["png"][1:15, 1:15].transpose(2, 0, 1)
        assert torch.equal((x * 255).round().byte(), torch.from_numpy(cut.copy()))
    numbers, ages = open_shards(spec, input="seg.npy", target="json:age", task="regression")
    assert numbers.shape == (20, 3)
    assert torch.equal(numbers[:], torch.tensor(np.stack([s["seg.npy"] for s in theirs])))
    assert torch.equal(ages, torch.arange(20)[:, None] / 2)
    named = data.load(str(spec), input="seg.npy", target="json:who", val=0, test=0)
    assert named.classes == ("c0", "c1")
    assert named.train[1][:].tolist() == [i % 2 for i in range(20)]


def test_columns_of_a_parquet_shard(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    i = np.arange(12)
    columns = {
        "a": i.astype(np.float64),
        "b": (i * 2).astype(np.int32),
        "town": ["Bonn", "Köln"] * 6,
        "price": i / 4,
        "image": [{"bytes": jpg(20 * n), "path": f"{n}.jpg"} for n in i],
    }
    (tmp_path / "train").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "train" / "0.parquet", row_group_size=5)
    towns = data.load(tmp_path, input=["a", "b"], target="town", val=0, test=0)
    assert towns.classes == ("Bonn", "Köln")
    assert towns.train[0][:].tolist() == [[n, 2 * n] for n in range(12)]
    assert towns.train[1][:].tolist() == [0, 1] * 6
    prices = data.load(tmp_path, input=["a", "b"], target="price", val=0, test=0)
    assert (prices.task, prices.outputs) == ("regression", 1)
    assert prices.train[1][:].flatten().tolist() == [n / 4 for n in range(12)]
    counted = data.load(tmp_path, input="a", target="b", task="regression", val=0, test=0)
    assert counted.train[1][:].dtype == torch.float32
    images = data.load(tmp_path, target="town", size=8, val=0, test=0)
    red = images.train[0][:][:, 0].mean((1, 2)) * 255
    assert (red - torch.arange(12) * 20).abs().max() < 4
    with pytest.raises(ValueError, match="no column 'prize'; it has a, b, town"):
        data.load(tmp_path, target="prize")
    with pytest.raises(ValueError, match="column 'town' is string; an input is one column of"):
        data.load(tmp_path, input="town", target="b")


def test_folders_of_images_are_the_same_from_disk_as_in_memory(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train", {"ant": 9, "bee": 6, "cow": 5})
    write_pictures(tmp_path / "val", {"ant": 2, "cow": 3})
    inside = data.load(tmp_path, size=8, val=0)
    outside = data.load(tmp_path, size=8, val=0, stream=True)
    assert outside.classes == inside.classes == ("ant", "bee", "cow")
    for part in ("train", "test"):
        (x, y), (kept_x, kept_y) = outside.splits()[part], inside.splits()[part]
        assert torch.equal(x[:], kept_x)
        assert torch.equal(y, kept_y)
        assert torch.equal(outside.rows[part], inside.rows[part])
    cut = data.load(tmp_path, size=8, stream=True)
    assert [len(part[0]) for part in cut.splits().values()] == [16, 4, 5]
    write_tar(tmp_path / "train" / "ant.tar", vectors(0, 2))  # what it was unpacked from
    assert len(data.load(tmp_path, size=8, stream=True).train[0]) == 16
    (tmp_path / "val" / "dog").mkdir()
    write_pictures(tmp_path / "val", {"dog": 1})
    with pytest.raises(ValueError, match="has classes that train has not: dog"):
        data.load(tmp_path, stream=True)


def test_a_folder_too_large_for_memory_stays_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pictures(tmp_path, {"ant": 4, "bee": 4})
    monkeypatch.setenv("DISSENSUS_MAX_BYTES", str(8 * 3 * 8 * 8 * 5 - 1))
    assert isinstance(data.load(tmp_path, size=8).train[0], OnDisk)
    assert isinstance(data.load(tmp_path, size=7).train[0], torch.Tensor)
    with pytest.raises(ValueError, match="workers and on_error are for images on disk"):
        data.load(tmp_path, size=7, workers=2)


# ---- tables in Arrow ----------------------------------------------------------------------------


def test_shards_are_read_once_and_again_when_they_change(tmp_path: Path) -> None:
    shards = write_vectors(tmp_path / "shards", [5, 5])
    first = data.load(shards, val=0, test=0)
    made = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.arrow")}
    again = data.load(shards, val=0, test=0)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.arrow")} == made
    assert examples(first.train).digest == examples(again.train).digest
    write_tar(shards / "part-001.tar", vectors(5, 25))
    changed = data.load(shards, val=0, test=0)
    assert len(changed.train[0]) == 25
    assert examples(changed.train).digest != examples(first.train).digest
    part = data.load(shards, test=0)
    assert examples(part.train).digest != examples(changed.train).digest


def test_csv_shards_and_datasets_of_hugging_face(tmp_path: Path) -> None:
    for number in range(2):
        lines = [f"{i},{2 * i},{'ab'[i % 2]}" for i in range(10 * number, 10 * number + 10)]
        (tmp_path / f"part-{number}.csv").write_text("\n".join(["u,v,label", *lines]))
    found = data.load(tmp_path / "part-*.csv", val=0, test=4)
    assert found.classes == ("a", "b")
    x, y = found.train
    assert torch.equal(x[:, 1] if isinstance(x, torch.Tensor) else x[:][:, 1], 2 * x[:][:, 0])
    assert torch.equal(y, x[:][:, 0].long() % 2)

    table = datasets.Dataset.from_dict({"w": np.eye(6).tolist(), "kind": [2, 1, 0, 2, 1, 0]})
    named = table.cast_column("kind", datasets.ClassLabel(names=["x", "z", "a"]))
    parts = datasets.DatasetDict(train=named, validation=named.select([3, 1]))
    found = data.load(parts, target="kind")
    assert found.classes == ("x", "z", "a")
    assert (found.test[0][:].tolist(), found.test[1].tolist()) == (
        np.eye(6)[[3, 1]].tolist(),
        [2, 1],
    )
    assert torch.equal(found.train[0][:], torch.eye(6)[found.rows["train"].sort().values])
    with pytest.raises(ValueError, match="no option 'targets'; did you mean 'target'"):
        data.load(parts, targets="kind")
    with pytest.raises(ValueError, match="the dataset has the splits all, and no train"):
        data.load(datasets.DatasetDict(all=named))
    with pytest.raises(ValueError, match="has the label -1; labels are numbers from 0"):
        data.load(datasets.Dataset.from_dict({"w": [[1.0]], "label": [-1]}))


# ---- what strangers write -----------------------------------------------------------------------


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


def object_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Malice()], dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("fields", "options", "match"),
    [
        ({"pyd": pickle.dumps(Malice()), "cls": b"0"}, {}, "'pyd' is a pickle, which could run"),
        ({"pth": b"x", "cls": b"0"}, {"input": "pth"}, "'pth' is a pickle, which could run code"),
        ({"npy": npy([1.0]), "pkl": pickle.dumps(Malice())}, {"target": "pkl"}, "is a pickle"),
        ({"npy": object_npy(), "cls": b"0"}, {}, "Python objects, which are never loaded"),
        ({"mp4": b"x", "cls": b"0"}, {}, "'mp4' cannot be read; use images"),
        ({"npy": npy([1.0])}, {}, "no field or column for a label; name it with target="),
        ({"npy": npy([1.0]), "x.npy": npy([1.0]), "cls": b"0"}, {}, "set input= and target="),
        ({"npy": npy([1.0]), "cls": b"0"}, {"target": "json:a"}, "has no field 'json', it has npy"),
        ({"npy": npy([1.0]), "json": b"{"}, {"target": "json:a"}, "cannot be read as JSON"),
        ({"npy": npy([1.0]), "json": b"{}"}, {"target": "json:a"}, "JSON without the key 'a'"),
        ({"npy": npy([1.0]), "cls": b"-1"}, {}, "has the label -1; labels are numbers from 0"),
        ({"npy": npy([np.nan]), "cls": b"0"}, {}, "0001.npy must be finite, got 1 NaN"),
        ({"npy": npy([1.0])[:-2], "cls": b"0"}, {}, r"0001\.npy cannot be read as \.npy"),
        ({"jpg": b"no image", "cls": b"0"}, {}, r"0001\.jpg cannot be read as an image"),
        # Pillow would have Ghostscript run it.
        ({"jpg": POSTSCRIPT, "cls": b"0"}, {}, "cannot identify image file"),
    ],
)
def test_samples_that_cannot_be_read_are_told_by_name(
    tmp_path: Path, fields: dict[str, bytes], options: dict[str, Any], match: str
) -> None:
    if "jpg" in fields:
        pytest.importorskip("PIL")
    shard = write_tar(tmp_path / "a.tar", [("0001", fields)])
    with pytest.raises(ValueError, match=match):
        data.load(str(shard), val=0, test=0, **options).train[0][:]


def test_tar_files_that_are_damaged_or_not_plain(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar", vectors(0, 20))
    whole_bytes = shard.read_bytes()
    for cut in (len(vectors(0, 1)) + 700, 5000, 5120 + 100):
        shard.write_bytes(whole_bytes[:cut])
        with pytest.raises(ValueError, match=r"a\.tar .*is damaged"):
            data.load(str(shard))
    broken = bytearray(whole_bytes)
    broken[1024 * 5 : 1024 * 5 + 512] = b"\xff" * 512
    shard.write_bytes(broken)
    with pytest.raises(ValueError, match="damaged"):
        data.load(str(shard))
    with tarfile.open(shard, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.cls"))
    with pytest.raises(ValueError, match=r"a tar without compression .*unpack \.tar\.gz first"):
        data.load(str(shard))
    with tarfile.open(shard, "w") as tar:
        link = tarfile.TarInfo("a.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(ValueError, match=r"'a\.jpg' is a link or device, not a file"):
        data.load(str(shard))


def test_options_are_checked(tmp_path: Path) -> None:
    shards = write_vectors(tmp_path / "shards", [9])
    for options, match in (
        ({"workers": -1}, "workers must be an integer in \\[0, 256\\], got -1"),
        ({"on_error": "ignore"}, "on_error must be one of raise, skip, got 'ignore'"),
        ({"task": "guess"}, "task must be one of classification, regression, got 'guess'"),
        ({"worker": 3}, "has no option 'worker'; did you mean 'workers'"),
        ({"test": 9, "val": 0}, "leave none for training"),
    ):
        with pytest.raises(ValueError, match=match):
            data.load(shards, **options)
    parts = tmp_path / "parts"
    write_vectors(parts, [9], "train")
    write_vectors(parts, [4], "test")
    assert [len(x) for x, _ in data.load(parts).splits().values()] == [7, 2, 4]
    with pytest.raises(ValueError, match="has an official test set, which is kept; leave test out"):
        data.load(parts, test=0.5)
    beside = data.load(str(shards / "*.tar"), val_shards=str(parts / "test-*.tar"), test=0)
    assert [len(x) for x, _ in beside.splits().values()] == [9, 4, 0]
    write_tar(parts / "val-000.tar", [("a", {"npy": npy(np.zeros(4)), "cls": b"7"})])
    with pytest.raises(ValueError, match="classes that train has not: 7"):
        data.load(parts)
    assert json.dumps(dict(data.load(shards).preprocessing))  # plain JSON
