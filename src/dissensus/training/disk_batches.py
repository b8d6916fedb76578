"""Batches of data that stay on disk: rows of a feature store, and examples in files.

:class:`RowBatches` go through the rows of an epoch in *windows*, in constant memory. A window is
as many blocks of consecutive rows as a fixed number of bytes holds, drawn at random from the whole
set, and its rows are shuffled. Each block is one read of some tens of kilobytes, which is fast on
any disk, and a batch mixes hundreds of blocks. A set that fits into one window is shuffled as a
whole, exactly as if it were in memory.

:class:`ExampleBatches` are read and decoded by worker processes. A batch follows from the epoch's
seed and its own number alone, so the number of workers does not change an epoch, and an epoch can
be resumed at any batch without reading those before it.
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

from dissensus.data import Examples, StoredRows
from dissensus.data.on_disk import as_float
from dissensus.data.on_disk.order import Order
from dissensus.training.batches import (
    batch_sizes,
    batches_together,
    derived_seed,
    pieces,
    shuffled,
    split_batches,
)

# ---- rows of a feature store --------------------------------------------------------------------

_BLOCK = 1 << 16  # bytes that are read at once
_WINDOW = 1 << 26  # bytes that are held

# What random numbers of an epoch are drawn for, beside the order of a set that is shuffled whole.
_PASS, _BLOCKS, _ROWS = range(3)


class RowBatches:
    """Rows on disk and their labels, in batches; of several passes an epoch uses one."""

    def __init__(self, x: StoredRows, y: Tensor | None, batch_size: int, *, shuffle: bool) -> None:
        self.x, self.y, self.shuffle = x, y, shuffle
        self.sizes = batch_sizes(len(x), batch_size, shuffle=shuffle)
        self.together = batches_together(self.sizes, x.shape[1:].numel())
        self.memory: Tensor | None = None  # of a window, kept: fresh memory costs as much as a read

    def __len__(self) -> int:
        return len(self.sizes)

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The batches of one epoch from number ``start`` on."""
        memory, self.memory = self.memory, None  # another epoch meanwhile has to take its own
        begin = sum(self.sizes[: start - start % self.together])
        rows = _Rows(self.x, seed if self.shuffle else None, begin, memory)
        for _, sizes, skip in pieces(self.sizes, self.together, start):
            x, index = rows.take(sum(sizes))
            y = None if self.y is None else self.y[index]
            yield from split_batches(x, y, sizes)[skip:]
        self.memory = rows.memory


