"""Batches of rows that stay on disk, in memory that does not grow with their size.

A *piece* is what is read at once. Where neighbours lie together on disk, a piece is a *window*: as
many blocks of consecutive rows as a fixed number of bytes holds, drawn at random from the whole
set. Its rows are shuffled. A set that fits into one window is shuffled as a whole, exactly as if it
were in memory. Where each row costs more than finding it, as an image does, a piece is a batch, and
the order is that of all rows.

Pieces follow from the epoch's seed and their number alone. So the number of worker processes does
not change an epoch, and it can be taken up at any batch without reading those before it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dissensus.data.dataset import OnDisk, Rows, as_float
from dissensus.training.batches import batch_sizes, derived_seed, shuffled

_BLOCK = 1 << 16  # bytes that are read at once
_WINDOW = 1 << 26  # bytes that are held
_NUMBERS = 1 << 24  # in a batch that is not for training, at most

# What random numbers of an epoch are drawn for, beside the order of a set that is shuffled whole.
_PASS, _BLOCKS, _ROWS = range(3)


class DiskBatches:
    """Rows on disk, and their targets in memory, in batches."""

    def __init__(self, x: OnDisk, y: Tensor | None, batch_size: int, *, shuffle: bool) -> None:
        if not shuffle:  # then it makes no difference but to memory
            batch_size = max(1, min(batch_size, _NUMBERS // max(1, x.shape[1:].numel())))
        self.x, self.y, self.shuffle = x, y, shuffle
        self.sizes = batch_sizes(len(x), batch_size, shuffle=shuffle)
        # Where rows may be left out, a piece could not be cut into its batches.
        self.windowed = x.windowed and x.on_error == "raise"
        self.requests = _Requests()
        self.loader: Any = None

    def __len__(self) -> int:
        return len(self.sizes)

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The batches of one epoch from number ``start`` on."""
        if not self.shuffle:
            pieces = _Pieces(list(accumulate(self.sizes)), np.arange(len(self.x)))
        elif self.windowed:
            yield from self._cut(_Windows(self.x, seed), seed, start)
            return
        else:
            pieces = _Pieces(list(accumulate(self.sizes)), shuffled(len(self.x), seed).numpy())
        skipped, problem = 0, ""
        for number, read in enumerate(self._read(pieces, seed, start), start):
            skipped, problem = skipped + len(read.problems), problem or "".join(read.problems[:1])
            if not len(read.places):
                raise ValueError(f"no example of batch {number} can be read: {read.problems[0]}")
            yield as_float(read.x), self._targets(read.places)
        if skipped:
            from dissensus.tools.console import printable

            text = f"{skipped} examples could not be read and were left out, such as "
            warnings.warn(text + printable(problem), stacklevel=2)

    def _cut(
        self, windows: _Windows, seed: int, start: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Batches from windows, of which one may end amid a batch."""
        skipped = sum(self.sizes[:start])
        first = int(np.searchsorted(windows.ends, skipped, side="right"))
        skipped -= windows.ends[first - 1] if first else 0
        sizes = iter(self.sizes[start:])
        size, parts = next(sizes, 0), list[tuple[Tensor, Tensor]]()
        for number, read in enumerate(self._read(windows, seed, first), first):
            order = windows.order(number)[skipped:]
            skipped = 0
            while len(order):
                chosen, order = order[:size], order[size:]
                parts.append((read.x.index_select(0, chosen), read.places[chosen]))
                size -= len(chosen)
                if not size:
                    yield self._joined(parts)
                    size, parts = next(sizes, 0), []

    def _joined(self, parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor | None]:
        x, places = parts[0]
        if len(parts) > 1:
            x = torch.cat([part for part, _ in parts])
            places = torch.cat([part for _, part in parts])
        return as_float(x), self._targets(places)

    def _targets(self, places: Tensor) -> Tensor | None:
        return None if self.y is None else self.y[places]

    def _read(self, pieces: _Pieces | _Windows, seed: int, first: int) -> Iterator[_Piece]:
        """The pieces from number ``first`` on, as stored."""
        wanted = (pieces.places(number) for number in range(first, len(pieces.ends)))
        used = self.x.for_epoch(derived_seed(seed, _PASS)) if self.shuffle else self.x
        reader = _Reader(used)
        self.requests.places = wanted
        for piece in self._loader(reader) if self.x.workers else map(reader.__getitem__, wanted):
            if piece.error:
                raise ValueError(piece.error)
            yield piece

    def _loader(self, reader: _Reader) -> Any:
        """Worker processes that read ahead, the same ones in every epoch."""
        if self.loader is None:
            self.loader = DataLoader(
                reader,
                sampler=self.requests,
                batch_size=None,
                num_workers=self.x.workers,
                generator=torch.Generator(),  # not the one that layers draw from
                persistent_workers=True,
            )
        return self.loader


# ---- the order of an epoch ----------------------------------------------------------------------


class _Pieces:
    """Pieces that are batches: the places of all rows in their order, and where batches end."""

    def __init__(self, ends: list[int], order: Rows) -> None:
        self.ends, self.all = ends, order

    def places(self, number: int) -> Rows:
        return self.all[self.ends[number - 1] if number else 0 : self.ends[number]]


class _Windows:
    """Pieces that are windows: their places are in the order of the disk."""

    def __init__(self, x: OnDisk, seed: int) -> None:
        self.rows, self.seed = len(x), seed
        self.block = max(1, _BLOCK // x.row_bytes)
        blocks, each = -(-len(x) // self.block), max(1, _WINDOW // (self.block * x.row_bytes))
        order = torch.arange(blocks)
        if blocks > each:
            order = shuffled(blocks, derived_seed(seed, _BLOCKS))
        self.windows = [window.sort().values.numpy() for window in order.split(each)]
        short = blocks * self.block - len(x)  # rows that the very last block lacks
        counts = (len(w) * self.block - short * int(w[-1] == blocks - 1) for w in self.windows)
        self.ends = list(accumulate(counts))

    def places(self, number: int) -> Rows:
        """The rows in a window's blocks."""
        window: Rows = self.windows[number][:, None] * self.block + np.arange(self.block)
        places = window.ravel()
        return places[places < self.rows]

    def order(self, number: int) -> Tensor:
        """The order in which a window's rows are shown."""
        count = self.ends[number] - (self.ends[number - 1] if number else 0)
        if len(self.windows) == 1:
            return shuffled(count, self.seed)  # the order of tensors in memory
        return shuffled(count, derived_seed(self.seed, _ROWS, number))


# ---- reading ------------------------------------------------------------------------------------


class _Requests:
    """What the workers of a loader are to read in the current epoch."""

    places: Iterator[Rows] = iter(())

    def __iter__(self) -> Iterator[Rows]:
        return self.places

    def __len__(self) -> int:
        raise TypeError


class _Piece(NamedTuple):
    """A piece as a worker returns it, as stored, or the text of an error."""

    x: Tensor
    places: Tensor
    problems: list[str]
    error: str = ""


class _Reader(Dataset[_Piece]):
    """Reads pieces; rows that cannot be read are left out or an error, as ``x`` says."""

    def __init__(self, x: OnDisk) -> None:
        self.x = x

    def __getitem__(self, places: Rows) -> _Piece:
        try:
            return _Piece(self.x.read(places), torch.from_numpy(places), [])
        except ValueError as error:
            if self.x.on_error != "skip":
                advice = "; on_error='skip' leaves it out" if hasattr(self.x, "reading") else ""
                return _Piece(torch.empty(0), torch.empty(0), [], f"{error}{advice}")
        read, kept, problems = [], [], list[str]()
        for place in places.tolist():
            try:
                read.append(self.x.read(np.array([place])))
                kept.append(place)
            except ValueError as error:
                problems.append(str(error))
        x = torch.cat(read) if read else torch.empty(0)
        return _Piece(x, torch.tensor(kept, dtype=torch.int64), problems)
