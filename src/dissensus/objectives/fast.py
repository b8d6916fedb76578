"""Gradients of objectives at the outputs, for trainers, and a fused one for the default family.

:func:`value_and_gradient` differentiates an objective's formula by autograd. For ``Independent``,
``Joint`` and ``Augmented`` value and gradient are written out: autograd records every operation and
visits each again, which for tensors as small as a batch of outputs costs more than the arithmetic.
Tests hold the fused gradient equal to the formula; without it everything is right, and slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import log_softmax

from dissensus.objectives.base import Objective, Terms
from dissensus.objectives.interpolation import (
    Augmented,
    Independent,
    Interpolation,
    Joint,
    error_terms,
)
from dissensus.objectives.wrappers import LearnerDropout
from dissensus.outputs import log_mean_exp, weighted_mean


def value_and_gradient(
    objective: Objective,
    outputs: Tensor,
    targets: Tensor,
    disagreement: Tensor | None = None,
    weights: Tensor | None = None,
    example_weights: Tensor | None = None,
) -> tuple[Terms, list[Tensor]]:
    """The terms, without a graph, and the gradient of the loss at the outputs; unchecked.

    With ``disagreement`` there is a second gradient, at those outputs.

    >>> from dissensus.objectives import parse
    >>> terms, (gradient,) = value_and_gradient(
    ...     parse("joint"), torch.zeros(2, 1, 4), torch.tensor([0])
    ... )
    >>> gradient[0]
    tensor([[-0.3750,  0.1250,  0.1250,  0.1250]])
    """
    with torch.no_grad():
        fused = _fused(objective, outputs, targets, disagreement, weights, example_weights)
    if fused is not None:
        return fused[0], [fused[1]]

    def evaluate(outputs: Tensor, disagreement: Tensor | None = None) -> Terms:
        return objective.evaluate(outputs, targets, disagreement, weights, example_weights)

    return _differentiate(evaluate, outputs, disagreement)


def fleet_value_and_gradient(
    objective: Objective,
    values: dict[str, Tensor],
    outputs: Tensor,
    targets: Tensor,
    example_weights: Tensor | None = None,
    disagreement: Tensor | None = None,
) -> tuple[Terms, list[Tensor]]:
    """The same for ensembles side by side, each with hyperparameters of its own.

    ``outputs`` are ``[ensembles, members, batch, outputs]``; targets, example weights,
    disagreement and ``values``, the hyperparameters by name, have the ensembles as first axis too.
    Loss and parts are ``[ensembles]``.
    """
    given = {"targets": targets}
    given |= {} if example_weights is None else {"example_weights": example_weights}

    def fused(values: dict[str, Tensor], outputs: Tensor, given: dict[str, Tensor]) -> Any:
        return _fused(objective.with_values(**values), outputs, **given) or ()

    def formula(values: dict[str, Tensor], outputs: Tensor, given: dict[str, Tensor]) -> Terms:
        return objective.with_values(**values).evaluate(outputs, **given)

    with torch.no_grad():
        terms_and_gradient = vmap(fused)(values, outputs, given)
    if terms_and_gradient:
        return terms_and_gradient[0], [terms_and_gradient[1]]

    def evaluate(outputs: Tensor, disagreement: Tensor | None = None) -> Terms:
        extra = {} if disagreement is None else {"disagreement": disagreement}
        terms: Terms = vmap(formula)(values, outputs, given | extra)
        return terms

    return _differentiate(evaluate, outputs, disagreement)


def _differentiate(
    evaluate: Callable[..., Terms], *outputs: Tensor | None
) -> tuple[Terms, list[Tensor]]:
    """Terms and gradients by autograd; no ensemble's loss depends on another one's outputs."""
    leaves = [x.detach().requires_grad_() for x in outputs if x is not None]
    with torch.enable_grad():
        loss, parts = evaluate(*leaves)
    gradients = torch.autograd.grad(
        loss, leaves, torch.ones_like(loss), allow_unused=True, materialize_grads=True
    )
    terms = Terms(loss.detach(), {name: part.detach() for name, part in parts.items()})
    return terms, list(gradients)


#: The classes themselves: a subclass may have another formula.
_WRITTEN_OUT = (Independent, Joint, Augmented)


def _fused(
    objective: Objective,
    outputs: Tensor,
    targets: Tensor,
    disagreement: Tensor | None = None,
    weights: Tensor | None = None,
    example_weights: Tensor | None = None,
) -> Fused | None:
    """Terms and gradient where they are written out for the objective's settings, else None."""
    while isinstance(objective, LearnerDropout):
        objective = objective.objective
    if type(objective) not in _WRITTEN_OUT:
        return None
    assert isinstance(objective, Interpolation)
    loss, smoothing, combine = objective.loss, objective.label_smoothing, objective.combine
    beta = objective.beta if isinstance(objective, Augmented) else float(type(objective) is Joint)
    counts = weights, example_weights
    labelled = loss == "cross_entropy" and targets.ndim == 1  # soft labels take the formula
    if loss == "mse":
        member, ensemble, slope = _squared_error(beta, outputs, targets, counts)
    elif labelled and not smoothing:
        member, ensemble, slope = _cross_entropy(beta, combine, outputs, targets, counts)
    elif labelled and isinstance(objective, Independent):
        member, ensemble, slope = _smoothed(smoothing, combine, outputs, targets, counts)
    else:
        return None
    return error_terms((1 - beta) * member + beta * ensemble, member, ensemble), slope


