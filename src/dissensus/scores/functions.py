"""Scores of how unusual an input looks: pure functions of ``[members, batch, outputs]``.

Each function takes logits, or a :class:`Logits` of them, which lets many scores share a softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from dissensus.decomposition import ambiguity
from dissensus.diversity import log_determinant, log_ensemble_diversity
from dissensus.outputs import (
    check_logits,
    check_outputs,
    check_weights,
    to_logits,
    weighted_mean,
)
from dissensus.tools.guards import guarded
from dissensus.tools.specs import check_number


class Logits:
    """Quantities of one batch that scores share, each computed once and only if it is needed."""

    def __init__(
        self, logits: Tensor, weights: Tensor | None = None, space: str = "logits"
    ) -> None:
        self._divided: dict[float, Logits] = {}
        logits = to_logits(logits, space)
        check_logits(logits)
        check_weights(weights, logits.shape[0])
        self.logits, self.weights, self.space = logits, weights, space

    @classmethod
    def of(cls, logits: Tensor | Logits, weights: Tensor | None, space: str) -> Logits:
        """A view of ``logits``, which may be one already."""
        return logits if isinstance(logits, Logits) else cls(logits, weights, space)

    def at(self, temperature: float) -> Logits:
        """The same of the logits divided by a temperature."""
        if temperature == 1:
            return self
        if temperature not in self._divided:
            divided = Logits(self.logits / temperature, self.weights)
            divided.space = self.space
            self._divided[temperature] = divided
        return self._divided[temperature]

    @cached_property
    def top(self) -> Tensor:
        """The largest logit of each member, ``[members, batch, 1]``."""
        return self.logits.amax(-1, keepdim=True)

    @cached_property
    def labels(self) -> Tensor:
        """The class each member predicts; one of weight 0 repeats the heaviest member's."""
        labels = self.logits.argmax(-1)
        if self.weights is None:
            return labels
        heaviest = labels.index_select(0, self.weights.argmax(0, keepdim=True))
        return torch.where(self.weights[:, None] > 0, labels, heaviest)

    @cached_property
    def probs(self) -> Tensor:
        """Member probabilities ``[members, batch, classes]``."""
        return self.logits.softmax(-1)

    @cached_property
    def top_prob(self) -> Tensor:
        """The largest probability of each member, ``[members, batch]``; at least 1/C."""
        return self.probs.amax(-1)

    @cached_property
    def member_entropy(self) -> Tensor:
        """``H(p^m) = −log p_top − Σ_c p_c s_c`` with s the logits minus the largest one."""
        expected: Tensor = torch.linalg.vecdot(self.probs, self.logits - self.top)
        return -self.top_prob.log() - expected

    @cached_property
    def mean_probs(self) -> Tensor:
        """The ensemble's probabilities ``[batch, classes]``."""
        return weighted_mean(self.probs, self.weights)

    @cached_property
    def ensemble_entropy(self) -> Tensor:
        """Entropy of the mean prediction, ``[batch]``; a probability that underflowed adds 0."""
        tiny = torch.finfo(self.mean_probs.dtype).tiny
        return -(self.mean_probs * self.mean_probs.clamp_min(tiny).log()).sum(-1)


