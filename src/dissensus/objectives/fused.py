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

from torch import Tensor

from dissensus.objectives.arrays import Array, Namespace
from dissensus.objectives.gradients import Factor, WrittenOut

__all__ = [
    "Asked",
    "Top",
    "a2d_term",
    "disagreement_at_top",
    "divdis_parts",
    "finite_log",
    "grad_of_mean",
    "jensen_shannon_parts",
    "mean_of_members",
    "member_weights",
    "minus_labels",
    "scaled_mean",
    "score_curvature_parts",
    "slope_at_top",
]


# ---- disagreement at the predicted class --------------------------------------------------------


class Top(NamedTuple):
    """The softmax of every member, its largest entry p at ŷ apart from the rest.

    All but the rest are ``[members, batch]``. However sure a member is, the rest keeps its digits:
    it is relative to its own largest entry.
    """

    index: Array  # of ŷ
    odds: Array  # x = log((1 − p) / p)
    p: Array
    minus_log_p: Array
    log_sum: Array  # log Σ exp z
    rest: Array  # exp(z − its largest entry other than z_ŷ), 0 at ŷ, [classes, members, batch]
    total: Array  # its sum

    @classmethod
    def of(cls, xp: Namespace, z: Array) -> Top:
        logit, index = xp.top(z)
        rest = xp.put(z - logit, index, -math.inf)
        second = xp.largest(rest)
        rest -= second
        xp.exp_(rest)
        total = xp.sum(rest, 0)
        odds = xp.log(total) + second
        inverse = xp.exp(odds)
        inverse += 1  # 1 / p, which is classes at most
        minus_log_p = xp.log(inverse)
        return cls(index, odds, 1 / inverse, minus_log_p, logit + minus_log_p, rest, total)


class Asked(NamedTuple):
    """Every member l at the class ŷ that member m predicts, ``[m, l, batch]``; q = p^l_ŷ."""

    index: Array
    own: Array  # whether it is the class that l predicts
    not_q: Array  # 1 − q
    keep: Array  # eʸ / (eˣ + eʸ)


def disagreement_at_top(xp: Namespace, z: Array, top: Top, share: Array) -> tuple[Array, Asked]:
    """``Σ share G``, G = −log(p (1 − q) + q (1 − p)) (ldr, Eq. 3).

    With x and y the log-odds against p and q, G is −log p − log q − log(eˣ + eʸ). Where ŷ is l's
    top class too, y is l's own x and keeps its digits; elsewhere q ≤ ½ and 1 − q loses none.
    """
    index = xp.across(top.index)
    own = index == top.index
    log_q = xp.take(z, index)
    log_q -= top.log_sum
    not_q = 1 - xp.exp(log_q)
    y = xp.where(own, top.odds, xp.log(not_q) - log_q)
    log_either = xp.logaddexp(y, top.odds[:, None])
    y -= log_either
    log_either += log_q
    pairs = top.minus_log_p[:, None] - log_either  # G
    return xp.total(pairs * share), Asked(index, own, not_q, xp.exp_(y))


def slope_at_top(
    xp: Namespace, top: Top, asked: Asked, share: Array, g_ce: Factor | Array = 0.0
) -> Array:
    """The gradient of :func:`disagreement_at_top`, and of ``g_ce`` times log Σ exp z.

    ∂x/∂z is the shares of the rest − δ_ŷ, and so is ∂y/∂z at l's own ŷ; elsewhere it is
    (p^l − δ_ŷ) / (1 − q).
    """
    minus_x = (top.p[:, None] - asked.keep) * share  # −∂G/∂x = p − keep
    minus_y = (asked.keep - asked.not_q) * share  # −∂G/∂y = keep − (1 − q)
    minus_own = xp.sum(minus_x, 1) + xp.sum(minus_y * asked.own, 0)
    at_index = xp.where(asked.own, 0.0, minus_y / asked.not_q)
    spread = g_ce - xp.sum(at_index, 0)  # over all classes, as p^l is
    at_top = minus_own + spread * top.p
    slope = top.rest * ((spread - at_top) / top.total)  # 0 at ŷ
    slope = xp.put(slope, top.index, at_top)
    return xp.add_at(slope, asked.index, at_index)


def _compute_a2d(xp: Namespace, z: Array, share: Array) -> tuple[Array, ...]:
    top = Top.of(xp, z)
    value, asked = disagreement_at_top(xp, z, top, share)
    return value, *top, *asked


def _a2d_gradient(
    xp: Namespace, factors: Sequence[Factor], others: Sequence[Any], kept: Sequence[Array]
) -> Array:
    return slope_at_top(xp, Top(*kept[:7]), Asked(*kept[7:]), others[0] * factors[0])


