"""Batches of features that stay on disk, in constant memory and in a seeded, random order.

An epoch goes through the rows in *windows*. A window is as many blocks of consecutive rows as a
fixed number of bytes holds, drawn at random from the whole set, and its rows are shuffled. Each
block is one read of some tens of kilobytes, which any disk does well, and a batch mixes hundreds of
blocks. A set that fits into one window is shuffled whole: exactly as if it were in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from dissensus.data import StoredRows
from dissensus.training.batches import batch_sizes, batches_together, derived_seed, shuffled

__all__ = ["StoredBatches"]

_BLOCK = 1 << 16  # bytes that are read at once
_WINDOW = 1 << 26  # bytes that are held

# What random numbers of an epoch are drawn for, beside the order of a set that is shuffled whole.
_PASS, _BLOCKS, _ROWS = range(3)


class StoredBatches:
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
        # Batches are cut out of larger pieces, the same ones wherever an epoch is taken up: where
        # in memory a batch lies decides about the last bits of matrix products.
        begin = start - start % self.together
        memory, self.memory = self.memory, None  # another epoch meanwhile has to take its own
        rows = _Rows(self.x, seed if self.shuffle else None, sum(self.sizes[:begin]), memory)
        for first in range(begin, len(self.sizes), self.together):
            sizes = self.sizes[first : first + self.together]
            x, index = rows.take(sum(sizes))
            y = [None] * len(sizes) if self.y is None else self.y[index].split(sizes)
            yield from list(zip(x.split(sizes), y, strict=True))[max(start - first, 0) :]
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
            there = slice(done, done + len(chosen))
            x[there] = self.memory.index_select(0, chosen)
            index[there] = self.index[chosen]
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
    """Rows of blocks in a row as ``start, stop``, to be read at once."""
    breaks = (window.diff() != 1).nonzero().flatten().add(1).tolist()
    for own in window.tensor_split(breaks):
        yield int(own[0]) * block, min((int(own[-1]) + 1) * block, rows)
