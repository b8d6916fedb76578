"""Combining members: slow loops, values worked by hand, gradients, and votes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from dissensus import outputs as out


def slow_log_probs(row: list[float]) -> list[float]:
    """log softmax of one member's logits, term by term, in float64."""
    highest = max(row)
    total = sum(math.exp(value - highest) for value in row)
    return [value - highest - math.log(total) for value in row]


def slow_combined(rows: list[list[float]], how: str, weights: list[float]) -> list[float]:
    """The ensemble's log-probabilities for one example, by loops."""
    classes = range(len(rows[0]))
    if how == "score":
        return slow_log_probs(
            [sum(w * row[k] for w, row in zip(weights, rows, strict=True)) for k in classes]
        )
    by_member = [slow_log_probs(row) for row in rows]
    result = []
    for k in classes:
        terms = [math.log(w) + row[k] for w, row in zip(weights, by_member, strict=True) if w > 0]
        highest = max(terms)
        result.append(highest + math.log(sum(math.exp(term - highest) for term in terms)))
    return result


@pytest.mark.parametrize("how", ["probability", "score"])
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    members=st.integers(1, 4),
    scale=st.sampled_from([1.0, 1e-3, 30.0, 1e4]),
    weighting=st.sampled_from(["equal", "uneven", "one member off"]),
)
def test_combined_log_probs_equal_a_slow_loop(
    how: str, seed: int, members: int, scale: float, weighting: str
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, scale, (members, 2, 3))
    weights = rng.dirichlet(np.ones(members))
    if weighting == "one member off" and members > 1:
        weights[0] = 0
        weights /= weights.sum()
    given_weights = None if weighting == "equal" else torch.from_numpy(weights)
    used = [1 / members] * members if weighting == "equal" else weights.tolist()
    wanted = [slow_combined(logits[:, n].tolist(), how, used) for n in range(2)]
    got = out.combined_log_probs(torch.from_numpy(logits), how, given_weights)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    probs = out.combine(torch.from_numpy(logits), how, given_weights)
    np.testing.assert_allclose(probs, np.exp(wanted), rtol=1e-10, atol=1e-14)


def test_combinations_by_hand() -> None:
    # p = (½, ½) and (1/10, 9/10) with weights ¾ and ¼: probability (0.4, 0.6).
    # Logits (0, 0) and (0, 2 log 3): the mean is (0, ½ log 3), so q̄ = (1, √3) / (1 + √3).
    # The mean of the outputs 0 and 2 log 3 is ½ log 3.
    logits = torch.tensor([[[0.0, 0.0]], [[0.0, 2 * math.log(3)]]], dtype=torch.float64)
    weights = torch.tensor([0.75, 0.25], dtype=torch.float64)
    probability, score, mean = (out.combine(logits, how, weights)[0] for how in out.COMBINATIONS)
    assert probability.tolist() == pytest.approx([0.4, 0.6])
    assert score.tolist() == pytest.approx([1 / (1 + 3**0.5), 3**0.5 / (1 + 3**0.5)])
    assert mean.tolist() == pytest.approx([0, math.log(3) / 2])
    assert out.combine(logits)[0].tolist() == pytest.approx([0.3, 0.7])  # equal weights
    assert out.combine(logits, "score")[0].tolist() == pytest.approx([0.25, 0.75])
    assert out.combine(logits[:, :, 1:], "mean").tolist() == [[pytest.approx(math.log(3))]]


@pytest.mark.parametrize("how", ["probability", "score"])
@pytest.mark.parametrize("weights", [None, [0.0, 1.0], [0.25, 0.75]])
def test_huge_logits_stay_finite_in_float32(how: str, weights: list[float] | None) -> None:
    rows = [[1e4, -1e4, 0.0], [-1e4, 1e4, 3.0]]
    logits = torch.tensor(rows)[:, None].requires_grad_()
    mixed = out.combined_log_probs(logits, how, None if weights is None else torch.tensor(weights))
    wanted = slow_combined(rows, how, weights or [0.5, 0.5])
    np.testing.assert_allclose(mixed[0].detach(), wanted, rtol=1e-6, atol=1e-3)
    for k in range(3):
        (gradient,) = torch.autograd.grad(mixed[0, k], logits, retain_graph=True)
        assert torch.isfinite(gradient).all()
    # The log of a mean of softmaxes, the naive form, is −∞ for the third class.
    assert torch.isinf(logits.softmax(-1).mean(0).log()).any()


def test_member_order_does_not_matter_and_agreement_changes_nothing() -> None:
    logits, weights = torch.randn(4, 3, 5).double(), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    order = [2, 0, 3, 1]
    for how in out.COMBINATIONS:
        torch.testing.assert_close(
            out.combine(logits[order], how, weights[order]), out.combine(logits, how, weights)
        )
        same = logits[:1].expand(4, 3, 5)
        torch.testing.assert_close(out.combine(same, how, weights), out.combine(logits[:1], how))


@pytest.mark.parametrize("how", ["probability", "score"])
def test_gradients_and_vmap_of_combined_log_probs(how: str) -> None:
    logits, weights = torch.randn(2, 3, 2, 4).double(), torch.rand(2, 3).double()
    weights = weights / weights.sum(-1, keepdim=True)

    def mixed(values: Tensor, members: Tensor) -> Tensor:
        return out.combined_log_probs(values, how, members)

    assert torch.autograd.gradcheck(lambda x: mixed(x, weights[0]), logits[0].requires_grad_())
    looped = [mixed(*pair) for pair in zip(logits, weights, strict=True)]
    torch.testing.assert_close(vmap(mixed)(logits, weights), torch.stack(looped))


def test_majority_vote_by_hand_and_its_ties() -> None:
    labels = [
        [0, 1, 2, 2, 0],  # member 0's label for each of five examples
        [1, 1, 2, 0, 1],
        [1, 0, 0, 0, 2],
        [0, 0, 1, 2, 0],
    ]
    # Ties go to the lowest class: 0110 → 0, 1100 → 0, 2201 → 2, 2002 → 0, 0120 → 0.
    logits = torch.nn.functional.one_hot(torch.tensor(labels), 3).float()
    assert out.majority_vote(logits).tolist() == [0, 0, 2, 0, 0]
    # Weights 0.1, 0.4, 0.3, 0.2: class 1 has 0.7; 0 and 1 tie at 0.5, to 0; 2 has 0.5;
    # 0 has 0.7; 1 has 0.4 before 0 and 2 with 0.3 each.
    weights = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
    assert out.majority_vote(logits, weights).tolist() == [1, 0, 2, 0, 1]
    # A member that is undecided itself votes for its lowest class.
    assert out.majority_vote(torch.zeros(3, 2, 4)).tolist() == [0, 0]
    many = torch.stack([logits, logits.flip(-1)])
    both = torch.stack([weights, weights.flip(0)])
    looped = [out.majority_vote(*pair) for pair in zip(many, both, strict=True)]
    assert torch.equal(vmap(out.majority_vote)(many, both), torch.stack(looped))
    assert torch.equal(
        vmap(out.majority_vote)(many), torch.stack([out.majority_vote(one) for one in many])
    )


def test_log_probabilities_of_a_mean_are_refused() -> None:
    with pytest.raises(ValueError, match="combine='mean' has no probabilities"):
        out.combined_log_probs(torch.zeros(2, 4, 3), "mean")
