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
from torch.nn.functional import softplus

from dissensus.diversity import DETERMINANT_FLOOR, leave_out
from dissensus.objectives.base import Objective, Terms, add_scaled, check_hard_labels, number
from dissensus.objectives.fused import jensen_shannon_parts, member_weights
from dissensus.objectives.gradients import WrittenOut
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
        ce, entropy, log_diversity = _adp.mean(
            _sum_over_members(outputs, weights), outputs, targets.long(), weights
        )
        parts = {
            "cross_entropy": ce,  # L_ECE, Eq. 2
            "ensemble_entropy": entropy,
            "log_diversity": log_diversity,
        }
        loss = add_scaled(ce, entropy, -hyperparameters["alpha"])  # L_ECE − ADP, Eq. 5 and 6
        return Terms(add_scaled(loss, log_diversity, -hyperparameters["beta"]), parts)


def _sum_over_members(outputs: Tensor, weights: Tensor | None) -> Tensor:
    """K w_k: what makes a weighted mean over members the paper's sum over them."""
    members = outputs.shape[0]
    return outputs.new_ones(members) if weights is None else members * weights.to(outputs.dtype)


def adp_parts(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """CE of each member ``[members, batch]``, entropy of their mean and log diversity, ``[batch]``.

    The three share one exponential over the whole tensor, and their gradients are written out: the
    same numbers as ``cross_entropy``, ``diversity.entropy`` and
    ``diversity.log_ensemble_diversity`` in a fraction of the time.
    """
    ce, entropy, log_diversity = _adp(logits, labels.long(), weights)
    return ce, entropy, log_diversity


def _compute_adp(logits: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, ...]:
    """The three parts of ADP at once; see :func:`adp_parts`.

    With e = exp(z − its largest entry) over the wrong classes (0 at y), everything is a multiple of
    e: probabilities are F = a e, unit vectors of Eq. 3 are e / ‖e‖, both finite at any logit.
    """
    index = labels.expand(logits.shape[:-1])[..., None]
    true = logits.gather(-1, index)
    wrong = logits.scatter(-1, index, -math.inf)
    top = wrong.amax(-1, keepdim=True)
    wrong.sub_(top).exp_()
    total = wrong.sum(-1, keepdim=True)
    gap = (total.log() + top).sub_(true)  # log Σ_{c≠y} exp z_c − z_y, so F_y = sigmoid(−gap)
    ce = softplus(gap, threshold=50)
    scale = gap.sigmoid().div_(total)  # a
    by_example = wrong.transpose(0, 1)
    share = member_weights(logits, weights)
    mean = (share[:, None, None] * scale).permute(1, 2, 0).bmm(by_example).squeeze(1)
    true_prob = gap.neg().sigmoid_()
    mean = mean.scatter_add(-1, labels[:, None], (share @ true_prob.squeeze(-1))[:, None])
    entropy = torch.special.entr(mean).sum(-1)
    wide = by_example.double()  # the floor is a few float32 roundings away from 0
    gram = wide.bmm(wide.transpose(1, 2))
    length = gram.diagonal(dim1=-2, dim2=-1).rsqrt()  # 1 / ‖e‖
    gram = gram * length[:, None] * length[..., None]  # M̃ᵀ M̃, Eq. 3
    if weights is not None:
        gram = leave_out(gram, weights)
    gram.diagonal(dim1=-2, dim2=-1).add_(DETERMINANT_FLOOR)
    factor = torch.linalg.cholesky_ex(gram)[0]
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).mul_(2).to(logits.dtype)
    return ce.squeeze(-1), entropy, log_det, wrong, true_prob, scale, mean, length, gram


def _adp_gradient(grads: Sequence[Tensor], inputs: Sequence[Any], kept: Sequence[Tensor]) -> Tensor:
    g_ce, g_entropy, g_det = grads
    labels, weights = inputs
    wrong, true_prob, scale, mean, length, gram = kept
    e, a, true_prob = (x.transpose(0, 1) for x in (wrong, scale, true_prob))
    g_ce = g_ce.expand(wrong.shape[:2]).T[..., None]
    # ∂ log det / ∂M̃ = 2 M̃ G⁻¹; back through the normalisation: B = 2 (G⁻¹ − diag(G⁻¹ M̃ᵀ M̃))
    scaled = length * (2 * g_det.double())[..., None]
    b = torch.linalg.inv_ex(gram)[0] * length[:, None] * scaled[..., None]
    diagonal = b.diagonal(dim1=-2, dim2=-1)  # G⁻¹ M̃ᵀ M̃ = 1 − floor · G⁻¹, G's own is 1 + floor
    diagonal.mul_(gram.diagonal(dim1=-2, dim2=-1)).sub_(scaled * length)
    # ∂H(F̄)/∂F^k = −w_k (log F̄ + 1), taken back through the softmax; 0 log 0 = 0
    log_mean = mean.clamp_min(torch.finfo(mean.dtype).tiny).log_()
    t = (g_entropy[..., None] * member_weights(wrong, weights))[..., None]
    true_log_mean = log_mean.gather(-1, labels[:, None])[..., None]
    expected = log_mean[:, None].bmm(e.transpose(1, 2)).transpose(1, 2) * a
    expected = torch.addcmul(expected, true_prob, true_log_mean)
    constant = torch.addcmul(g_ce, t, expected)
    inner = torch.addcmul(constant * a, a * t, log_mean[:, None], value=-1)
    grad = torch.baddbmm(inner, b.to(e.dtype), e).mul_(e)
    true_grad = (constant - t * true_log_mean) * true_prob - g_ce
    index = labels[:, None, None].expand_as(true_grad)
    return grad.scatter_add_(-1, index, true_grad).transpose(0, 1)  # e is 0 there


_adp = WrittenOut("ADP", _compute_adp, values=3, gradient=_adp_gradient)


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
        each = _sum_over_members(outputs, weights)
        ce, divergence = jensen_shannon_parts.mean(each, outputs, targets, weights)
        parts = {"cross_entropy": ce, "jensen_shannon": divergence}
        return Terms(add_scaled(ce, divergence, -hyperparameters["strength"]), parts)
