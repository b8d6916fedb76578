"""Intervals over runs, and the one rule by which all experiments decide on a claim.

**The rule.** A claim "A is larger than B" is judged by the interval (95 %, Student t) of the mean
paired difference A − B over runs that share their seed and data split:

* it **holds** if the whole interval lies above 0; where the paper prints an effect and the interval
  lies below half of it, the sentence says so;
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

The smallest effect that runs can show is half the width of their interval. What holds in this sense
holds for the runs' distribution of seeds and splits, not for other data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from reproductions.old.base import CANNOT, Finding, Verdict


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, from ``runs`` runs."""

    mean: float
    low: float
    high: float
    runs: int

    def __str__(self) -> str:
        return self.text("{:.4g}")

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
        """The estimate of what exceeds ``margin``."""
        return Estimate(self.mean - margin, self.low - margin, self.high - margin, self.runs)

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit."""
        return Estimate(factor * self.mean, factor * self.low, factor * self.high, self.runs)

    def text(self, form: str) -> str:
        """``"0.52 [0.41, 0.63]"`` with each number in ``form``.

        >>> Estimate(0.5, 0.25, 0.75, 10).text("{:.0%}")
        '50% [25%, 75%]'
        """
        if not math.isfinite(self.low) or not math.isfinite(self.high):
            return form.format(self.mean)
        return f"{form.format(self.mean)} [{form.format(self.low)}, {form.format(self.high)}]"


@dataclass(frozen=True)
class Effect:
    """An estimate that a verdict rests on: what it is of, and the format of its numbers."""

    quantity: str
    estimate: Estimate
    form: str
    unit: str = ""

    def __str__(self) -> str:
        return self.estimate.text(self.form) + self.unit

    @property
    def smallest(self) -> str:
        """The smallest effect that the runs could show, without a sign; empty for a single run.

        >>> Effect("accuracy", Estimate(2.0, 1.5, 2.5, 10), "{:+.1f}", " points").smallest
        '0.5 points'
        """
        if self.estimate.runs < 2:
            return ""
        return self.form.replace("+", "").format(self.estimate.smallest) + self.unit


def mean_interval(values: ArrayLike) -> Estimate:
    """The mean over runs with its 95 % Student-t interval, x̄ ± t · s / √n; no bounds for one run.

    >>> print(mean_interval([1.0, 2.0, 3.0]))
    2 [-0.4841, 4.484]
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

    For what is far from normal, such as a ratio or a median; with few runs it is too narrow.
    """
    runs = _runs(values)
    value = float(statistic(runs))
    if len(runs) == 1:
        return Estimate(value, -math.inf, math.inf, 1)
    samples = np.random.default_rng(seed).integers(len(runs), size=(draws, len(runs)))
    low, high = np.quantile(statistic(runs[samples]), [0.025, 0.975])
    return Estimate(value, float(low), float(high), len(runs))


def _runs(values: ArrayLike) -> NDArray[np.float64]:
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim != 1 or not len(runs) or not np.isfinite(runs).all():
        raise ValueError(f"runs must be one finite number each, got the shape {runs.shape}")
    return runs


# ---- the rule -----------------------------------------------------------------------------------


class Judgement(NamedTuple):
    """A verdict, the words that go with it, and the ``chance`` of a contradiction.

    That is how often runs contradict so clearly if the claim is just about true.
    """

    verdict: Verdict
    words: str = ""
    chance: float = 0.0


def judge_larger(difference: Estimate, effect: float | None = None) -> Judgement:
    """The judgement on "larger than 0"; see the rule above.

    ``effect`` is the difference that the paper prints, in the same unit.

    >>> judge_larger(Estimate(0.1, -0.2, 0.4, 5), effect=1.0)[:2]
    ('contradicted', 'less than half of the published effect')
    >>> judge_larger(Estimate(0.1, -0.2, 0.4, 5), effect=0.5)[:2]
    ('undecided', 'undecided')
    >>> judge_larger(Estimate(0.3, 0.2, 0.4, 5), effect=1.0)[:2]
    ('holds', 'larger, by less than half of the published effect')
    """
    little = "less than half of the published effect"
    is_little = effect is not None and difference.high < effect / 2
    if difference.runs < 2:
        return Judgement(CANNOT, "one run has no interval")
    if difference.low > 0:
        return Judgement("holds", f"larger, by {little}" if is_little else "larger")
    chance = difference.chance(max(0.0, effect / 2) if effect is not None else 0.0)
    if difference.high <= 0:
        return Judgement("contradicted", "smaller" if difference.high < 0 else "not larger", chance)
    if is_little:
        return Judgement("contradicted", little, chance)
    return Judgement("undecided", "undecided")


def judge_within(estimate: Estimate, low: float = -math.inf, high: float = math.inf) -> Judgement:
    """The judgement on "between ``low`` and ``high``"; see the rule above.

    >>> judge_within(Estimate(1.2, 1.1, 1.3, 5), high=1.25).verdict
    'undecided'
    """
    if estimate.runs < 2:
        return Judgement(CANNOT)
    if low < estimate.low and estimate.high < high:
        return Judgement("holds")
    if estimate.high < low or estimate.low > high:
        return Judgement("contradicted", "", estimate.chance(low if estimate.high < low else high))
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


def larger_than(
    first: Sequence[float],
    second: Sequence[float] | float,
    names: tuple[str, str],
    quantity: str,
    *,
    form: str = "{:.4g}",
    published: str | None = None,
    count_runs: bool = True,
    effect: float | None = None,
) -> Finding:
    """The finding on "``quantity`` of ``names[0]`` is larger than that of ``names[1]``".

    Runs are paired; ``second`` may be one number that ``first`` is compared with. The sentence says
    how many runs there are unless ``count_runs`` is False. ``effect`` is the published difference.
    Without pairs there is no verdict.

    >>> finding = larger_than([2.0, 2.1, 2.2], [1.0, 1.2, 1.1], ("joint", "independent"), "gap")
    >>> finding.verdict, finding.measured
    ('holds', 'gap: joint 2.1, independent 1.1, difference 1 [0.7516, 1.248] over 3 runs: larger')
    """
    if not first:
        return Finding(CANNOT, f"{quantity}: no runs of both kinds", published)
    other = [second] * len(first) if isinstance(second, int | float) else second
    difference = paired_difference(first, other)
    verdict, words, chance = judge_larger(difference, effect)
    means = (form.format(float(np.mean(values))) for values in (first, other))
    left, right = (f"{name} {mean}" for name, mean in zip(names, means, strict=True))
    runs = f" over {difference.runs} run" + ("s:" if difference.runs > 1 else ":")
    sentence = f"{quantity}: {left}, {right}, difference {difference.text(form)}"
    sentence = f"{sentence}{runs if count_runs else ','} {words}"
    judged_by = Effect(difference_of(quantity, names), difference, signed(form))
    return Finding(verdict, sentence, published, {"": judged_by}, chance)


def difference_of(quantity: str, names: tuple[str, str]) -> str:
    """What a comparison estimates.

    >>> difference_of("accuracy", ("ADP", "baseline"))
    'accuracy, ADP minus baseline'
    """
    return f"{quantity}, {names[0]} minus {names[1]}"


def signed(form: str) -> str:
    """The format with a sign before positive numbers, too.

    >>> signed("{:.1%}")
    '{:+.1%}'
    """
    return form.replace(":", ":+", 1)