@guarded
def pds(logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits") -> Tensor:
    """Predictive diversity score ``(1/C) Σ_c max_m p_c^m``, ``[batch]`` (ldr, Eq. 10).

    A smooth count of the classes that members predict. Lies in [1/C, min(M, C)/C]; with two members
    it is (1 + total variation) / C.

    >>> one_hot = torch.tensor([[[50.0, 0, 0]], [[0, 50.0, 0]], [[50.0, 0, 0]]])
    >>> 3 * pds(one_hot)                                   # two classes are predicted
    tensor([2.])
    """
    view = Logits.of(logits, weights, space)
    return pds_sum(view) / view.logits.shape[-1]


@guarded
def pds_sum(
    logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits"
) -> Tensor:
    """``Σ_c max_m p_c^m = C · PDS``, in [1, min(M, C)]: PDS without its 1/C (ldr, Section 3.4)."""
    view = Logits.of(logits, weights, space)
    probs = view.probs
    if view.weights is not None:
        probs = probs * (view.weights > 0).to(probs.dtype)[:, None, None]
    return probs.amax(0).sum(-1)


@guarded
def bma(logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits") -> Tensor:
    """Minus the largest mean probability, ``−max_c Σ_m w_m p_c^m`` (ldr, Eq. 9).

    Differs from the paper: negated, as its η_BMA is a confidence; and probabilities are averaged as
    Equation 9 says, where the published code averages logits.
    """
    return -Logits.of(logits, weights, space).mean_probs.amax(-1)


@guarded
def max_softmax(
    logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits"
) -> Tensor:
    """Minus the largest probability of the averaged logits, ``−max_c softmax(Σ_m w_m f^m)_c``.

    What the code published with ldr calls BMA; of a single member it equals :func:`bma`, and both
    are the maximum softmax probability of Hendrycks and Gimpel (2017).
    """
    view = Logits.of(logits, weights, space)
    return -weighted_mean(view.logits, view.weights).softmax(-1).amax(-1)


@guarded
def entropy(
    logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits"
) -> Tensor:
    """Shannon entropy of the mean prediction, in nats (ldr, Eq. 15 without its constant 1/C)."""
    return Logits.of(logits, weights, space).ensemble_entropy


@guarded
def mean_entropy(
    logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits"
) -> Tensor:
    """Mean of the members' Shannon entropies, in nats (ldr, Eq. 14 without its constant 1/C)."""
    view = Logits.of(logits, weights, space)
    return weighted_mean(view.member_entropy, view.weights)


@guarded
def mutual_information(
    logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits"
) -> Tensor:
    """Entropy of the mean minus mean of the entropies: what members know apart (adp, Eq. 9)."""
    view = Logits.of(logits, weights, space)
    # Not negative by Jensen's inequality; the difference of two roundings may be.
    return (entropy(view) - mean_entropy(view)).clamp_min(0)


@guarded
def energy(
    logits: Tensor | Logits,
    weights: Tensor | None = None,
    temperature: float = 1.0,
    space: str = "logits",
) -> Tensor:
    """Mean energy ``−Σ_m w_m T log Σ_c exp(f_c^m / T)`` (ldr, Eq. 13, with a temperature T)."""
    check_number("temperature", temperature, above=0)
    view = Logits.of(logits, weights, space)
    check_scale("energy", view.space)
    if temperature != 1:
        return temperature * energy(view.logits / temperature, view.weights)
    log_sum_exp = view.top.squeeze(-1) - view.top_prob.log()
    return -weighted_mean(log_sum_exp, view.weights)


@guarded
def confidence(
    logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits"
) -> Tensor:
    """Minus the mean of the members' largest probabilities, −p̄ (ldr, Eq. 16)."""
    view = Logits.of(logits, weights, space)
    return -weighted_mean(view.top_prob, view.weights)


@guarded
def max_logit(
    logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits"
) -> Tensor:
    """Minus the mean of the members' largest logits."""
    view = Logits.of(logits, weights, space)
    check_scale("max_logit", view.space)
    return -weighted_mean(view.top.squeeze(-1), view.weights)


@guarded
def unique(logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits") -> Tensor:
    """How many different classes the members predict, 1 to min(M, C) (#unique; ldr, Table 1)."""
    view = Logits.of(logits, weights, space)
    ordered = view.labels.sort(0).values
    changes = (ordered[1:] != ordered[:-1]).sum(0)
    return (1 + changes).to(view.logits.dtype)


@guarded
def disagreement(
    logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits"
) -> Tensor:
    """Share of pairs of members that predict different classes, 0 to 1; 0 for one member."""
    view = Logits.of(logits, weights, space)
    members = view.logits.shape[0]
    if members == 1:
        return view.logits.new_zeros(view.logits.shape[1])
    differ = (view.labels[:, None] != view.labels[None]).to(view.logits.dtype)
    if view.weights is None:
        return differ.sum((0, 1)) / (members * (members - 1))
    pairs = torch.outer(view.weights, view.weights).to(differ.dtype)
    pairs = pairs - torch.diag(view.weights.square().to(differ.dtype))
    total = pairs.sum()
    weighted: Tensor = torch.tensordot(pairs, differ, dims=2)
    return weighted / torch.where(total > 0, total, 1.0)


@guarded
def ensemble_diversity(
    logits: Tensor | Logits, weights: Tensor | None = None, space: str = "logits"
) -> Tensor:
    """Minus the log ensemble diversity with the *predicted* label (adp, Eq. 3 and Section 4.5).

    Members trained with ADP have orthogonal wrong-class predictions on data they know; where the
    diversity is low, the input is suspect. For ensembles trained otherwise it means little.

    Differs from the paper: the true label is not known at test time, so the predicted one is used.
    """
    view = Logits.of(logits, weights, space)
    check_room_for_orthogonality(*view.logits.shape[::2])
    if view is logits:  # other scores need the probabilities too
        return _ensemble_diversity_from_probs(view)
    return -log_ensemble_diversity(view.logits, view.mean_probs.argmax(-1), view.weights)


#: Squared lengths of wrong-class probabilities below this are computed anew from the logits.
_SAFE_SQUARE = 1e-28


def _ensemble_diversity_from_probs(view: Logits) -> Tensor:
    """The same from probabilities that are there already, where their squares do not underflow."""
    predicted = view.mean_probs.argmax(-1)
    others = view.probs.transpose(0, 1).to(
        torch.float64, copy=True, memory_format=torch.contiguous_format
    )
    others.scatter_(-1, predicted[:, None, None].expand(*others.shape[:2], 1), 0.0)
    gram = others.bmm(others.transpose(1, 2))
    scored = -log_determinant(gram, view.weights).to(view.logits.dtype)
    small = gram.diagonal(dim1=-2, dim2=-1).amin(-1) < _SAFE_SQUARE
    if bool(small.any()):
        scored[small] = -log_ensemble_diversity(
            view.logits[:, small], predicted[small], view.weights
        )
    return scored


#: Scores of the size of logits, which probabilities do not show.
SCORES_OF_LOGITS = ("energy", "max_logit")


def check_scale(name: str, space: str) -> None:
    """Raise if a score needs logits and ``space`` is another one."""
    if name in SCORES_OF_LOGITS and space != "logits":
        raise ValueError(f"{name} needs logits, and the outputs are {space}; use entropy instead")


def check_room_for_orthogonality(members: int, classes: int) -> None:
    """Raise if so many members cannot be orthogonal on the wrong classes."""
    if members > classes - 1:
        raise ValueError(
            f"ensemble_diversity takes at most classes − 1 = {classes - 1} members, got {members}"
        )


@guarded
def variance(outputs: Tensor, weights: Tensor | None = None) -> Tensor:
    """Variance of the members around their mean, ``Σ_j w_j ‖f_j − f̄‖²``: for regression."""
    check_outputs(outputs)
    check_weights(weights, outputs.shape[0])
    return ambiguity(outputs, weights)


#: Every score by name; each takes ``[members, batch, outputs]`` and returns ``[batch]``.
SCORES: dict[str, Callable[..., Tensor]] = {
    "pds": pds,
    "pds_sum": pds_sum,
    "bma": bma,
    "max_softmax": max_softmax,
    "entropy": entropy,
    "mean_entropy": mean_entropy,
    "mutual_information": mutual_information,
    "energy": energy,
    "confidence": confidence,
    "max_logit": max_logit,
    "unique": unique,
    "disagreement": disagreement,
    "ensemble_diversity": ensemble_diversity,
    "variance": variance,
}
