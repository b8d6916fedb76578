"""Feature stores: folders of features that stay on disk, checked when they are opened.

``manifest.json`` is checked before anything else is read. Files are found by rule, never by a path
of the manifest: part ``train`` has ``train/labels.npy`` and, for each pass, the shards
``train/pass0-00000.npy``, ``train/pass0-00001.npy`` and so on. Shards are ``.npy`` files, which
anything can map into memory. Here they are read in pieces: what is read does not stay resident, and
a file that was cut short is an error, not a crash.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.dataset import PARTS, Data, OnDisk, Request
from dissensus.tools.files import check_regular, read_json, write_text

MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"  # stands where the manifest will, while a store is being written

_FORMAT, _VERSION = "dissensus-features", 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")

#: How features can be stored.
DTYPES: dict[str, type[np.floating[Any]]] = {"float16": np.float16, "float32": np.float32}


def check_name(name: object) -> str:
    """``name`` if it can name a part: it becomes a folder, which must not lie elsewhere.

    >>> check_name("../secrets")
    Traceback (most recent call last):
    ...
    ValueError: a part must be named with letters, digits and _ . + -, got '../secrets'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"a part must be named with letters, digits and _ . + -, got {name!r}")
    return name


@dataclass(frozen=True)
class StorePart:
    """One set of rows: ``train``, ``val``, ``test``, or another, such as unknown inputs."""

    rows: int
    passes: int
    labelled: bool
    shards: tuple[tuple[str, ...], ...]  # the checksum of each shard, by pass
    labels: str | None = None  # the checksum of the labels

    def __post_init__(self) -> None:
        for name in ("rows", "passes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        sums = [checksum for own in self.shards for checksum in own]
        sums += [] if self.labels is None else [self.labels]
        if not all(isinstance(c, str) and re.fullmatch(r"[0-9a-f]{64}", c) for c in sums):
            raise ValueError("checksums must be sha256 in hexadecimal digits")
        if len(self.shards) != self.passes or self.labelled != (self.labels is not None):
            raise ValueError("there must be one list of shards for each pass, and labels if any")


@dataclass(frozen=True)
class Manifest:
    """The whole store: the form of its rows, its parts, and where they come from.

    ``backbone``, ``transform``, ``data`` and ``versions`` are plain JSON, for people and to refuse
    to go on with something else.
    """

    dtype: str
    shape: tuple[int, ...]
    shard_rows: int
    parts: Mapping[str, StorePart]
    classes: tuple[str, ...] = ()
    backbone: Mapping[str, Any] = field(default_factory=dict)
    transform: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        sizes = (*self.shape, self.shard_rows)
        if not self.shape or not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError(
                f"shape and shard_rows must be positive whole numbers, got {list(self.shape)} and "
                f"{self.shard_rows!r}"
            )
        for name, part in self.parts.items():
            check_name(name)
            shards = self.shards_of(part.rows)
            if any(len(own) != shards for own in part.shards):
                raise ValueError(
                    f"{name} of {part.rows} rows must have {shards} shards in each pass"
                )

    def shards_of(self, rows: int) -> int:
        """The number of shards for ``rows`` rows."""
        return -(-rows // self.shard_rows)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a store; raise for a folder that holds none or a damaged one."""
        file = folder / MANIFEST
        if not file.is_file():
            if (folder / UNFINISHED).is_file():
                raise ValueError(
                    f"the features in {folder} are not finished: run the command that makes them "
                    "again, it goes on where it stopped"
                )
            raise ValueError(f"{folder} holds no features: there is no {MANIFEST}")
        try:
            return cls._of(read_json(file))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file} is damaged or not of this format: {error}") from error

    @classmethod
    def _of(cls, content: Any) -> Manifest:
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        if content.get("version") != _VERSION:
            raise ValueError(f"version {content.get('version')!r} is not known, only {_VERSION}")
        values = {key: value for key, value in content.items() if key not in ("format", "version")}
        values["shape"] = tuple(values["shape"])
        values["classes"] = tuple(str(name) for name in values.get("classes", ()))
        values["parts"] = {
            name: StorePart(**{**part, "shards": tuple(tuple(own) for own in part["shards"])})
            for name, part in values["parts"].items()
        }
        return cls(**values)

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``, whole or not at all; the same content gives the same bytes."""
        values = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        write_text(folder / MANIFEST, json.dumps(values, indent=1) + "\n")


def digest(file: Path) -> str:
    """The sha256 of a file."""
    with file.open("rb") as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()


def verify_file(file: Path, checksum: str) -> None:
    """Raise unless the file has that sha256."""
    try:
        same = digest(file) == checksum
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not same:
        raise ValueError(
            f"{file} is damaged: its sha256 is not the manifest's; delete the folder "
            f"{file.parents[1]} and make the features again"
        )


# ---- rows on disk -------------------------------------------------------------------------------


def shard_file(folder: Path, part: str, number: int, shard: int) -> Path:
    """The file of a shard of a pass."""
    return folder / part / f"pass{number}-{shard:05d}.npy"


def label_file(folder: Path, part: str) -> Path:
    """The file of the labels of a part."""
    return folder / part / "labels.npy"


def inside(folder: Path, file: Path) -> Path:
    """``file`` if it really lies in ``folder``; a link to elsewhere does not."""
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{file} leads out of {folder}; features must be in their folder")
    return file


def map_array(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.memmap[Any, Any]:
    """A ``.npy`` file mapped into memory; raise unless it is whole and of this shape and type."""
    if not file.exists():
        raise ValueError(f"{file} is missing from the features")
    check_regular(file)
    try:
        mapped = np.lib.format.open_memmap(file, mode="r")  # never of Python objects
    except Exception as error:  # a damaged header, which NumPy parses as Python, raises all kinds
        raise ValueError(f"{file} is damaged or cut short ({error})") from error
    if mapped.shape != shape or mapped.dtype != dtype or not mapped.flags.c_contiguous:
        raise ValueError(f"{file} must hold {dtype} {shape}, got {mapped.dtype} {mapped.shape}")
    if file.stat().st_size != mapped.offset + mapped.nbytes:
        raise ValueError(f"{file} is damaged: it is longer than its header says")
    return mapped


class StoredRows(OnDisk):
    """The rows ``[rows, *shape]`` of one part, on disk; in use much like a float32 tensor.

    It has ``len``, ``shape`` and ``dtype``, and an index gives a tensor: ``x[5]``, ``x[10:20]``,
    ``x[torch.tensor([3, 1])]``. ``passes`` counts the augmented copies; an index reads the first.
    Training, prediction and evaluation take it wherever they take inputs, and read it in pieces.
    The checksum of a shard is verified before the first of its rows is read.
    """

    dtype = torch.float32  # of what is read, however it is stored

    def __init__(self, folder: Path, part: str, manifest: Manifest) -> None:
        self.folder, self.part, self.shard_rows = folder, part, manifest.shard_rows
        self.passes, self.checksums = manifest.parts[part].passes, manifest.parts[part].shards
        self.verified: set[tuple[int, int]] = set()
        self.shape = torch.Size((manifest.parts[part].rows, *manifest.shape))
        self.stored = np.dtype(DTYPES[manifest.dtype])
        self.offsets = self._check()

    @property
    def row_bytes(self) -> int:
        return self.shape[1:].numel() * self.stored.itemsize

    def __repr__(self) -> str:
        passes = f", {self.passes} passes" if self.passes > 1 else ""
        return f"StoredRows({self.part!r}: {tuple(self.shape)} {self.stored.name}{passes})"

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, int | np.integer):
            return self[[int(index)]][0]
        if isinstance(index, slice) and index.step in (None, 1):
            start, stop, _ = index.indices(len(self))
            return torch.from_numpy(self.read(start, max(start, stop))).float()
        chosen = torch.arange(len(self))[index]  # as a tensor of rows would understand it
        if chosen.ndim != 1:
            raise ValueError(f"rows on disk are taken by one axis of numbers, got {index!r}")
        rows = np.empty((len(chosen), *self.shape[1:]), self.stored)
        for place in chosen.argsort().tolist():
            row = int(chosen[place])
            self.read(row, row + 1, into=rows[place : place + 1])
        return torch.from_numpy(rows).float()

    def read(
        self, start: int, stop: int, number: int = 0, into: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Rows ``start`` to ``stop`` of a pass as they are stored, into an array if given one."""
        rows = np.empty((stop - start, *self.shape[1:]), self.stored) if into is None else into
        done = 0
        while start + done < stop:
            shard, first = divmod(start + done, self.shard_rows)
            count = min(self.shard_rows - first, stop - start - done)
            self._fill(rows[done : done + count], number, shard, first)
            done += count
        return rows

    def verify(self, number: int, shard: int) -> Path:
        """The file of a shard; its checksum is verified the first time."""
        file = shard_file(self.folder, self.part, number, shard)
        if (number, shard) not in self.verified:
            verify_file(file, self.checksums[number][shard])
            self.verified.add((number, shard))
        return file

    def _fill(self, array: NDArray[Any], number: int, shard: int, first: int) -> None:
        file = self.verify(number, shard)
        wanted = memoryview(array.data).cast("B")
        try:
            with file.open("rb", buffering=0) as raw:
                raw.seek(self.offsets[number][shard] + first * self.row_bytes)
                got = 0
                while got < len(wanted) and (piece := raw.readinto(wanted[got:])):
                    got += piece
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
        if got < len(wanted):
            raise ValueError(f"{file} was cut short since it was opened")

    def _check(self) -> list[list[int]]:
        """The offset of the numbers in each shard; raises unless all shards are intact."""
        offsets = []
        for number in range(self.passes):
            own = []
            for shard, start in enumerate(range(0, len(self), self.shard_rows)):
                rows = min(self.shard_rows, len(self) - start)
                file = inside(self.folder, shard_file(self.folder, self.part, number, shard))
                own.append(map_array(file, (rows, *self.shape[1:]), self.stored).offset)
            offsets.append(own)
        return offsets


def is_store(folder: Path) -> bool:
    """Whether a folder holds features, or will when they are finished."""
    return (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file()


class FeatureStore:
    """Features on disk: ``parts`` by name, each rows and labels (None where there are none).

    Opening checks the form of every file and the checksums of labels; the checksum of a shard is
    checked when it is first read, or with ``verify=True`` at once.

    >>> import tempfile
    >>> from dissensus.data import FeatureWriter
    >>> folder = tempfile.mkdtemp()
    >>> with FeatureWriter(folder, (4,), classes=["a", "b"]) as writer:
    ...     writer.add("train", np.ones((10, 4)), np.zeros(10, int))
    >>> x, y = FeatureStore(folder, verify=True).parts["train"]
    >>> x, x[7], y[7]
    (StoredRows('train': (10, 4) float16), tensor([1., 1., 1., 1.]), tensor(0))
    """

    def __init__(self, folder: str | Path, *, verify: bool = False) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        self.parts: dict[str, tuple[StoredRows, Tensor | None]] = {
            name: (StoredRows(self.folder, name, self.manifest), self._labels(name))
            for name in self.manifest.parts
        }
        if verify:
            for rows, _ in self.parts.values():
                for number, checksums in enumerate(rows.checksums):
                    for shard in range(len(checksums)):
                        rows.verify(number, shard)

    def data(self, *, in_memory: bool = False) -> Data:
        """The store as a data set; parts other than train, val and test are its ``extra``.

        ``in_memory`` reads all features into tensors, for sets that are small.
        """
        if "train" not in self.parts:
            raise ValueError(f"{self.folder} has no part 'train', only {', '.join(self.parts)}")
        manifest = self.manifest
        # Rows on disk stand in for a tensor; what takes inputs knows them.
        sets: dict[str, tuple[Tensor, Tensor | None]] = {
            name: (x[:] if in_memory else cast(Tensor, x), y) for name, (x, y) in self.parts.items()
        }
        empty = torch.empty(0, *manifest.shape), torch.empty(0, dtype=torch.int64)
        splits: dict[str, Any] = {name: sets.pop(name, empty) for name in PARTS}
        for name, (_, y) in splits.items():
            if y is None:
                raise ValueError(f"{self.folder}: part {name!r} has no labels")
        return Data(
            self.folder.resolve().name,
            "classification",
            **splits,
            classes=manifest.classes,
            extra=sets,
            preprocessing={
                "backbone": dict(manifest.backbone),
                "transform": dict(manifest.transform),
            },
            # A run keeps the digest of its source: the manifest has those of all files.
            source=str(self.folder / MANIFEST),
        )

    def _labels(self, name: str) -> Tensor | None:
        part = self.manifest.parts[name]
        if part.labels is None:
            return None
        file = inside(self.folder, label_file(self.folder, name))
        labels = np.array(map_array(file, (part.rows,), np.dtype(np.int64)))
        low, high, classes = int(labels.min()), int(labels.max()), len(self.manifest.classes)
        if low < 0 or high >= classes:
            raise ValueError(f"{file} holds labels from {low} to {high}, of {classes} classes")
        verify_file(file, part.labels)
        return torch.from_numpy(labels)


def load_store(
    path: Path, request: Request, *, in_memory: bool = False, verify: bool = False
) -> Data:
    """Features that ``dissensus features`` made; their parts are kept as they were divided."""
    if request.test is not None:
        raise ValueError(f"{path} has been divided already; leave test out")
    return FeatureStore(path, verify=verify).data(in_memory=in_memory)
