"""Hostile files through every reader: a value, or a sentence that names the file; nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Any

from dissensus.data.column_values import read_columns
from dissensus.data.images import decode_image
from dissensus.data.input_files import read_arrays
from dissensus.data.shards import open_shards
from dissensus.detection import Detector
from dissensus.outputs import Predictions
from dissensus.runs import DataSummary, Settings, find_runs
from dissensus.runs.folder import read_hub_config
from dissensus.runs.settings import resolve
from dissensus.tools.files import read_json, read_npy, read_npz, read_safetensors, read_toml
from dissensus.tools.records import read_metrics, read_record
from tools.fuzz.file_generators import GENERATORS, damage, good_files

Read = Callable[[Path], Any]

#: More than any of these files may take; a hang or a square in time shows.
SECONDS = 20.0


def _inside(name: str, read: Read) -> Read:
    """A reader of a folder, in which the hostile file has this name."""

    def reader(path: Path) -> Any:
        folder = path.with_name(f"{path.name}.folder")
        folder.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        path.rename(folder / name)
        try:
            return read(folder)
        finally:
            (folder / name).rename(path)

    return reader


def _read_shards(path: Path, classes: list[str]) -> None:
    examples, _ = open_shards(path, classes=classes)
    _ = examples[:]


READERS: dict[str, list[Read]] = {
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


def failure(path: Path, content: bytes, readers: list[Read]) -> str:
    """How the readers failed to answer as they must; empty if they did."""
    path.write_bytes(content)
    problems = []
    for number, read in enumerate(readers):
        began = time.monotonic()
        try:
            read(path)
        except ValueError as error:
            if path.name not in str(error) and path.parent.name not in str(error):
                problems.append(f"reader {number} does not name it: {error}")
        except Exception as error:
            problems.append(f"reader {number}: {error!r}")
        if (took := time.monotonic() - began) > SECONDS:
            problems.append(f"reader {number} took {took:.0f} s")
    path.unlink()
    return "; ".join(problems)


def handmade(kind: str) -> Iterator[tuple[str, bytes]]:
    """The files that the generator of a kind makes."""
    for name, content in GENERATORS[kind]():
        yield (name if "." in name else f"{name}.{kind}"), content


def damaged(kind: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Endlessly many damaged versions of a good file."""
    rng = random.Random(f"{kind} 0")
    for number, (name, spoilt) in zip(count(), damage("a", content, rng), strict=False):
        yield f"{name}-{number}.{kind}", spoilt


def cases(folder: Path, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """``count`` files, those of each kind by turns: made by hand, and good ones damaged."""
    kinds = [(kind, handmade(kind)) for kind in GENERATORS]
    kinds += [(kind, damaged(kind, content)) for kind, content in good_files(folder).items()]
    readers = [READERS["png" if kind in IMAGES else kind] for kind, _ in kinds]
    rounds = zip_longest(*(files for _, files in kinds))
    by_turns = chain.from_iterable(zip(each, readers, strict=True) for each in rounds)
    found = ((*file, own) for file, own in by_turns if file is not None)
    for name, content, own in islice(found, count):
        yield name, partial(failure, folder / name, content, own)
