"""Losses for each example, of one prediction and of a whole ensemble.

Each loss is a pure function of a prediction whose name says its space (``outputs``, ``log_probs``,
``probs``) and of targets that are integer labels ``[batch]`` or soft labels ``[batch, classes]``.
Leading axes of the prediction (members) pass through: ``[…, batch, outputs]`` gives ``[…, batch]``.

:func:`errors` applies a loss to every member and to their combination, which gives ERR and mean ERR
(collusion, Definition 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.outputs import (
    COMBINATIONS,
    check_logits,
    check_outputs,
    check_regression_targets,
    check_targets,
    check_tensor,
    combined_log_probs,
    log_mean_exp,
    majority_vote,
    weighted_mean,
)
from dissensus.tools.guards import check_finite, formula
from dissensus.tools.specs import check_choice

__all__ = [
    "LOSSES",
    "Errors",
    "Loss",
    "LossLike",
    "brier",
    "check_loss",
    "check_loss_inputs",
    "cross_entropy",
    "errors",
    "gaussian_nll",
    "mean_cross_entropy",
    "mse",
    "natural_combination",
    "zero_one",
]

#: A loss by name, or a function ``(prediction, target) -> [batch]``.
LossLike = str | Callable[[Tensor, Tensor], Tensor]


@formula
def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared Euclidean distance ``‖f − y‖²``, summed over outputs (not torch's mean)."""
    wanted = outputs.shape[outputs.ndim - targets.ndim :]
    if wanted != targets.shape:  # torch would broadcast
        got = tuple(targets.shape)
        raise ValueError(f"targets must be of the shape {tuple(wanted)} of a prediction, got {got}")
    return (outputs - targets).square().sum(-1)


@formula
def gaussian_nll(means: Tensor, log_variances: Tensor, targets: Tensor) -> Tensor:
    """``−log N(y; μ, σ²) = ½ (log 2π + log σ² + (y − μ)² / σ²)`` of each entry, from log σ².

    >>> gaussian_nll(torch.zeros(1), torch.zeros(1), torch.ones(1))        # ½ (log 2π + 1)
    tensor([1.4189])
    """
    squares = (targets - means).square() * (-log_variances).exp()
    return 0.5 * (math.log(2 * math.pi) + log_variances + squares)


