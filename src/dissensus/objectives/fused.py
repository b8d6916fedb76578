"""Terms with their gradients written out, because automatic ones cost several times as much.

Each is the same number as a plain function elsewhere, which is its definition and its test:

* ``a2d_term``: the weighted sum of ``disagreement.a2d_pairs``;
* ``divdis_parts``: the weighted sum of ``disagreement.divdis_pairs``, and the imbalance;
* ``jensen_shannon_parts``: ``diversity.jensen_shannon`` of a softmax;
* ``score_curvature_parts``: the second-order diversity of score averaging (``GNCL``).

All are scalars, means over the batch. Those of labelled outputs come with the members'
cross-entropy, as they share the softmax. None has a second derivative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softplus

from dissensus.losses import cross_entropy
from dissensus.objectives.gradients import Factor, WrittenOut
from dissensus.outputs import weighted_mean

__all__ = [
    "Asked",
    "Top",
    "a2d_term",
    "disagreement_at_top",
    "divdis_parts",
    "finite_log",
    "grad_of_mean",
    "jensen_shannon_parts",
    "label_index",
    "member_weights",
    "minus_labels",
    "scaled_mean",
    "score_curvature_parts",
    "slope_at_top",
    "through_softmax",
]


# ---- disagreement at the predicted class --------------------------------------------------------


class Top(NamedTuple):
    """The softmax of every member, its largest entry p at ŷ apart from the rest.

    All are ``[members, 1, batch]``, as pairs of members then are ``[members, members, batch]``.
    However sure a member is, the rest keeps its digits: it is relative to its own largest entry.
    """

    label: Tensor  # ŷ
    odds: Tensor  # x = log((1 − p) / p)
    minus_log_p: Tensor
    log_sum: Tensor  # log Σ exp z
    rest: Tensor  # exp(z − its largest entry other than z_ŷ), 0 at ŷ, [members, classes, batch]
    total: Tensor  # its sum

    @classmethod
    def of(cls, logits: Tensor) -> Top:
        logit, label = logits.max(-1, keepdim=True)
        rest = logits.scatter(-1, label, -math.inf).transpose(1, 2)
        logit, label = logit.transpose(1, 2), label.transpose(1, 2)
        second = rest.amax(1, keepdim=True)
        rest.sub_(second).exp_()
        total = rest.sum(1, keepdim=True)
        odds = total.log().add_(second.sub_(logit))
        minus_log_p = softplus(odds, threshold=50)
        return cls(label, odds, minus_log_p, logit.add_(minus_log_p), rest, total)


class Asked(NamedTuple):
    """Every member l at the class ŷ that every member m predicts, ``[l, m, batch]``; q = p^l_ŷ."""

    own: Tensor  # whether it is the class that l predicts
    not_q: Tensor  # 1 − q
    keep: Tensor  # (1 − q) / (q eˣ + (1 − q))


def disagreement_at_top(top: Top, log_q: Tensor, share: Tensor) -> tuple[Tensor, Asked]:
    """``Σ share G``, G = −log(p (1 − q) + q (1 − p)) = −log p − log(q eˣ + (1 − q)) (ldr, Eq. 3).

    Where ŷ is l's top class too, 1 − q is l's own rest and keeps its digits as a logarithm;
    elsewhere q ≤ ½ and 1 − q loses none.
    """
    own = top.label == top.label.transpose(0, 1)
    not_q = log_q.expm1().neg_()
    log_not_q = torch.where(own, top.odds - top.minus_log_p, not_q.log())
    log_q_odds = log_q + top.odds.transpose(0, 1)  # log(q eˣ)
    pairs = top.minus_log_p.transpose(0, 1) - torch.logaddexp(log_q_odds, log_not_q)  # G
    keep = log_not_q.sub_(log_q_odds).sigmoid_()
    return (pairs * share).sum(), Asked(own, not_q, keep)


def slope_at_top(
    index: Tensor, top: Top, asked: Asked, share: Tensor, further: Tensor | None = None
) -> Tensor:
    """The gradient of :func:`disagreement_at_top`, ``[members, classes, batch]``.

    With y the log-odds of q as x is those of p, ∂x/∂z is the shares of the rest − δ_ŷ, and so is
    ∂y/∂z at l's own ŷ; else it is (p^l − δ_ŷ)/(1 − q). ``index`` are the classes that were asked
    for. Where it has more rows than there are members, ``further`` has the slopes in the logarithms
    of the probabilities there.
    """
    p = top.odds.neg().sigmoid_()
    minus_x = (p.transpose(0, 1) - asked.keep) * share  # −∂G/∂x = p − keep
    minus_y = (asked.keep - asked.not_q) * share  # −∂G/∂y = keep − (1 − q)
    minus_own = (minus_y * asked.own).add_(minus_x.transpose(0, 1)).sum(1, keepdim=True)
    at_index = minus_y.div_(asked.not_q).masked_fill_(asked.own, 0.0)
    if further is not None:
        at_index = torch.cat([at_index, further], 1)
    spread = at_index.sum(1, keepdim=True).neg_()  # over all classes, as p^l is
    at_top = torch.addcmul(minus_own, spread, p)
    slope = top.rest * ((spread - at_top) / top.total)  # 0 at ŷ
    return slope.scatter_add_(1, top.label, at_top).scatter_add_(1, index, at_index)


def _compute_a2d(logits: Tensor, share: Tensor) -> tuple[Tensor, ...]:
    top = Top.of(logits)
    index = top.label.transpose(0, 1).expand(len(logits), -1, -1)
    log_q = logits.transpose(1, 2).gather(1, index).sub_(top.log_sum)
    value, asked = disagreement_at_top(top, log_q, share)
    return value, index, *top, *asked


def _a2d_gradient(grads: Sequence[Factor], inputs: Sequence[Any], kept: Sequence[Tensor]) -> Tensor:
    index, top, asked = kept[0], Top(*kept[1:7]), Asked(*kept[7:])
    return slope_at_top(index, top, asked, inputs[0] * grads[0]).transpose(1, 2)


#: ``Σ_{l,m,n} share_{lmn} G(p^m_n, p^l_n)`` with G of ldr's Eq. 3, of logits and ``share``, a
#: constant that can be broadcast to ``[members, members, batch]``: how much the example counts,
#: times how much the pair does whose first member is the second index.
a2d_term = WrittenOut("A2D", _compute_a2d, values=1, gradient=_a2d_gradient)


# ---- mutual information over the batch ----------------------------------------------------------


def _compute_divdis(
    logits: Tensor, log_prior: Tensor, pair_weights: Tensor, weights: Tensor
) -> tuple[Tensor, ...]:
    """``Σ_{m,l} v_ml (Σ J log J − Σ μ_m log μ_m − Σ μ_l log μ_l)``, J joint, μ its marginals."""
    members, batch, classes = logits.shape
    probs = logits.transpose(0, 1).softmax(-1)
    flat = probs.flatten(1)  # [batch, members · classes]
    joint = (flat.T @ flat).div_(batch)  # of all pairs in one product
    log_joint = finite_log(joint).view(members, classes, members, classes)
    pair_log = (log_joint * pair_weights[:, None, :, None]).view_as(joint)
    mean = flat.mean(0).view(members, classes)
    log_mean = finite_log(mean)
    marginal_log = 2 * pair_weights.sum(1, keepdim=True) * log_mean
    relative = (log_mean - log_prior) * weights[:, None]
    information = (joint * pair_log).sum() - (mean * marginal_log).sum()
    return information, (mean * relative).sum(), probs, pair_log, marginal_log, relative


def _divdis_gradient(
    grads: Sequence[Factor], inputs: Sequence[Any], kept: Sequence[Tensor]
) -> Tensor:
    """``∂(J log J)/∂J`` is log J + 1; the 1 does nothing once it went through the softmax."""
    g_information, g_imbalance = (grad / kept[0].shape[0] for grad in grads)
    probs, pair_log, marginal_log, relative = kept
    of_marginals = relative * g_imbalance - marginal_log * g_information
    slope = torch.addmm(of_marginals.flatten(), probs.flatten(1), pair_log * (2 * g_information))
    return through_softmax(slope.view_as(probs), probs).transpose(0, 1)


#: The mean over pairs of ``divdis_pairs``, and ``Σ_m w_m KL(mean prediction of m ‖ prior)``, of
#: logits, the prior's logarithm, pair weights and member weights. Holds the joint distributions of
#: all pairs at once: (members · classes)² numbers.
divdis_parts = WrittenOut("DivDis", _compute_divdis, values=2, gradient=_divdis_gradient)


# ---- distance from the mean ---------------------------------------------------------------------


def _compute_jensen_shannon(
    logits: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[Tensor, ...]:
    """``Σ_k w_k Σ_c F^k_c (log F^k_c − log F̄_c)`` (adp, Eq. 9); 0 log 0 = 0 where F̄ underflows."""
    log_probs = log_softmax(logits, -1)
    ce = scaled_ce(log_probs, targets, weights, scale=logits.shape[0])
    probs = log_probs.exp()
    ratio = log_probs - finite_log(weighted_mean(probs, weights))
    divergence = (probs * ratio).sum(-1, keepdim=True)  # KL(F^k ‖ F̄) of every example
    away = ratio.sub_(divergence)
    return ce, scaled_mean(divergence, weights), probs, away


def _jensen_shannon_gradient(
    grads: Sequence[Factor], inputs: Sequence[Any], kept: Sequence[Tensor]
) -> Tensor:
    """``∂/∂F^k = w_k (log F^k − log F̄)``, taken back through the softmax."""
    targets, weights = inputs
    probs, away = kept
    g_ce = grad_of_mean(grads[0] * probs.shape[0], probs, weights)
    g_divergence = grad_of_mean(grads[1], probs, weights)
    slope = torch.addcmul(_mass(targets, g_ce), away, g_divergence).mul_(probs)
    return minus_labels(slope, targets, g_ce)


#: The members' cross-entropies added up, and ``H(Σ w F) − Σ w H(F)``, of logits, hard or soft
#: labels and member weights.
jensen_shannon_parts = WrittenOut(
    "JSD", _compute_jensen_shannon, values=2, gradient=_jensen_shannon_gradient
)


def _compute_score_curvature(
    logits: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[Tensor, ...]:
    """Half the variance of f_j − f̄ under q̄, averaged over members: ½ Σ_j w_j Σ_c q̄_c c_jc²."""
    mean = weighted_mean(logits, weights)
    probs = mean.softmax(-1)
    centred = logits - mean
    centred.sub_((centred * probs).sum(-1, keepdim=True))  # c_j
    # Σ_j w_j c_j is 0, and Σ_c q̄_c c_jc is too. It is here for what the rounding of large logits
    # leaves of it, which the gradient is to be without.
    minus_spread = weighted_mean(torch.addcmul(centred, centred, centred, value=-0.5), weights)
    minus_value = (probs * minus_spread).sum(-1, keepdim=True)
    away = centred.sub_(minus_spread.sub_(minus_value))
    log_probs = log_softmax(logits, -1)
    ce = scaled_ce(log_probs, targets, weights)
    return ce, minus_value.sum() * (-1 / len(mean)), log_probs.exp_(), probs, away


def _score_curvature_gradient(
    grads: Sequence[Factor], inputs: Sequence[Any], kept: Sequence[Tensor]
) -> Tensor:
    """``w_k q̄ (c_k + ½ Σ_j w_j c_j² − its mean)``: through the distances, and through q̄."""
    targets, weights = inputs
    member_probs, probs, away = kept
    g_ce, g_curvature = (grad_of_mean(grad, away, weights) for grad in grads)
    slope = member_probs * _mass(targets, g_ce)
    slope = torch.addcmul(slope, away, probs * g_curvature)
    return minus_labels(slope, targets, g_ce)


#: Mean cross-entropy, and ``½ Σ_j w_j (f_j − f̄)ᵀ (diag q̄ − q̄ q̄ᵀ) (f_j − f̄)`` with q̄ = softmax(f̄),
#: of logits, hard or soft labels and member weights.
score_curvature_parts = WrittenOut(
    "GNCL", _compute_score_curvature, values=2, gradient=_score_curvature_gradient
)


# ---- what they share ----------------------------------------------------------------------------


def scaled_mean(values: Tensor, weights: Tensor | None, scale: float = 1.0) -> Tensor:
    """``scale · Σ_j w_j`` of the mean over examples of ``[members, batch, …]``, a scalar."""
    if weights is None:
        return values.sum() * (scale / (values.shape[0] * values.shape[1]))  # quicker than a mean
    return weighted_mean(values, weights).mean() * scale


def scaled_ce(
    log_probs: Tensor, targets: Tensor, weights: Tensor | None, scale: float = 1.0
) -> Tensor:
    """:func:`scaled_mean` of the members' cross-entropy."""
    if targets.is_floating_point():
        return scaled_mean(cross_entropy(log_probs, targets), weights, scale)
    picked = log_probs.gather(-1, label_index(log_probs, targets))
    return scaled_mean(picked, weights, -scale)


