"""Measures, intervals and thresholds against scikit-learn and pair counting; marks of the best."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from torch import Tensor

from dissensus.measures import (
    Detection,
    Estimate,
    among_best,
    evaluate,
    roc_curve,
    threshold_at,
)

# Few distinct values make most pairs ties; halves and thirds make them inexact in binary.
scores_with_ties = st.lists(
    st.sampled_from([-2.0, -1 / 3, 0.0, -0.0, 0.1, 1 / 3, 0.5, 7.0]), min_size=1, max_size=40
).map(np.array)


def slow_fpr95(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Try every score as a threshold, highest first, until 95% of the positives are at it."""
    for threshold in sorted(positives, reverse=True):
        if sum(s >= threshold for s in positives) * 20 >= 19 * len(positives):
            return sum(s >= threshold for s in negatives) / len(negatives)
    raise AssertionError


def reference(ids: np.ndarray, oods: np.ndarray) -> list[float]:
    """AUROC, AUPR in, AUPR out and FPR95 by scikit-learn and the slow loop."""
    is_ood = np.r_[np.zeros(len(ids)), np.ones(len(oods))]
    both = np.r_[ids, oods]
    return [
        metrics.roc_auc_score(is_ood, both),
        metrics.average_precision_score(1 - is_ood, -both),
        metrics.average_precision_score(is_ood, both),
        slow_fpr95(oods, ids),
    ]


def values(found: Detection) -> list[Estimate]:
    return [found.auroc, found.aupr_in, found.aupr_out, found.fpr95]


@given(scores_with_ties, scores_with_ties)
def test_measures_agree_with_scikit_learn_and_pair_counting(
    ids: np.ndarray, oods: np.ndarray
) -> None:
    found = evaluate(ids, oods, bootstrap=0)
    assert values(found) == pytest.approx(reference(ids, oods), abs=1e-12)
    pairs = sum((o > i) + 0.5 * (o == i) for o in oods for i in ids)
    assert float(found.auroc) == pairs / (len(ids) * len(oods))
    assert (found.id_count, found.ood_count) == (len(ids), len(oods))


@given(scores_with_ties, scores_with_ties)
def test_the_other_fpr95_is_had_by_swapping_and_negating(ids: np.ndarray, oods: np.ndarray) -> None:
    """With ID positive: OOD examples accepted at the threshold that accepts 95% of ID examples."""
    other = evaluate(-oods, -ids, bootstrap=0).fpr95
    assert float(other) == np.mean(oods <= threshold_at(ids, 0.95))


@given(scores_with_ties, scores_with_ties)
def test_roc_curve_agrees_with_scikit_learn(ids: np.ndarray, oods: np.ndarray) -> None:
    is_ood = np.r_[np.zeros(len(ids)), np.ones(len(oods))]
    wanted = metrics.roc_curve(is_ood, np.r_[ids, oods], drop_intermediate=False)
    for mine, theirs in zip(roc_curve(torch.tensor(ids), oods), wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-15)


def test_values_worked_by_hand() -> None:
    """ID 1 2 3 4, OOD 3 4 5, with ties at 3 and 4.

    AUROC: OOD 5 beats 4, 4 beats 3 and ties 1, 3 beats 2 and ties 1: (4 + 3½ + 2½) / 12.
    AUPR out, from the top: 5 at precision 1, 4 at 2/3, 3 at 3/5, each a third of the recall.
    AUPR in, from the bottom: 1 and 2 at precision 1, 3 at 3/4, 4 at 4/6, each a quarter.
    FPR95: all three OOD are needed, so the threshold is 3, at which 2 of 4 ID are flagged.
    """
    found = evaluate(np.array([1, 2, 3, 4]), np.array([3, 4, 5]))
    assert float(found.auroc) == pytest.approx(10 / 12)
    assert float(found.aupr_out) == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    assert float(found.aupr_in) == pytest.approx((1 + 1 + 3 / 4 + 4 / 6) / 4)
    assert float(found.fpr95) == 0.5


def test_fpr95_needs_exactly_19_of_20() -> None:
    """19 / 20 is 95%; 0.95 · 20 is 19.000000000000004 in some roundings, which must not matter."""
    for count in (20, 40, 60, 100, 2000):
        oods = np.arange(count)
        just_below = count // 20 - 0.5  # below 95% of the OOD scores, above the rest
        assert float(evaluate(np.array([just_below]), oods, bootstrap=0).fpr95) == 0.0
        assert float(evaluate(np.array([just_below + 1]), oods, bootstrap=0).fpr95) == 1.0


def test_bad_options_are_refused() -> None:
    scores = torch.zeros(3)
    for options in ({"bootstrap": -1}, {"confidence": 95}, {"bootstrap": 10**7}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must"):
            evaluate(scores, scores, **options)
    for accept in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="accept is the share of ID examples"):
            threshold_at(scores, accept)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.tensor([0.0, math.nan, math.inf]), "finite, got 2 NaN or infinite of 3 scores"),
        (torch.tensor([]), "must hold at least one score, got none"),
        (torch.zeros(4, 1), r"must be \[batch\], one score for each example, got \(4, 1\); pass "),
        (torch.tensor(1.0), r"must be \[batch\], one score for each example, got \(\)"),
    ],
)
def test_bad_scores_are_refused_by_name(bad: Tensor, message: str) -> None:
    good = torch.zeros(3)
    for data in (bad, bad.numpy()):
        with pytest.raises(ValueError, match=f"id_scores must .*{message.split('must ')[-1]}"):
            evaluate(data, good)
        with pytest.raises(ValueError, match="ood_scores must "):
            roc_curve(good, data)
        with pytest.raises(ValueError, match="id_scores must "):
            threshold_at(data, 0.9)


