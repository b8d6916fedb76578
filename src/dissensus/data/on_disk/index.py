"""Indexes of data on disk, kept in the user's cache and made again when the data change.

An index is a folder of small files: ``index.json`` with facts and with the size and time of every
shard, and tables from which a single row can be read.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.dataset import cache_folder
from dissensus.tools.files import open_regular, read_json, write_text

_FILE, _FORMAT = "index.json", "dissensus.index/1"

#: Writes tables into a folder and returns the facts and the files and folders to watch.
Build = Callable[[Path], tuple[dict[str, Any], Sequence[Path]]]


class Index:
    """An index: its folder and facts. Data with other files have another ``digest``."""

    def __init__(self, folder: Path, content: Mapping[str, Any]) -> None:
        self.folder, self.facts = folder, content["facts"]
        names = [[Path(name).name, size] for name, size, _ in content["watched"]]
        text = json.dumps([names, self.facts], sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()


def indexed(settings: Mapping[str, Any], build: Build) -> Index:
    """The index with these settings, built if it is missing or the data have changed."""
    key = hashlib.sha256(json.dumps([_FORMAT, settings], sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / "index" / key[:32]
    return Index(folder, _read_if_fresh(folder) or _build_index(folder, build))


def _read_if_fresh(folder: Path) -> dict[str, Any] | None:
    """The content of ``index.json``, if nothing that it watches has changed."""
    try:
        content: dict[str, Any] = read_json(folder / _FILE)
        same = content["watched"] == [_stamp(Path(name)) for name, _, _ in content["watched"]]
        return content if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build_index(folder: Path, build: Build) -> dict[str, Any]:
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.part")
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise ValueError(
            f"cannot keep the index of the data in {folder.parent}: {error}; set XDG_CACHE_HOME to "
            "a folder that can be written"
        ) from error
    try:
        facts, watched = build(part)
        content = {"facts": facts, "watched": [_stamp(path) for path in watched]}
        write_text(part / _FILE, json.dumps(content))
        if folder.exists():  # of data that have changed, or made meanwhile by another
            shutil.rmtree(folder, ignore_errors=True)
        try:
            part.rename(folder)
        except OSError:
            if _read_if_fresh(folder) is None:  # else another process was quicker
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    read: dict[str, Any] = read_json(folder / _FILE)
    return read


def _stamp(path: Path) -> list[Any]:
    status = path.stat()
    return [str(path), 0 if path.is_dir() else status.st_size, status.st_mtime_ns]


class OpenFiles:
    """Pieces of many files, of which only some are open at a time."""

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self.files: OrderedDict[str, IO[bytes]] = OrderedDict()

    def read(self, path: str, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on."""
        try:
            file = self._file(path)
            if hasattr(os, "pread"):  # which leaves the place alone that forked workers share
                data = os.pread(file.fileno(), size, offset)
            else:
                file.seek(offset)
                data = file.read(size) or b""
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        if len(data) < size:
            raise ValueError(f"{path} was cut short since it was indexed")
        return data

    def _file(self, path: str) -> IO[bytes]:
        if path in self.files:
            self.files.move_to_end(path)
            return self.files[path]
        while len(self.files) >= self.limit:
            self.files.popitem(last=False)[1].close()
        self.files[path] = open_regular(path, buffering=0)
        return self.files[path]

    def __del__(self) -> None:
        for file in self.files.values():
            file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """For a worker process: it opens its own."""
        return OpenFiles, (self.limit,)


class TableFile:
    """Rows of numbers on disk, read one by one; ``append`` writes them."""

    def __init__(self, path: Path, dtype: str, width: int) -> None:
        self.path, self.dtype, self.width = path, np.dtype(dtype), width

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows ``[rows, width]`` at the end."""
        with self.path.open("ab") as file:
            file.write(np.ascontiguousarray(rows, dtype=self.dtype).tobytes())

    def __getitem__(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        # Mapped anew for each read: rows do not stay resident, and workers share nothing.
        table = np.memmap(self.path, self.dtype, "r").reshape(-1, self.width)
        return np.array(table[numbers])
