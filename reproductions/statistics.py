"""Intervals over runs, and the one rule by which all experiments decide on a claim.

**The rule.** A claim "A is larger than B" is judged by the interval (95 %, Student t) of the mean
paired difference A − B over runs that share their seed and data split:

* it **holds** if the whole interval lies above 0; where the paper prints an effect and the interval
  lies below half of it, the table says so;
* it is **contradicted** if no part of the interval lies above 0, or above half of the published
  effect where the paper prints one: the runs would have shown that much;
* it is **undecided** otherwise: the interval has 0 in it, and effects worth having too;
* it is **not tested at this scale** by one run, which has no interval, or by none.

A claim about a range ("below 1.25", "the same within 0.01") holds if the interval lies inside of
it, is contradicted if it lies outside, and is undecided otherwise.

**Several data sets or cases** are never averaged: a claim holds if it holds in each case, is
contradicted if it is in one, and is undecided otherwise (:func:`pool`). Of k cases one lies far off
by chance about k times as often as a single one; so an interval of 1 − 5 % / k has to contradict
(Bonferroni). To hold in each case needs no such care: chance rarely favours all of them.

The smallest effect that runs can show is half the width of their interval. A finding holds for the
runs' distribution of seeds and splits, not for other data. Where trainings are long and seeds few,
a claim begins with "In these runs": its interval is over test images (:func:`over_images`), and
networks of other seeds may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Verdict = Literal["holds", "contradicted", "undecided", "not tested at this scale"]
CANNOT: Verdict = "not tested at this scale"

#: A number of each image of a run, such as 1 where it is right; or one number of the run.
Values = NDArray[np.float64] | float
#: The interval of first minus second, from the values of paired runs.
Interval = Callable[[Sequence[Any], Sequence[Any]], "Estimate"]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, from ``runs`` runs; a single run has no bounds."""

    mean: float
    low: float
    high: float
    runs: int

    @property
    def smallest(self) -> float:
        """The smallest effect that the runs could show: half the width of the interval."""
        return (self.high - self.low) / 2

    def chance(self, bound: float) -> float:
        """The two-sided p-value (Student t) of a mean at ``bound``; 0 where no run differs.

        ``t = (bound − x̄) / (s / √n)``, with ``s / √n`` from the width of the interval.

        >>> round(Estimate(2.0, 0.0, 4.0, 10).chance(0.0), 6)
        0.05
        """
        if self.high == self.low:
            return 0.0
        error = self.smallest / stats.t.ppf(0.975, self.runs - 1)
        return float(2 * stats.t.sf(abs(bound - self.mean) / error, self.runs - 1))

    def minus(self, margin: float) -> Estimate:
        """The estimate of the excess over ``margin``."""
        return Estimate(self.mean - margin, self.low - margin, self.high - margin, self.runs)

    def text(self, form: str) -> str:
        """Mean and interval with each number in ``form``; a single run has its number alone.

        >>> Estimate(0.5, 0.25, 0.75, 10).text("{:.0%}")
        '50% [25%, 75%]'
        """
        if not math.isfinite(self.low):
            return form.format(self.mean)
        return f"{form.format(self.mean)} [{form.format(self.low)}, {form.format(self.high)}]"


# ---- intervals ----------------------------------------------------------------------------------


def mean_interval(values: ArrayLike) -> Estimate:
    """The mean over runs with its 95 % Student-t interval, x̄ ± t · s / √n; no bounds for one run.

    >>> mean_interval([1.0, 2.0, 3.0]).text("{:.4g}")
    '2 [-0.4841, 4.484]'
    """
    numbers = _runs(values)
    mean, runs = float(numbers.mean()), len(numbers)
    if runs == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    quantile = float(stats.t.ppf(0.975, runs - 1))
    half = quantile * float(numbers.std(ddof=1)) / math.sqrt(runs)
    return Estimate(mean, mean - half, mean + half, runs)


def paired_difference(first: ArrayLike, second: ArrayLike) -> Estimate:
    """The mean of ``first − second`` over pairs of runs, with its Student-t interval."""
    left, right = _runs(first), _runs(second)
    if len(left) != len(right):
        raise ValueError(f"pairs need as many runs on both sides, got {len(left)}, {len(right)}")
    return mean_interval(left - right)


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda runs: runs.mean(-1),
    *,
    draws: int = 4000,
    seed: int = 0,
) -> Estimate:
    """``statistic`` of the runs, along the last axis, with its 95 % percentile bootstrap interval.

    For statistics that are far from normal, such as a ratio or a median; with few runs it is too
    narrow.
    """
    runs = _runs(values)
    value = float(statistic(runs))
    if len(runs) == 1:
        return Estimate(value, -math.inf, math.inf, 1)
    samples = np.random.default_rng(seed).integers(len(runs), size=(draws, len(runs)))
    low, high = np.quantile(statistic(runs[samples]), [0.025, 0.975])
    return Estimate(value, float(low), float(high), len(runs))


def images_interval(runs: Sequence[NDArray[np.float64]]) -> Estimate:
    """The mean over the images of all runs with its normal interval: x̄ ± 1.96 s / √n.

    If ``n`` images all have one value, the mean is known to within 3 / n (the rule of three).

    >>> images_interval([np.array([1.0, 0.0, 1.0, 1.0])]).text("{:.2f}")
    '0.75 [0.26, 1.24]'
    """
    images = np.concatenate(list(runs))
    mean, count = float(images.mean()), len(images)
    if count == 1:
        half = math.inf
    elif np.ptp(images) == 0:
        half = 3 / count
    else:
        half = 1.96 * float(images.std(ddof=1)) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


