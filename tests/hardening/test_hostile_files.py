"""Hostile files through every reader: a sentence that names the file, or a value; nothing else.

The short part reads each file that the generators of ``hostile.py`` make by hand; the whole, which
is slow, adds damaged versions of good files and counts tries and failures.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dissensus.data.formats import decode_image, read_columns
from dissensus.data.input_files import read_arrays
from dissensus.detection import Detector
from dissensus.files import read_json, read_npy, read_npz, read_safetensors, read_toml
from dissensus.outputs import Predictions
from dissensus.records import read_metrics, read_record
from dissensus.runs import DataSummary, Settings, find_runs
from dissensus.runs.folder import read_hub_config
from dissensus.runs.settings import resolve
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
}


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


@pytest.mark.parametrize("kind", hostile.GENERATORS)
def test_a_hostile_file_is_one_sentence(kind: str, tmp_path: Path) -> None:
    failures = []
    for name, content in hostile.GENERATORS[kind]():
        path = tmp_path / (name if "." in name else f"{name}.{kind}")
        path.write_bytes(content)
        failures += [failure(read, path) for read in READERS[kind]]
    assert not [problem for problem in failures if problem]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.parametrize("kind", READERS)
def test_a_fifo_or_a_folder_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    fifo, folder = tmp_path / f"fifo.{kind}", tmp_path / f"folder.{kind}"
    os.mkfifo(fifo)
    folder.mkdir()
    for read in READERS[kind]:
        if "_inside" not in read.__qualname__ and "read_bytes" not in read.__code__.co_names:
            for path in (fifo, folder):
                with pytest.raises(ValueError, match=path.name):
                    read(path)
    with pytest.raises(ValueError, match=r"not a file to read, but a device|there is no"):
        READERS[kind][0](Path("/dev/zero"))


def damaged_files(folder: Path, each: int) -> Iterator[tuple[str, Path]]:
    """``each`` damaged versions of every kind of good file."""
    for kind, content in hostile.good_files(folder).items():
        rng = random.Random(f"{kind} 0")
        for number, (name, spoilt) in enumerate(islice(hostile.damage("a", content, rng), each)):
            path = folder / f"{name}-{number}.{kind}"
            path.write_bytes(spoilt)
            yield kind, path


@pytest.mark.slow
def test_five_hundred_damaged_files(tmp_path: Path) -> None:
    tries, failures = 0, []
    for kind, path in damaged_files(tmp_path, 75):
        tries += 1
        failures += [problem for read in READERS[kind] if (problem := failure(read, path))]
        path.unlink()
    assert tries >= 500
    assert not failures, f"{len(failures)} of {tries}: {failures[:10]}"
