"""Terms with their gradients written out, because automatic ones cost several times as much.

Each is the same number as a plain function elsewhere, which is its definition and its test:

* :func:`a2d_term`: the weighted sum of ``disagreement.a2d_pairs``;
* :func:`jensen_shannon_parts`: ``diversity.jensen_shannon`` of a softmax;
* :func:`score_curvature_parts`: the second-order diversity of score averaging (``GNCL``).

Each comes with the members' cross-entropy, as they share the softmax. They have no second
derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid

from dissensus.losses import cross_entropy
from dissensus.outputs import weighted_mean

__all__ = ["a2d_parts", "a2d_term", "jensen_shannon_parts", "score_curvature_parts"]


def a2d_term(logits: Tensor, example_weights: Tensor, pair_weights: Tensor) -> Tensor:
    """``(1/N) Σ_n a_n Σ_{m,l} v_{ml} G(p^m_n, p^l_n)`` with G of ldr's Eq. 3, a scalar.

    ``example_weights`` a ``[batch]`` and ``pair_weights`` v ``[members, members]`` are constants.
    """
    labels = torch.zeros(logits.shape[1], dtype=torch.long, device=logits.device)
    return a2d_parts(logits, labels, example_weights, pair_weights)[0]


def a2d_parts(
    logits: Tensor, labels: Tensor, example_weights: Tensor, pair_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`a2d_term` and each member's cross-entropy for hard labels, ``[members, batch]``."""
    apply: Callable[..., tuple[Tensor, ...]] = _A2d.apply
    term, ce, *_ = apply(logits, labels.long(), example_weights, pair_weights)
    return term, ce


class _A2d(torch.autograd.Function):
    """G = −log S with S = p (1 − q) + q (1 − p), p = p^m_ŷ and q = p^l_ŷ at ŷ = arg max p^m.

    ∂G/∂q = (2p − 1)/S, and the softmax turns ∂/∂log q into k (δ_ŷ − p^l) with k = q ∂G/∂q. Where ŷ
    is also l's top class, 1 − q may underflow while k grows without bound; there everything is
    written with the distribution of l over its *other* classes, and q (1 − q)/S, which is at most
    q / p. Every exponent below is at most log(classes).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        logits: Tensor, labels: Tensor, example_weights: Tensor, pair_weights: Tensor
    ) -> tuple[Tensor, ...]:
        top, label = logits.max(-1, keepdim=True)  # ŷ of every member, [members, batch, 1]
        other = logits.scatter(-1, label, -math.inf)
        second = other.amax(-1, keepdim=True)
        other.sub_(second).exp_()
        total = other.sum(-1, keepdim=True)
        odds = (total.log() + second).sub_(top)  # log((1 − p_ŷ) / p_ŷ)
        sure, rest = logsigmoid(-odds), logsigmoid(odds)  # log p_ŷ and log(1 − p_ŷ), own ŷ
        normal = sure - top  # minus the log-sum-exp of the logits
        true = labels.expand(logits.shape[:-1])[..., None]
        ce = -(logits.gather(-1, true) + normal)
        asked = label.squeeze(-1).T.expand(logits.shape[0], -1, -1)  # [l, batch, m]: ŷ of m
        own = asked == label
        at = logits.gather(-1, asked) + normal  # log q
        not_at = torch.where(own, rest, torch.log1p(-at.masked_fill(own, -1.0).exp()))
        log_p, log_not_p = sure.permute(2, 1, 0), rest.permute(2, 1, 0)  # of m, [1, batch, m]
        log_s = torch.logaddexp(log_p + not_at, at + log_not_p)  # [l, batch, m]
        share = pair_weights.T[:, None] * (example_weights / logits.shape[1])[:, None]
        value = -(share * log_s).sum()
        # What flows into l through q, at ŷ of m, and into m through p, at its own ŷ:
        through_q = share * (1 - 2 * log_p.exp())
        at_own = through_q * (at + not_at - log_s).exp()
        at_other = (through_q * (at - log_s).exp().masked_fill(own, 0.0)).masked_fill(own, 0.0)
        through_p = share * (1 - 2 * at.exp()) * (log_p + log_not_p - log_s).exp()
        own_sum = (at_own * own).sum(-1, keepdim=True) + through_p.sum(0).T[..., None]
        return value, ce.squeeze(-1), other, total, odds, label, asked, true, own_sum, at_other

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.save_for_backward(*output[2:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        other, total, odds, label, asked, true, own_sum, at_other = ctx.saved_tensors
        _check_first_order(grads[2:])
        not_p = odds.sigmoid()
        spread, at_own = _zero(total), _zero(total)
        if grads[0] is not None:
            at_other, at_own = at_other * grads[0], own_sum * grads[0]
            spread = at_other.sum(-1, keepdim=True)
        if grads[1] is not None:
            spread = spread + grads[1][..., None]  # the softmax part of the cross-entropy
        gradient = other * ((at_own + spread * not_p) / total)
        gradient = gradient.scatter(-1, label, spread * (1 - not_p) - at_own)
        if grads[0] is not None:
            gradient = gradient.scatter_add(-1, asked, -at_other)
        if grads[1] is not None:
            gradient = gradient.scatter_add(-1, true, -grads[1][..., None])
        return gradient, None, None, None


def jensen_shannon_parts(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each member's cross-entropy ``[members, batch]``, and ``H(Σ w F) − Σ w H(F)`` ``[batch]``."""
    apply: Callable[..., tuple[Tensor, ...]] = _JensenShannon.apply
    ce, divergence, *_ = apply(logits, targets, _weights(logits, weights))
    return ce, divergence


