"""Batches of examples that stay on disk, read and decoded by processes of their own.

A batch follows from the epoch's seed and its own number alone. So worker processes can each make
every so-manieth batch and give the same epoch whatever their number, and an epoch is taken up at
any batch without reading those before it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dissensus.data import Examples
from dissensus.data.on_disk import as_float
from dissensus.data.on_disk.order import Order

__all__ = ["StreamedBatches"]

_TOGETHER = 1 << 18  # numbers that are read at once, where a batch has fewer
_NUMBERS = 1 << 24  # in a batch that is not for training, at most
_TOLD = 1000  # problems that are remembered


class _Wanted(NamedTuple):
    """A piece: the epoch's seed (None for examples as they are) and the piece's number."""

    seed: int | None
    piece: int


class _Made(NamedTuple):
    """What a worker gives back: a piece as stored, or the text of an error."""

    x: Tensor | None
    y: Tensor | None
    problems: list[str]
    error: str = ""


class StreamedBatches:
    """Examples on disk in batches. What is read at once, a piece, is one batch or several small."""

    def __init__(self, x: Examples, batch_size: int, *, shuffle: bool) -> None:
        if not shuffle:  # then it makes no difference but to memory
            batch_size = max(1, min(batch_size, _NUMBERS // max(1, x.shape[1:].numel())))
        self.shuffle = shuffle
        self.maker = _Maker(x, batch_size, shuffle)
        self.wanted = _Sequence(len(self.maker))
        self.loader: Any = None

    def __len__(self) -> int:
        return self.maker.batches

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The batches of one epoch from number ``start`` on."""
        skipped: list[str] = []
        begin = start // self.maker.together
        for piece, made in enumerate(self._made(seed if self.shuffle else None, begin), begin):
            if made.error:
                raise ValueError(made.error)
            assert made.x is not None
            skipped += made.problems[: _TOLD - len(skipped)]
            if made.problems and not len(made.x):
                raise ValueError(f"no example of batch {piece} can be read: {made.problems[0]}")
            batches = self.maker.batches_of(piece, as_float(made.x), made.y)
            yield from batches[max(start - piece * self.maker.together, 0) :]
        if skipped:
            warnings.warn(
                f"{len(skipped)} examples could not be read and were left out, such as "
                f"{skipped[0]}",
                stacklevel=2,
            )

    def _made(self, seed: int | None, start: int) -> Iterator[_Made]:
        self.wanted.seed, self.wanted.start = seed, start
        workers = self.maker.x.workers
        if not workers:
            yield from (self.maker[wanted] for wanted in self.wanted)
            return
        if self.loader is None:
            self.loader = DataLoader(
                self.maker,
                sampler=self.wanted,
                batch_size=None,
                num_workers=workers,
                collate_fn=_as_it_is,
                generator=torch.Generator(),  # not the one that layers draw from
                persistent_workers=True,
            )
        yield from self.loader


class _Maker(Dataset[_Made]):
    """Makes any piece of any epoch."""

    def __init__(self, x: Examples, batch_size: int, shuffle: bool) -> None:
        self.x, self.batch_size = x, batch_size
        full, left = divmod(len(x), batch_size)
        # Shuffled, for training, a single one left over joins the batch before, as
        # BatchNorm cannot be trained on one.
        joined = shuffle and full > 0 and left == 1
        self.batches = full + (left > 0) - joined
        # A batch of which some may be missing cannot be told from its neighbours afterwards.
        alone = x.on_error != "raise" or x.world > 1
        numbers = max(1, x.shape[1:].numel() * batch_size)
        self.together = 1 if alone else max(1, _TOGETHER // numbers)
        self.order: tuple[int | None, Order] | None = None

    def __len__(self) -> int:
        return -(-self.batches // self.together)

    def __getitem__(self, wanted: _Wanted) -> _Made:
        if self.order is None or self.order[0] != wanted.seed:
            self.order = wanted.seed, self.x.order(wanted.seed)
        x, first = self.x, wanted.piece * self.together
        start, stop = self._start(first), self._start(first + self.together)
        try:
            found = x.read(start + x.rank, stop, self.order[1], x.world)
        except ValueError as error:
            return _Made(None, None, [], str(error))
        return _Made(found.x, found.y, found.problems)

    def _start(self, batch: int) -> int:
        """The place at which a batch begins; that after the last one is the end."""
        return batch * self.batch_size if batch < self.batches else len(self.x)

    def batches_of(
        self, piece: int, x: Tensor, y: Tensor | None
    ) -> list[tuple[Tensor, Tensor | None]]:
        """A piece cut into its batches."""
        if self.together == 1:
            return [(x, y)]
        numbers = range(piece * self.together, min((piece + 1) * self.together, self.batches))
        sizes = [self._start(number + 1) - self._start(number) for number in numbers]
        parts = [None] * len(sizes) if y is None else y.split(sizes)
        return list(zip(x.split(sizes), parts, strict=True))


class _Sequence:
    """The pieces that are wanted next, for a DataLoader to ask its workers for."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.seed: int | None = None
        self.start = 0

    def __len__(self) -> int:
        return self.pieces - self.start

    def __iter__(self) -> Iterator[_Wanted]:
        return (_Wanted(self.seed, piece) for piece in range(self.start, self.pieces))


def _as_it_is(made: Any) -> Any:
    return made
