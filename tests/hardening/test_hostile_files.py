"""Hostile files through every reader: a sentence that names the file, or a value; nothing else.

The short part reads each file that the generators of ``hostile.py`` make by hand; the whole, which
is slow, adds damaged versions of good files and counts tries and failures.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dissensus as ds
from dissensus import data
from dissensus.data.formats import decode_image, read_columns
from dissensus.data.input_files import read_arrays
from dissensus.data.on_disk import open_shards
from dissensus.detection import Detector
from dissensus.export import save_folder
from dissensus.models import make_factory
from dissensus.outputs import Predictions
from dissensus.runs import DataSummary, Settings, find_runs, train
from dissensus.runs.folder import read_hub_config
from dissensus.runs.settings import resolve
from dissensus.tools.files import read_json, read_npy, read_npz, read_safetensors, read_toml
from dissensus.tools.records import read_metrics, read_record
from tests.hardening import hostile

#: More than any of these files may take; a hang or a square in time shows.
SECONDS = 20.0


def _inside(name: str, read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A reader of a folder, in which the hostile file has this name."""

    def reader(path: Path) -> Any:
        folder = path.with_name(f"{path.name}.folder")
        folder.mkdir(exist_ok=True)
        file = folder / name
        file.unlink(missing_ok=True)
        path.rename(file)
        try:
            return read(folder)
        finally:
            file.rename(path)

    return reader


def _read_shards(path: Path, classes: list[str]) -> None:
    examples = open_shards(path, classes=classes)
    assert examples.targets is not None
    _ = examples[:], examples.targets[:]


READERS: dict[str, list[Callable[[Path], Any]]] = {
    "json": [
        read_json,
        read_record,
        lambda path: Detector.load(path, lambda x: x),
        _inside("data.json", DataSummary.read),
        _inside("config.json", read_hub_config),
        _inside("metrics.jsonl", read_metrics),
        _inside("metrics.jsonl", lambda folder: find_runs(folder.parent)),
    ],
    "toml": [
        read_toml,
        lambda path: resolve(Settings(config=path)),
        _inside("config.toml", find_runs),
    ],
    "npy": [read_npy, lambda path: read_npy(path.read_bytes(), str(path))],
    "npz": [
        read_npz,
        Predictions.load,
        lambda path: read_arrays(path, labelled=True),
        lambda path: read_npz(path.read_bytes(), str(path)),
    ],
    "csv": [read_columns],
    "png": [lambda path: decode_image(path, 64)],
    "safetensors": [read_safetensors, Predictions.load],
    "tar": [lambda path: _read_shards(path, ["0", "1"])],
    "parquet": [read_columns, lambda path: _read_shards(path.parent / "*.parquet", ["x", "z"])],
}
IMAGES = ("jpg", "bmp", "webp", "tif")


def failure(read: Callable[[Path], Any], path: Path) -> str:
    """How ``read`` failed to answer as it must; empty if it gave a value or the right error."""
    start = time.monotonic()
    try:
        read(path)
    except ValueError as error:
        if path.name not in str(error) and path.parent.name not in str(error):
            return f"{path.name} is not named: {error}"
    except Exception as error:
        return f"{path.name}: {type(error).__name__}: {error}"
    took = time.monotonic() - start
    return f"{path.name} took {took:.0f} s" if took > SECONDS else ""


def handmade_files(kind: str, folder: Path) -> Iterator[Path]:
    """The files that the generator of a kind makes, one at a time."""
    for name, content in hostile.GENERATORS[kind]():
        path = folder / (name if "." in name else f"{name}.{kind}")
        path.write_bytes(content)
        yield path
        path.unlink()


@pytest.mark.parametrize("kind", hostile.GENERATORS)
def test_a_hostile_file_is_one_sentence(kind: str, tmp_path: Path) -> None:
    files = handmade_files(kind, tmp_path)
    failures = [failure(read, path) for path in files for read in READERS[kind]]
    assert not list(filter(None, failures))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.parametrize("kind", READERS)
def test_a_fifo_or_a_folder_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"special.{kind}"
    own = [read for read in READERS[kind] if "_inside" not in read.__qualname__]
    for make, remove in ((os.mkfifo, os.unlink), (os.mkdir, os.rmdir)):
        make(path)
        for read in own:
            if "read_bytes" not in read.__code__.co_names:
                with pytest.raises(ValueError, match=path.name):
                    read(path)
        remove(path)
    with pytest.raises(ValueError, match=r"not a file to read, but a device|there is no"):
        READERS[kind][0](Path("/dev/zero"))


# ---- appetites ----------------------------------------------------------------------------------


def test_an_array_is_refused_by_its_header(tmp_path: Path) -> None:
    file = tmp_path / "bomb.npz"
    file.write_bytes(hostile.bomb())
    with pytest.raises(ValueError, match=r"bomb\.npz would take 8\.0 GiB.* DISSENSUS_MAX_BYTES"):
        read_npz(file)
    digits = DataSummary("digits", "classification", [1, 8, 8], 10, {})
    with pytest.raises(ValueError, match=r"bomb\.npz must be \[rows, 1, 8, 8\], .* got \(2147"):
        data.read_inputs(file, digits)


def test_the_limit_is_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(100, np.float32))
    monkeypatch.setenv("DISSENSUS_MAX_BYTES", "399")
    with pytest.raises(ValueError, match="set DISSENSUS_MAX_BYTES to more bytes"):
        read_npz(tmp_path / "a.npz")
    monkeypatch.setenv("DISSENSUS_MAX_BYTES", "4e2")
    assert read_npz(tmp_path / "a.npz")["x"].shape == (100,)
    monkeypatch.setenv("DISSENSUS_MAX_BYTES", "much")
    with pytest.raises(ValueError, match="must be a number of bytes, got 'much'"):
        read_npz(tmp_path / "a.npz")


