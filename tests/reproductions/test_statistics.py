"""Intervals against values worked elsewhere, and the rule by which claims are decided."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from reproductions.base import CANNOT, Finding, Verdict
from reproductions.statistics import (
    Estimate,
    bootstrap_interval,
    judge_larger,
    judge_within,
    larger_than,
    mean_interval,
    paired_difference,
    pool,
)


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
    assert median.mean == np.median(values)
    rows = np.random.default_rng(0).integers(20, size=(50, 20))
    slow = [float(np.median([values[row] for row in sample])) for sample in rows]
    assert (median.low, median.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])))


@pytest.mark.parametrize("values", [[], [[1.0]], [float("nan"), 1.0]])
def test_runs_that_are_none_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="runs must be one finite number each"):
        mean_interval(values)


@pytest.mark.parametrize(
    ("estimate", "verdict", "words"),
    [
        (Estimate(1.0, 0.1, 1.9, 5), "holds", "larger"),
        (Estimate(1.0, -0.1, 2.1, 5), "undecided", "undecided"),
        (Estimate(0.0, 0.0, 0.0, 5), "contradicted", "not larger"),
        (Estimate(-1.0, -1.9, -0.1, 5), "contradicted", "smaller"),
        (Estimate(1.0, -math.inf, math.inf, 1), "not tested at this scale", "one run"),
    ],
)
def test_the_rule(estimate: Estimate, verdict: str, words: str) -> None:
    found, said, chance = judge_larger(estimate)
    assert found == verdict
    assert (chance > 0) == (verdict == "contradicted" and estimate.high > estimate.low)
    assert words in said


@pytest.mark.parametrize(
    ("high", "effect", "verdict"),
    [(0.4, 1.0, "contradicted"), (0.5, 1.0, "undecided"), (0.4, None, "undecided")],
)
def test_half_of_the_published_effect_can_be_ruled_out(
    high: float, effect: float | None, verdict: str
) -> None:
    assert judge_larger(Estimate(0.1, -0.2, high, 3), effect)[0] == verdict
    assert judge_larger(Estimate(0.1, 0.01, high, 3), effect)[0] == "holds"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.9, "holds"), (-0.1, 0.9, "undecided"), (1.1, 1.2, "contradicted")],
)
def test_a_range_holds_the_interval(low: float, high: float, verdict: str) -> None:
    estimate = Estimate((low + high) / 2, low, high, 4)
    assert judge_within(estimate, 0.0, 1.0).verdict == verdict
    assert judge_within(replace(estimate, runs=1), 0.0, 1.0).verdict == "not tested at this scale"


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


def test_the_smallest_effect_is_half_the_interval() -> None:
    finding = larger_than([2.0, 2.2, 2.1], [1.0, 1.1, 1.2], ("a", "b"), "gap", form="{:.3f}")
    assert finding.smallest == f"{paired_difference([2.0, 2.2, 2.1], [1.0, 1.1, 1.2]).smallest:.3f}"
    assert larger_than([2.0], [1.0], ("a", "b"), "gap").smallest == ""


def test_the_finding_flips_with_the_data() -> None:
    joint, independent = [2.0, 2.2, 2.1], [1.0, 1.1, 1.2]
    names = ("joint", "independent")
    assert larger_than(joint, independent, names, "gap").verdict == "holds"
    turned = larger_than(independent, joint, names, "gap", published="about 1")
    assert turned.verdict == "contradicted"
    assert turned.measured.endswith("over 3 runs: smaller")
    assert turned.published == "about 1"
    assert larger_than([2.0], [1.0], names, "gap").verdict == "not tested at this scale"
    assert "over 1 run:" in larger_than([2.0], [1.0], names, "gap").measured
    assert larger_than(joint, 1.0, names, "ratio").verdict == "holds"
    assert larger_than([0.9, 1.1, 1.0], 1.0, names, "ratio").measured.endswith("undecided")


def test_a_verdict_is_one_of_four() -> None:
    with pytest.raises(ValueError, match="a verdict must be one of holds, contradicted"):
        Finding("maybe", "who knows")  # type: ignore[arg-type]