def shares_interval(first: float, second: float, images: int) -> Estimate:
    """``p − q``: two means over the same images of numbers in [0, 1], if only means were kept.

    The variance of such numbers with mean ``p`` is at most ``p (1 − p)`` (Bhatia and Davis, 2000).
    Images that are hard for one side are hard for the other, so that independent sides are the
    wider case: ``p − q ± 1.96 √((p (1 − p) + q (1 − q)) / n)``.

    >>> shares_interval(0.5, 0.4, 100).text("{:.3f}")
    '0.100 [-0.037, 0.237]'
    """
    variance = first * (1 - first) + second * (1 - second)
    half = 1.96 * math.sqrt(variance / images)
    return Estimate(first - second, first - second - half, first - second + half, images)


def _runs(values: ArrayLike) -> NDArray[np.float64]:
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim != 1 or not len(runs) or not np.isfinite(runs).all():
        raise ValueError(f"runs must be one finite number each, got the shape {runs.shape}")
    return runs


# ---- intervals of a paired difference -----------------------------------------------------------


def over_runs(first: Sequence[Values], second: Sequence[Values]) -> Estimate:
    """First minus second over pairs of runs; of values by image, each run counts by its mean."""
    pairs = zip(first, second, strict=True)
    return mean_interval([float(np.mean(left - right)) for left, right in pairs])


def over_images(
    first: Sequence[NDArray[np.float64]], second: Sequence[NDArray[np.float64]]
) -> Estimate:
    """First minus second over the images of all pairs of runs: about these networks alone."""
    return images_interval([left - right for left, right in zip(first, second, strict=True)])


def over_same_images(
    first: Sequence[NDArray[np.float64]], second: Sequence[NDArray[np.float64]]
) -> Estimate:
    """As :func:`over_images`, where all runs have the same images in the same order.

    An image counts once, by its mean over runs.
    """
    differences = [left - right for left, right in zip(first, second, strict=True)]
    return images_interval([np.mean(differences, axis=0)])


def over_shares(images: int) -> Interval:
    """As :func:`over_images` for records that keep the share of ``images`` alone.

    More runs on the same images do not narrow the interval.
    """
    return lambda first, second: shares_interval(
        float(np.mean(first)), float(np.mean(second)), images
    )


# ---- the rule -----------------------------------------------------------------------------------


class Judgement(NamedTuple):
    """A verdict, and the ``chance`` of a contradiction.

    That is how often runs contradict so clearly if the claim is just about true. ``small``: the
    effect is less than half of the published one.
    """

    verdict: Verdict
    chance: float = 0.0
    small: bool = False


def judge_larger(difference: Estimate, published: float | None = None) -> Judgement:
    """The judgement on "larger than 0"; see the rule above.

    ``published`` is the difference that the paper prints, in the same unit.

    >>> judge_larger(Estimate(0.1, -0.2, 0.4, 5), published=1.0).verdict
    'contradicted'
    >>> judge_larger(Estimate(0.1, -0.2, 0.4, 5), published=0.5).verdict
    'undecided'
    >>> judge_larger(Estimate(0.3, 0.2, 0.4, 5), published=1.0)
    Judgement(verdict='holds', chance=0.0, small=True)
    """
    small = published is not None and difference.high < published / 2
    if difference.runs < 2:
        return Judgement(CANNOT)
    if difference.low > 0:
        return Judgement("holds", small=small)
    if difference.high <= 0 or small:
        bound = max(0.0, published / 2) if published is not None else 0.0
        return Judgement("contradicted", difference.chance(bound), small)
    return Judgement("undecided")


def judge_within(estimate: Estimate, low: float = -math.inf, high: float = math.inf) -> Judgement:
    """The judgement on "between ``low`` and ``high``"; see the rule above.

    >>> judge_within(Estimate(1.2, 1.1, 1.3, 5), high=1.25).verdict
    'undecided'
    """
    if estimate.runs < 2:
        return Judgement(CANNOT)
    if low < estimate.low and estimate.high < high:
        return Judgement("holds")
    if estimate.high <= low or estimate.low >= high:
        return Judgement("contradicted", estimate.chance(low if estimate.high <= low else high))
    return Judgement("undecided")


def pool(cases: Iterable[tuple[Verdict, float]]) -> tuple[Verdict, float]:
    """The verdict over several cases, each with its chance; see the rule above.

    >>> pool([("contradicted", 0.01), ("holds", 0.0)])
    ('contradicted', 0.02)
    >>> pool([("contradicted", 0.03), ("holds", 0.0)])[0]  # an interval of 97.5 % has 0 in it
    'undecided'
    """
    given = list(cases)
    against = [chance for verdict, chance in given if verdict == "contradicted"]
    if against:
        tested = sum(verdict != CANNOT for verdict, _ in given)
        chance = tested * min(against)
        return ("contradicted", chance) if tested == 1 or chance <= 0.05 else ("undecided", 0.0)
    verdicts = {verdict for verdict, _ in given}
    order: tuple[Verdict, ...] = ("undecided", CANNOT, "holds")
    return next((verdict for verdict in order if verdict in verdicts), CANNOT), 0.0
