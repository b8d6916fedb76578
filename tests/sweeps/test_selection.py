"""The rule that chooses among settings: against a slow reference, and on planted errors."""

import math

import numpy as np
import pytest
from scipy import stats

from dissensus.sweeps.selection import overall_verdict, select_setting

BETAS = [0.0, 0.5, 1.0]


def planted(*means: float, spread: float = 0.1, folds: int = 5) -> np.ndarray:
    """Errors ``[settings, folds]``: folds differ in difficulty, settings by their means."""
    rng = np.random.default_rng(0)
    difficulty = spread * rng.standard_normal(folds)
    noise = 0.01 * spread * rng.standard_normal((len(means), folds))
    return np.array(means)[:, None] + difficulty - difficulty.mean() + noise


def test_it_equals_a_slow_reference() -> None:
    """Random errors and verdicts, the rule of the module once more in NumPy."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        count, folds = rng.integers(1, 6), rng.integers(2, 7)
        errors = rng.random((count, folds)) * 0.2 + rng.random((count, 1))
        words = rng.choice(["healthy", "colluding"], count).tolist()
        overlap = float(rng.random())
        found = select_setting(
            errors.tolist(), betas=list(range(count)), verdicts=words, overlap=overlap
        )
        mean = errors.mean(1)
        sound = [s for s in range(count) if words[s] == "healthy"] or list(range(count))
        healthy = min(sound, key=lambda s: mean[s])
        counted = []
        for s in range(count):
            gain = errors[healthy] - errors[s]
            error = math.sqrt((1 / folds + overlap) * gain.var(ddof=1))
            if s in sound or gain.mean() - stats.t.ppf(0.975, folds - 1) * error > 0:
                counted.append(s)
        best = min(counted, key=lambda s: mean[s])
        within = mean[best] + errors[best].std(ddof=1) / math.sqrt(folds)
        assert found.best == best
        assert found.chosen == min(s for s in counted if mean[s] <= within)
        np.testing.assert_allclose(found.differences, mean - mean[best])
        assert found.status[found.chosen] == "chosen"


def test_noise_chooses_the_smallest_beta_and_a_clear_gain_its_own() -> None:
    assert select_setting(planted(0.300, 0.299, 0.298), betas=BETAS).chosen == 0
    found = select_setting(planted(0.9, 0.5, 0.3), betas=BETAS)
    assert (found.chosen, found.reason) == (2, "the lowest error")
    assert found.status == ("worse", "worse", "chosen")
    reverse = select_setting(planted(0.298, 0.299, 0.300), betas=BETAS[::-1])
    assert reverse.chosen == 2  # the smallest β, not the first


def test_a_colluding_setting_needs_a_clear_gain() -> None:
    words = ["healthy", "healthy", "colluding"]
    slight = planted(0.50, 0.42, 0.40) + np.array([[0.0], [0.0], [1.0]]) * [0.2, -0.2, 0.2, -0.2, 0]
    found = select_setting(slight, betas=BETAS, verdicts=words)
    assert found.best == 1
    assert found.status[2] == "colluding, no clear gain"
    assert "does not collude" in found.reason
    clear = select_setting(planted(0.9, 0.85, 0.3), betas=BETAS, verdicts=words)
    assert clear.chosen == 2
    # One fold has no interval, so no gain is clear.
    alone = select_setting([[0.5], [0.4], [0.1]], betas=BETAS, verdicts=words)
    assert alone.chosen == 1
    everywhere = select_setting(planted(0.9, 0.85, 0.3), betas=BETAS, verdicts=["colluding"] * 3)
    assert everywhere.chosen == 2


def test_without_beta_the_best_is_chosen_and_its_equals_are_named() -> None:
    found = select_setting(planted(0.3001, 0.3, 0.5))
    assert found.chosen == found.best == 1
    assert found.indistinct == (True, True, False)


def test_failed_settings_are_never_chosen() -> None:
    found = select_setting([[0.1, math.inf], [0.5, 0.6], [math.nan, 0.1]], betas=BETAS)
    assert found.status == ("failed", "chosen", "failed")
    assert found.indistinct == (False, True, False)
    with pytest.raises(ValueError, match="all 1 settings failed"):
        select_setting([[math.nan]])


def test_the_verdict_of_folds_is_their_median() -> None:
    assert overall_verdict(["healthy", "colluding"]) == "colluding"
    assert overall_verdict(["healthy", "healthy", "colluding"]) == "healthy"
    assert overall_verdict(["not judged"]) == "not judged"
