"""Combinations: one prediction from all members, and logits from outputs in any space.

Everything here is pure, and has no branch that depends on data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.outputs.checks import (
    check_logits,
    check_outputs,
    check_weights,
    looks_like_probs,
    refuse_probs,
)
from dissensus.tools.guards import formula, guarded, unreadable
from dissensus.tools.specs import check_choice

#: How members become one prediction. ``decompose`` also knows ``"vote"`` for the 0-1 loss.
COMBINATIONS: dict[str, str] = {
    "probability": "mean of the members' softmax probabilities",
    "score": "softmax of the members' mean logits",
    "mean": "mean of the members' outputs (regression)",
}

#: What a classifier's outputs may be; all but logits are converted by :func:`to_logits`.
SPACES: dict[str, str] = {
    "logits": "scores whose softmax are probabilities",
    "log_probs": "logarithms of probabilities",
    "probs": "probabilities",
}

#: Probabilities below the smallest normal float32 number, zero among them, count as that.
_SMALLEST_PROB = 2.0**-126


@formula
def to_logits(values: Tensor, space: str = "logits") -> Tensor:
    """Logits from outputs ``[members, batch, classes]`` in a ``space``.

    ``"logits"`` come back as they are, unless they look like probabilities: then this raises. Of
    ``"probs"`` it takes the logarithm, which is a logit up to a constant for each row; that is what
    ``"log_probs"`` are already. A probability of 0 has no finite logarithm, so whatever is below
    the smallest normal float32 number, 1.2e-38, counts as that: its cross-entropy is 87. Half
    precision becomes float32.

    >>> to_logits(torch.tensor([[[0.0, 1.0]]]), "probs").round(decimals=2)
    tensor([[[-87.3400,   0.0000]]])
    """
    check_choice("to_logits", "space", space, SPACES)
    check_outputs(values, name=space, finite=False)
    if space == "logits":
        refuse_probs(values)
        return values
    values = values.float() if values.element_size() < 4 else values
    probs = values if space == "probs" else values.exp()
    if not unreadable(values) and not looks_like_probs(probs):
        got = f"values from {float(values.min()):.4g} to {float(values.max()):.4g}"
        raise ValueError(f"space={space!r} (--probs) needs rows of probabilities, got {got}")
    if space == "probs":
        return probs.clamp_min(_SMALLEST_PROB).log()
    return values.clamp_min(math.log(_SMALLEST_PROB))


@formula
def weighted_mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """``Σ_j w_j values_j`` over the first axis; equal weights where none are given."""
    if weights is None:
        return values.mean(0)
    mean: Tensor = torch.tensordot(weights.to(values.dtype), values, dims=1)
    return mean


@formula
def combined_log_probs(
    logits: Tensor, combine: str = "probability", weights: Tensor | None = None
) -> Tensor:
    """The ensemble's log-probabilities ``[batch, classes]``, computed in log space.

    ``probability``: ``log Σ_j w_j softmax(f_j) = logsumexp_j(log_softmax(f_j) + log w_j)``
    (collusion, Section 4.2 ②). ``score``: ``log_softmax(Σ_j w_j f_j)`` (Section 4.2 ①). Never the
    log of a mean of softmaxes, which is −∞ with NaN gradients once the members are confident.
    """
    if combine == "score":
        return log_softmax(weighted_mean(logits, weights), -1)
    if combine == "probability":
        return log_mean_exp(log_softmax(logits, -1), weights)
    raise ValueError(f"combine={combine!r} has no probabilities; use 'probability' or 'score'")


@formula
def log_mean_exp(log_values: Tensor, weights: Tensor | None = None) -> Tensor:
    """``log Σ_j w_j exp(log_values_j)`` over the first axis, in log space."""
    if weights is None:
        return log_values.logsumexp(0) - math.log(log_values.shape[0])
    log_weights = weights.to(log_values.dtype).log()
    return (log_values + log_weights.reshape(-1, *[1] * (log_values.ndim - 1))).logsumexp(0)


@guarded
def combine(
    outputs: Tensor,
    how: str = "probability",
    weights: Tensor | None = None,
    space: str = "logits",
) -> Tensor:
    """One prediction from all members: ``[members, batch, outputs]`` to ``[batch, outputs]``.

    ``how`` is ``"probability"`` or ``"score"`` (both return probabilities) or ``"mean"`` (returns
    the mean output, for regression). ``weights`` ``[members]`` are not negative and sum to 1.
    ``space="probs"`` takes probabilities in place of logits.

    >>> logits = torch.tensor([[[0.0, 0.0]], [[0.0, math.log(3.0)]]])
    >>> combine(logits)                                   # mean of (½, ½) and (¼, ¾)
    tensor([[0.3750, 0.6250]])
    >>> combine(logits, "score").round(decimals=4)        # softmax of the mean logit ½ log 3
    tensor([[0.3660, 0.6340]])
    """
    check_choice("combine", "how", how, COMBINATIONS)
    if how == "mean":
        check_outputs(outputs)
        check_weights(weights, outputs.shape[0])
        return weighted_mean(outputs, weights)
    outputs = to_logits(outputs, space)
    check_logits(outputs)
    check_weights(weights, outputs.shape[0])
    return combined_log_probs(outputs, how, weights).exp()


@formula
def majority_vote(logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """The class that most members predict, ``[batch]``; ties go to the lowest class number.

    >>> majority_vote(torch.eye(3)[[0, 1, 1]][:, None])   # votes 0, 1, 1
    tensor([1])
    """
    labels = logits.argmax(-1)
    votes = (
        torch.ones_like(labels) if weights is None else weights.double()[:, None].expand_as(labels)
    )
    counts = votes.new_zeros(logits.shape[1:]).scatter_add(-1, labels.T, votes.T)
    return counts.argmax(-1)
