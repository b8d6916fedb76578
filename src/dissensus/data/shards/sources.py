"""Where examples come from, by number: what all kinds of data on disk have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.shards.permuting import Numbers

__all__ = ["Found", "Source", "one_by_one"]


@dataclass(frozen=True, eq=False)
class Found:
    """Examples that were read: ``x`` as stored (pixels uint8, numbers float32), ``y`` if known.

    ``problems`` says of each example that could not be read what is wrong with it; it is in neither
    ``x`` nor ``y``.
    """

    x: Tensor
    y: Tensor | None
    problems: list[str] = field(default_factory=list)


class Source(Protocol):
    """Examples by number. ``ends`` are those of blocks that lie together; None if none do."""

    count: int
    shape: tuple[int, ...]
    row_bytes: int  # about what one example takes on disk
    ends: Numbers | None
    digest: str

    def read(self, numbers: Numbers) -> Found:
        """The examples of these numbers, in their order."""

    def targets(self, numbers: Numbers) -> NDArray[Any]:
        """Their targets alone; an error where there are none."""


def one_by_one(
    count: int,
    shape: Sequence[int],
    *,
    pixels: bool,
    load: Callable[[int], NDArray[Any]],
    where: Callable[[int], str],
    targets: Callable[[list[int]], NDArray[Any]] | None,
) -> Found:
    """Load ``count`` examples, each by its place; those that cannot be are left out and told of.

    ``targets`` gives those of the places that were loaded.
    """
    # Memory of torch's own, which is aligned: where a batch lies decides about last bits.
    x = torch.empty((count, *shape), dtype=torch.uint8 if pixels else torch.float32)
    array = x.numpy()
    kept: list[int] = []
    problems: list[str] = []
    for place in range(count):
        try:
            own = load(place)
            if own.shape != tuple(shape):
                raise ValueError(f"{where(place)} has the shape {own.shape}, not {tuple(shape)}")
            array[len(kept)] = own
            kept.append(place)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        x = x[: len(kept)].clone()
    y = None if targets is None else torch.from_numpy(targets(kept))
    return Found(x, y, problems)