def grad_of_mean(grad: Factor, logits: Tensor, weights: Tensor | None) -> Tensor:
    """What each member's value for an example gets of the gradient of their mean; a broadcast.

    ``logits`` is any tensor ``[members, batch, classes]``.
    """
    members, batch = logits.shape[:2]
    if weights is None:
        return _scalar(grad / (members * batch), logits)
    return weights.to(logits.dtype)[:, None, None] * (grad / batch)


def _scalar(number: Factor, like: Tensor) -> Tensor:
    # With a tensor one step can do what takes two with a number.
    return number if isinstance(number, Tensor) else like.new_full((), number)


def label_index(logits: Tensor, labels: Tensor) -> Tensor:
    """Where the true class of every member and example is, ``[members, batch, 1]``."""
    return labels.long().view(1, -1, 1).expand(logits.shape[0], -1, -1)


def minus_labels(slope: Tensor, targets: Tensor, g_ce: Tensor) -> Tensor:
    """``slope − g y``, for hard labels in place where that is possible."""
    if targets.is_floating_point():
        return torch.addcmul(slope, targets, g_ce, value=-1)
    index = label_index(slope, targets)
    minus_g = (-g_ce).expand_as(index)
    if torch._C._are_functorch_transforms_active():  # vmap may run over the labels alone
        return slope.scatter_add(-1, index, minus_g)
    return slope.scatter_add_(-1, index, minus_g)


def _mass(targets: Tensor, g_ce: Tensor) -> Tensor:
    """``g Σ_c y_c``: the gradient of cross-entropy is this times the softmax, minus g y."""
    return g_ce * targets.sum(-1, keepdim=True) if targets.is_floating_point() else g_ce


def through_softmax(slope: Tensor, probs: Tensor) -> Tensor:
    """The slope in the logits of what has this slope in the probabilities, F (s − Σ F s)."""
    result: Tensor = torch._softmax_backward_data(slope, probs, -1, probs.dtype)
    return result


def finite_log(probs: Tensor) -> Tensor:
    """The logarithm, finite at 0, so that 0 log 0 = 0."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log_()


def member_weights(logits: Tensor, weights: Tensor | None) -> Tensor:
    """``weights`` ``[members]`` in the precision of the logits; equal where none are given."""
    if weights is None:
        return logits.new_full(logits.shape[:1], 1 / logits.shape[0])
    return weights.to(logits.dtype)
