"""LDR: its weights (Eq. 4 and 5), the stochastic sum (A.13), and which members a batch uses."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.testing import assert_close

from dissensus.losses import cross_entropy
from dissensus.objectives import LDR, hardness_weights
from dissensus.objectives.disagreement import PAIR_TERMS, mean_over_pairs


def draw(
    members: int = 5, batch: int = 6, classes: int = 4, seed: int = 0, scale: float = 2.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(members, batch, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (batch,), generator=generator)


def mean_logit_ce(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.mean(0), labels, reduction="none")


# ---- Eq. 4 and 5 --------------------------------------------------------------------------------


def test_equation_4_by_hand() -> None:
    # Two members with logits (0, 0) and (0, 2 log 9) have the mean (0, log 9): p = (0.1, 0.9).
    # (Averaged probabilities would give p(0) = ½ (½ + 1/82) = 0.256.)
    # Examples of class 0 and 1: CE = log 10 and log(10/9), mean ½ log(100/9).
    logits = torch.tensor([[0.0, 0.0], [0.0, 2 * math.log(9)]], dtype=torch.float64)
    logits = logits[:, None].expand(2, 2, 2)
    mean = 0.5 * math.log(100 / 9)
    wanted = [math.log(10) / mean**2, math.log(10 / 9) / mean**2]
    assert hardness_weights(logits, torch.tensor([0, 1])).tolist() == pytest.approx(wanted)


@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1e-3, 1.0, 20.0]))
def test_equation_5_the_mean_weight_is_one_over_the_mean_loss(seed: int, scale: float) -> None:
    logits, labels = draw(seed=seed, scale=scale)
    alpha, ce = hardness_weights(logits, labels), mean_logit_ce(logits, labels)
    assert_close(alpha.mean(), 1 / ce.mean())
    assert_close(alpha / alpha.sum(), ce / ce.sum())  # proportional to the loss: desideratum (a)


def test_a_batch_without_loss_has_no_hard_example() -> None:
    sure = (1e4 * torch.eye(3))[None].expand(2, 3, 3).clone().requires_grad_()
    labels = torch.arange(3)
    assert hardness_weights(sure, labels).tolist() == [0.0, 0.0, 0.0]
    for regularizer in PAIR_TERMS:
        loss, parts = LDR(5.0, regularizer=regularizer)(sure, labels)
        assert float(parts["disagreement"].detach()) == 0
        assert float(torch.autograd.grad(loss, sure)[0].abs().max()) == 0


def test_a_tiny_mean_loss_does_not_underflow() -> None:
    # CE ≈ 3e-7 in float32: its square times anything must not lose the weights.
    logits = torch.tensor([[[15.0, 0.0], [16.0, 0.0]]])
    labels = torch.tensor([0, 0])
    alpha, ce = hardness_weights(logits, labels), mean_logit_ce(logits, labels)
    assert_close(alpha.mean() * ce.mean(), torch.tensor(1.0))


# ---- Eq. 6 --------------------------------------------------------------------------------------


def test_objective_by_hand() -> None:
    # One example, p = (.7, .3), q = (.6, .4), y = 0, λ = 2. Mean CE = −½ log .42.
    # Mean logit difference ½ (log 7/3 + log 3/2) = ½ log 3.5: the ensemble's CE is
    # c = log(1 + 3.5^−½), α = c / c² = 1 / c. Both predict class 0: G = −log(.7 · .4 + .6 · .3).
    logits = torch.tensor([[[0.7, 0.3]], [[0.6, 0.4]]], dtype=torch.float64).log()
    c = math.log(1 + 3.5**-0.5)
    terms = LDR(strength=2.0)(logits, torch.tensor([0]))
    assert float(terms.parts["cross_entropy"]) == pytest.approx(-0.5 * math.log(0.42))
    assert float(terms.parts["disagreement"]) == pytest.approx(-math.log(0.46) / c)
    assert float(terms.loss) == pytest.approx(-0.5 * math.log(0.42) - 2 * math.log(0.46) / c)


# ---- the stochastic sum (A.13) ------------------------------------------------------------------


@pytest.mark.parametrize("regularizer", PAIR_TERMS)
@pytest.mark.parametrize("active", [2, 3])
def test_subsets_average_to_the_full_sum(regularizer: str, active: int) -> None:
    logits, labels = draw()
    leaf = logits.clone().requires_grad_()
    alpha = hardness_weights(logits, labels)  # fixed: A.13 writes G(p) without its weights

    def terms(members: list[int]) -> tuple[Tensor, Tensor]:
        log_probs = log_softmax(leaf[members], -1)
        pairs = mean_over_pairs(PAIR_TERMS[regularizer](log_probs, alpha))
        return cross_entropy(log_probs, labels).mean(), pairs

    full = terms(list(range(5)))
    subsets = [terms(list(chosen)) for chosen in itertools.combinations(range(5), active)]
    for part in (0, 1):
        average = torch.stack([subset[part] for subset in subsets]).mean()
        assert_close(average, full[part])
        # an unbiased estimate of the gradient, too
        assert_close(*(torch.autograd.grad(v, leaf, retain_graph=True)[0] for v in
                       (average, full[part])))  # fmt: skip


def test_which_members_a_batch_uses() -> None:
    assert LDR(active=None).sample_members(5) is None
    assert LDR(active=5).sample_members(5) is None
    assert len(LDR(active=4).sample_members(5)) == 4
    assert len(LDR(active=1).sample_members(5)) == 1
    assert LDR().trained_members([1, 3]) == [1, 3]
    with pytest.raises(ValueError, match="cannot draw active=6 members from 5; lower"):
        LDR(active=6).sample_members(5)
