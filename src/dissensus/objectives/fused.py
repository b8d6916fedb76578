"""Terms with their gradients written out, because automatic ones cost several times as much.

Each is the same number as a plain function elsewhere, which is its definition and its test:

* ``a2d_term``: the weighted sum of ``disagreement.a2d_pairs``;
* ``divdis_parts``: the weighted sum of ``disagreement.divdis_pairs``, and the imbalance;
* ``jensen_shannon_parts``: ``diversity.jensen_shannon`` of a softmax;
* ``score_curvature_parts``: the second-order diversity of score averaging (``GNCL``).

Those of labelled outputs come with the members' cross-entropy, as they share the softmax. None has
a second derivative. Training uses ``parts.mean``: scalars have a cheaper gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softplus

from dissensus.losses import cross_entropy
from dissensus.objectives.gradients import WrittenOut
from dissensus.outputs import weighted_mean

__all__ = [
    "a2d_parts",
    "a2d_term",
    "divdis_parts",
    "jensen_shannon_parts",
    "member_weights",
    "score_curvature_parts",
]


# ---- disagreement at the predicted class --------------------------------------------------------


class _Top(NamedTuple):
    """The softmax of every member, its largest entry p at ŷ apart from the rest; all […, 1].

    However sure a member is, the rest keeps its digits: it is relative to its own largest entry.
    """

    label: Tensor  # ŷ
    logit: Tensor  # z_ŷ
    odds: Tensor  # log((1 − p) / p)
    minus_log_p: Tensor
    rest: Tensor  # exp(z − its largest entry other than z_ŷ), 0 at ŷ, [members, batch, classes]
    total: Tensor  # its sum

    @classmethod
    def of(cls, logits: Tensor) -> _Top:
        logit, label = logits.max(-1, keepdim=True)
        rest = logits.scatter(-1, label, -math.inf)
        second = rest.amax(-1, keepdim=True)
        rest.sub_(second).exp_()
        total = rest.sum(-1, keepdim=True)
        odds = total.log().add_(second.sub_(logit))
        return cls(label, logit, odds, softplus(odds, threshold=50), rest, total)


def _compute_a2d(
    logits: Tensor, example_weights: Tensor | None, pair_weights: Tensor
) -> tuple[Tensor, ...]:
    return _a2d_value(_Top.of(logits), logits, example_weights, pair_weights)


def _compute_a2d_with_ce(
    logits: Tensor, labels: Tensor, example_weights: Tensor, pair_weights: Tensor
) -> tuple[Tensor, ...]:
    top = _Top.of(logits)
    true = labels.long().expand(logits.shape[:-1])[..., None]
    ce = (top.logit - logits.gather(-1, true)).add_(top.minus_log_p)
    value, *kept = _a2d_value(top, logits, example_weights, pair_weights)
    return value, ce.squeeze(-1), *kept


def _a2d_value(
    top: _Top, logits: Tensor, example_weights: Tensor | None, pair_weights: Tensor
) -> tuple[Tensor, ...]:
    """G = −log(p (1 − q) + q (1 − p)), p = p^m_ŷ and q = p^l_ŷ at ŷ = arg max p^m.

    In log-odds x = log((1 − p)/p) and y = log((1 − q)/q) it is −log p − log q − log(eˣ + eʸ), whose
    slopes in x and y lie between −1 and 1. Where ŷ is l's top class too, y is l's own x and keeps
    its digits; elsewhere q ≤ ½ and 1 − q loses none.
    """
    asked = top.label.squeeze(-1).T.expand(logits.shape[0], -1, -1)  # [l, batch, m]: ŷ of m
    own = asked == top.label
    minus_log_q = (top.logit - logits.gather(-1, asked)).add_(top.minus_log_p)
    q = minus_log_q.neg().exp_()
    y = torch.where(own, top.odds, q.neg().log1p_().add_(minus_log_q))
    x, minus_log_p = top.odds.permute(2, 1, 0), top.minus_log_p.permute(2, 1, 0)  # [1, batch, m]
    share = pair_weights.T[:, None] / logits.shape[1]
    if example_weights is not None:
        share = share * example_weights[:, None]
    value = minus_log_q.add_(minus_log_p).sub_(torch.logaddexp(x, y)).mul(share).sum()
    pull = (x - y).sigmoid_()  # ∂G/∂x = (1 − p) − pull and ∂G/∂y = pull − q
    not_p = top.odds.sigmoid()
    into_x = (not_p.permute(2, 1, 0) - pull).mul(share)
    into_y = pull.sub_(q).mul(share)
    # ∂x/∂z is the shares of the rest − δ_ŷ, and so is ∂y/∂z at l's own ŷ; else (p^l − δ_ŷ)/(1 − q)
    at_own = (into_y * own).sum(-1, keepdim=True).add_(into_x.sum(0).T[..., None])
    at_asked = into_y.div_(1 - q).masked_fill_(own, 0.0)
    spread = at_asked.sum(-1, keepdim=True)
    of_rest = torch.addcmul(at_own, spread, not_p)
    return value, spread, of_rest, at_asked, asked, top.label, not_p, top.rest, top.total


def _a2d_gradient(grads: Sequence[Tensor], inputs: Sequence[Any], kept: Sequence[Tensor]) -> Tensor:
    """``of_rest`` shared among the rest and ``spread − of_rest`` at ŷ, less what each ŷ was asked.

    The softmax of cross-entropy has the same form: spread 1, of which 1 − p for the rest.
    """
    spread, of_rest, at_asked, asked, label, not_p, rest, total = kept
    spread, of_rest = spread * grads[0], of_rest * grads[0]
    if len(grads) == 2:
        g_ce = grads[1][..., None]
        spread, of_rest = spread + g_ce, torch.addcmul(of_rest, g_ce, not_p)
    slope = rest * (of_rest / total)  # 0 at ŷ
    slope.scatter_add_(-1, label, spread - of_rest).scatter_add_(-1, asked, at_asked * -grads[0])
    return slope if len(grads) == 1 else _minus_labels(slope, inputs[0], g_ce)


_a2d = WrittenOut("A2D", _compute_a2d, values=1, gradient=_a2d_gradient)

#: :func:`a2d_term` and each member's cross-entropy ``[members, batch]``, of logits, hard labels,
#: example weights and pair weights.
a2d_parts = WrittenOut("A2D", _compute_a2d_with_ce, values=2, gradient=_a2d_gradient)


def a2d_term(logits: Tensor, example_weights: Tensor | None, pair_weights: Tensor) -> Tensor:
    """``(1/N) Σ_n a_n Σ_{m,l} v_{ml} G(p^m_n, p^l_n)`` with G of ldr's Eq. 3, a scalar.

    ``example_weights`` a ``[batch]``, None for ones, and ``pair_weights`` v ``[members, members]``
    are constants.
    """
    return _a2d(logits, example_weights, pair_weights)[0]


# ---- mutual information over the batch ----------------------------------------------------------


def _compute_divdis(
    logits: Tensor, log_prior: Tensor, pair_weights: Tensor, weights: Tensor
) -> tuple[Tensor, ...]:
    """``Σ_{m,l} v_ml (Σ J log J − Σ μ_m log μ_m − Σ μ_l log μ_l)``, J the joint, μ its marginals.

    Adding a constant to a slope over a member's classes does nothing once it went through the
    softmax; so ∂(J log J)/∂J = log J + 1 is log J here.
    """
    members, batch, classes = logits.shape
    by_example = logits.transpose(0, 1).softmax(-1)
    flat = by_example.flatten(1)  # [batch, members · classes]
    joint = flat.T @ flat / batch  # of all pairs in one product
    log_joint = _log(joint).view(members, classes, members, classes)
    weighted_log = (log_joint * pair_weights[:, None, :, None]).view_as(joint)
    mean = flat.mean(0).view(members, classes)
    log_mean = _log(mean)
    of_member = pair_weights.sum(1, keepdim=True)
    marginal_log = of_member * log_mean
    information = (joint * weighted_log).sum() - 2 * (mean * marginal_log).sum()
    relative = weights[:, None] * (log_mean - log_prior)
    imbalance = (mean * relative).sum()
    slope = (flat @ weighted_log).view_as(by_example).sub(marginal_log).mul_(2 / batch)
    return (
        information,
        imbalance,
        _through_softmax(by_example, slope).transpose(0, 1),
        _through_softmax(by_example, relative / batch).transpose(0, 1),
    )


#: The mean over pairs of ``divdis_pairs``, and ``Σ_m w_m KL(mean prediction of m ‖ prior)``, of
#: logits, the prior's logarithm, pair weights and member weights; scalars. Holds the joint
#: distributions of all pairs at once: (members · classes)² numbers.
divdis_parts = WrittenOut("DivDis", _compute_divdis, values=2)


# ---- distance from the mean ---------------------------------------------------------------------


def _compute_jensen_shannon(
    logits: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[Tensor, ...]:
    """``Σ_k w_k Σ_c F^k_c (log F^k_c − log F̄_c)`` (adp, Eq. 9); 0 log 0 = 0 where F̄ underflows."""
    log_probs = log_softmax(logits, -1)
    ce = cross_entropy(log_probs, targets)
    probs = log_probs.exp()
    ratio = log_probs - _log(weighted_mean(probs, weights))
    divergence = (probs * ratio).sum(-1)  # KL(F^k ‖ F̄), [members, batch]
    away = ratio.sub_(divergence[..., None])
    return ce, weighted_mean(divergence, weights), probs, away


def _jensen_shannon_gradient(
    grads: Sequence[Tensor], inputs: Sequence[Any], kept: Sequence[Tensor]
) -> Tensor:
    """``∂/∂F^k = w_k (log F^k − log F̄)``, taken back through the softmax."""
    g_ce, g_divergence = grads
    targets, weights = inputs
    probs, away = kept
    g_ce = g_ce[..., None]
    if weights is None:
        each = g_divergence / away.shape[0]
    else:
        each = weights.to(away.dtype)[:, None] * g_divergence
    slope = torch.addcmul(_mass(targets, g_ce), away, each[..., None]).mul_(probs)
    return _minus_labels(slope, targets, g_ce)


#: Each member's cross-entropy ``[members, batch]``, and ``H(Σ w F) − Σ w H(F)`` ``[batch]``, of
#: logits, hard or soft labels and member weights.
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
    # Σ_c q̄_c (f_jc − f̄_c) as a product of matrices: it needs no second tensor of this size.
    centred.sub_(probs[:, None].bmm(centred.permute(1, 2, 0)).permute(2, 0, 1))
    spread = weighted_mean(centred.square(), weights).mul_(0.5)
    value = (probs * spread).sum(-1, keepdim=True)
    # What is left of the rounding of large logits in the mean of the c_j, which is 0, is taken out.
    shared = spread.sub_(value).sub_(weighted_mean(centred, weights))
    away = centred.add_(shared)
    log_probs = log_softmax(logits, -1)
    ce = cross_entropy(log_probs, targets)
    return ce, value.squeeze(-1), log_probs.exp_(), probs, away


def _score_curvature_gradient(
    grads: Sequence[Tensor], inputs: Sequence[Any], kept: Sequence[Tensor]
) -> Tensor:
    """``w_k q̄ (c_k + ½ Σ_j w_j c_j² − its mean)``: through the distances, and through q̄."""
    g_ce, g_curvature = grads
    targets, weights = inputs
    member_probs, probs, away = kept
    g_ce = g_ce[..., None]
    slope = member_probs * _mass(targets, g_ce)
    g_curvature = g_curvature[..., None]
    if weights is None:
        each = probs * (g_curvature / away.shape[0])
    else:
        each = probs * g_curvature * weights.to(probs.dtype)[:, None, None]
    slope = torch.addcmul(slope, away, each)
    return _minus_labels(slope, targets, g_ce)


#: Each member's cross-entropy ``[members, batch]``, and ``½ Σ_j w_j (f_j − f̄)ᵀ (diag q̄ − q̄ q̄ᵀ)
#: (f_j − f̄)`` with q̄ = softmax(f̄), ``[batch]``, of logits, hard or soft labels and member weights.
score_curvature_parts = WrittenOut(
    "GNCL", _compute_score_curvature, values=2, gradient=_score_curvature_gradient
)


# ---- what they share ----------------------------------------------------------------------------


def _mass(targets: Tensor, g_ce: Tensor) -> Tensor:
    """``g Σ_c y_c``: the gradient of cross-entropy is this times the softmax, minus g y."""
    return g_ce * targets.sum(-1, keepdim=True) if targets.is_floating_point() else g_ce


def _minus_labels(slope: Tensor, targets: Tensor, g_ce: Tensor) -> Tensor:
    """``slope − g y``, for hard labels in place where that is possible."""
    if targets.is_floating_point():
        return torch.addcmul(slope, targets, g_ce, value=-1)
    index = targets.long().expand(slope.shape[:-1])[..., None]
    minus_g = -g_ce.expand_as(index)
    if torch._C._are_functorch_transforms_active():  # vmap may run over the labels alone
        return slope.scatter_add(-1, index, minus_g)
    return slope.scatter_add_(-1, index, minus_g)


def _through_softmax(probs: Tensor, slope: Tensor) -> Tensor:
    """The slope in the logits of what has this slope in the probabilities."""
    weighted = probs * slope
    return torch.addcmul(weighted, probs, weighted.sum(-1, keepdim=True), value=-1)


def _log(probs: Tensor) -> Tensor:
    """The logarithm, finite at 0, so that 0 log 0 = 0."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log_()


def member_weights(logits: Tensor, weights: Tensor | None) -> Tensor:
    """``weights`` ``[members]`` in the precision of the logits; equal where none are given."""
    if weights is None:
        return logits.new_full(logits.shape[:1], 1 / logits.shape[0])
    return weights.to(logits.dtype)
