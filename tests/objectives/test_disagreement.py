"""A2D, DivDis and the pair terms: Eq. 1 to 3 and Appendix A.14 of *ldr*, and DivDis's own terms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.testing import assert_close

from dissensus.objectives import A2D, DivDis
from dissensus.objectives.disagreement import (
    a2d_pairs,
    divdis_pairs,
    jsd_pairs,
    mean_over_pairs,
)
from tests.objectives import reference


def a2d_pair(log_probs: Tensor, other: Tensor) -> Tensor:
    return a2d_pairs(torch.stack([log_probs, other]))[0, 1]


def logs(*rows: list[float]) -> Tensor:
    """Log-probabilities ``[1, classes]`` of one example, one for each row."""
    stacked = torch.tensor(rows, dtype=torch.float64).log()
    return stacked[:, None] if len(rows) > 1 else stacked


# ---- A2D, Eq. 3 ---------------------------------------------------------------------------------


def test_equation_3_by_hand() -> None:
    # p = (.7, .2, .1), q = (.4, .5, .1): ŷ = 0 for p: .7 · .6 + .4 · .3 = .54;
    # ŷ = 1 for q: .5 · .8 + .2 · .5 = .5
    p, q = [0.7, 0.2, 0.1], [0.4, 0.5, 0.1]
    assert float(a2d_pair(logs(p), logs(q))) == pytest.approx(-math.log(0.54))
    assert float(a2d_pair(logs(q), logs(p))) == pytest.approx(-math.log(0.5))
    # A third member r = (.1, .1, .8): pairs with p: ŷ = 0: .7 · .9 + .1 · .3 = .66, and ŷ = 2:
    # .8 · .9 + .1 · .2 = .74; with q: ŷ = 1: .5 · .9 + .1 · .5 = .5, and ŷ = 2, again .74.
    r = [0.1, 0.1, 0.8]
    pairs = a2d_pairs(logs(p, q, r))[..., 0]
    wanted = -torch.tensor([[0, 0.54, 0.66], [0.5, 0, 0.5], [0.74, 0.74, 0]]).double().log()
    off = ~torch.eye(3, dtype=torch.bool)
    assert_close(pairs[off], wanted[off])
    # The objective: both orders of each pair, six numbers, their mean.
    six = -sum(math.log(value) for value in (0.54, 0.5, 0.66, 0.74, 0.5, 0.74)) / 6
    parts = A2D()(logs(p, q, r), torch.tensor([0]), disagreement=logs(p, q, r)).parts
    assert float(parts["disagreement"]) == pytest.approx(six)
    assert float(parts["cross_entropy"]) == pytest.approx(-math.log(0.7 * 0.4 * 0.1) / 3)
    # Weights count a pair w_m w_l: (½, ½, 0) leaves the first pair.
    two = A2D()(logs(p, q, r), torch.tensor([0]), disagreement=logs(p, q, r),
                weights=torch.tensor([0.5, 0.5, 0.0])).parts  # fmt: skip
    assert float(two["disagreement"]) == pytest.approx(-math.log(0.54 * 0.5) / 2)


def along(probs: Tensor, k: int) -> Tensor:
    """The direction in logits that raises p_k by 1 and takes it from the others in proportion.

    Appendix A.14 differentiates by one probability with 1 − p_k as its complement; log p_k then
    moves by 1 / p_k and the others by −1 / (1 − p_k) each.
    """
    direction = torch.full_like(probs, -1 / (1 - float(probs[k])))
    direction[k] = 1 / float(probs[k])
    return direction


def test_gradients_of_appendix_a14() -> None:
    f = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    g = torch.tensor([0.25, 0.6, 0.15], dtype=torch.float64)
    f_top, g_top = 0, 1

    def slope(first_is_f: bool, k: int) -> float:
        z = f.log()[None].requires_grad_()
        pair = (log_softmax(z, -1), g.log()[None])
        value = a2d_pair(*(pair if first_is_f else pair[::-1]))
        return float(torch.autograd.grad(value.sum(), z)[0][0] @ along(f, k))

    # Eq. 19, α = 1: (2 g − 1) / (f + g − 2 f g) at f's class: −.5 / (.7 + .25 − .35) = −.5 / .6
    assert slope(True, f_top) == pytest.approx(-0.5 / 0.6)
    # Eq. 20 at g's class: (1.2 − 1) / (.2 + .6 − .24) = .2 / .56
    assert slope(False, g_top) == pytest.approx(0.2 / 0.56)


@settings(max_examples=40)
@given(
    scale=st.sampled_from([0.1, 1.0, 30.0, 300.0, 1e4]),
    seed=st.integers(0, 2**16),
    classes=st.integers(2, 6),
)
def test_a2d_is_the_slow_formula_at_any_scale(scale: float, seed: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(3, 4, classes, generator=generator)
    wanted = np.array(
        [
            [[reference.a2d(row[n], other[n]) for n in range(4)] for other in logits.double()]
            for row in logits.double().numpy()
        ]
    )
    # In float32 too: no epsilon, nothing lost where 1 − q is far below the smallest float32.
    for dtype, rtol in ((torch.float64, 1e-9), (torch.float32, 2e-5)):
        pairs = a2d_pairs(log_softmax(logits.to(dtype), -1)).double().numpy()
        np.testing.assert_allclose(pairs, wanted, rtol=rtol, atol=10 * rtol)


@pytest.mark.parametrize("gap", [1e-3, 1.0, 20.0, 88.0, 104.0, 1e4])
def test_a2d_keeps_its_digits_in_float32_where_members_are_nearly_sure(gap: float) -> None:
    # p = q = sigmoid(gap): −log(2 p (1 − p)) = 2 softplus(gap) − gap − log 2
    logits = torch.tensor([[gap, 0.0]], requires_grad=True)
    value = a2d_pair(log_softmax(logits, -1), log_softmax(logits, -1))
    exact = 2 * (gap + math.log1p(math.exp(-gap))) - gap - math.log(2)
    assert float(value.detach()) == pytest.approx(exact, rel=2e-6)
    slope = torch.autograd.grad(value.sum(), logits)[0][0]
    assert float(slope[0]) == pytest.approx(math.tanh(gap / 2), rel=1e-5, abs=1e-7)


# ---- DivDis -------------------------------------------------------------------------------------


def sure(labels: list[int], classes: int) -> Tensor:
    return 1e4 * torch.eye(classes, dtype=torch.float64)[labels]


def information(*members: Tensor) -> float:
    return float(divdis_pairs(log_softmax(torch.stack(members), -1))[0, 1])


def test_mutual_information_of_one_hot_members() -> None:
    # Balanced and identical, four classes: log 4. A relabelling is as informative.
    first = sure([0, 1, 2, 3], 4)
    assert information(first, first) == pytest.approx(math.log(4))
    assert information(first, sure([2, 0, 3, 1], 4)) == pytest.approx(math.log(4))
    # Every combination once: independent, 0.
    left, right = sure([0, 0, 1, 1], 2), sure([0, 1, 0, 1], 2)
    assert information(left, right) == pytest.approx(0, abs=1e-12)
    # By hand, joint (½, ¼; 0, ¼), marginals (¾, ¼) and (½, ½):
    # ½ log(½ / ⅜) + ¼ log(¼ / ⅜) + ¼ log(¼ / ⅛) = ½ log(4/3) + ¼ log(2/3) + ¼ log 2
    wanted = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)
    assert information(sure([0, 0, 0, 1], 2), sure([0, 0, 1, 1], 2)) == pytest.approx(wanted)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**16), scale=st.sampled_from([0.1, 1.0, 5.0, 100.0]))
def test_mutual_information_is_the_slow_formula_and_not_negative(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    shares = torch.randn(5, generator=generator, dtype=torch.float64).softmax(-1)
    for weights in (None, shares):
        pairs = divdis_pairs(log_softmax(logits, -1), weights)
        assert float(pairs.min()) > -1e-12
        assert_close(pairs, pairs.T)
        assert float(pairs.diagonal().abs().max()) == 0
        used = np.full(5, 0.2) if weights is None else weights.numpy()
        for m, k in ((0, 1), (0, 2), (1, 2)):
            wanted = reference.mutual_information(logits[m].numpy(), logits[k].numpy(), used)
            assert float(pairs[m, k]) == pytest.approx(wanted, abs=1e-12)


def test_many_classes_are_taken_pair_by_pair_to_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log_probs = log_softmax(torch.randn(4, 6, 5, dtype=torch.float64), -1).requires_grad_()
    directions = torch.rand(4, 4, dtype=torch.float64)
    results = []
    for limit in (1 << 20, 0):
        monkeypatch.setattr("dissensus.objectives.disagreement._AT_ONCE", limit)
        pairs = divdis_pairs(log_probs)
        results.append((pairs.detach(), torch.autograd.grad(pairs, log_probs, directions)[0]))
    assert_close(results[1], results[0])


def test_balance_term_by_hand() -> None:
    # Two examples, (1, 0) and (½, ½): mean (¾, ¼). Against the uniform prior:
    # ¾ log(3/2) + ¼ log(1/2); against (0.6, 0.4): ¾ log 1.25 + ¼ log 0.625
    member = torch.tensor([[1e4, 0.0], [0.0, 0.0]], dtype=torch.float64)
    outputs, labels = torch.zeros(1, 2, 2, dtype=torch.float64), torch.tensor([0, 1])

    def imbalance(prior: tuple[float, ...] | None, *members: Tensor) -> float:
        count = len(members)
        objective = DivDis(prior=prior)
        terms = objective(outputs.expand(count, 2, 2), labels, disagreement=torch.stack(members))
        return float(terms.parts["imbalance"])

    uniform = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert imbalance(None, member) == pytest.approx(uniform)
    given = 0.75 * math.log(1.25) + 0.25 * math.log(0.625)
    assert imbalance((0.6, 0.4), member) == pytest.approx(given)
    # A mean over members; a balanced one adds nothing, one class for everything costs log 2.
    assert imbalance(None, member, sure([0, 1], 2)) == pytest.approx(uniform / 2)
    assert imbalance(None, sure([1, 1], 2)) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "prior", [(0.5, 0.6), (1.0, 0.0), (1.5, -0.5), (math.nan, 0.5), (), (True,)]
)
def test_a_bad_prior_is_refused(prior: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="DivDis: prior must be greater than 0 for every class"):
        DivDis(prior=prior)


# ---- pair terms as LDR uses them ----------------------------------------------------------------


def test_mean_over_pairs_by_hand() -> None:
    pairs = torch.tensor([[9.0, 1, 2], [3, 9, 4], [5, 6, 9]])
    assert float(mean_over_pairs(pairs)) == pytest.approx(21 / 6)
    # w = (½, ¼, ¼): ⅛ (1 + 3) + ⅛ (2 + 5) + 1/16 (4 + 6) = 2, over 2 (⅛ + ⅛ + 1/16) = 5/8
    assert float(mean_over_pairs(pairs, torch.tensor([0.5, 0.25, 0.25]))) == pytest.approx(3.2)
    assert float(mean_over_pairs(pairs[:1, :1])) == 0
    # One member with all the weight: there is no pair.
    assert float(mean_over_pairs(pairs, torch.tensor([0.0, 1.0, 0.0]))) == 0


def test_jsd_pairs_by_hand() -> None:
    # (½, ½) and (1, 0): H(¾, ¼) − ½ log 2
    log_probs = log_softmax(torch.tensor([[[0.0, 0.0]], [[1e4, 0.0]]], dtype=torch.float64), -1)
    mixed = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    wanted = -(mixed - 0.5 * math.log(2))
    assert_close(jsd_pairs(log_probs)[..., 0].tolist(), [[0.0, wanted], [wanted, 0.0]])
