"""Each diagnostic against loops over plain NumPy arrays, and by hand."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dissensus import diagnostics as dg
from dissensus.diagnostics.collusion import chance_to_cancel
from dissensus.diagnostics.members import errors_without, q_statistic

Array = NDArray[np.float64]


def regression(outputs: object, targets: object, **options: object) -> dg.Split:
    made = torch.tensor(outputs, dtype=torch.float64), torch.tensor(targets, dtype=torch.float64)
    return dg.Split.of(made, **options)  # type: ignore[arg-type]


def softmax(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def slow_error(outputs: Array, targets: Array, way: str, weights: Array) -> float:
    """ERR by NumPy: squared error of the mean, or cross-entropy of the averaged prediction."""
    if way == "mean":
        return float((((weights[:, None, None] * outputs).sum(0) - targets) ** 2).sum(-1).mean())
    scores = softmax(outputs) if way == "probability" else outputs
    together = (weights[:, None, None] * scores).sum(0)
    probs = together if way == "probability" else softmax(together)
    return float(-np.log(probs[np.arange(len(targets)), targets.astype(int)]).mean())


def example(way: str, members: int, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    outputs = rng.normal(0, 2, (members, 7, 3))
    targets = rng.normal(0, 1, (7, 3)) if way == "mean" else rng.integers(0, 3, 7)
    return outputs, targets, rng.dirichlet(np.ones(members))


def split_of(outputs: Array, targets: Array, way: str, weights: Array | None) -> dg.Split:
    share = None if weights is None else torch.from_numpy(weights)
    made = torch.from_numpy(outputs), torch.from_numpy(targets)
    return dg.Split.of(made, combine=way, weights=share)


# ---- codependence and dominance -----------------------------------------------------------------


@pytest.mark.parametrize("way", ["mean", "probability", "score"])
@pytest.mark.parametrize("weighted", [False, True])
def test_codependence_equals_brute_force_over_subsets(way: str, weighted: bool) -> None:
    outputs, targets, weights = example(way, members=5)
    used = weights if weighted else np.full(5, 0.2)
    found = dg.codependence(split_of(outputs, targets, way, weights if weighted else None))
    whole = slow_error(outputs, targets, way, used)
    assert found.ensemble_error == pytest.approx(whole)
    assert [drop.dropped for drop in found.drops] == [1, 2, 3]
    for drop in found.drops:
        increases = []
        for kept in itertools.combinations(range(5), 5 - drop.dropped):
            share = used[list(kept)] / used[list(kept)].sum()
            increases.append(slow_error(outputs[list(kept)], targets, way, share) - whole)
        assert drop.every
        assert drop.draws == len(increases) == math.comb(5, drop.dropped)
        assert drop.increase == pytest.approx(np.mean(increases))
        assert drop.spread == pytest.approx(np.std(increases))
        assert drop.relative == pytest.approx(np.mean(increases) / whole)


def test_squared_error_has_the_closed_form_of_the_docstring() -> None:
    outputs, targets, _ = example("mean", members=8)
    split = split_of(outputs, targets, "mean", None)
    found, whole = dg.codependence(split, fractions=(0.25, 0.5)), dg.explosion(split)
    for drop in found.drops:  # ERR_m − ERR = DIV / (M − 1) · (M − m) / m, all subsets tried
        m = 8 - drop.dropped
        assert drop.every
        assert drop.increase == pytest.approx(whole.diversity / 7 * drop.dropped / m)
    assert found.index == pytest.approx(whole.ratio / 7)
    assert found.index == pytest.approx(whole.ratio / whole.limit)


def test_random_draws_agree_with_all_subsets_and_come_from_the_seed() -> None:
    outputs, targets, _ = example("score", members=9)
    split = split_of(outputs, targets, "score", None)
    (every,) = dg.codependence(split, fractions=(0.4,), draws=84).drops
    (some,) = dg.codependence(split, fractions=(0.4,), draws=83).drops
    (again,) = dg.codependence(split, fractions=(0.4,), draws=83).drops
    (other,) = dg.codependence(split, fractions=(0.4,), draws=83, seed=1).drops
    assert (every.every, some.every) == (True, False)
    assert some == again != other
    assert abs(some.increase - every.increase) < 4 * every.spread / math.sqrt(83)
    assert some.spread == pytest.approx(every.spread, rel=0.5)


@pytest.mark.parametrize("way", ["mean", "probability", "score", "vote"])
def test_the_memory_bounded_path_equals_one_subset_at_a_time(way: str) -> None:
    outputs, targets, weights = example("mean" if way == "mean" else "score", members=4)
    split = split_of(outputs, targets, way, weights)
    missing = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1]]).bool()
    plain = []
    for row in missing.numpy():
        kept = np.flatnonzero(~row)
        part = split_of(outputs[kept], targets, way, weights[kept] / weights[kept].sum())
        plain.append(dg.explosion(part).ensemble_error)
    for budget in (1, outputs.size * 2, 2**23):
        found = errors_without(split, missing, budget)
        np.testing.assert_allclose(found, plain)


def test_dominance_by_hand() -> None:
    # Members say 0, 0 and 6, truth 1: ERR = (2 − 1)² = 1. Without the third: 1; without another:
    # (3 − 1)² = 4. The largest change is 3.
    found = dg.dominance(regression([[[0.0]], [[0.0]], [[6.0]]], [[1.0]]))
    assert (found.per_member, found.best, found.worst) == ((1, 1, 25), 1, 25)
    assert (found.share, found.member) == (3, 0)
    # Weights ¾ and ¼ of members sure of classes 0 and 1: without the first, class 1 wins everywhere
    logits = torch.tensor([[[5.0, 0.0]] * 4, [[0.0, 5.0]] * 4])
    split = dg.Split.of((logits, torch.tensor([0, 1, 0, 1])), weights=torch.tensor([0.75, 0.25]))
    assert (dg.dominance(split).share, dg.dominance(split).member) == (1, 0)
    # The name of a member is its place before members of weight 0 were left out.
    weights = torch.tensor([0.0, 0.75, 0.25])
    moved = dg.Split.of((logits[[1, 0, 1]], torch.tensor([0, 1, 0, 1])), weights=weights)
    assert (moved.members, dg.dominance(moved).member) == (2, 1)


# ---- offsets ------------------------------------------------------------------------------------


def test_exactly_planted_offsets_are_the_known_share() -> None:
    # Offsets −3, 1, 2 (weights ⅓): spread 14/3. Deviations ±a by turns with a = 1, −1, 0: spread ⅔.
    offsets = np.array([-3.0, 1.0, 2.0])[:, None, None]
    turns = np.array([1.0, -1.0, 0.0])[:, None, None] * np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    truth = np.arange(4.0)[:, None]
    found = dg.debiased_share(regression(truth + offsets + turns, truth))
    assert found.share == pytest.approx((14 / 3) / (14 / 3 + 2 / 3))
    np.testing.assert_allclose(found.offsets, offsets[:, 0], atol=1e-12)
    assert dg.debiased_share(regression(truth + offsets, truth)).share == 1
    assert dg.debiased_share(regression(truth + turns, truth)).share == pytest.approx(0, abs=1e-12)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5), st.sampled_from([0.01, 1, 50])
)
def test_shares_lie_in_0_to_1_and_ignore_constants_on_all_logits(
    seed: int, members: int, batch: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, scale, (members, batch, 3)))
    split = dg.Split.of((logits, torch.from_numpy(rng.integers(0, 3, batch))), combine="score")
    shift = torch.from_numpy(rng.normal(0, 5, (members, 1, 1)))
    moved = dg.Split.of((logits + shift, split.targets), combine="score")
    for space in ("score", "probability"):
        share = dg.debiased_share(split, space).share
        assert 0 <= share <= 1
        assert dg.debiased_share(moved, space).share == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    ("members", "outputs"),
    [
        (2, 1),
        (5, 9),
        *[pytest.param(*case, marks=pytest.mark.slow) for case in [(3, 1), (20, 1), (10, 9)]],
    ],
)
def test_independent_offsets_cancel_as_often_as_their_chance_says(
    members: int, outputs: int
) -> None:
    """Under independence a chance is uniform: 5% of cases lie below 5%, for so few members too."""
    rng = np.random.default_rng(0)
    truth = np.zeros((1, outputs))
    cases = [
        dg.leftover_offset(regression(rng.normal(0, 1, (members, 1, outputs)), truth))
        for _ in range(1500)
    ]
    for level in (0.05, 0.25):
        below = np.mean([case.chance <= level for case in cases])
        assert below <= 1.25 * level + 0.01  # the directions are estimated
        assert outputs > 1 or below >= 0.75 * level  # of one output they are known


def test_the_chance_of_one_output_is_that_of_students_t() -> None:
    offsets = np.array([0.3, -1.1, 0.9, 0.4, -0.2])
    found = dg.leftover_offset(regression(offsets[:, None, None], np.zeros((1, 1))))
    expected = scipy.stats.ttest_1samp(offsets, 0)
    assert found.leftover == pytest.approx(expected.statistic**2)
    assert found.chance == pytest.approx(1 - expected.pvalue)
    assert dg.leftover_offset(regression([[[1.0]], [[1.0]]], [[0.0]])).chance == 1  # no offsets
    assert f"in {found.chance:.1%} of cases" in found.sentence


def test_many_directions_make_cancelling_less_of_a_chance() -> None:
    rng = np.random.default_rng(0)
    apart = rng.normal(0, 1, (6, 1000))
    apart = torch.from_numpy((apart - apart.mean(0)) / math.sqrt(6))
    wide = chance_to_cancel(apart, 1 / 6, 0.5)
    line = chance_to_cancel(apart[:, :1] * torch.ones(1, 1000).double(), 1 / 6, 0.5)
    assert wide < 1e-6
    assert line == pytest.approx(scipy.stats.f.cdf(0.5, 1, 5))


def test_the_gap_and_its_parts_by_hand() -> None:
    # Train: members 0 and 2, truth 1: ERR 0, mean ERR 1, DIV 1. Test, truth 3: 4, 5 and 1.
    train, test = regression([[[0.0]], [[2.0]]], [[1.0]]), regression([[[0.0]], [[2.0]]], [[3.0]])
    gap = dg.generalization_gap(train, test)
    assert (gap.gap, gap.member_error, gap.diversity) == (4, 4, 0)
    assert gap.gap == gap.member_error - gap.diversity


# ---- pairs --------------------------------------------------------------------------------------


def test_q_statistic_by_hand() -> None:
    wrong = torch.tensor(
        [
            [0, 0, 0, 0, 1, 1, 1, 1],
            [0, 0, 0, 1, 0, 1, 1, 1],  # with the first: n00 = 3, n11 = 3, 1 and 1: (9 − 1)/(9 + 1)
            [1, 1, 1, 1, 0, 0, 0, 0],  # the opposite of the first: −1
            [0, 0, 1, 1, 0, 0, 1, 1],  # unrelated to the first: 2 · 2 − 2 · 2 = 0
            [0, 0, 0, 0, 0, 0, 0, 0],  # never wrong: undefined
        ]
    ).bool()
    found = q_statistic(wrong)
    assert found[0, 1:4].tolist() == [0.8, -1, 0]
    assert found[4].isnan().all()
    logits = 2 * torch.stack([~wrong, wrong], -1).double()  # wrong: says class 1
    split = dg.Split.of((logits, torch.zeros(8, dtype=torch.long)))
    pairs = dg.pairwise(split)
    torch.testing.assert_close(pairs.q_statistic, found, equal_nan=True)
    np.testing.assert_allclose(pairs.error_correlation[0, 1:4], [0.5, -1, 0], atol=1e-12)
    assert pairs.disagreement[0].tolist() == [0, 0.25, 1, 0.5, 0.5]
    assert pairs.unique_predictions == 2
    assert pairs.undefined == 4
    assert "4 of 10 pairs have an undefined" in pairs.sentence


def test_pairs_of_a_regression_equal_numpy() -> None:
    outputs, targets, _ = example("mean", members=3)
    found = dg.pairwise(split_of(outputs, targets, "mean", None))
    errors = (outputs - targets).reshape(3, -1)
    np.testing.assert_allclose(found.error_correlation, np.corrcoef(errors))
    assert found.disagreement[0, 2] == pytest.approx(
        ((outputs[0] - outputs[2]) ** 2).sum(-1).mean()
    )
    assert (found.q_statistic, found.unique_predictions) == (None, 3)
    twins = dg.pairwise(split_of(outputs[[0, 0, 1]], targets, "mean", None))
    assert twins.unique_predictions == 2
