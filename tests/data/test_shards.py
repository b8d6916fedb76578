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
from hypothesis import given
from hypothesis import strategies as st

from dissensus import data
from dissensus.data import Examples
from dissensus.data.on_disk import index, open_shards
from dissensus.data.on_disk.fields import LabelScan
from dissensus.data.on_disk.order import Blocks, Part, Permutation, Scattered, Windowed, whole
from dissensus.data.on_disk.shards import expand, find_parts
from tests.data.shard_files import (
    jpg,
    npy,
    vectors,
    write_parquet,
    write_pictures,
    write_tar,
    write_vectors,
)


def examples(part: Any) -> Examples:
    assert isinstance(part[0], Examples)
    return part[0]


def pairs(part: Any) -> list[tuple[float, int]]:
    """First number and label of all examples of a part."""
    x, y = part
    return list(zip(x[:][:, 0].tolist(), y[:].tolist(), strict=True))


# ---- orders -------------------------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(0, 2**62))
def test_a_permutation_shows_every_number_once_and_knows_its_place(count: int, seed: int) -> None:
    order = Permutation(count, (seed,))
    numbers = order(np.arange(count))
    assert np.array_equal(np.sort(numbers), np.arange(count))
    assert np.array_equal(order.inverse(numbers), np.arange(count))


def test_every_number_is_equally_likely_at_every_place() -> None:
    count, seeds = 12, 6000
    seen = np.zeros((count, count))
    for seed in range(seeds):
        seen[np.arange(count), Permutation(count, (seed,))(np.arange(count))] += 1
    expected = seeds / count
    chi2 = ((seen - expected) ** 2 / expected).sum()  # of 11² degrees of freedom
    assert chi2 < 121 + 4 * np.sqrt(2 * 121)
    long = Permutation(100_000, (1,))(np.arange(100_000))
    assert abs(np.corrcoef(long[:-1], long[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(long, np.arange(100_000))[0, 1]) < 0.02


@given(st.integers(3, 200), st.integers(0, 99), st.data())
def test_parts_of_a_seed_are_disjoint_and_together_everything(
    count: int, seed: int, draw: st.DataObject
) -> None:
    cut = draw.draw(st.integers(1, count - 1))
    one, two = Part(count, 0, cut, seed), Part(count, cut, count, seed)
    numbers = [part.at(np.arange(len(part))) for part in (one, two)]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(count))
    for part, own in zip((one, two), numbers, strict=True):
        assert part.between(0, count).tolist() == sorted(own.tolist())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 40), st.booleans())
