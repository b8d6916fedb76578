"""Feature stores: folders of memory-mapped ``.npy`` files that ``dissensus features`` makes.

Part ``train`` has ``train/labels.npy`` and, for each pass over augmented inputs, one array
``train/pass0.npy``, ``train/pass1.npy`` and so on. ``manifest.json`` has the files' checksums and
says where they come from. While a store is written, ``unfinished.json`` stands in its place and
counts the rows of each file that are done, so that a kill costs the last few rows alone.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dissensus.data.dataset import PARTS, Data, OnDisk, Request, Rows
from dissensus.tools.files import (
    LOCK,
    check_regular,
    damaged,
    lock_folder,
    read_json,
    remove_parts,
    replace_atomically,
    write_text,
)
from dissensus.tools.guards import check_finite, check_shape
from dissensus.tools.specs import check_choice, check_integer

MANIFEST, UNFINISHED = "manifest.json", "unfinished.json"

#: How features can be stored.
DTYPES = ("float16", "float32")

_FORMAT = "dissensus-features/2"
_SCHEMA = {"format": str, "classes": [str], "files": {str: int}}
_FILE = re.compile(r"(\w[\w.+-]{0,99})/(pass[0-9]+|labels)\.npy", re.ASCII)  # leads nowhere else

Compute = Callable[[int, int, int], NDArray[Any]]


class StoredRows(OnDisk):
    """The rows ``[rows, *shape]`` of one part; ``files`` are its passes, augmented copies."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files, self.number = list(files), 0
        arrays = [_map(file) for file in files]
        self.shape, self.stored = torch.Size(arrays[0].shape), arrays[0].dtype
        self.row_bytes = self.shape[1:].numel() * self.stored.itemsize
        for file, array in zip(files, arrays, strict=True):
            if array.shape != tuple(self.shape) or array.dtype != self.stored:
                raise ValueError(f"{file} holds {array.dtype} {array.shape}, unlike {files[0]}")

    @property
    def passes(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        passes = f", {self.passes} passes" if self.passes > 1 else ""
        return f"StoredRows({tuple(self.shape)} {self.stored.name}{passes})"

    def for_epoch(self, seed: int) -> StoredRows:
        own = copy(self)
        own.number = seed % self.passes
        return own

    def read(self, places: Rows) -> Tensor:
        # Mapped anew: what was read does not stay resident, and a file cut short is an error.
        return torch.from_numpy(_map(self.files[self.number])[places])


def _map(file: Path, mode: Any = "r") -> np.memmap[Any, Any]:
    """A ``.npy`` file of rows or labels mapped into memory."""
    check_regular(file)
    try:
        mapped = np.lib.format.open_memmap(file, mode)  # never of Python objects
    except Exception as error:  # a damaged header, which NumPy parses as Python, raises all kinds
        raise damaged(file, ".npy", error) from error
    if mapped.dtype.name not in (*DTYPES, "int64") or not (mapped.ndim and len(mapped)):
        raise ValueError(f"{file} must hold features or labels, got {mapped.dtype} {mapped.shape}")
    return mapped


def is_store(folder: Path) -> bool:
    """Whether a folder holds features, or will when they are finished."""
    return (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file()


class FeatureStore:
    """Features on disk: ``parts`` by name, each rows and labels (None where there are none).

    ``facts`` are those of the manifest. Opening checks the form of every file, and ``verify=True``
    the checksums too.

    >>> import tempfile
    >>> from dissensus.data import FeatureWriter
    >>> folder = tempfile.mkdtemp()
    >>> with FeatureWriter(folder, (4,), classes=["a", "b"]) as writer:
    ...     writer.add("train", np.ones((10, 4)), np.zeros(10, int))
    >>> x, y = FeatureStore(folder, verify=True).parts["train"]
    >>> x, x[7], y[7]
    (StoredRows((10, 4) float16), tensor([1., 1., 1., 1.]), tensor(0))
    """

    def __init__(self, folder: str | Path, *, verify: bool = False) -> None:
        self.folder = Path(folder)
        if not is_store(self.folder):
            raise ValueError(f"{folder} holds no features: there is no {MANIFEST}")
        if not (self.folder / MANIFEST).is_file():
            raise ValueError(f"the features in {folder} are not finished: run the command again")
        self.facts = read_json(self.folder / MANIFEST, _SCHEMA)
        if self.facts["format"] != _FORMAT or not self.facts["files"]:
            raise ValueError(f"{self.folder / MANIFEST} is not of the format {_FORMAT!r}")
        files: dict[str, dict[str, Path]] = {}
        for name, checksum in self.facts["files"].items():
            file, match = self.folder / name, _FILE.fullmatch(name)
            if match is None or not file.resolve().is_relative_to(self.folder.resolve()):
                raise ValueError(f"{self.folder / MANIFEST} leads out of its folder: {name!r}")
            if verify and _checksum(file) != checksum:
                raise ValueError(f"{file} is damaged: its checksum is not the manifest's")
            files.setdefault(match[1], {})[match[2]] = file
        self.parts: dict[str, tuple[StoredRows, Tensor | None]] = {}
        for part, own in files.items():
            labels = own.pop("labels", None)
            rows = StoredRows([*own.values()])
            self.parts[part] = rows, None if labels is None else self._labels(labels, len(rows))
            first = next(iter(self.parts.values()))[0]
            if (rows.shape[1:], rows.stored) != (first.shape[1:], first.stored):
                raise ValueError(f"{self.folder}: features of {part} are of another form: {rows}")
        self.shape, self.dtype = tuple(first.shape[1:]), first.stored.name

    def data(self, *, in_memory: bool = False) -> Data:
        """The store as a data set; parts other than train, val and test are its ``extra``.

        ``in_memory`` reads all features into tensors, for sets that are small.
        """
        if "train" not in self.parts:
            raise ValueError(f"{self.folder} has no part 'train', only {', '.join(self.parts)}")
        # Rows on disk stand in for a tensor; what takes inputs knows them.
        sets: dict[str, tuple[Tensor, Tensor | None]] = {
            name: (x[:] if in_memory else cast(Tensor, x), y) for name, (x, y) in self.parts.items()
        }
        empty = torch.empty(0, *self.shape), torch.empty(0, dtype=torch.int64)
        splits: dict[str, Any] = {name: sets.pop(name, empty) for name in PARTS}
        for name, (_, y) in splits.items():
            if y is None:
                raise ValueError(f"{self.folder}: part {name!r} has no labels")
        return Data(
            self.folder.resolve().name,
            "classification",
            **splits,
            classes=tuple(self.facts["classes"]),
            extra=sets,
            preprocessing={key: self.facts.get(key, {}) for key in ("backbone", "transform")},
            # A run keeps the digest of its source: the manifest has checksums of all files.
            source=str(self.folder / MANIFEST),
        )

    def _labels(self, file: Path, rows: int) -> Tensor:
        labels = np.array(_map(file))
        _check_labels(labels, rows, len(self.facts["classes"]), str(file))
        return torch.from_numpy(labels)


def load_store(
    path: Path, request: Request, *, in_memory: bool = False, verify: bool = False
) -> Data:
    """Features that ``dissensus features`` made; their parts are kept as they were divided."""
    if request.test is not None:
        raise ValueError(f"{path} has been divided already; leave test out")
    return FeatureStore(path, verify=verify).data(in_memory=in_memory)


# ---- writing ------------------------------------------------------------------------------------


class FeatureWriter:
    """Writes a feature store; the manifest is written when its ``with`` ends without an error.

    ``shape`` is that of one example's features, ``facts`` are plain JSON about where they come
    from. A writer with the same settings goes on in a folder where one was interrupted; other
    settings are refused.
    """

    def __init__(
        self,
        folder: str | Path,
        shape: Sequence[int],
        *,
        dtype: str = "float16",
        classes: Sequence[str] = (),
        **facts: Any,
    ) -> None:
        check_choice("features", "dtype", dtype, DTYPES)
        self.folder, self.shape, self.stored = Path(folder), tuple(shape), np.dtype(dtype)
        given = {"classes": [str(name) for name in classes], **facts}
        self.facts = json.loads(json.dumps({"dtype": dtype, "shape": [*shape], **given}))
        self.files: dict[str, int] = {}  # checksums
        self.done: dict[str, int] = {}  # rows

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(lock_folder(self.folder))
            self._begin()
            self._lock = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._lock:
            if kind is None:
                self._finish()

    def add(self, part: str, x: ArrayLike, y: ArrayLike | None = None) -> None:
        """Add a part of features that are in memory: ``x`` ``[rows, *shape]``, labels ``y``."""
        features = np.asarray(x)
        self.compute(part, len(features), y, lambda number, start, stop: features[start:stop])

    def compute(
        self,
        part: str,
        rows: int,
        y: ArrayLike | None,
        compute: Compute,
        *,
        passes: int = 1,
        chunk: int = 4096,
        on_rows: Callable[[int], object] = lambda rows: None,
    ) -> None:
        """Add a part ``chunk`` rows at a time: ``compute(pass, start, stop)`` gives their features.

        It is not called for rows that were written before. ``on_rows`` is called with the number of
        rows of each chunk that is done.
        """
        check_integer("rows", rows)
        names = [f"{part}/pass{number}.npy" for number in range(passes)]
        if not _FILE.fullmatch(names[0]) or names[0] in self.files:
            raise ValueError(f"a part needs a new name of letters, digits and _.+-, got {part!r}")
        (self.folder / part).mkdir(exist_ok=True)
        for number, name in enumerate(names):
            file, done = self.folder / name, self.done.get(name, 0)
            if not done:
                np.lib.format.open_memmap(file, "w+", self.stored, (rows, *self.shape))
            for start in range(0, rows, chunk):
                stop = min(start + chunk, rows)
                if stop > done:
                    array = _map(file, "r+")  # anew: what was written does not stay resident
                    array[start:stop] = self._checked(compute(number, start, stop), stop - start)
                    array.flush()
                    self.done[name] = stop
                    self._keep_count()
                on_rows(stop - start)
            self.files[name] = _checksum(file)
        if y is not None:
            labels, name = np.asarray(y), f"{part}/labels.npy"
            _check_labels(labels, rows, len(self.facts["classes"]), f"labels of {part}")
            replace_atomically(self.folder / name, partial(_save, labels.astype(np.int64)))
            self.files[name] = _checksum(self.folder / name)

    def _finish(self) -> None:
        """Write the manifest, which makes the folder a store."""
        if not self.files:
            raise ValueError("a feature store must have at least one part, add one first")
        for folder in (self.folder, *self.folder.glob("*/")):
            remove_parts(folder)  # before the manifest, after which nobody comes back
        manifest = {"format": _FORMAT, **self.facts, "files": self.files}
        write_text(self.folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        (self.folder / UNFINISHED).unlink(missing_ok=True)

    def _begin(self) -> None:
        """Record the settings, or check that they are those of the store begun here."""
        if (self.folder / MANIFEST).is_file():
            raise ValueError(f"there are features in {self.folder} already; choose another folder")
        if (self.folder / UNFINISHED).is_file():
            begun = read_json(self.folder / UNFINISHED, {"facts": {}, "done": {str: int}})
            for key, value in self.facts.items():
                if (was := begun["facts"].get(key)) != value:
                    change = f"{key} was {_short(was)}, now it is {_short(value)}"
                    raise ValueError(f"other features were begun in {self.folder}: {change}")
            self.done = begun["done"]
            return
        remove_parts(self.folder)  # left by a kill at this very line
        if any(file.name != LOCK for file in self.folder.iterdir()):
            raise ValueError(f"{self.folder} is not empty and holds no features; choose another")
        self._keep_count()

    def _keep_count(self) -> None:
        text = json.dumps({"facts": self.facts, "done": self.done}, indent=1)
        write_text(self.folder / UNFINISHED, text + "\n")

    def _checked(self, x: NDArray[Any], rows: int) -> NDArray[Any]:
        axes = {f"size {axis}": size for axis, size in enumerate(self.shape, 1)}
        check_shape(x, name="features", rows=rows, **axes)
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(x, self.stored)
        if not np.isfinite(stored).all():
            check_finite(x, name="features")
            raise ValueError("the features are too large for float16; store them as float32")
        return stored


def _save(array: NDArray[Any], part: Path) -> None:
    with part.open("wb") as raw:
        np.save(raw, array, allow_pickle=False)


def _check_labels(labels: NDArray[Any], rows: int, classes: int, where: str) -> None:
    check_shape(labels, name=where, rows=rows)
    low, high = int(labels.min()), int(labels.max())
    if labels.dtype.kind not in "iu" or low < 0 or high >= classes:
        got = f"{labels.dtype} {low} to {high}"
        raise ValueError(f"{where} must be whole numbers below {classes}, got {got}")


def _checksum(file: Path) -> int:
    """The CRC-32 of a file."""
    check_regular(file)
    crc = 0
    with file.open("rb") as raw:
        while piece := raw.read(1 << 20):
            crc = zlib.crc32(piece, crc)
    return crc


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + " …"
