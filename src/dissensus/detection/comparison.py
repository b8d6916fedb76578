"""Comparison of estimates: which of them cannot be told apart from the best."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from dissensus.detection.measures import Estimate

Floats = NDArray[np.float64]

#: The rule in words, for wherever marks are shown.
MARKED = (
    "not distinguishable from the best of its column: the 95% interval of the difference, "
    "corrected for the number of pairs, contains 0. Nothing is marked where nothing can be told "
    "apart."
)


def among_best(
    estimates: Sequence[Estimate],
    parts: Sequence[Floats | None] | None = None,
    *,
    highest: bool = True,
    pairs: int | None = None,
) -> list[bool]:
    """Which estimates are the best or not distinguishable from it; none if all are.

    Estimate i is marked unless the interval of its difference from the best, b, excludes 0:
    ``|b − i| > c · s``. The best is itself chosen from the k estimates, so c is for all pairs at
    once: the quantile of ``1 − 0.025 / pairs`` (Bonferroni), with ``k (k − 1) / 2`` pairs unless
    more are compared in all.

    - ``parts`` are the values of single examples, or of repeats, whose mean the estimate is. Then
      ``s = sd(parts_b − parts_i) / √n``, with the t distribution: a paired comparison, as the n
      examples are the same. If they are not, their differences have the right variance as well.
    - Otherwise the 95% intervals give the difference's (MOVER; Zou and Donner 2008):
      ``s = √((b − low_b)² + (high_i − i)²) / 1.96``, the facing ends of the two. This ignores that
      the examples are the same, so it marks rather too many.

    Without either, nothing can be told apart.

    >>> attacks = [Estimate(0.48, 0.41, 0.55), Estimate(0.475, 0.41, 0.54), Estimate(0.2, 0.1, 0.3)]
    >>> among_best(attacks), among_best(attacks[:2])
    ([True, True, False], [False, False])
    """
    if len(estimates) < 2:
        return [False] * len(estimates)
    tail = 0.025 / (pairs or len(estimates) * (len(estimates) - 1) // 2)
    values = [estimate.value for estimate in estimates]
    best = values.index(max(values) if highest else min(values))
    given = parts or [None] * len(estimates)
    marks = []
    for place, estimate in enumerate(estimates):
        margin = _paired_margin(given[best], given[place], tail)
        if margin is None:
            ends = (estimates[best], estimate) if highest else (estimate, estimates[best])
            margin = _margin(*ends, tail)
        # An unknown margin is NaN, which is never exceeded.
        marks.append(place == best or not abs(values[best] - values[place]) > margin)
    return [False] * len(marks) if all(marks) else marks


def _paired_margin(one: Floats | None, other: Floats | None, tail: float) -> float | None:
    if one is None or other is None or len(one) != len(other) or len(one) < 2:
        return None
    deviation = float(np.std(one - other, ddof=1)) / math.sqrt(len(one))
    return float(stdtrit(len(one) - 1, 1 - tail)) * deviation


def _margin(upper: Estimate, lower: Estimate, tail: float) -> float:
    facing = math.hypot(upper.value - upper.low, lower.high - lower.value)
    return float(ndtri(1 - tail) / ndtri(0.975)) * facing