@formula
def cross_entropy(log_probs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """``−Σ_k y_k log p_k`` from log-probabilities, for hard or soft labels.

    ``label_smoothing`` s replaces y by ``(1 − s) y + s / classes``, as torch does.
    """
    if targets.is_floating_point():
        loss = -(targets * log_probs).sum(-1)
    else:
        index = targets.long().expand(log_probs.shape[:-1])[..., None]
        loss = -log_probs.gather(-1, index).squeeze(-1)
    if label_smoothing:
        loss = (1 - label_smoothing) * loss - label_smoothing * log_probs.mean(-1)
    return loss


@formula
def mean_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """:func:`cross_entropy`, its mean over examples and, weighted, over members: a scalar."""
    loss = cross_entropy(log_softmax(logits, -1), targets, label_smoothing)
    return weighted_mean(loss, weights).mean()


@formula
def brier(probs: Tensor, targets: Tensor) -> Tensor:
    """``‖p − y‖²`` for hard or soft labels (the Brier score of collusion, Section 4.2)."""
    if targets.is_floating_point():
        return (probs - targets).square().sum(-1)
    # Subtracting the one-hot vector first keeps full precision where p is close to it.
    index = targets.long().expand(probs.shape[:-1])[..., None]
    return (probs - torch.zeros_like(probs).scatter(-1, index, 1.0)).square().sum(-1)


@formula
def zero_one(labels: Tensor, targets: Tensor) -> Tensor:
    """1 where the predicted label is wrong. Soft targets count by their probability elsewhere."""
    if targets.is_floating_point():
        return 1 - targets.expand(*labels.shape, -1).gather(-1, labels[..., None]).squeeze(-1)
    return (labels != targets).to(torch.get_default_dtype())


@dataclass(frozen=True)
class Loss:
    """A named loss: its function, the space its predictions live in, and how members combine."""

    function: Callable[..., Tensor]
    space: str
    combinations: tuple[str, ...]

    @property
    def classification(self) -> bool:
        """Whether targets are class labels."""
        return self.space != "outputs"


#: The losses by name. The first combination listed is the one used where none is asked for.
LOSSES: dict[str, Loss] = {
    "mse": Loss(mse, "outputs", ("mean",)),
    "cross_entropy": Loss(cross_entropy, "log_probs", ("probability", "score")),
    "brier": Loss(brier, "probs", ("probability", "score")),
    "zero_one": Loss(zero_one, "labels", ("probability", "score", "vote")),
}


@formula
def natural_combination(loss: LossLike) -> str:
    """The default combination of a loss: the mean for a callable.

    >>> natural_combination("mse"), natural_combination("cross_entropy")
    ('mean', 'probability')
    """
    return "mean" if callable(loss) else LOSSES[loss].combinations[0]


@formula
def check_loss(loss: LossLike, combine: str | None = None, *, trainable: bool = False) -> str:
    """Raise unless loss and combination fit each other; return the combination to use.

    ``trainable`` refuses the 0-1 loss, which has no gradient.
    """
    if callable(loss):
        chosen = combine or natural_combination(loss)
        check_choice("a callable loss", "combine", chosen, COMBINATIONS)
        return chosen
    names = [name for name in LOSSES if not (trainable and name == "zero_one")]
    if loss not in names:
        why = " has no gradient to train on" if loss == "zero_one" else ""
        known = ", ".join(repr(name) for name in names)
        raise ValueError(f"loss must be one of {known} or a callable, got {loss!r}{why}")
    chosen = combine or natural_combination(loss)
    allowed = LOSSES[loss].combinations
    if chosen not in allowed:
        known = " or ".join(repr(name) for name in allowed)
        raise ValueError(f"loss={loss!r} goes with combine={known}, got {combine!r}")
    return chosen


@formula
def check_loss_inputs(
    outputs: Tensor, targets: Tensor, loss: LossLike, *, finite: bool = True
) -> None:
    """Raise unless ``outputs`` and ``targets`` have the shapes and values that ``loss`` needs."""
    if callable(loss):
        check_outputs(outputs, finite=finite)
        _check_callable_targets(targets, outputs.shape[1])
    elif LOSSES[loss].classification:
        check_logits(outputs, finite=finite)
        check_targets(targets, outputs.shape[1], outputs.shape[2])
    else:
        check_outputs(outputs, finite=finite)
        check_regression_targets(targets, outputs)


def _check_callable_targets(targets: Tensor, batch: int) -> None:
    """Raise unless ``targets`` hold one finite entry for each example; the loss knows the rest."""
    check_tensor(targets)
    if tuple(targets.shape[:1]) != (batch,):
        got = tuple(targets.shape)
        raise ValueError(f"targets must have one entry for each of {batch} examples, got {got}")
    if targets.is_floating_point():
        check_finite(targets, name="targets")


def reduced_loss(values: Tensor, batch: int) -> ValueError:
    """The error for a callable loss that returns something else than ``[batch]``."""
    got = tuple(values.shape)
    return ValueError(f"a loss must return [batch] = ({batch},), got {got}; drop its reduction")


class Errors(NamedTuple):
    """Per-example losses: ``member`` is ``[members, batch]``, ``ensemble`` is ``[batch]``."""

    member: Tensor
    ensemble: Tensor


@formula
def errors(
    outputs: Tensor,
    targets: Tensor,
    loss: LossLike = "cross_entropy",
    combine: str = "probability",
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Errors:
    """The loss of every member and of their combination (collusion, Definition 4.1), unchecked.

    A callable loss receives predictions in the space where members are averaged: outputs for
    ``"mean"``, logits for ``"score"``, probabilities for ``"probability"``.
    """
    if callable(loss):
        return _callable_errors(outputs, targets, loss, combine, weights)
    if loss == "mse":
        return Errors(mse(outputs, targets), mse(weighted_mean(outputs, weights), targets))
    if loss == "cross_entropy":
        return _cross_entropy_errors(outputs, targets, combine, weights, label_smoothing)
    if loss == "brier":
        ensemble = combined_log_probs(outputs, combine, weights).exp()
        return Errors(brier(outputs.softmax(-1), targets), brier(ensemble, targets))
    if combine == "vote":
        labels = majority_vote(outputs, weights)
    else:
        labels = combined_log_probs(outputs, combine, weights).argmax(-1)
    member, ensemble = zero_one(outputs.argmax(-1), targets), zero_one(labels, targets)
    return Errors(member.to(outputs.dtype), ensemble.to(outputs.dtype))


def _cross_entropy_errors(
    logits: Tensor, targets: Tensor, combine: str, weights: Tensor | None, label_smoothing: float
) -> Errors:
    log_probs = log_softmax(logits, -1)
    member = cross_entropy(log_probs, targets, label_smoothing)
    if combine == "score":
        mixed = combined_log_probs(logits, combine, weights)
        return Errors(member, cross_entropy(mixed, targets, label_smoothing))
    if targets.is_floating_point() or label_smoothing:
        mixed = log_mean_exp(log_probs, weights)
        return Errors(member, cross_entropy(mixed, targets, label_smoothing))
    # With hard labels log p̄(y) needs only the true class: [members, batch], not […, classes].
    return Errors(member, -log_mean_exp(-member, weights))


def _callable_errors(
    outputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    combine: str,
    weights: Tensor | None,
) -> Errors:
    if combine == "probability":
        members = outputs.softmax(-1)
        ensemble = combined_log_probs(outputs, combine, weights).exp()
    else:
        members, ensemble = outputs, weighted_mean(outputs, weights)
    values = torch.stack([loss(member, targets) for member in members])
    ensemble_values = loss(ensemble, targets)
    if ensemble_values.shape != outputs.shape[1:2]:
        raise reduced_loss(ensemble_values, outputs.shape[1])
    return Errors(values, ensemble_values)
