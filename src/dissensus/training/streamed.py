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
from dissensus.data.shards import as_float
from dissensus.data.shards.ordering import Order

__all__ = ["StreamedBatches"]


class _Wanted(NamedTuple):
    """A batch: the epoch's seed (None for examples as they are) and the batch's number."""

    seed: int | None
    number: int


class _Made(NamedTuple):
    """What a worker gives back: a batch as stored, or the text of an error."""

    x: Tensor | None
    y: Tensor | None
    problems: list[str]
    error: str = ""


class StreamedBatches:
    """Examples on disk in batches."""

    def __init__(self, x: Examples, batch_size: int, *, shuffle: bool) -> None:
        self.shuffle = shuffle
        self.maker = _Maker(x, batch_size, shuffle)
        self.wanted = _Sequence(len(self.maker))
        self.loader: Any = None

    def __len__(self) -> int:
        return len(self.maker)

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The batches of one epoch from number ``start`` on."""
        skipped: list[str] = []
        for number, made in enumerate(self._made(seed if self.shuffle else None, start), start):
            if made.error:
                raise ValueError(made.error)
            assert made.x is not None
            skipped += made.problems[: 1000 - len(skipped)]
            if made.problems and not len(made.x):
                raise ValueError(f"no example of batch {number} can be read: {made.problems[0]}")
            yield as_float(made.x), made.y
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
    """Makes any batch of any epoch."""

    def __init__(self, x: Examples, batch_size: int, shuffle: bool) -> None:
        self.x, self.batch_size = x, batch_size
        full, left = divmod(len(x), batch_size)
        # Shuffled, for training, a single one left over joins the batch before, as
        # BatchNorm cannot be trained on one.
        joined = shuffle and full > 0 and left == 1
        self.batches = full + (left > 0) - joined
        self.order: tuple[int | None, Order] | None = None

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, wanted: _Wanted) -> _Made:
        if self.order is None or self.order[0] != wanted.seed:
            self.order = wanted.seed, self.x.order(wanted.seed)
        start = wanted.number * self.batch_size
        stop = start + self.batch_size if wanted.number < self.batches - 1 else len(self.x)
        x = self.x
        try:
            found = x.read(start + x.rank, stop, self.order[1], x.world)
        except ValueError as error:
            return _Made(None, None, [], str(error))
        return _Made(found.x, found.y, found.problems)


class _Sequence:
    """The batches that are wanted next, for a DataLoader to ask its workers for."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.seed: int | None = None
        self.start = 0

    def __len__(self) -> int:
        return self.batches - self.start

    def __iter__(self) -> Iterator[_Wanted]:
        return (_Wanted(self.seed, number) for number in range(self.start, self.batches))


def _as_it_is(made: Any) -> Any:
    return made
