"""Orders of the examples of an epoch, in memory that does not grow with the data.

Files that are opened one by one are shown in a random order of all of them. Examples that lie
together on disk are shown by *windows*: blocks of neighbours are drawn at random from the whole
set until there are enough examples for a window, and a window's examples are shuffled. Either way
the order follows from a seed, and any place in it can be looked up without those before it.

An order of a million numbers need not be held to be used: a keyed permutation gives the number at
any place, and the place of any number, on its own. This one is a Feistel network (Luby and Rackoff,
1988) over pairs of digits, two bases whose product is barely more than the count; a number that
falls outside the range is sent through it again until it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
_Words = NDArray[np.uint64]

_ROUNDS = 6
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64


class Permutation:
    """The numbers from 0 to ``count`` − 1 in an order that follows from ``key`` alone.

    >>> order = Permutation(10, (0, 1))
    >>> order(np.arange(10)).tolist()
    [6, 3, 7, 4, 1, 8, 9, 2, 5, 0]
    >>> order.inverse(order(np.array([3, 7]))).tolist()
    [3, 7]
    """

    def __init__(self, count: int, key: tuple[int, ...]) -> None:
        self.count = count
        high = max(1, math.isqrt(max(count - 1, 0)) + 1)
        self.high, self.low = np.uint64(high), np.uint64(-(-count // high))
        words = np.random.SeedSequence(list(key)).generate_state(_ROUNDS, np.uint64)
        self.keys: list[np.uint64] = list(words.astype(np.uint64))

    def __call__(self, places: Numbers) -> Numbers:
        """The numbers at ``places``."""
        return self._walk(places, self._forwards)

    def inverse(self, numbers: Numbers) -> Numbers:
        """The places of ``numbers``."""
        return self._walk(numbers, self._backwards)

    def _walk(self, start: Numbers, step: Callable[[_Words, _Words], None]) -> Numbers:
        numbers = start.astype(np.uint64)
        outside: NDArray[Any] = np.arange(len(numbers))
        while len(outside):
            left, right = np.divmod(numbers[outside], self.low)
            step(left, right)
            numbers[outside] = left * self.low + right
            outside = outside[numbers[outside] >= self.count]
        return numbers.astype(np.int64)

    def _forwards(self, left: _Words, right: _Words) -> None:
        for left_key, right_key in pairwise(self.keys):
            left += _mixed(right + left_key) % self.high
            left %= self.high
            right += _mixed(left + right_key) % self.low
            right %= self.low

    def _backwards(self, left: _Words, right: _Words) -> None:
        for right_key, left_key in pairwise(self.keys[::-1]):
            right += self.low - _mixed(left + right_key) % self.low
            right %= self.low
            left += self.high - _mixed(right + left_key) % self.high
            left %= self.high


def _mixed(words: _Words) -> _Words:
    words = (words ^ (words >> np.uint64(30))) * _MIX[0]
    words = (words ^ (words >> np.uint64(27))) * _MIX[1]
    mixed: _Words = words ^ (words >> np.uint64(31))
    return mixed


@dataclass(frozen=True)
class Part:
    """The numbers below ``count`` whose places in a seeded order are ``first`` to ``stop`` − 1.

    Parts of one seed do not overlap. A part that is everything keeps the numbers as they are.
    """

    count: int
    first: int
    stop: int
    seed: int = 0

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def everything(self) -> bool:
        """Whether nothing was cut off."""
        return len(self) == self.count

    def at(self, places: Numbers) -> Numbers:
        """The numbers of the part by their places in it."""
        return places if self.everything else self._order(places + self.first)

    def between(self, start: int, stop: int) -> Numbers:
        """Those numbers from ``start`` to ``stop`` − 1 that are in the part, rising."""
        numbers = np.arange(start, stop, dtype=np.int64)
        if self.everything or not len(numbers):
            return numbers
        places = self._order.inverse(numbers)
        return numbers[(places >= self.first) & (places < self.stop)]

    @cached_property
    def _order(self) -> Permutation:
        return Permutation(self.count, (self.seed, 0))


def whole(count: int) -> Part:
    """All numbers below ``count``."""
    return Part(count, 0, count)


# ---- orders -------------------------------------------------------------------------------------

# The purposes for which an epoch draws random numbers.
_PLACES, _BLOCKS, _ROWS = 1, 2, 3

_AT_ONCE = 1 << 16


class Order(Protocol):
    """The examples of an epoch."""

    def numbers(self, start: int, stop: int) -> Numbers:
        """The numbers of the examples at places ``start`` to ``stop`` − 1."""


class Scattered:
    """The examples of a part one by one, in a random order; without a seed as they are."""

    def __init__(self, part: Part, seed: int | None) -> None:
        self.part = part
        self.order = None if seed is None else Permutation(len(part), (seed, _PLACES))

    def numbers(self, start: int, stop: int) -> Numbers:
        places = np.arange(start, stop, dtype=np.int64)
        return self.part.at(places if self.order is None else self.order(places))


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
                blocks = np.searchsorted(ends, numbers, side="right")
                self.counts += np.bincount(blocks, minlength=len(ends))

    def numbers(self, block: int) -> Numbers:
        """The numbers of a block that are in the part."""
        return self.part.between(int(self.starts[block]), int(self.ends[block]))


class Windowed:
    """Windows of about ``window`` examples, shuffled; without a seed, blocks in turn.

    Where only a part is used, a window covers the same blocks and has fewer examples.
    """

    def __init__(self, blocks: Blocks, window: int, seed: int | None) -> None:
        self.blocks, self.seed = blocks, seed
        self.order: Numbers = np.arange(len(blocks.ends), dtype=np.int64)
        if seed is not None:
            self.order = Permutation(len(self.order), (seed, _BLOCKS))(self.order)
        sizes = (blocks.ends - blocks.starts)[self.order]
        # A block belongs to the window in which it begins.
        windows = (np.cumsum(sizes) - sizes) // window
        last = np.flatnonzero(np.diff(windows, append=windows[-1] + 1))
        self.block_ends: NDArray[np.int64] = last + 1
        self.ends: Numbers = np.cumsum(blocks.counts[self.order])[last]
        self.current: tuple[int, Numbers] = (-1, self.order[:0])

    def numbers(self, start: int, stop: int) -> Numbers:
        pieces = []
        while start < stop:
            window = int(np.searchsorted(self.ends, start, side="right"))
            begin = int(self.ends[window - 1]) if window else 0
            piece = self._window(window)[start - begin : stop - begin]
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces) if pieces else self.order[:0]

    def _window(self, window: int) -> Numbers:
        if self.current[0] != window:
            first = int(self.block_ends[window - 1]) if window else 0
            chosen = np.sort(self.order[first : int(self.block_ends[window])])
            numbers = np.concatenate([self.blocks.numbers(block) for block in chosen.tolist()])
            if self.seed is not None:
                key = [self.seed, _ROWS, window]
                numbers = numbers[np.random.default_rng(key).permutation(len(numbers))]
            self.current = window, numbers
        return self.current[1]