def test_windows_show_every_example_once_and_any_place_can_be_looked_up(
    sizes: list[int], window: int, cut: bool
) -> None:
    count = sum(sizes)
    part = Part(count, count // 3, count, 5) if cut and count > 1 else whole(count)
    blocks = Blocks(np.cumsum(sizes), part)
    order = Windowed(blocks, window, seed=3)
    shown = order.numbers(0, len(part)).tolist()
    assert sorted(shown) == part.between(0, count).tolist()
    for start in range(0, len(part), 7):
        stop = min(start + 5, len(part))
        assert Windowed(blocks, window, 3).numbers(start, stop).tolist() == shown[start:stop]
    assert Windowed(blocks, window, None).numbers(0, len(part)).tolist() == sorted(shown)


def test_windows_mix_the_whole_set_and_files_are_mixed_wholly() -> None:
    ends = np.arange(10, 10_001, 10)
    orders = [Windowed(Blocks(ends, whole(10_000)), 500, 1), Scattered(whole(10_000), 1)]
    for order in orders:
        shown = order.numbers(0, 10_000).reshape(-1, 50)
        # 50 random numbers below 10,000 deviate by 2887; 50 in turn by 14.
        assert 2600 < shown.std(1).mean() < 3000


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
    with pytest.raises(ValueError, match=r"such as other\.tar; name the shards by a pattern"):
        find_parts(tmp_path)


# ---- formats ------------------------------------------------------------------------------------


def test_a_label_out_of_range_is_named() -> None:
    with pytest.raises(ValueError, match="y has the label 2000000; labels are numbers from 0"):
        LabelScan().see(np.array([3, 2_000_000]), "y")


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
    chosen = np.array([7, -1, 3])
    assert torch.equal(tar.train[0][chosen], tar.train[0][:][[7, 39, 3]])
    assert torch.equal(parquet.train[0][5], parquet.train[0][:][5])
    with pytest.raises(IndexError, match="numbers below 40, got 40"):
        tar.train[0][40]


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
    ours = open_shards(spec, size=14, classes="01234")
    assert torch.equal(ours.targets[:], torch.tensor([sample["cls"] for sample in theirs]))
    for x, sample in zip(ours[:], theirs, strict=True):
        # 14 × 256/224 is 16: nothing is resized, the middle is cut out.
        cut = sample["png"][1:15, 1:15].transpose(2, 0, 1)
        assert torch.equal((x * 255).round().byte(), torch.from_numpy(cut.copy()))
    numbers = open_shards(spec, input="seg.npy", target="json:age", task="regression")
    assert numbers.shape == (20, 3)
    assert torch.equal(numbers[:], torch.tensor(np.stack([s["seg.npy"] for s in theirs])))
    assert torch.equal(numbers.targets[:], torch.arange(20)[:, None] / 2)
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
        # Kept rows are in the order of a shuffle, those on disk in that of their paths.
        order = inside.rows[part].argsort()
        assert torch.equal(x[:], kept_x[order])
        assert torch.equal(y[:], kept_y[order])
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
    monkeypatch.setattr("dissensus.data.image_folder._LARGEST", 8 * 3 * 8 * 8 * 5 - 1)
    assert isinstance(data.load(tmp_path, size=8).train[0], Examples)
    assert isinstance(data.load(tmp_path, size=7).train[0], torch.Tensor)
    with pytest.raises(ValueError, match="workers and on_error are for images on disk"):
        data.load(tmp_path, size=7, workers=2)


# ---- the index ----------------------------------------------------------------------------------


def test_the_index_is_built_once_and_again_when_the_data_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []
    original = index._build_index
    monkeypatch.setattr(index, "_build_index", lambda f, b: built.append(f) or original(f, b))
    shards = write_vectors(tmp_path / "shards", [5, 5])
    first = data.load(shards, val=0, test=0)
    again = data.load(shards, val=0, test=0)
    assert len(built) == 1
    assert examples(first.train).digest == examples(again.train).digest
    write_tar(shards / "part-001.tar", vectors(5, 25))
    changed = data.load(shards, val=0, test=0)
    assert (len(built), len(changed.train[0])) == (2, 25)
    assert examples(changed.train).digest != examples(first.train).digest
    (shards / "part-000.tar").write_bytes(b"")
    with pytest.raises(ValueError, match=r"part-000\.tar was cut short since it was indexed"):
        first.train[0][:]
    (built[0] / "index.json").write_text("{")  # a damaged index is made again
    write_vectors(tmp_path / "shards", [5, 5])
    assert len(data.load(shards, val=0, test=0).train[0]) == 10
    pictures = write_pictures(tmp_path / "pictures", {"a": 2, "b": 2})
    assert len(data.load(pictures, val=0, test=0, stream=True).train[0]) == 4
    write_pictures(pictures, {"b": 5})
    assert len(data.load(pictures, val=0, test=0, stream=True).train[0]) == 7


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
        ({"npy": npy([1.0]), "x.npy": npy([1.0]), "cls": b"0"}, {}, "name the input with input="),
        ({"npy": npy([1.0]), "cls": b"0"}, {"target": "json:a"}, "has no field 'json', it has npy"),
        ({"npy": npy([1.0]), "json": b"{"}, {"target": "json:a"}, "cannot be read as JSON"),
        ({"npy": npy([1.0]), "json": b"{}"}, {"target": "json:a"}, "JSON without the key 'a'"),
        ({"npy": npy([1.0]), "cls": b"-1"}, {}, "has the label -1; labels are numbers from 0"),
        ({"npy": npy([np.nan]), "cls": b"0"}, {}, "0001.npy holds NaN or infinite values"),
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
        with pytest.raises(ValueError, match=r"is damaged or cut short|is damaged at byte"):
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
        ({"workers": -1}, "workers must be a whole number of at least 0, got -1"),
        ({"on_error": "ignore"}, "on_error must be 'raise' or 'skip', got 'ignore'"),
        ({"task": "guess"}, "task must be 'classification' or 'regression', got 'guess'"),
        ({"windows": 3}, "has no option 'windows'; did you mean 'window'"),
        ({"test": 9, "val": 0}, "leave none for training"),
    ):
        with pytest.raises(ValueError, match=match):
            data.load(shards, **options)
    parts = tmp_path / "parts"
    write_vectors(parts, [9], "train")
    write_vectors(parts, [4], "test")
    assert [len(x) for x, _ in data.load(parts).splits().values()] == [7, 2, 4]
    with pytest.raises(ValueError, match="has a test part of its own; leave test out"):
        data.load(parts, test=0.5)
    beside = data.load(str(shards / "*.tar"), val_shards=str(parts / "test-*.tar"), test=0)
    assert [len(x) for x, _ in beside.splits().values()] == [9, 4, 0]
    write_tar(parts / "val-000.tar", [("a", {"npy": npy(np.zeros(4)), "cls": b"7"})])
    with pytest.raises(ValueError, match="classes that train has not: 7"):
        data.load(parts)
    assert json.dumps(dict(data.load(shards).preprocessing))  # plain JSON
