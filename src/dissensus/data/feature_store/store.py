"""Feature stores: folders of features that stay on disk, checked when they are opened.

Shards are ``.npy`` files, which anything can map into memory. Here they are read in pieces: what is
read does not stay resident, and a file that was cut short is an error, not a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.dataset import Data, OnDisk, Request, Split
from dissensus.data.feature_store.manifest import DTYPES, MANIFEST, UNFINISHED, Manifest, digest

__all__ = ["FeatureStore", "StoredRows", "is_store", "load_store"]

_PARTS = ("train", "val", "test")


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
    try:
        mapped = np.lib.format.open_memmap(file, mode="r")  # never of Python objects
    except FileNotFoundError as error:
        raise ValueError(f"{file} is missing from the features") from error
    except (OSError, ValueError, EOFError) as error:
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
    """

    dtype = torch.float32  # of what is read, however it is stored

    def __init__(self, folder: Path, part: str, manifest: Manifest) -> None:
        self.folder, self.part, self.shard_rows = folder, part, manifest.shard_rows
        self.passes = manifest.parts[part].passes
        self.shape = torch.Size((manifest.parts[part].rows, *manifest.shape))
        self.stored = np.dtype(DTYPES[manifest.dtype])
        self.offsets = self._check()

    @property
    def row_bytes(self) -> int:
        """The size of one row on disk."""
        return self.shape[1:].numel() * self.stored.itemsize

    def __repr__(self) -> str:
        """Return one line."""
        passes = f", {self.passes} passes" if self.passes > 1 else ""
        return f"StoredRows({self.part!r}: {tuple(self.shape)} {self.stored.name}{passes})"

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, int | np.integer):
            return self[[int(index)]][0]
        if isinstance(index, slice) and index.step in (None, 1):
            start, stop, _ = index.indices(len(self))
            rows = max(stop - start, 0)
            return self._float(self.read(start, start + rows))
        chosen = torch.arange(len(self))[index]  # as a tensor of rows would understand it
        if chosen.ndim != 1:
            raise ValueError(f"rows on disk are taken by one axis of numbers, got {index!r}")
        read = np.empty((len(chosen), *self.shape[1:]), self.stored)
        order = chosen.argsort()
        for place in order.tolist():
            row = int(chosen[place])
            self.read(row, row + 1, into=read[place : place + 1])
        return self._float(read)

    def read(
        self, start: int, stop: int, number: int = 0, into: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Rows ``start`` to ``stop`` of a pass as they are stored, into an array if given one."""
        read = np.empty((stop - start, *self.shape[1:]), self.stored) if into is None else into
        done = 0
        while start + done < stop:
            shard, first = divmod(start + done, self.shard_rows)
            count = min(self.shard_rows - first, stop - start - done)
            self._fill(read[done : done + count], number, shard, first)
            done += count
        return read

    def to_memory(self) -> Tensor:
        """All rows of the first pass as a tensor."""
        return self[:]

    def _fill(self, array: NDArray[Any], number: int, shard: int, first: int) -> None:
        file = shard_file(self.folder, self.part, number, shard)
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

    @staticmethod
    def _float(read: NDArray[Any]) -> Tensor:
        return torch.from_numpy(read).float()


def is_store(folder: Path) -> bool:
    """Whether a folder holds features, or will when they are finished."""
    return (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file()


class FeatureStore:
    """Features on disk: ``parts`` by name, each rows and labels (None where there are none).

    Opening checks the form of every file. ``verify=True`` reads all of them and compares their
    checksums, with ``progress(done, total)`` in bytes as it goes.

    >>> import tempfile
    >>> from dissensus.data.feature_store import FeatureWriter
    >>> folder = tempfile.mkdtemp()
    >>> with FeatureWriter(folder, (4,), classes=["a", "b"]) as writer:
    ...     writer.add("train", np.ones((10, 4)), np.zeros(10, int))
    >>> x, y = FeatureStore(folder, verify=True).parts["train"]
    >>> x, x[7], y[7]
    (StoredRows('train': (10, 4) float16), tensor([1., 1., 1., 1.]), tensor(0))
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        verify: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        if verify:
            self._verify(progress)
        self.parts: dict[str, tuple[StoredRows, Tensor | None]] = {
            name: (StoredRows(self.folder, name, self.manifest), self._labels(name))
            for name in self.manifest.parts
        }

    def data(self, *, in_memory: bool = False) -> Data:
        """The store as a data set; parts other than train, val and test are its ``extra``.

        ``in_memory`` reads all features into tensors, for sets that are small.
        """
        if "train" not in self.parts:
            raise ValueError(f"{self.folder} has no part 'train', only {', '.join(self.parts)}")
        manifest = self.manifest

        def given(name: str) -> tuple[Tensor, Tensor | None]:
            x, y = self.parts[name]
            # Rows on disk stand in for a tensor; what takes inputs knows them.
            return (x.to_memory() if in_memory else cast(Tensor, x)), y

        def split(name: str) -> Split:
            if name not in self.parts:
                return torch.empty(0, *manifest.shape), torch.empty(0, dtype=torch.int64)
            x, y = given(name)
            if y is None:
                raise ValueError(f"{self.folder}: part {name!r} has no labels")
            return x, y

        return Data(
            self.folder.resolve().name,
            "classification",
            *(split("train"), split("val"), split("test")),
            classes=manifest.classes,
            extra={name: given(name) for name in self.parts if name not in _PARTS},
            preprocessing={
                "backbone": dict(manifest.backbone),
                "transform": dict(manifest.transform),
            },
            # A run keeps the digest of its source: the manifest has those of all files.
            source=str(self.folder / MANIFEST),
        )

    def _labels(self, name: str) -> Tensor | None:
        part = self.manifest.parts[name]
        if not part.labelled:
            return None
        file = inside(self.folder, label_file(self.folder, name))
        labels = np.array(map_array(file, (part.rows,), np.dtype(np.int64)))
        low, high, classes = int(labels.min()), int(labels.max()), len(self.manifest.classes)
        if low < 0 or high >= classes:
            raise ValueError(f"{file} holds labels from {low} to {high}, of {classes} classes")
        return torch.from_numpy(labels)

    def _verify(self, progress: Callable[[int, int], object] | None) -> None:
        wanted: dict[Path, str] = {}
        for name, part in self.manifest.parts.items():
            for number, sums in enumerate(part.shards):
                for shard, checksum in enumerate(sums):
                    wanted[shard_file(self.folder, name, number, shard)] = checksum
            if part.labels is not None:
                wanted[label_file(self.folder, name)] = part.labels
        missing = [str(file) for file in wanted if not file.is_file()]
        if missing:
            raise ValueError(f"{missing[0]} is missing from the features")
        total, done = sum(file.stat().st_size for file in wanted), 0
        for file, checksum in wanted.items():
            if digest(inside(self.folder, file)) != checksum:
                raise ValueError(
                    f"{file} is damaged: its sha256 is not the manifest's; delete the folder "
                    f"{self.folder} and make the features again"
                )
            done += file.stat().st_size
            if progress is not None:
                progress(done, total)


def load_store(
    path: Path, request: Request, *, in_memory: bool = False, verify: bool = False
) -> Data:
    """Features that ``dissensus features`` made; their parts are kept as they were divided."""
    if request.test is not None:
        raise ValueError(f"{path} has been divided already; leave test out")
    return FeatureStore(path, verify=verify).data(in_memory=in_memory)
