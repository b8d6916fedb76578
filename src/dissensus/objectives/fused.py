"""Terms with their gradients written out, because automatic ones cost several times as much.

Each is the same number as a plain function elsewhere, which is its definition and its test:

* :func:`a2d_term`: the weighted sum of ``disagreement.a2d_pairs``;
* :func:`divdis_parts`: the weighted sum of ``disagreement.divdis_pairs``, and the imbalance;
* :func:`jensen_shannon_parts`: ``diversity.jensen_shannon`` of a softmax;
* :func:`score_curvature_parts`: the second-order diversity of score averaging (``GNCL``).

Those of labelled outputs come with the members' cross-entropy, as they share the softmax. None has
a second derivative. The slope of a value is its derivative by the logits of the same example.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softplus

from dissensus.losses import cross_entropy
from dissensus.objectives.gradients import WrittenOut

__all__ = [
    "a2d_parts",
    "a2d_term",
    "divdis_parts",
    "jensen_shannon_parts",
    "mean_a2d_parts",
    "mean_jensen_shannon_parts",
    "mean_score_curvature_parts",
    "member_weights",
    "score_curvature_parts",
]


# ---- disagreement at the predicted class --------------------------------------------------------


def a2d_term(logits: Tensor, example_weights: Tensor, pair_weights: Tensor) -> Tensor:
    """``(1/N) Σ_n a_n Σ_{m,l} v_{ml} G(p^m_n, p^l_n)`` with G of ldr's Eq. 3, a scalar.

    ``example_weights`` a ``[batch]`` and ``pair_weights`` v ``[members, members]`` are constants.
    """
    return _a2d(logits, example_weights, pair_weights)[0]


def a2d_parts(
    logits: Tensor, labels: Tensor, example_weights: Tensor, pair_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`a2d_term` and each member's cross-entropy for hard labels, ``[members, batch]``."""
    term, ce = _a2d_with_ce(logits, labels.long(), example_weights, pair_weights)
    return term, ce