#: ``Σ_{m,l,n} share_{mln} G(p^m_n, p^l_n)`` with G of ldr's Eq. 3, of logits and ``share``, a
#: constant that can be broadcast to ``[members, members, batch]``: how much the example counts,
#: times how much the pair does whose first member, at whose ŷ it is, is the first index.
a2d_term = WrittenOut("A2D", _compute_a2d, values=1, gradient=_a2d_gradient)


# ---- mutual information over the batch ----------------------------------------------------------


def _compute_divdis(
    xp: Namespace, z: Array, log_prior: Array, pair_weights: Array, weights: Array
) -> tuple[Array, ...]:
    """``Σ_{m,l} v_ml (Σ J log J − Σ μ_m log μ_m − Σ μ_l log μ_l)``, J joint, μ its marginals."""
    classes, members, batch = z.shape
    probs = xp.softmax(z).reshape(classes * members, batch)
    joint = (probs @ probs.T) * (1 / batch)  # of all pairs in one product
    pair_log = finite_log(xp, joint).reshape(classes, members, classes, members)
    pair_log = (pair_log * pair_weights[:, None]).reshape(joint.shape)
    mean = xp.sum(probs, 1).reshape(classes, members) * (1 / batch)
    log_mean = finite_log(xp, mean)
    marginal_log = 2 * xp.sum(pair_weights, 1) * log_mean
    relative = (log_mean - log_prior[:, None]) * weights
    information = xp.total(joint * pair_log) - xp.total(mean * marginal_log)
    return information, xp.total(mean * relative), probs, pair_log, marginal_log, relative


def _divdis_gradient(
    xp: Namespace, factors: Sequence[Factor], others: Sequence[Any], kept: Sequence[Array]
) -> Array:
    """``∂(J log J)/∂J`` is log J + 1; the 1 does nothing once it went through the softmax."""
    probs, pair_log, marginal_log, relative = kept
    g_information, g_imbalance = (factor / probs.shape[1] for factor in factors)
    of_marginals = relative * g_imbalance - marginal_log * g_information
    shape = *relative.shape, probs.shape[1]
    of_joint = (pair_log * (2 * g_information)) @ probs
    slope = of_joint.reshape(shape) + of_marginals[..., None]
    return xp.through_softmax(slope, probs.reshape(shape))


#: The mean over pairs of ``divdis_pairs``, and ``Σ_m w_m KL(mean prediction of m ‖ prior)``, of
#: logits, the prior's logarithm, pair weights and member weights. Holds the joint distributions of
#: all pairs at once: (members · classes)² numbers.
divdis_parts = WrittenOut("DivDis", _compute_divdis, values=2, gradient=_divdis_gradient)


# ---- distance from the mean ---------------------------------------------------------------------


def _compute_jensen_shannon(
    xp: Namespace, z: Array, targets: Array, weights: Array | None
) -> tuple[Array, ...]:
    """``Σ_k w_k Σ_c F^k_c (log F^k_c − log F̄_c)`` (adp, Eq. 9); 0 log 0 = 0 where F̄ underflows."""
    log_probs = xp.log_softmax(z)
    ce = scaled_ce(xp, log_probs, targets, weights, scale=z.shape[1])
    probs = xp.exp(log_probs)
    away = log_probs - finite_log(xp, mean_of_members(xp, probs, weights))
    divergence = xp.sum(probs * away, 0)  # KL(F^k ‖ F̄) of every example
    away -= divergence
    return ce, scaled_mean(xp, divergence, weights), probs, away


def _jensen_shannon_gradient(
    xp: Namespace, factors: Sequence[Factor], others: Sequence[Any], kept: Sequence[Array]
) -> Array:
    """``∂/∂F^k = w_k (log F^k − log F̄)``, taken back through the softmax."""
    targets, weights = others
    probs, away = kept
    g_ce = grad_of_mean(xp, factors[0] * probs.shape[1], probs, weights)
    g_divergence = grad_of_mean(xp, factors[1], probs, weights)
    slope = xp.multiply_add(away, g_divergence, _mass(xp, targets, g_ce))
    slope *= probs
    return minus_labels(xp, slope, targets, g_ce)


#: The members' cross-entropies added up, and ``H(Σ w F) − Σ w H(F)``, of logits, hard or soft
#: labels and member weights.
jensen_shannon_parts = WrittenOut(
    "JSD", _compute_jensen_shannon, values=2, gradient=_jensen_shannon_gradient
)


