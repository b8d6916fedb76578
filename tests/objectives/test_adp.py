"""ADP and JSD: the theorems of *adp*, reached by optimising free logits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from dissensus import diversity
from dissensus.objectives import ADP, JSD, Objective, alpha_for, target_probability

STARTS = 8


def minimise(
    objective: Objective, members: int, classes: int, steps: int = 450, rate: float = 0.3
) -> Tensor:
    """Free logits ``[members, starts, classes]`` of true class 0, each example a start of its own.

    The objectives are means over examples, so that the starts do not touch each other.
    """
    logits = torch.randn(members, STARTS, classes, dtype=torch.float64, requires_grad=True)
    labels = torch.zeros(STARTS, dtype=torch.long)
    optimizer = torch.optim.Adam([logits], lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
        logits.grad = torch.autograd.grad(STARTS * objective(logits, labels).loss, logits)[0]
        optimizer.step()
    return logits.detach()


def losses(objective: Objective, logits: Tensor) -> Tensor:
    """The loss of each start."""
    label = torch.zeros(1, dtype=torch.long)
    return torch.stack([objective(logits[:, [n]], label).loss for n in range(STARTS)])


# ---- by hand ------------------------------------------------------------------------------------


def test_values_by_hand() -> None:
    # K = 2, L = 3, y = 0: F¹ = (.6, .3, .1), F² = (.6, .1, .3), mean (.6, .2, .2).
    # Non-target directions (3, 1)/√10 and (1, 3)/√10: cosine 6/10, det = 1 − .36 = .64.
    logits = torch.tensor([[[0.6, 0.3, 0.1]], [[0.6, 0.1, 0.3]]], dtype=torch.float64).log()
    terms = ADP(alpha=2.0, beta=0.5)(logits, torch.tensor([0]))
    ce, entropy, log_det = -2 * math.log(0.6), -0.6 * math.log(0.6) - 0.4 * math.log(0.2), 0.64
    assert float(terms.parts["cross_entropy"]) == pytest.approx(ce)
    assert float(terms.parts["ensemble_entropy"]) == pytest.approx(entropy)
    assert float(terms.parts["log_diversity"]) == pytest.approx(math.log(log_det), abs=4e-6)
    wanted = ce - 2 * entropy - 0.5 * math.log(log_det)
    assert float(terms.loss) == pytest.approx(wanted, abs=4e-6)
    # JSD of the same: H(mean) − H(F¹); both members have the entropy of (.6, .3, .1).
    own = -0.6 * math.log(0.6) - 0.3 * math.log(0.3) - 0.1 * math.log(0.1)
    terms = JSD(3.0)(logits, torch.tensor([0]))
    assert float(terms.loss) == pytest.approx(ce - 3 * (entropy - own))


# ---- the theorems -------------------------------------------------------------------------------


def test_theorem_1_without_entropy_members_become_sure_of_the_true_class() -> None:
    logits = minimise(ADP(alpha=0.0, beta=0.5), members=3, classes=10, rate=0.5)
    assert float(logits.softmax(-1)[..., 0].min()) > 0.999
    # All the same their wrong-class directions are orthogonal: it costs the cross-entropy nothing.
    labels = torch.zeros(STARTS, dtype=torch.long)
    assert float(diversity.log_ensemble_diversity(logits, labels).min()) > -0.05


@pytest.mark.parametrize(("members", "classes", "alpha"), [(3, 10, 2.0), (5, 7, 4.0)])
def test_theorem_2_the_entropy_term_smooths_to_equation_7(
    members: int, classes: int, alpha: float
) -> None:
    probs = minimise(ADP(alpha, beta=0.0), members, classes, steps=250).softmax(-1)
    true = target_probability(alpha, members, classes)
    # F_y^k = F̄_y for every member, and F̄_j = (1 − F̄_y) / (L − 1) for every wrong class …
    assert_close(probs[..., 0], torch.full_like(probs[..., 0], true), rtol=0, atol=1e-4)
    wrong = probs.mean(0)[:, 1:]
    assert_close(wrong, torch.full_like(wrong, (1 - true) / (classes - 1)), rtol=0, atol=1e-4)
    # … while each member's own wrong classes are left free.
    assert float(probs[:, :, 1:].std(0).max()) > 0.01


@pytest.mark.parametrize(
    ("members", "classes", "alpha", "beta"), [(3, 10, 2.0, 0.5), (4, 9, 3.0, 1.0)]
)
def test_corollary_1_members_share_out_the_wrong_classes(
    members: int, classes: int, alpha: float, beta: float
) -> None:
    objective = ADP(alpha, beta)
    logits = minimise(objective, members, classes)
    true = target_probability(alpha, members, classes)
    share = members * (1 - true) / (classes - 1)  # Eq. 8
    entropy = -true * math.log(true) - (1 - true) * math.log((1 - true) / (classes - 1))
    floor = members * math.log1p(diversity.DETERMINANT_FLOOR)
    least = -members * math.log(true) - alpha * entropy - beta * floor
    reached = losses(objective, logits)
    assert float(reached.min()) == pytest.approx(least, abs=5e-4)
    assert float(reached.min()) > least  # it is the least: no start gets below it
    best = logits[:, int(reached.argmin())].softmax(-1)
    assert_close(best[:, 0], torch.full_like(best[:, 0], true), rtol=0, atol=3e-3)
    mine = best[:, 1:] > share / 2
    assert bool((mine.sum(0) == 1).all())  # a partition of the wrong classes …
    assert bool((mine.sum(1) == (classes - 1) // members).all())  # … into parts of one size
    wanted = torch.where(mine, share, 0.0).to(best)
    assert_close(best[:, 1:], wanted, rtol=0, atol=5e-3)
    directions = best[:, 1:] / best[:, 1:].norm(dim=-1, keepdim=True)
    assert_close(directions @ directions.T, torch.eye(members).to(best), rtol=0, atol=0.03)


@given(
    share=st.floats(0.01, 0.9999), members=st.integers(1, 50), classes=st.integers(3, 20000)
)  # fmt: skip
def test_alpha_for_and_target_probability_are_inverse(
    share: float, members: int, classes: int
) -> None:
    wanted = 1 / classes + share * (1 - 1 / classes)
    alpha = alpha_for(wanted, members, classes)
    got = target_probability(alpha, members, classes)
    assert got == pytest.approx(wanted, rel=1e-9)
    # Eq. 7 itself
    right = alpha / members * math.log(got * (classes - 1) / (1 - got))
    assert 1 / got == pytest.approx(right, rel=1e-6)


def test_bad_sizes_and_probabilities_are_refused() -> None:
    for bad in (0.1, 0.05, 1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"target_probability must be in \(0.1, 1\), got"):
            alpha_for(bad, members=3, classes=10)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="alpha must be a finite number greater than 0, got"):
            target_probability(bad, members=3, classes=10)
    for function in (alpha_for, target_probability):
        with pytest.raises(ValueError, match="at least 1 member and 3 classes, got members=0"):
            function(0.9, members=0, classes=10)
        with pytest.raises(ValueError, match="got members=3, classes=2"):
            function(0.9, members=3, classes=2)
    with pytest.raises(ValueError, match="temperature must be a finite number greater than 0"):
        ADP(temperature=0.0)
    with pytest.raises(ValueError, match="alpha must be a finite number of at least 0, got -1"):
        ADP(alpha=-1)


# ---- Jensen–Shannon as the diversity (Appendix B.1) ---------------------------------------------


def jsd_gradient(strength: float, probs: Tensor) -> Tensor:
    """The objective's gradient in the logits of one example, ``[members, classes]``, y = 0."""
    leaf = probs.log()[:, None].requires_grad_()
    loss = JSD(strength)(leaf, torch.zeros(1, dtype=torch.long)).loss
    return torch.autograd.grad(loss, leaf)[0][:, 0]


def test_jsd_has_the_partial_derivatives_of_the_proof() -> None:
    probs, strength = torch.randn(3, 5, dtype=torch.float64).softmax(-1), 1.7
    slope = strength / 3 * (probs.mean(0).log() - probs.log())
    slope[:, 0] -= 1 / probs[:, 0]
    # Through the softmax: ∂/∂z_j = F_j (∂/∂F_j − Σ_i F_i ∂/∂F_i)
    wanted = probs * (slope - (probs * slope).sum(-1, keepdim=True))
    assert_close(jsd_gradient(strength, probs), wanted)
