"""Divergent examples: the inputs of a set with the highest and lowest scores, to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Divergent", "Example", "extreme_rows"]


@dataclass(frozen=True)
class Example:
    """An image, its score, the ensemble's prediction, members' other predictions, and the truth."""

    image: NDArray[Any]  # [channels, height, width] in [0, 1]
    score: float
    predicted: str
    others: Sequence[str] = ()
    truth: str | None = None


class Divergent(NamedTuple):
    """The most and least divergent examples of one set, by the score called ``score``."""

    score: str
    most: list[Example]
    least: list[Example]


def extreme_rows(scores: Tensor, count: int = 5) -> tuple[Tensor, Tensor]:
    """The rows with the highest scores and those with the lowest, the most extreme ones first.

    At most half of the rows are in each.

    >>> import torch
    >>> [rows.tolist() for rows in extreme_rows(torch.tensor([3.0, 1.0, 2.0, 4.0]))]
    [[3, 0], [1, 2]]
    """
    order = scores.argsort(descending=True)
    count = min(count, max(1, len(order) // 2))
    return order[:count], order[-count:].flip(0)