def test_a_table_is_refused_by_its_footer_or_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    hostile.many_rows(tmp_path / "rows.parquet", 1 << 20)
    (tmp_path / "rows.csv").write_text("a,b\n" + "1,2\n" * 10_000)
    monkeypatch.setenv("DISSENSUS_MAX_BYTES", "100000")
    for name in ("rows.parquet", "rows.csv"):
        with pytest.raises(ValueError, match=rf"{name}.* more than the limit"):
            read_columns(tmp_path / name)
    with pytest.raises(
        ValueError, match=r"a row group of 1048576 rows and 2 .* smaller row groups"
    ):
        data.load(str(tmp_path / "r*.parquet"), target="y")


def test_images_that_grow_are_skipped(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(8):
            picture = hostile.png(9, 9, bytes([0] + [30 * number] * 9) * 9)
            (tmp_path / name / f"{number}.png").write_bytes(picture)
    (tmp_path / "a" / "wide.png").write_bytes(hostile.png(60_000, 1, bytes(60_001)))
    with pytest.raises(
        ValueError, match=r"wide.png, scaled .* 4388571 × 73 .* max_pixels=64000000"
    ):
        data.load(tmp_path, size=64)[0]
    skipping = {"stream": True, "on_error": "skip", "size": 64}
    for options in ({}, {"max_pixels": 80}):
        rows = data.load(tmp_path, test=0, val=0, **skipping, **options).train[0]
        read = rows.read(0, len(rows))
        assert len(read.problems) == (1 if not options else 17)
        assert len(read.x) + len(read.problems) == 17


def test_numbers_of_a_config_have_limits(tmp_path: Path) -> None:
    config, table = tmp_path / "config.toml", tmp_path / "table.csv"
    table.write_text("a,b,y\n" + "1,2,x\n2,1,z\n" * 10)
    limits = {
        "members = 10000000": "members must be at most 10000, got 10000000",
        "threads = 1000000": "threads must be from 1 to 1024",
        "model_options = {hidden = 1000000000000}": "cannot be built|parameters for",
        "model_options = {hidden = [100000, 100000]}": "would have 100",
        "model_options = {hidden = 0.5}": "mlp cannot be built with these options",
    }
    for text, sentence in limits.items():
        config.write_text(f'data = "{table}"\ntarget = "y"\n{text}\n')
        with pytest.raises(ValueError, match=sentence):
            train(config=config, out=str(tmp_path / "run"), quiet=True)


@pytest.mark.fuzz
def test_memory_stays_within_the_limit(tmp_path: Path) -> None:
    """In a process of its own that may take 1.5 GB more than it has."""
    pytest.importorskip("resource")
    (tmp_path / "bomb.npz").write_bytes(hostile.bomb())
    (tmp_path / "wide.png").write_bytes(hostile.png(60_000, 1, bytes(60_001)))
    hostile.many_rows(tmp_path / "rows.parquet")
    script = """
import pathlib, resource, sys
from dissensus.data.formats import decode_image, read_columns
from dissensus.tools.files import read_npz
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 1_500_000_000,) * 2)
folder = pathlib.Path(sys.argv[1])
for read, name in ((read_npz, "bomb.npz"), (read_columns, "rows.parquet")):
    try:
        read(folder / name)
    except ValueError as error:
        print(error)
try:
    decode_image(folder / "wide.png", 224)
except ValueError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("\n") == 3, answer.stdout


# ---- many of them -------------------------------------------------------------------------------


def damaged_files(folder: Path, each: int) -> Iterator[tuple[str, Path]]:
    """``each`` damaged versions of every kind of good file, one at a time."""
    good = hostile.good_files(folder)
    (folder / "good.safetensors").unlink()
    for kind, content in good.items():
        rng = random.Random(f"{kind} 0")
        for number, (name, spoilt) in enumerate(islice(hostile.damage("a", content, rng), each)):
            path = folder / f"{name}-{number}.{kind}"
            path.write_bytes(spoilt)
            yield "png" if kind in IMAGES else kind, path
            path.unlink()


@pytest.mark.fuzz
def test_damaged_files_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    tries, failures = 0, []
    for kind, path in damaged_files(tmp_path / "files", 50):
        tries += 1
        failures += [problem for read in READERS[kind] if (problem := failure(read, path))]
    assert tries >= 500
    assert not failures, f"{len(failures)} of {tries}: {failures[:10]}"


@pytest.mark.fuzz
def test_values_of_other_types(tmp_path: Path) -> None:
    make = make_factory("mlp", (4,), 3, hidden=8, normalize=(0.5, 1.0))
    ens = ds.Ensemble(make, members=2)
    detector = ds.Detector(ens, "pds").fit(torch.rand(20, 4))
    save_folder(ens, tmp_path / "hub", make, detector=detector)
    readers: dict[str, Callable[[Path], Any]] = {
        "config.json": lambda file: ds.load(file.parent),
        "detector.json": lambda file: Detector.load(file, ens).is_ood(torch.rand(2, 4)),
    }
    tries, failures = 0, []
    for name, read in readers.items():
        rng, file = random.Random(name), tmp_path / "hub" / name
        content = file.read_bytes()
        for _ in range(100):
            tries += 1
            file.write_bytes(hostile.other_type(".json", content, rng))
            try:
                read(file)
            except ValueError:
                pass
            except Exception as error:
                failures.append(f"{file.read_text()[:2000]}: {error!r}")
    assert not failures, f"{len(failures)} of {tries}: {failures[:3]}"
