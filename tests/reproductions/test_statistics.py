"""Intervals against values worked elsewhere, and the rule by which claims are decided."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from reproductions.statistics import (
    CANNOT,
    Estimate,
    Verdict,
    bootstrap_interval,
    images_interval,
    judge_larger,
    judge_within,
    mean_interval,
    over_images,
    over_runs,
    over_same_images,
    over_shares,
    paired_difference,
    pool,
)

# ---- intervals ----------------------------------------------------------------------------------


def test_the_t_interval_is_scipys() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 12)
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.mean, found.runs) == (pytest.approx(values.mean()), 12)


def test_a_worked_interval() -> None:
    """n = 4, s = 2, t(0.975, 3) = 3.1824: 5 ± 3.1824 · 2 / 2 for values with that deviation."""
    offset = math.sqrt(3.0)
    found = mean_interval([5 - offset, 5 + offset, 5 - offset, 5 + offset])
    assert found.low == pytest.approx(5 - 3.182446, abs=1e-5)
    assert found.high == pytest.approx(5 + 3.182446, abs=1e-5)


def test_pairing_takes_out_what_runs_share() -> None:
    shared = np.random.default_rng(1).normal(0, 100, 8)
    first, second = shared + 1.0 + 0.01 * np.arange(8), shared
    assert paired_difference(first, second).low > 0.99
    with pytest.raises(ValueError, match="as many runs on both sides, got 8, 7"):
        paired_difference(first, second[:7])


def test_the_bootstrap_covers_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for seed in range(200):
        found = bootstrap_interval(rng.normal(1.0, 1.0, 40), draws=400, seed=seed)
        inside += found.low <= 1.0 <= found.high
    assert 0.90 <= inside / 200 <= 0.99
    values = rng.normal(size=20)
    median = bootstrap_interval(values, partial(np.median, axis=-1), draws=50)
    rows = np.random.default_rng(0).integers(20, size=(50, 20))
    slow = [float(np.median([values[row] for row in sample])) for sample in rows]
    assert median.mean == np.median(values)
    assert (median.low, median.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])))


@pytest.mark.parametrize("values", [[], [[1.0]], [float("nan"), 1.0]])
def test_runs_that_are_none_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="runs must be one finite number each"):
        mean_interval(values)


def test_intervals_over_runs_and_over_images() -> None:
    """Two runs of four images; the first side is right on one more image in each."""
    first = [np.array([1.0, 1.0, 0.0, 1.0]), np.array([1.0, 1.0, 0.0, 0.0])]
    second = [np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0, 0.0])]
    assert over_runs(first, second) == Estimate(0.25, 0.25, 0.25, 2)
    gains = np.array([0.0, 1, 0, 0, 1, 0, 0, 0])
    half = 1.96 * gains.std(ddof=1) / math.sqrt(8)
    many = over_images(first, second)
    assert (many.mean, many.low, many.runs) == (0.25, pytest.approx(0.25 - half), 8)
    once = over_same_images(first, second)
    half = 1.96 * np.std([0.5, 0.5, 0, 0], ddof=1) / 2
    assert (once.mean, once.high, once.runs) == (0.25, pytest.approx(0.25 + half), 4)
    shares = over_shares(100)([0.5, 0.5], [0.4, 0.4])
    assert shares.high == pytest.approx(0.1 + 1.96 * math.sqrt((0.25 + 0.24) / 100))
    assert over_shares(100)([0.5] * 9, [0.4] * 9).high == pytest.approx(shares.high)


def test_images_of_one_value_have_the_rule_of_three() -> None:
    assert images_interval([np.ones(300)]) == Estimate(1.0, 0.99, 1.01, 300)
    assert images_interval([np.ones(1)]).high == math.inf


# ---- the rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "published", "verdict"),
    [
        (0.1, 1.9, None, "holds"),
        (-0.1, 2.1, None, "undecided"),
        (0.0, 0.0, None, "contradicted"),
        (-1.9, -0.1, None, "contradicted"),
        (-0.2, 0.4, 1.0, "contradicted"),  # less than half of the published effect
        (-0.2, 0.5, 1.0, "undecided"),
        (0.01, 0.4, 1.0, "holds"),
    ],
)
def test_the_rule(low: float, high: float, published: float | None, verdict: Verdict) -> None:
    estimate = Estimate((low + high) / 2, low, high, 5)
    found = judge_larger(estimate, published)
    assert found.verdict == verdict
    assert (found.chance > 0) == (verdict == "contradicted" and high > low)
    assert found.small == (published is not None and high < published / 2)
    assert judge_larger(replace(estimate, runs=1), published).verdict == CANNOT


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.9, "holds"),
        (-0.1, 0.9, "undecided"),
        (1.1, 1.2, "contradicted"),
        (0.0, 0.0, "contradicted"),  # not above 0
    ],
)
def test_a_range_holds_the_interval(low: float, high: float, verdict: Verdict) -> None:
    estimate = Estimate((low + high) / 2, low, high, 4)
    assert judge_within(estimate, 0.0, 1.0).verdict == verdict
    assert judge_within(replace(estimate, runs=1), 0.0, 1.0).verdict == CANNOT


def test_one_case_contradicts_and_all_must_hold() -> None:
    def pooled(*verdicts: Verdict) -> Verdict:
        return pool((verdict, 0.0) for verdict in verdicts)[0]

    assert pooled("holds", "holds") == "holds"
    assert pooled("undecided", "contradicted", "holds") == "contradicted"
    assert pooled("holds", CANNOT) == CANNOT
    assert pooled("undecided", CANNOT) == "undecided"
    assert pooled() == CANNOT


def test_the_chance_of_a_contradiction_is_the_p_value_of_a_t_test() -> None:
    runs = np.array([-1.0, -0.4, -0.7, -0.2, -0.9])
    expected = float(stats.ttest_1samp(runs, 0.0).pvalue)
    assert judge_larger(mean_interval(runs)).chance == pytest.approx(expected, rel=1e-9)
    half = float(stats.ttest_1samp(runs, 1.5).pvalue)  # of a published effect of 3
    assert judge_larger(mean_interval(runs), 3.0).chance == pytest.approx(half, rel=1e-9)
    above = float(stats.ttest_1samp(runs, -3.0).pvalue)
    assert judge_within(mean_interval(runs), -5.0, -3.0).chance == pytest.approx(above, rel=1e-9)


def test_among_true_claims_chance_contradicts_one_in_forty_however_many_cases_there_are() -> None:
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(1000):
        cases = [judge_larger(mean_interval(runs)) for runs in generator.normal(size=(8, 5))]
        wrong += pool((case.verdict, case.chance) for case in cases)[0] == "contradicted"
    assert 10 <= wrong <= 40  # 25 expected; 180 if each case counted alone
