"""Diversity: two measures that objectives raise and scores report.

* :func:`log_ensemble_diversity`: how orthogonal the members' wrong-class predictions are (adp,
  Eq. 3). The objective ``ADP`` raises it; the score ``ensemble_diversity`` reports it.
* :func:`jensen_shannon`: how far members are from their mean (adp, Eq. 9), equal to the mutual
  information between prediction and member. The objective ``JSD`` raises it; the score
  ``mutual_information`` reports it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dissensus.outputs import log_mean_exp, weighted_mean
from dissensus.tools.guards import formula

__all__ = [
    "DETERMINANT_FLOOR",
    "entropy",
    "jensen_shannon",
    "log_determinant",
    "log_ensemble_diversity",
    "wrong_class_predictions",
]

#: Added to the diagonal of the Gram matrix, so that members that agree exactly have a finite
#: logarithm of diversity: with K members, log((K + floor) · floor^(K−1)) instead of −∞.
DETERMINANT_FLOOR = 1e-6


@formula
def entropy(log_probs: Tensor) -> Tensor:
    """Shannon entropy in nats over the last axis: ``−Σ_c p_c log p_c``, from log-probabilities."""
    return -(log_probs.exp() * log_probs).sum(-1)


@formula
def jensen_shannon(log_probs: Tensor, weights: Tensor | None = None) -> Tensor:
    """``H(Σ_k w_k F^k) − Σ_k w_k H(F^k)`` for each example, ``[batch]`` (adp, Eq. 9).

    >>> one_hot = torch.tensor([[[0.0, -1e4]], [[-1e4, 0.0]]])   # two members, sure of 0 and of 1
    >>> jensen_shannon(one_hot)                                     # log 2
    tensor([0.6931])
    """
    return entropy(log_mean_exp(log_probs, weights)) - weighted_mean(entropy(log_probs), weights)


@formula
def log_ensemble_diversity(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """``log det(M̃ᵀ M̃ + 1e-6 I)`` for each example, ``[batch]`` (adp, Eq. 3).

    The columns of M̃ are the members' predictions without the entry of ``labels`` (``[batch]``, the
    true label in training, the *predicted* one at test time), of length 1. It is 0 at most, where
    those predictions are orthogonal. A member of weight 0 is left out; other weights change
    nothing.

    Stable form: scaling to length 1 cancels any factor, 1 − F_y among them, so M̃ comes from the
    logits of the other classes alone, finite at any gap to the top logit.

    >>> logits = torch.log(torch.tensor([[[0.8, 0.2, 0.0]], [[0.8, 0.0, 0.2]]]) + 1e-30)
    >>> log_ensemble_diversity(logits, torch.tensor([0])).abs() < 1e-5     # orthogonal
    tensor([True])
    """
    wrong = wrong_class_predictions(logits, labels)
    return log_determinant(wrong @ wrong.mT, weights).to(logits.dtype)


@formula
def wrong_class_predictions(logits: Tensor, labels: Tensor) -> Tensor:
    """``exp(z − max z)`` over the classes other than ``labels``, 0 there: M̃ᵀ up to row lengths.

    ``[batch, members, classes]``, in float64, as 1e-6 is a few float32 roundings away from 0.
    """
    index = labels.long().expand(logits.shape[:-1])[..., None]
    others = logits.scatter(-1, index, -math.inf)
    return (others - others.amax(-1, keepdim=True).detach()).exp().transpose(0, 1).double()


@formula
def log_determinant(gram: Tensor, weights: Tensor | None = None) -> Tensor:
    """``log det`` of Gram matrices ``[batch, members, members]``, scaled to a diagonal of 1 + 1e-6.

    Scaling makes it the determinant of vectors of length 1, whatever their length was. A member of
    weight 0 is left out.
    """
    length = gram.diagonal(dim1=-2, dim2=-1).rsqrt()
    gram = gram * length[..., None] * length[..., None, :]
    if weights is not None:
        gram = leave_out(gram, weights)
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky_ex(gram + DETERMINANT_FLOOR * identity)[0]
    log_det: Tensor = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return log_det


def leave_out(gram: Tensor, weights: Tensor) -> Tensor:
    """Gram matrices in which members of weight 0 are orthogonal to all and count for nothing."""
    present = weights > 0
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.where(present[:, None] & present, gram, (1 - DETERMINANT_FLOOR) * identity)