class _Rows:
    """The rows of one epoch in their order, from the one at place ``begin`` on."""

    def __init__(self, x: StoredRows, seed: int | None, begin: int, memory: Tensor | None) -> None:
        self.x, self.seed = x, seed
        self.number = 0 if seed is None else derived_seed(seed, _PASS) % x.passes
        self.block = max(1, _BLOCK // x.row_bytes)
        blocks = -(-len(x) // self.block)
        each = max(1, _WINDOW // (self.block * x.row_bytes))
        order = torch.arange(blocks)
        if seed is not None and blocks > each:
            order = shuffled(blocks, derived_seed(seed, _BLOCKS))
        self.windows = [window.sort().values for window in order.split(each)]
        ends = list(accumulate(len(self._index(window)) for window in self.windows))
        self.next = next(i for i, end in enumerate(ends) if end > begin)
        if memory is None:
            most = min(each * self.block, len(x))
            memory = torch.from_numpy(np.empty((most, *x.shape[1:]), x.stored))
        self.memory = memory
        self.index = self.order = torch.empty(0, dtype=torch.int64)
        self._advance()
        self.order = self.order[begin - (ends[self.next - 2] if self.next > 1 else 0) :]

    def take(self, count: int) -> tuple[Tensor, Tensor]:
        """The next ``count`` rows as float32, and their numbers."""
        x = torch.empty(count, *self.x.shape[1:])
        index = torch.empty(count, dtype=torch.int64)
        done = 0
        while done < count:
            if not len(self.order):
                self._advance()
            chosen, self.order = self.order[: count - done], self.order[count - done :]
            place = slice(done, done + len(chosen))
            x[place] = self.memory.index_select(0, chosen)
            index[place] = self.index[chosen]
            done += len(chosen)
        return x, index

    def _advance(self) -> None:
        """Read the next window into the place of the one before."""
        window = self.windows[self.next]
        self.index = self._index(window)
        array, done = self.memory.numpy(), 0
        for start, stop in _runs(window, self.block, len(self.x)):
            self.x.read(start, stop, self.number, array[done : done + stop - start])
            done += stop - start
        self.order = self._shuffled(done)
        self.next += 1

    def _shuffled(self, rows: int) -> Tensor:
        if self.seed is None:
            return torch.arange(rows)
        if len(self.windows) == 1:
            return shuffled(rows, self.seed)  # the order of tensors in memory
        return shuffled(rows, derived_seed(self.seed, _ROWS, self.next))

    def _index(self, window: Tensor) -> Tensor:
        """The numbers of the rows in a window's blocks; the very last block may be short."""
        index = (window[:, None] * self.block + torch.arange(self.block)).flatten()
        return index[index < len(self.x)]


def _runs(window: Tensor, block: int, rows: int) -> Iterator[tuple[int, int]]:
    """Consecutive blocks as rows ``start, stop``, to be read at once."""
    breaks = (window.diff() != 1).nonzero().flatten().add(1).tolist()
    for own in window.tensor_split(breaks):
        yield int(own[0]) * block, min((int(own[-1]) + 1) * block, rows)


# ---- examples in files --------------------------------------------------------------------------

_PIECE = 1 << 18  # numbers that are read at once, where a batch has fewer
_NUMBERS = 1 << 24  # in a batch that is not for training, at most
_PROBLEMS = 1000  # problems that are remembered


#: A piece to read: the epoch's seed (None for examples in order) and the piece's number.
_Request = tuple[int | None, int]


class _Piece(NamedTuple):
    """A piece as a worker returns it, as stored, or the text of an error."""

    x: Tensor | None
    y: Tensor | None
    problems: list[str]
    error: str = ""


class ExampleBatches:
    """Examples on disk in batches. A piece, what is read at once, is one batch or several."""

    def __init__(self, x: Examples, batch_size: int, *, shuffle: bool) -> None:
        if not shuffle:  # then it makes no difference but to memory
            batch_size = max(1, min(batch_size, _NUMBERS // max(1, x.shape[1:].numel())))
        self.shuffle = shuffle
        self.reader = _PieceReader(x, batch_size, shuffle)
        self.requests: list[_Request] = []  # what the workers of the loader are to read
        self.loader: Any = None

    def __len__(self) -> int:
        return len(self.reader.sizes)

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The batches of one epoch from number ``start`` on."""
        skipped: list[str] = []
        begin = start // self.reader.together
        for piece, made in enumerate(self._pieces(seed if self.shuffle else None, begin), begin):
            if made.error:
                raise ValueError(made.error)
            assert made.x is not None
            skipped += made.problems[: _PROBLEMS - len(skipped)]
            if made.problems and not len(made.x):
                raise ValueError(f"no example of batch {piece} can be read: {made.problems[0]}")
            batches = self.reader.batches_of(piece, as_float(made.x), made.y)
            yield from batches[max(start - piece * self.reader.together, 0) :]
        if skipped:
            from dissensus.tools.console import printable

            warnings.warn(
                f"{len(skipped)} examples could not be read and were left out, such as "
                f"{printable(skipped[0])}",
                stacklevel=2,
            )

    def _pieces(self, seed: int | None, start: int) -> Iterator[_Piece]:
        self.requests[:] = [(seed, piece) for piece in range(start, len(self.reader))]
        workers = self.reader.x.workers
        if not workers:
            yield from (self.reader[request] for request in self.requests)
            return
        if self.loader is None:
            self.loader = DataLoader(
                self.reader,
                sampler=self.requests,
                batch_size=None,
                num_workers=workers,
                generator=torch.Generator(),  # not the one that layers draw from
                persistent_workers=True,
            )
        yield from self.loader


class _PieceReader(Dataset[_Piece]):
    """Makes any piece of any epoch."""

    def __init__(self, x: Examples, batch_size: int, shuffle: bool) -> None:
        self.x, self.sizes = x, batch_sizes(len(x), batch_size, shuffle=shuffle)
        self.starts = [0, *accumulate(self.sizes)]
        # Where examples may be missing, a piece could not be cut into its batches.
        alone = x.on_error != "raise" or x.world > 1
        self.together = 1 if alone else batches_together(self.sizes, x.shape[1:].numel(), _PIECE)
        self.order: tuple[int | None, Order] | None = None

    def __len__(self) -> int:
        return -(-len(self.sizes) // self.together)

    def __getitem__(self, request: _Request) -> _Piece:
        seed, piece = request
        if self.order is None or self.order[0] != seed:
            self.order = seed, self.x.order(seed)
        x, first = self.x, piece * self.together
        start, *_, stop = self.starts[first : first + self.together + 1]
        try:
            examples = x.read(start + x.rank, stop, self.order[1], x.world)
        except ValueError as error:
            return _Piece(None, None, [], str(error))
        return _Piece(examples.x, examples.y, examples.problems)

    def batches_of(
        self, piece: int, x: Tensor, y: Tensor | None
    ) -> list[tuple[Tensor, Tensor | None]]:
        """A piece cut into its batches."""
        if self.together == 1:
            return [(x, y)]
        first = piece * self.together
        return split_batches(x, y, self.sizes[first : first + self.together])
