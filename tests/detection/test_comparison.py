"""Marks of the best: all that cannot be told apart from it, and nothing where nothing can."""

import math

import numpy as np

from dissensus.detection import Estimate, among_best


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