def _compute_score_curvature(
    xp: Namespace, z: Array, targets: Array, weights: Array | None
) -> tuple[Array, ...]:
    """Half the variance of f_j − f̄ under q̄, averaged over members: ½ Σ_j w_j Σ_c q̄_c c_jc²."""
    mean = mean_of_members(xp, z, weights)
    probs = xp.softmax(mean)
    centred = z - mean
    centred -= xp.sum(centred * probs, 0)  # c_j
    # Σ_j w_j c_j is 0, and Σ_c q̄_c c_jc is too. It is here for what the rounding of large logits
    # leaves of it, which the gradient is to be without.
    minus_squares = xp.multiply_add(centred, centred, centred, scale=-0.5)
    minus_spread = mean_of_members(xp, minus_squares, weights)
    minus_value = xp.sum(probs * minus_spread, 0)
    minus_spread -= minus_value
    centred -= minus_spread
    log_probs = xp.log_softmax(z)
    ce = scaled_ce(xp, log_probs, targets, weights)
    value = xp.total(minus_value) * (-1 / z.shape[2])
    return ce, value, xp.exp_(log_probs), probs, centred


def _score_curvature_gradient(
    xp: Namespace, factors: Sequence[Factor], others: Sequence[Any], kept: Sequence[Array]
) -> Array:
    """``w_k q̄ (c_k + ½ Σ_j w_j c_j² − its mean)``: through the distances, and through q̄."""
    targets, weights = others
    member_probs, probs, away = kept
    g_ce, g_curvature = (grad_of_mean(xp, factor, away, weights) for factor in factors)
    slope = member_probs * _mass(xp, targets, g_ce)
    slope = xp.multiply_add(away, probs * g_curvature, slope)
    return minus_labels(xp, slope, targets, g_ce)


#: Mean cross-entropy, and ``½ Σ_j w_j (f_j − f̄)ᵀ (diag q̄ − q̄ q̄ᵀ) (f_j − f̄)`` with q̄ = softmax(f̄),
#: of logits, hard or soft labels and member weights.
score_curvature_parts = WrittenOut(
    "GNCL", _compute_score_curvature, values=2, gradient=_score_curvature_gradient
)


# ---- what they share ----------------------------------------------------------------------------


def mean_of_members(xp: Namespace, z: Array, weights: Array | None) -> Array:
    """``Σ_j w_j z_j``, ``[classes, 1, batch]``."""
    if weights is None:
        return xp.mean_of_members(z)
    return xp.mean_of_members(z * (xp.like(weights, z)[:, None] * z.shape[1]))


def scaled_mean(xp: Namespace, values: Array, weights: Array | None, scale: float = 1.0) -> Array:
    """``scale · Σ_j w_j`` of the mean over examples of ``[…, members, batch]``, a scalar."""
    members, batch = values.shape[-2:]
    if weights is None:
        return xp.total(values) * (scale / (members * batch))  # quicker than a mean
    return xp.total(values * xp.like(weights, values)[:, None]) * (scale / batch)


def scaled_ce(
    xp: Namespace, log_probs: Array, targets: Array, weights: Array | None, scale: float = 1.0
) -> Array:
    """:func:`scaled_mean` of the members' cross-entropy."""
    if _soft(targets):
        picked = xp.sum(log_probs * _columns(xp, targets), 0)
    else:
        picked = xp.take(log_probs, xp.index(targets, log_probs))
    return scaled_mean(xp, picked, weights, -scale)


def grad_of_mean(xp: Namespace, grad: Factor, z: Array, weights: Array | None) -> Factor | Array:
    """What each member's value for an example gets of the gradient of their mean; a broadcast.

    ``z`` is any ``[classes, members, batch]``.
    """
    members, batch = z.shape[1:]
    if weights is None:
        return grad / (members * batch)
    return xp.like(weights, z)[:, None] * (grad / batch)


def minus_labels(xp: Namespace, slope: Array, targets: Array, g_ce: Factor | Array) -> Array:
    """``slope − g y``."""
    if _soft(targets):
        return xp.multiply_add(_columns(xp, targets), -g_ce, slope)
    return xp.add_at(slope, xp.index(targets, slope), -g_ce)


def _mass(xp: Namespace, targets: Array, g_ce: Factor | Array) -> Factor | Array:
    """``g Σ_c y_c``: the gradient of cross-entropy is this times the softmax, minus g y."""
    return g_ce * xp.sum(_columns(xp, targets), 0) if _soft(targets) else g_ce


def _soft(targets: Array) -> bool:
    return bool(targets.ndim == 2)


def _columns(xp: Namespace, targets: Array) -> Array:
    """Soft labels as ``[classes, 1, batch]``."""
    return xp.classes_first(targets)[:, None]


def finite_log(xp: Namespace, probs: Array) -> Array:
    """The logarithm, finite at 0, so that 0 log 0 = 0."""
    return xp.log_(xp.at_least(probs, xp.tiny(probs)))


def member_weights(logits: Tensor, weights: Tensor | None) -> Tensor:
    """``weights`` ``[members]`` in the precision of the logits; equal where none are given."""
    if weights is None:
        return logits.new_full(logits.shape[:1], 1 / logits.shape[0])
    return weights.to(logits.dtype)
