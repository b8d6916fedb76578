"""Predicted numbers against slow loops, closed forms and hand-worked values."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from dissensus.calibration import (
    conformal_quantile,
    crps_quantiles,
    gaussian_nll,
    interval_coverage,
    sample_quantiles,
)


def slow_conformal(scores: list[float], coverage: float, weights: list[float]) -> float:
    """Try every score from below."""
    new = sum(w * w for w in weights) / sum(weights)
    for score in sorted(scores):
        below = sum(w for s, w in zip(scores, weights, strict=True) if s <= score)
        if below >= coverage * (sum(weights) + new) - 1e-9:
            return score
    raise AssertionError("not enough rows")


def test_conformal_quantile_agrees_with_a_slow_loop() -> None:
    rng = np.random.default_rng(0)
    for rows in (9, 10, 57, 200):
        scores, weights = rng.normal(size=rows).round(1), rng.integers(0, 4, rows) + 0.0
        weights[0] = 1
        for coverage in (0.1, 0.5, 0.7):
            got = conformal_quantile(*map(torch.from_numpy, (scores,)), coverage)
            assert float(got) == slow_conformal(scores.tolist(), coverage, [1.0] * rows)
            expected = slow_conformal(scores.tolist(), coverage, weights.tolist())
            for scale in (1.0, 2.5):  # weights count relative to each other
                got = conformal_quantile(
                    torch.from_numpy(scores), coverage, torch.from_numpy(scale * weights)
                )
                assert float(got) == expected


def test_conformal_quantile_takes_the_rank_that_the_rule_says() -> None:
    """⌈(n + 1) · coverage⌉, also where the product is a whole number up to rounding."""
    for rows in range(9, 300):
        scores = torch.arange(1.0, rows + 1)
        for tenth in (3, 7, 9):
            rank = -(-(rows + 1) * tenth // 10)
            assert float(conformal_quantile(scores, tenth / 10)) == rank
    weights = torch.tensor([1.0] * 9 + [0.0])
    assert float(conformal_quantile(torch.arange(10.0), 0.9, weights)) == 8.0


def test_conformal_quantile_covers_new_rows_on_average() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(4000, 20, generator=generator)
    covered = [float(s[19] <= conformal_quantile(s[:19], 0.9)) for s in drawn]
    assert np.mean(covered) == pytest.approx(0.9, abs=0.015)


def test_too_few_rows_for_a_coverage_are_an_error_that_counts_them() -> None:
    with pytest.raises(ValueError, match="needs 19 held-out rows, got 18"):
        conformal_quantile(torch.arange(18.0), 0.95)
    with pytest.raises(ValueError, match=r"needs 9 held-out rows, got 1\.187"):
        conformal_quantile(torch.arange(10.0), 0.9, torch.tensor([100.0] + [1.0] * 9))
    for coverage in (0.0, 1.0, 90, math.nan):
        with pytest.raises(ValueError, match="coverage must be a finite number"):
            conformal_quantile(torch.arange(18.0), coverage)
    with pytest.raises(ValueError, match="scores"):
        conformal_quantile(torch.tensor([1.0, math.nan]), 0.5)


def test_sample_quantiles_are_linear_inside_and_exponential_outside() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=57)
    levels = np.linspace(1 / 58, 57 / 58, 40)
    got = sample_quantiles(torch.from_numpy(values), torch.from_numpy(levels))
    np.testing.assert_allclose(got, np.quantile(values, levels, method="weibull"), atol=1e-12)
    # Twice the same rows by weights: nothing changes. Repeated once more: hardly anything.
    same = sample_quantiles(
        torch.from_numpy(values), torch.from_numpy(levels), torch.full((57,), 2.0)
    )
    np.testing.assert_allclose(same, got, atol=1e-12)
    # By hand: 1, 2, 4 stand at ¼, ½, ¾; above, the excess is 2, and 7/8 leaves half of a quarter.
    found = sample_quantiles(torch.tensor([4.0, 1.0, 2.0]), [1 / 8, 7 / 8])
    assert found.tolist() == pytest.approx([1 - math.log(2), 4 + 2 * math.log(2)])
    many = torch.distributions.Exponential(1.0).sample((200_000,)).double()
    deep = 1 - 1e-7
    assert float(sample_quantiles(many, [deep])[0]) == pytest.approx(-math.log(1e-7), rel=0.25)
    assert sample_quantiles(torch.tensor([3.0]), [0.01, 0.99]).tolist() == [3.0, 3.0]
    every = sample_quantiles(torch.from_numpy(values), np.linspace(1e-6, 1 - 1e-6, 999))
    assert bool((every.diff() >= 0).all())
    with pytest.raises(ValueError, match="quantiles must lie between 0 and 1, got"):
        sample_quantiles(many, [0.0])


def test_crps_agrees_with_its_integral() -> None:
    rng = np.random.default_rng(0)
    means, stds, targets = rng.normal(size=5), rng.uniform(0.3, 2, 5), rng.normal(size=5)
    levels = (np.arange(2000) + 0.5) / 2000
    quantiles = stats.norm(means[:, None], stds[:, None]).ppf(levels)
    got = crps_quantiles(torch.from_numpy(quantiles), levels, torch.from_numpy(targets))
    for n in range(5):
        law = stats.norm(means[n], stds[n])
        below = integrate.quad(lambda t, law=law: law.cdf(t) ** 2, -15, targets[n])[0]
        above = integrate.quad(lambda t, law=law: law.sf(t) ** 2, targets[n], 15)[0]
        assert float(got[n]) == pytest.approx(below + above, rel=2e-3)
    # By hand: levels ¼ and ¾ stand for half each; y = 1, q = 0 and 2: 2 · ½ (¼ · 1 + ¼ · 1).
    assert crps_quantiles(torch.tensor([[0.0, 2.0]]), [0.25, 0.75], torch.ones(1)).tolist() == [0.5]
    with pytest.raises(ValueError, match="levels must increase"):
        crps_quantiles(torch.zeros(1, 2), [0.75, 0.25], torch.ones(1))


def test_gaussian_nll_agrees_with_scipy_and_stays_finite() -> None:
    rng = np.random.default_rng(0)
    means, logs, targets = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4, 2)), np.ones((4, 2))
    got = gaussian_nll(*map(torch.from_numpy, (means, logs, targets)))
    np.testing.assert_allclose(got, -stats.norm(means, np.exp(logs / 2)).logpdf(targets))
    assert float(gaussian_nll(torch.zeros(()), torch.tensor(200.0), torch.zeros(()))) < 101


def test_coverage_counts_rows_by_their_weight() -> None:
    intervals = torch.tensor([[0.0, 1.0], [0.0, 1.0], [5.0, 6.0]])
    targets = torch.tensor([0.5, 1.0, 1.0])
    assert float(interval_coverage(intervals, targets)) == pytest.approx(2 / 3)
    weights = torch.tensor([1.0, 1.0, 2.0])
    assert float(interval_coverage(intervals, targets, weights)) == 0.5
    both = torch.stack([intervals, intervals], -1)
    twice = torch.stack([targets, torch.full((3,), 9.0)], -1)
    assert float(interval_coverage(both, twice)) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match=r"intervals must be \[rows, 2, …\] = \(3, 2\), got"):
        interval_coverage(intervals.T, targets)