def test_an_estimate_is_a_float_with_an_interval() -> None:
    estimate = Estimate(0.9134, low=0.9011, high=0.9243)
    assert str(estimate) == "0.913 [0.901, 0.924]"
    assert str(Estimate(0.5)) == "0.500"
    assert estimate > 0.9
    assert type(float(estimate)) is float
    assert json.dumps(estimate) == "0.9134"
    for twin in (pickle.loads(pickle.dumps(estimate)), copy.deepcopy(estimate)):
        assert (twin, twin.low, twin.high) == (estimate, 0.9011, 0.9243)


def test_the_bootstrap_equals_a_slow_loop_over_the_same_resamples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    ids, oods = rng.integers(0, 12, 25) / 3, rng.integers(5, 17, 40) / 3
    replicates, seed = 60, 5
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2)]
    id_picks = streams[0].integers(len(ids), size=(replicates, len(ids)))
    ood_picks = streams[1].integers(len(oods), size=(replicates, len(oods)))
    slow = [reference(ids[i], oods[o]) for i, o in zip(id_picks, ood_picks, strict=True)]
    limits = np.quantile(slow, [0.05, 0.95], axis=0)
    for chunk in (1, 100, 10**6):  # one row at a time, a few, all at once
        monkeypatch.setattr("dissensus.measures._CHUNK", chunk)
        found = values(evaluate(ids, oods, bootstrap=replicates, confidence=0.9, seed=seed))
        np.testing.assert_allclose([v.low for v in found], limits[0], atol=1e-12)
        np.testing.assert_allclose([v.high for v in found], limits[1], atol=1e-12)


def test_intervals_cover_the_true_auroc() -> None:
    """Normals one deviation apart have an AUROC of Φ(1/√2)."""
    truth = 0.5 * (1 + math.erf(0.5))
    rng = np.random.default_rng(0)
    covered = 0
    for draw in range(200):
        found = evaluate(rng.normal(0, 1, 80), rng.normal(1, 1, 60), bootstrap=300, seed=draw).auroc
        covered += found.low <= truth <= found.high
    assert 0.88 <= covered / 200 <= 0.99


@given(scores_with_ties, st.sampled_from([0.05, 0.3, 0.5, 0.9, 0.95, 1.0]))
def test_the_threshold_is_the_smallest_that_accepts_enough(ids: np.ndarray, accept: float) -> None:
    threshold = threshold_at(ids, accept)
    assert np.mean(ids <= threshold) >= accept
    assert threshold in ids
    assert np.mean(ids < threshold) < accept


# ---- marks of the best --------------------------------------------------------------------------


def test_intervals_that_are_equal_are_not_crowned() -> None:
    equal = [Estimate(0.48, 0.41, 0.55), Estimate(0.475, 0.41, 0.54), Estimate(0.48, 0.41, 0.55)]
    assert among_best(equal) == [False] * 3
    assert among_best([*equal, Estimate(0.1, 0.05, 0.15)]) == [True, True, True, False]
    assert among_best([Estimate(0.48, 0.41, 0.55)]) == [False]
    assert among_best([]) == []


def test_the_limit_is_that_of_the_difference_of_two_intervals() -> None:
    """Two intervals of half-width 3 and 4: their difference's has the half-width 5."""
    best = Estimate(10.0, 7.0, 13.0)
    for other, apart in ((5.01, False), (4.99, True)):
        pair = [best, Estimate(other, other - 4, other + 4)]
        assert among_best(pair) == ([True, False] if apart else [False, False])
        low = [Estimate(-e.value, -e.high, -e.low) for e in pair]
        assert among_best(low, highest=False) == ([True, False] if apart else [False, False])
    # The facing ends count, not the far ones.
    assert among_best([Estimate(10, 9, 90), Estimate(8, -80, 9)]) == [True, False]


def test_the_same_examples_tell_more_than_two_intervals() -> None:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=200)
    parts = [shared, shared - 0.1 + 0.01 * rng.normal(size=200)]
    estimates = [Estimate(p.mean(), p.mean() - 0.14, p.mean() + 0.14) for p in parts]
    assert among_best(estimates) == [False, False]
    assert among_best(estimates, parts) == [True, False]
    unlike = [parts[0], rng.permutation(parts[1])]  # other examples: the pairing must not help
    assert among_best(estimates, unlike) == [False, False]


def test_what_has_no_interval_cannot_be_told_apart() -> None:
    bare = Estimate(0.1)
    assert math.isnan(bare.low)
    assert among_best([Estimate(0.9, 0.89, 0.91), bare]) == [False, False]
    rest = [Estimate(0.9, 0.89, 0.91), Estimate(0.2, 0.19, 0.21)]
    assert among_best([*rest, bare]) == [True, False, True]


def test_a_pair_of_many_needs_a_larger_difference() -> None:
    pair = [Estimate(10.0, 7.0, 13.0), Estimate(4.9, 0.9, 8.9)]  # 5.1 apart, the interval is ± 5
    assert among_best(pair) == [True, False]
    assert among_best(pair, pairs=10) == [False, False]


def test_equal_methods_are_rarely_told_apart() -> None:
    """The best of eight is chosen from the data: the error counts for the whole column."""
    rng, marked = np.random.default_rng(1), 0
    for _ in range(300):
        parts = list(rng.normal(size=(8, 50)))
        marked += any(among_best([Estimate(p.mean()) for p in parts], parts))
    assert marked / 300 < 0.08
