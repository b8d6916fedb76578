"""Which example stands at which place of an epoch, in memory that does not grow with the data.

Files that are opened one by one are shown in a random order of all of them. Examples that lie
together on disk are shown by *windows*: blocks of neighbours are drawn at random from the whole
set until there are enough examples for a window, and a window's examples are shuffled. Either way
the order follows from a seed, and any place in it can be looked up without those before it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dissensus.data.shards.permuting import Numbers, Part, Permutation

__all__ = ["Blocks", "InTurn", "Order", "Scattered", "Windowed"]

# What random numbers of an epoch are drawn for.
_PLACES, _BLOCKS, _ROWS = 1, 2, 3

_AT_ONCE = 1 << 16


class Order(Protocol):
    """The examples of an epoch."""

    def numbers(self, start: int, stop: int) -> Numbers:
        """The numbers of the examples at places ``start`` to ``stop`` − 1."""


class InTurn:
    """A part as it is, for files that are opened one by one."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def numbers(self, start: int, stop: int) -> Numbers:
        return self.part.at(np.arange(start, stop, dtype=np.int64))


class Scattered:
    """All examples of a part in a random order."""

    def __init__(self, part: Part, seed: int) -> None:
        self.part, self.order = part, Permutation(len(part), (seed, _PLACES))

    def numbers(self, start: int, stop: int) -> Numbers:
        return self.part.at(self.order(np.arange(start, stop, dtype=np.int64)))


class Blocks:
    """Examples that lie together: block ``i`` ends before number ``ends[i]``."""

    def __init__(self, ends: Numbers, part: Part) -> None:
        self.ends, self.part = ends, part
        self.starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        self.counts: Numbers = ends - self.starts
        if not part.everything:
            self.counts[:] = 0
            for start in range(0, part.count, _AT_ONCE):
                numbers = part.between(start, min(start + _AT_ONCE, part.count))
                own = np.searchsorted(ends, numbers, side="right")
                self.counts += np.bincount(own, minlength=len(ends))

    def numbers(self, block: int) -> Numbers:
        """The numbers of a block that are in the part."""
        return self.part.between(int(self.starts[block]), int(self.ends[block]))


class Windowed:
    """Windows of about ``window`` examples, shuffled; without a seed, blocks in turn.

    Of a part that was cut off, as many fewer: what is read for a window is the same.
    """

    def __init__(self, blocks: Blocks, window: int, seed: int | None) -> None:
        self.blocks, self.seed = blocks, seed
        self.order: Numbers = np.arange(len(blocks.ends), dtype=np.int64)
        if seed is not None:
            self.order = Permutation(len(self.order), (seed, _BLOCKS))(self.order)
        sizes = (blocks.ends - blocks.starts)[self.order]
        # A block belongs to the window in which it begins.
        own = (np.cumsum(sizes) - sizes) // window
        last = np.flatnonzero(np.diff(own, append=own[-1] + 1))
        self.block_ends: NDArray[np.int64] = last + 1
        self.ends: Numbers = np.cumsum(blocks.counts[self.order])[last]
        self.held: tuple[int, Numbers] = (-1, self.order[:0])

    def numbers(self, start: int, stop: int) -> Numbers:
        """The numbers of the examples at places ``start`` to ``stop`` − 1."""
        found = []
        while start < stop:
            window = int(np.searchsorted(self.ends, start, side="right"))
            begin = int(self.ends[window - 1]) if window else 0
            shown = self._window(window)[start - begin : stop - begin]
            found.append(shown)
            start += len(shown)
        return np.concatenate(found) if found else self.order[:0]

    def _window(self, window: int) -> Numbers:
        if self.held[0] != window:
            first = int(self.block_ends[window - 1]) if window else 0
            chosen = np.sort(self.order[first : int(self.block_ends[window])])
            numbers = np.concatenate([self.blocks.numbers(block) for block in chosen.tolist()])
            if self.seed is not None:
                key = [self.seed, _ROWS, window]
                numbers = numbers[np.random.default_rng(key).permutation(len(numbers))]
            self.held = window, numbers
        return self.held[1]
