"""Scores of strange rows: the distance from the training rows, and members tuned to disagree.

Members often agree on a row unlike all that they learnt from, such as one with values that never
come together. The distance of its inputs sees that, and misses rows between two classes, on which
members disagree. So rows are scored by both, and each counts by how rare it is among the rows that
were learnt.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dissensus.data.encoder import Standard
from dissensus.data.strangers import Strangers
from dissensus.detection import Mahalanobis, TailScale, combine_tails
from dissensus.detection.tuning import tune
from dissensus.ensemble import Ensemble
from dissensus.sklearn.rows import Floats, Rows, tensors

#: So many rows are enough for a covariance and two scales.
MOST_ROWS = 5000
#: Fewer rows have no tail to take a scale from.
LEAST_ROWS = 20
#: Rows that members score at once: each has the hidden values of all members.
_PART = 64
#: The covariance of more inputs would be larger than most tables.
MOST_INPUTS = 2000


@dataclass(frozen=True, eq=False)
class RowDistance:
    """The Mahalanobis distance of encoded inputs from their mean, and scales for two scores.

    Inputs are those of :mod:`dissensus.data.encoder`: in each bin of a number the distance has a
    direction of its own. ``scales`` are of the members' score and of the distance.
    """

    distance: Mahalanobis
    scales: tuple[TailScale, TailScale]

    @classmethod
    def fit(
        cls, x: Floats, standard: Standard, member_score: Callable[[Tensor], Tensor], seed: int
    ) -> Self | None:
        """Learn it from training rows ``[rows, columns]``; None where they do not allow it.

        They must be 20 rows or more, of 2,000 inputs or fewer, and of different scores and
        distances, which those of a balanced design are not. All rows count alike, whatever their
        weights.
        """
        if len(x) < LEAST_ROWS or standard.x.inputs > MOST_INPUTS:
            return None
        if len(x) > MOST_ROWS:
            x = x[np.random.default_rng(seed).permutation(len(x))[:MOST_ROWS]]
        inputs = standard.inputs(x)  # in float32, as they are much larger than the table
        scores = torch.empty(len(inputs), dtype=torch.float64)
        for place, part in zip(scores.split(_PART), inputs.split(_PART), strict=True):
            place.copy_(member_score(part.double()))  # a list of results would scatter memory
        try:
            distance = Mahalanobis().fit(inputs, torch.zeros(len(inputs), dtype=torch.int64))
        except ValueError:  # all rows are equal, or columns are copies of one of two values
            return None
        distances = distance(inputs)
        if _constant(scores) or _constant(distances):
            return None
        return cls(distance, (TailScale.fit(scores), TailScale.fit(distances)))

    def combine(self, scores: Tensor, inputs: Tensor) -> Tensor:
        """``log ½ (1 / p + 1 / q)``, p and q being how rare the score and the distance are."""
        return combine_tails([scores, self.distance(inputs)], self.scales)


def _constant(values: Tensor) -> bool:
    """Whether values differ by rounding alone."""
    return bool(values.max() - values.min() <= 1e-9 * values.abs().max())


def tuned_members(
    ens: Ensemble,
    rows: Rows,
    standard: Standard,
    groups: Sequence[int],
    seed: int,
    batch_size: int | str,
) -> Ensemble:
    """``ens`` tuned on ``rows``; ``groups`` number the column that each one's inputs come from.

    All inputs of a column, its piecewise-linear ones and the levels of a category, move together.
    """
    x, y, *_ = tensors(standard, rows)  # a term on strangers takes no example weights
    if len(x) < 2:
        raise ValueError(f"strangers=True needs at least 2 different rows, got {len(x)}")
    if standard.y is not None and ens(x[:1].double()).shape[-1] != y.shape[1]:
        raise ValueError("strangers=True does not go with loss='gaussian'")
    strangers = Strangers(groups=tuple(np.repeat(groups, standard.x.widths).tolist()))
    settings: dict[str, Any] = {} if isinstance(batch_size, str) else {"batch_size": batch_size}
    start = copy.deepcopy(ens).float().requires_grad_(True)
    tuned, _ = tune(start, (x, y), strangers=strangers, seed=seed, progress=False, **settings)
    return tuned.double().eval().requires_grad_(False)