class _JensenShannon(torch.autograd.Function):
    """``Σ_k w_k Σ_c F^k_c (log F^k_c − log F̄_c)`` (adp, Eq. 9); 0 log 0 = 0 where F̄ underflows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        log_probs = log_softmax(logits, -1)
        ce = cross_entropy(log_probs, targets)
        probs = log_probs.exp()
        mean = weighted_mean(probs, weights)
        ratio = log_probs - mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
        divergence = (probs * ratio).sum(-1)  # KL(F^k ‖ F̄), [members, batch]
        return ce, weighted_mean(divergence, weights), probs, ratio, divergence

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.save_for_backward(*inputs[1:], *output[2:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        targets, weights, probs, ratio, divergence = ctx.saved_tensors
        _check_first_order(grads[2:])
        if grads[1] is None:
            return _cross_entropy_gradient(probs, targets, grads[0], None), None, None
        # ∂/∂F^k = w_k (log F^k − log F̄), taken back through the softmax
        scale = (weights[:, None] * grads[1])[..., None]
        inner = torch.addcmul(-divergence[..., None] * scale, ratio, scale)
        return _cross_entropy_gradient(probs, targets, grads[0], inner), None, None


def score_curvature_parts(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each member's cross-entropy, and ``½ Σ_j w_j (f_j − f̄)ᵀ (diag q̄ − q̄ q̄ᵀ)(f_j − f̄)``.

    With q̄ = softmax(f̄); shapes ``[members, batch]`` and ``[batch]``.
    """
    apply: Callable[..., tuple[Tensor, ...]] = _ScoreCurvature.apply
    ce, curvature, *_ = apply(logits, targets, _weights(logits, weights))
    return ce, curvature


class _ScoreCurvature(torch.autograd.Function):
    """Half the variance of f_j − f̄ under q̄, averaged over members: ½ Σ_j w_j Σ_c q̄_c c_jc²."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        log_probs = log_softmax(logits, -1)
        ce = cross_entropy(log_probs, targets)
        mean = weighted_mean(logits, weights)
        probs = mean.softmax(-1)
        centred = logits - mean
        centred = centred - (probs * centred).sum(-1, keepdim=True)
        spread = weighted_mean(centred.square(), weights).mul_(0.5)
        value = (probs * spread).sum(-1)
        return ce, value, log_probs.exp_(), probs, centred, spread

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.save_for_backward(*inputs[1:], *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        targets, weights, value, member_probs, probs, centred, spread = ctx.saved_tensors
        _check_first_order(grads[2:])
        gradient = _cross_entropy_gradient(member_probs, targets, grads[0], None)
        if grads[1] is None:
            return gradient, None, None
        # Through the distances w_k q̄ c_k, and through q̄. The mean of the c_j is 0 but for rounding,
        # which large logits make visible; so it is taken out.
        centred = centred - weighted_mean(centred, weights)
        shared = spread - value[..., None]
        scale = (probs * grads[1][..., None]) * weights[:, None, None]
        return torch.addcmul(gradient, centred + shared, scale), None, None


def _cross_entropy_gradient(
    probs: Tensor, targets: Tensor, grad: Tensor | None, inner: Tensor | None
) -> Tensor:
    """``p (g + inner) − y g``: the gradient of cross-entropy and of a term inside the softmax."""
    if grad is None:
        return torch.zeros_like(probs) if inner is None else probs * inner
    g = grad[..., None]
    if targets.is_floating_point():
        total = g * targets.sum(-1, keepdim=True)
        return probs * (total if inner is None else total + inner) - targets * g
    index = targets.long().expand(probs.shape[:-1])[..., None]
    return (probs * (g if inner is None else inner + g)).scatter_add(-1, index, -g)


def _weights(logits: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return logits.new_full(logits.shape[:1], 1 / logits.shape[0])
    return weights.to(logits.dtype)


def _zero(like: Tensor) -> Tensor:
    return torch.zeros_like(like)


def _check_first_order(grads: tuple[Tensor | None, ...]) -> None:
    """Outputs that only the backward pass uses are reached in a second derivative alone."""
    if any(grad is not None for grad in grads):
        raise RuntimeError("this term has no second derivative; build it from the plain function")