def mean_a2d_parts(
    logits: Tensor,
    labels: Tensor,
    example_weights: Tensor,
    pair_weights: Tensor,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`a2d_parts`, its cross-entropy averaged over the batch and, weighted, over members."""
    weights = member_weights(logits, weights)
    term, ce = _a2d_with_ce.mean(weights, logits, labels.long(), example_weights, pair_weights)
    return term, ce


class _Top(NamedTuple):
    """The softmax of every member, its largest entry p at ŷ apart from the rest; all […, 1].

    However sure a member is, the rest keeps its digits: it is relative to its own largest entry.
    """

    label: Tensor  # ŷ
    logit: Tensor  # z_ŷ
    odds: Tensor  # log((1 − p) / p)
    not_p: Tensor  # 1 − p
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
        odds = total.log().add_(second - logit)
        return cls(label, logit, odds, odds.sigmoid(), softplus(odds, threshold=50), rest, total)

    def slope(self, of_rest: Tensor, at_top: Tensor) -> Tensor:
        """The tensor that is ``of_rest`` times the shares of the rest, and ``at_top`` at ŷ."""
        return (self.rest * (of_rest / self.total)).scatter_add_(-1, self.label, at_top)


def _compute_a2d(logits: Tensor, example_weights: Tensor, pair_weights: Tensor) -> tuple[Tensor, ...]:
    return _a2d_value_and_slope(_Top.of(logits), logits, example_weights, pair_weights)


def _a2d_value_and_slope(
    top: _Top, logits: Tensor, example_weights: Tensor, pair_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """G = −log(p (1 − q) + q (1 − p)), p = p^m_ŷ and q = p^l_ŷ at ŷ = arg max p^m.

    In log-odds x = log((1 − p)/p) and y = log((1 − q)/q) it is −log p − log q − log(eˣ + eʸ), whose
    slopes in x and y lie between −1 and 1. Where ŷ is l's top class too, y is l's own x and keeps
    its digits; elsewhere q ≤ ½ and 1 − q loses none.
    """
    asked = top.label.squeeze(-1).T.expand(logits.shape[0], -1, -1)  # [l, batch, m]: ŷ of m
    own = asked == top.label
    minus_log_q = (top.logit - logits.gather(-1, asked)).add_(top.minus_log_p)
    q = minus_log_q.neg().exp_()
    y = torch.where(own, top.odds, (-q).log1p_().add_(minus_log_q))
    x, not_p, minus_log_p = (
        part.permute(2, 1, 0) for part in (top.odds, top.not_p, top.minus_log_p)
    )  # of m, [1, batch, m]
    share = pair_weights.T[:, None] * (example_weights / logits.shape[1])[:, None]
    value = (minus_log_q.add_(minus_log_p).sub_(torch.logaddexp(x, y)) * share).sum()
    pull = (x - y).sigmoid_()  # ∂G/∂x = (1 − p) − pull and ∂G/∂y = pull − q
    into_x, into_y = (not_p - pull).mul(share), (pull - q).mul(share)
    # ∂x/∂z = the shares of the rest − δ_ŷ, and so is ∂y/∂z at l's top class; else (p^l − δ)/(1 − q)
    at_own = (into_y * own).sum(-1, keepdim=True).add_(into_x.sum(0).T[..., None])
    at_other = (into_y / (1 - q)).masked_fill_(own, 0.0)
    spread = at_other.sum(-1, keepdim=True)
    kept = spread * top.not_p
    slope = top.slope(at_own + kept, spread - kept - at_own)
    return value, slope.scatter_add_(-1, asked, -at_other)


def _compute_a2d_with_ce(
    logits: Tensor, labels: Tensor, example_weights: Tensor, pair_weights: Tensor
) -> tuple[Tensor, ...]:
    top = _Top.of(logits)
    true = labels.expand(logits.shape[:-1])[..., None]
    ce = top.minus_log_p + (top.logit - logits.gather(-1, true))
    term, slope = _a2d_value_and_slope(top, logits, example_weights, pair_weights)
    ce_slope = top.slope(top.not_p, 1 - top.not_p)
    return term, ce.squeeze(-1), slope, _minus_one_at(ce_slope, true)


_a2d = WrittenOut("A2D", _compute_a2d, values=1)
_a2d_with_ce = WrittenOut("A2D", _compute_a2d_with_ce, values=2)


# ---- mutual information over the batch ----------------------------------------------------------


def divdis_parts(
    logits: Tensor, log_prior: Tensor, pair_weights: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The mean over pairs of ``divdis_pairs``, and ``Σ_m w_m KL(mean prediction of m ‖ prior)``.

    Holds the joint distributions of all pairs at once: (members · classes)² numbers.
    """
    weights = member_weights(logits, weights)
    information, imbalance = _divdis(logits, log_prior, pair_weights, weights)
    return information, imbalance


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


_divdis = WrittenOut("DivDis", _compute_divdis, values=2)


# ---- distance from the mean ---------------------------------------------------------------------


def jensen_shannon_parts(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each member's cross-entropy ``[members, batch]``, and ``H(Σ w F) − Σ w H(F)`` ``[batch]``."""
    ce, divergence = _jensen_shannon(logits, targets, member_weights(logits, weights))
    return ce, divergence


def mean_jensen_shannon_parts(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`jensen_shannon_parts` averaged over the batch and, weighted, over members."""
    weights = member_weights(logits, weights)
    ce, divergence = _jensen_shannon.mean(weights, logits, targets, weights)
    return ce, divergence


def _compute_jensen_shannon(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """``Σ_k w_k Σ_c F^k_c (log F^k_c − log F̄_c)`` (adp, Eq. 9); 0 log 0 = 0 where F̄ underflows."""
    log_probs = log_softmax(logits, -1)
    ce = cross_entropy(log_probs, targets)
    probs = log_probs.exp()
    ratio = log_probs - _log(_mixed(probs, weights))
    divergence = (probs * ratio).sum(-1)  # KL(F^k ‖ F̄), [members, batch]
    # ∂/∂F^k = w_k (log F^k − log F̄), taken back through the softmax
    slope = ratio.sub_(divergence[..., None]).mul_(probs).mul_(weights[:, None, None])
    return ce, weights @ divergence, _cross_entropy_slope(probs, targets), slope


_jensen_shannon = WrittenOut("JSD", _compute_jensen_shannon, values=2)


def score_curvature_parts(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each member's cross-entropy, and ``½ Σ_j w_j (f_j − f̄)ᵀ (diag q̄ − q̄ q̄ᵀ)(f_j − f̄)``.

    With q̄ = softmax(f̄); shapes ``[members, batch]`` and ``[batch]``.
    """
    ce, curvature = _score_curvature(logits, targets, member_weights(logits, weights))
    return ce, curvature


def mean_score_curvature_parts(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`score_curvature_parts` averaged over the batch and, weighted, over members."""
    weights = member_weights(logits, weights)
    ce, curvature = _score_curvature.mean(weights, logits, targets, weights)
    return ce, curvature


def _compute_score_curvature(
    logits: Tensor, targets: Tensor, weights: Tensor
) -> tuple[Tensor, ...]:
    """Half the variance of f_j − f̄ under q̄, averaged over members: ½ Σ_j w_j Σ_c q̄_c c_jc²."""
    mean = _mixed(logits, weights)
    probs = mean.softmax(-1)
    centred = logits - mean
    centred.sub_((probs * centred).sum(-1, keepdim=True))
    spread = _mixed(centred.square(), weights).mul_(0.5)
    value = (probs * spread).sum(-1, keepdim=True)
    # Through the distances w_k q̄ c_k, and through q̄. The mean of the c_j is 0 but for rounding,
    # which large logits make visible; so it is taken out.
    shared = spread.sub_(value).sub_(_mixed(centred, weights))
    slope = centred.add_(shared).mul_(probs).mul_(weights[:, None, None])
    log_probs = log_softmax(logits, -1)
    ce = cross_entropy(log_probs, targets)
    return ce, value.squeeze(-1), _cross_entropy_slope(log_probs.exp_(), targets), slope


_score_curvature = WrittenOut("GNCL", _compute_score_curvature, values=2)


# ---- what they share ----------------------------------------------------------------------------


def _cross_entropy_slope(probs: Tensor, targets: Tensor) -> Tensor:
    """``p Σ_c y_c − y``; hard labels take the place of ``probs``."""
    if targets.is_floating_point():
        return probs * targets.sum(-1, keepdim=True) - targets
    return _minus_one_at(probs, targets.long().expand(probs.shape[:-1])[..., None])


def _minus_one_at(values: Tensor, index: Tensor) -> Tensor:
    """``values`` with 1 taken off at one class of each example, in place where that is possible."""
    minus_one = values.new_full((), -1.0).expand_as(index)
    if torch._C._are_functorch_transforms_active():  # vmap may run over the labels alone
        return values.scatter_add(-1, index, minus_one)
    return values.scatter_add_(-1, index, minus_one)


def _mixed(values: Tensor, weights: Tensor) -> Tensor:
    """``Σ_j w_j values_j``, ``[batch, classes]``, in a third of the time of a ``tensordot``."""
    return (weights @ values.flatten(1)).view(values.shape[1:])


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