# ---- (1 − β) mean ERR + β ERR (collusion, Eq. 2) ------------------------------------------------

#: The terms, and the gradient of the loss at the outputs.
Fused = tuple[Terms, Tensor]

Share = float | Tensor  # a number where all count the same

#: Mean ERR, ERR, and the gradient of their interpolation.
Slopes = tuple[Tensor, Tensor, Tensor]

#: Weights of members and of examples, if any.
Counts = tuple[Tensor | None, Tensor | None]


def _cross_entropy(
    beta: Share, combine: str | None, logits: Tensor, labels: Tensor, counts: Counts
) -> tuple[Tensor, Tensor, Tensor]:
    """``−log p_j(y)`` and ``−log p̄(y)``; the slope of the softmax is ``p − y``."""
    member, example = _shares(logits, *counts)
    index = labels.long().expand(logits.shape[:2])[..., None]
    log_probs = log_softmax(logits, -1)
    log_true, slope = log_probs.gather(-1, index), log_probs.exp()
    if combine == "score":
        log_mean = log_softmax(weighted_mean(logits, counts[0]), -1)
        error, share = -log_mean.gather(-1, index[0]), member * example
        slope = (1 - beta) * slope + beta * log_mean.exp()
    else:
        error, scores = -log_mean_exp(log_true, counts[0]), log_true
        if isinstance(member, Tensor):
            scores = scores + member.log()
        # ∂ERR / ∂ log p_j(y) is −w_j p_j / p̄, a softmax over members.
        share = ((1 - beta) * member + beta * scores.softmax(0)) * example
    slope = slope.scatter_add(-1, index, slope.new_full(index.shape, -1.0)) * share
    return -(log_true * (member * example)).sum(), (error * example).sum(), slope


def _smoothed(
    smoothing: float, combine: str | None, logits: Tensor, labels: Tensor, counts: Counts
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for β = 0 with labels ``(1 − s) y + s / classes``."""
    member, example = _shares(logits, *counts)
    s, classes, share = smoothing, logits.shape[-1], member * example
    index = labels.long().expand(logits.shape[:2])[..., None]
    log_probs = log_softmax(logits, -1)
    if combine == "score":
        log_mean = log_softmax(weighted_mean(logits, counts[0]), -1)
    else:
        log_mean = log_mean_exp(log_probs, counts[0])
    each = (1 - s) * log_probs.gather(-1, index) + s * log_probs.mean(-1, keepdim=True)
    mean = (1 - s) * log_mean.gather(-1, index[0]) + s * log_mean.mean(-1, keepdim=True)
    slope = log_probs.exp() - s / classes
    slope = slope.scatter_add(-1, index, slope.new_full(index.shape, s - 1)) * share
    return -(each * share).sum(), -(mean * example).sum(), slope


def _squared_error(
    beta: Share, outputs: Tensor, targets: Tensor, counts: Counts
) -> tuple[Tensor, Tensor, Tensor]:
    """``‖f_j − y‖²`` and ``‖f̄ − y‖²``, whose slopes are 2 (f_j − y) and 2 (f̄ − y)."""
    share, example = _shares(outputs, *counts)
    away, mean = outputs - targets, weighted_mean(outputs, counts[0]) - targets
    slope = ((1 - beta) * away + beta * mean) * (2 * share * example)
    return (away.square() * share * example).sum(), (mean.square() * example).sum(), slope


def _shares(
    outputs: Tensor, weights: Tensor | None, example_weights: Tensor | None
) -> tuple[Share, Share]:
    """How much each member counts, ``[members, 1, 1]``, and each example, ``[batch, 1]``."""
    members, batch, _ = outputs.shape
    member: Share = 1 / members if weights is None else weights.to(outputs.dtype)[:, None, None]
    if example_weights is None:
        return member, 1 / batch
    return member, example_weights.to(outputs.dtype)[:, None] / batch
