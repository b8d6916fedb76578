"""ADP: members that agree on the true class and are orthogonal on the others (*adp*).

``L = Σ_k CE_k − α H(mean probability) − β log det(M̃ᵀ M̃)`` (adp, Eq. 2, 5 and 6). The determinant
makes wrong-class predictions point in different directions, so that an adversarial example made for
one member is less likely to fool the next; the entropy leaves probability there to point with
(Theorem 1: without it, members become one-hot and the determinant has nothing to act on).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dissensus.diversity import DETERMINANT_FLOOR, leave_out
from dissensus.objectives.arrays import Array, Namespace
from dissensus.objectives.base import Objective, Terms, check_hard_labels, number
from dissensus.objectives.fused import (
    finite_log,
    grad_of_mean,
    jensen_shannon_parts,
    mean_of_members,
    minus_labels,
    scaled_mean,
)
from dissensus.objectives.gradients import Factor, WrittenOut
from dissensus.outputs import check_logits, check_targets

__all__ = ["ADP", "JSD", "adp_parts", "alpha_for", "target_probability"]


@dataclass(frozen=True)
class ADP(Objective):
    """Adaptive diversity promoting training (adp, Eq. 2, 5 and 6).

    ``alpha`` weighs the entropy of the mean prediction, ``beta`` the logarithm of the ensemble
    diversity (Eq. 3). α must be scaled with members and classes: :func:`alpha_for` solves Eq. 7.
    ``temperature`` divides the logits in training only, for many classes (Appendix B.2).

    Differs from the paper: 1e-6 is added to the diagonal of M̃ᵀ M̃ (see ``DETERMINANT_FLOOR``), so
    that members that agree exactly have a finite loss and gradient. The paper's sum over members is
    kept; with ``weights``, Σ_k CE_k is K Σ_k w_k CE_k.

    >>> logits = torch.zeros(3, 2, 10)
    >>> parts = ADP()(logits, torch.tensor([0, 1])).parts
    >>> round(float(parts["cross_entropy"]), 4), round(float(parts["ensemble_entropy"]), 4)
    (6.9078, 2.3026)
    """

    hyperparameters = ("alpha", "beta", "temperature")

    alpha: float = number(2.0, low=0.0)
    beta: float = number(0.5, low=0.0)
    temperature: float = number(1.0, above=0.0)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_hard_labels("ADP", outputs, targets)
        members, _, classes = outputs.shape
        if members > classes - 1:
            raise ValueError(
                f"ADP needs at most classes − 1 = {classes - 1} members, got {members}: more than "
                "that cannot have orthogonal predictions on the wrong classes, the determinant is 0"
            )

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        temperature = hyperparameters["temperature"]
        if isinstance(temperature, Tensor) or temperature != 1:
            outputs = outputs / temperature
        factors = -hyperparameters["alpha"], -hyperparameters["beta"]
        # L_ECE − ADP, Eq. 5 and 6
        loss, ce, entropy, log_diversity = adp_parts.total(factors, outputs, targets, weights)
        parts = {
            "cross_entropy": ce,  # L_ECE, Eq. 2
            "ensemble_entropy": entropy,
            "log_diversity": log_diversity,
        }
        return Terms(loss, parts)


def _compute_adp(
    xp: Namespace, z: Array, labels: Array, weights: Array | None
) -> tuple[Array, ...]:
    """All are multiples of e = exp(z − its largest entry) over the wrong classes, 0 at y.

    Probabilities are F = a e, unit vectors of Eq. 3 are e / ‖e‖, both finite at any logit.
    """
    members, batch = z.shape[1:]
    true = xp.index(labels, z)
    wrong = xp.put(xp.copy(z), true, -math.inf)
    top = xp.largest(wrong)
    wrong -= top
    xp.exp_(wrong)
    total = xp.sum(wrong, 0)
    # log Σ_{c≠y} exp z_c − z_y, the log-odds against F_y
    gap = top - xp.take(z, true) + xp.log(total)
    minus_log_p = xp.softplus(gap)
    ce = scaled_mean(xp, minus_log_p, weights, scale=members)
    probs = wrong * (xp.exp(gap - minus_log_p) / total)  # a e
    probs = xp.put(probs, true, xp.exp(-minus_log_p))  # F_y
    mean = mean_of_members(xp, probs, weights)
    log_mean = finite_log(xp, mean)
    entropy = xp.total(mean * log_mean) * (-1 / batch)
    rows = xp.by_example(wrong)
    gram, outer = _gram_matrices(xp, rows, weights)
    factor = torch.linalg.cholesky_ex(xp.tensor(gram))[0]
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum().mul_(2 / batch)
    log_det = xp.like(xp.array(log_det), z)
    return ce, entropy, log_det, probs, log_mean, rows, gram, outer


def _gram_matrices(xp: Namespace, rows: Array, weights: Array | None) -> tuple[Array, Array]:
    """``M̃ᵀ M̃`` of Eq. 3 and the floor, of every example, and its factors 1 / (‖e_j‖ ‖e_k‖)."""
    wide = xp.double(rows)  # the floor is a few float32 roundings away from 0
    gram = wide @ wide.swapaxes(1, 2)
    length = xp.diagonal(gram) ** -0.5  # 1 / ‖e‖
    outer = length[:, None] * length[:, :, None]
    gram *= outer
    if weights is not None:
        gram = xp.array(leave_out(xp.tensor(gram), xp.tensor(weights)))
    gram += DETERMINANT_FLOOR * xp.identity(gram)
    return gram, outer


def _adp_gradient(
    xp: Namespace, factors: Sequence[Factor], others: Sequence[Any], kept: Sequence[Array]
) -> Array:
    labels, weights = others
    probs, log_mean, rows, gram, outer = kept
    members, batch = probs.shape[1:]
    g_ce = grad_of_mean(xp, factors[0] * members, probs, weights)
    # ∂H(F̄)/∂F^k = −w_k (log F̄ + 1); the 1 does nothing once it went through the softmax
    g_entropy = grad_of_mean(xp, factors[1], probs, weights)
    slope = xp.through_softmax(log_mean * -g_entropy, probs)
    slope = xp.multiply_add(probs, g_ce, slope)
    # ∂ log det / ∂M̃ = 2 M̃ G⁻¹; back through the normalisation: B = 2 (G⁻¹ − diag(G⁻¹ M̃ᵀ M̃)),
    # and G⁻¹ M̃ᵀ M̃ = 1 − floor · G⁻¹, where the floor is all that the diagonal of G is above 1.
    identity = xp.identity(gram)
    b = xp.array(torch.linalg.inv_ex(xp.tensor(gram))[0])
    b = b * xp.where(identity > 0, gram, 1.0) - identity
    b = b * outer * (factors[2] * (2 / batch))
    pushed = xp.like(b, rows) @ rows
    pushed *= rows  # 0 at y
    slope += pushed.swapaxes(0, 2)
    return minus_labels(xp, slope, labels, g_ce)


#: The members' cross-entropies added up (Eq. 2), the entropy of their mean and the logarithm of
#: their diversity (Eq. 3), of logits, hard labels and member weights; means over the batch. The
#: three share one exponential over the whole tensor: the same numbers as ``cross_entropy``,
#: ``diversity.entropy`` and ``diversity.log_ensemble_diversity`` in a fraction of the time.
adp_parts = WrittenOut("ADP", _compute_adp, values=3, gradient=_adp_gradient)


def alpha_for(target_probability: float, members: int, classes: int) -> float:
    """The α with which ADP's best prediction gives the true class ``target_probability`` (Eq. 7).

    ``1 / F_y = (α / K) log(F_y (L − 1) / (1 − F_y))``, solved for α. The same number on another
    data set needs another α: five members on 1,000 classes with F_y = 0.9 (adp, Section 3.3):

    >>> round(alpha_for(0.9, members=5, classes=1000), 3)
    0.61
    """
    _check_sizes(members, classes)
    if not 1 / classes < target_probability < 1:
        raise ValueError(
            f"target_probability must lie between 1 / classes = {1 / classes:.4g} and 1, got "
            f"{target_probability!r}"
        )
    odds = target_probability * (classes - 1) / (1 - target_probability)
    return members / (target_probability * math.log(odds))


def target_probability(alpha: float, members: int, classes: int) -> float:
    """The probability of the true class at ADP's best prediction, for a given α (Eq. 7 for F_y).

    ``1 − F_y`` is the label smoothing that the entropy term amounts to (Theorem 2).

    >>> round(target_probability(2.0, members=3, classes=10), 3)
    0.588
    """
    from scipy.optimize import brentq

    _check_sizes(members, classes)
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be a finite number greater than 0, got {alpha!r}")

    # In log-odds s of F_y: K = α F_y (s + log(L − 1)) has one root right of −log(L − 1).
    def excess(s: float) -> float:
        return alpha * (s + math.log(classes - 1)) / (1 + math.exp(-s)) - members

    low, high = -math.log(classes - 1), 1.0
    while excess(high) < 0:
        high *= 2
    root: float = brentq(excess, low, high, xtol=1e-13)
    return 1 / (1 + math.exp(-root))


def _check_sizes(members: int, classes: int) -> None:
    if members < 1 or classes < 3:
        raise ValueError(
            f"ADP needs at least 1 member and 3 classes, got members={members}, classes={classes}"
        )


@dataclass(frozen=True)
class JSD(Objective):
    """``Σ_k CE_k − λ JSD``: Jensen–Shannon divergence as the diversity (adp, Eq. 9 and 10).

    Shown to have no solution inside the simplex (Theorem* 1 of Appendix B.1): the divergence can
    outweigh the cross-entropy and make a member wrong. Here to compare with.
    """

    hyperparameters = ("strength",)

    strength: float = number(1.0, low=0.0)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_logits(outputs, finite=False)
        check_targets(targets, outputs.shape[1], outputs.shape[2])

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        factors = (-hyperparameters["strength"],)
        loss, ce, divergence = jensen_shannon_parts.total(factors, outputs, targets, weights)
        return Terms(loss, {"cross_entropy": ce, "jensen_shannon": divergence})
