"""Rows of features that stay on disk and are read as they are asked for.

Shards are ``.npy`` files, which anything can map into memory. Here they are read in pieces: what is
read does not stay resident, and a file that was cut short is an error, not a crash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.features.manifest import DTYPES

__all__ = ["StoredRows", "inside", "label_file", "map_array", "shard_file"]


def shard_file(folder: Path, part: str, number: int, shard: int) -> Path:
    """Where a shard of a pass is."""
    return folder / part / f"pass{number}-{shard:05d}.npy"


def label_file(folder: Path, part: str) -> Path:
    """Where the labels of a part are."""
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


class StoredRows:
    """The rows ``[rows, *shape]`` of one part, on disk; in use much like a float32 tensor.

    It has ``len``, ``shape`` and ``dtype``, and an index gives a tensor: ``x[5]``, ``x[10:20]``,
    ``x[torch.tensor([3, 1])]``. ``passes`` counts the augmented copies; an index reads the first.
    Training, prediction and evaluation take it wherever they take inputs, and read it in pieces.
    """

    dtype = torch.float32  # of what is read, however it is stored

    def __init__(
        self,
        folder: Path,
        part: str,
        rows: int,
        shape: tuple[int, ...],
        dtype: str,
        *,
        shard_rows: int,
        passes: int = 1,
    ) -> None:
        self.folder, self.part, self.passes, self.shard_rows = folder, part, passes, shard_rows
        self.shape = torch.Size((rows, *shape))
        self.stored = np.dtype(DTYPES[dtype])
        self.offsets = self._check()

    @property
    def row_bytes(self) -> int:
        """The size of one row on disk."""
        return self.shape[1:].numel() * self.stored.itemsize

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        """How many numbers there are."""
        return self.shape.numel()

    def element_size(self) -> int:
        """The bytes of memory that each takes: none, as they are on disk."""
        return 0

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
        """Where the numbers begin in each shard; raises unless all shards are as they should be."""
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
