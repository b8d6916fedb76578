"""Diversity in closed form: the spread of the members around their combination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.losses import cross_entropy
from dissensus.outputs import (
    check_outputs,
    check_targets,
    check_weights,
    combined_log_probs,
    majority_vote,
    weighted_mean,
)
from dissensus.tools.guards import guarded


@guarded
def ambiguity(outputs: Tensor, weights: Tensor | None = None) -> Tensor:
    """Diversity for squared error: the variance of the members around their mean, ``[batch]``.

    ``DIV = Σ_j w_j ‖f_j − f̄‖²`` (collusion, Eq. 1; below Theorem 4.5 for several outputs).
    ``outputs`` is ``[members, batch, outputs]``. The targets do not matter.

    >>> ambiguity(torch.tensor([[[1.0]], [[3.0]]]))
    tensor([1.])
    """
    check_outputs(outputs)
    check_weights(weights, outputs.shape[0])
    deviation = outputs - weighted_mean(outputs, weights)
    return weighted_mean(deviation.square().sum(-1), weights)  # Eq. 1, left-hand side


@guarded
def kl_diversity(logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """Diversity for cross-entropy and score averaging: members' divergence from the ensemble.

    ``DIV = Σ_j w_j KL(q̄ ‖ p_j)`` with ``q̄ = softmax(Σ_j w_j f_j)`` (collusion, Section 4.2 ①).
    ``logits`` is ``[members, batch, classes]``, the result ``[batch]``. The targets do not matter.

    >>> logits = torch.tensor([[[0.0, 0.0]], [[0.0, 2.0]]])
    >>> kl_diversity(logits).round(decimals=4)      # ½ (log 2 + log(1 + e²)) − log(1 + e)
    tensor([0.0968])
    """
    check_outputs(logits, name="logits")
    check_weights(weights, logits.shape[0])
    log_probs = log_softmax(logits, -1)
    mixed = combined_log_probs(logits, "score", weights)
    divergence = (mixed.exp() * (mixed - log_probs)).sum(-1)  # KL(q̄ ‖ p_j), [members, batch]
    return weighted_mean(divergence, weights)  # Section 4.2 ①


@guarded
def log_ratio_diversity(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Diversity for cross-entropy and probability averaging, ``[batch]``.

    ``DIV = Σ_j w_j Σ_k y(k) log(p̄(k) / p_j(k))`` with ``p̄ = Σ_j w_j softmax(f_j)`` (collusion,
    Theorem 4.3).

    Differs from the paper: the theorem keeps only the true class, which holds for hard labels; for
    soft labels the sum goes over all classes, as in the line before it in Appendix C.3.

    ``logits`` is ``[members, batch, classes]``; ``targets`` are labels ``[batch]`` or
    probabilities ``[batch, classes]``.

    >>> logits = torch.tensor([[[0.5, 0.5]], [[0.25, 0.75]]]).log()
    >>> log_ratio_diversity(logits, torch.tensor([0])).round(decimals=4)   # log(⅜) − ½ log(⅛)
    tensor([0.0589])
    """
    check_outputs(logits, name="logits")
    check_weights(weights, logits.shape[0])
    check_targets(targets, *logits.shape[1:])
    log_ratio = combined_log_probs(logits, "probability", weights) - log_softmax(logits, -1)
    # cross_entropy is −Σ_k y(k) · its argument, for hard and soft labels (Appendix C.3, line 4).
    per_member = -cross_entropy(log_ratio, targets)
    return weighted_mean(per_member, weights).to(logits.dtype)


@guarded
def brier_diversity(logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """Diversity for the Brier score and probability averaging: the variance of probabilities.

    ``DIV = Σ_j w_j ‖p_j − p̄‖²`` (collusion, Section 4.2, after Remark 4.4).

    Differs from the paper: it prints ``Σ_j w_j (p̄_j − p)ᵀ(p̄ − p_j)``, a misprint.

    ``logits`` is ``[members, batch, classes]``, the result ``[batch]``. The targets do not matter.
    There is no such form for score averaging, where the Brier score is not convex: Definition 4.2
    (:func:`decompose`) still applies, but diversity may be negative.

    >>> logits = torch.tensor([[[0.5, 0.5]], [[0.1, 0.9]]]).log()
    >>> brier_diversity(logits)                     # every probability is 0.2 away: 2 · 0.2²
    tensor([0.0800])
    """
    check_outputs(logits, name="logits")
    check_weights(weights, logits.shape[0])
    probs = logits.softmax(-1)
    return ambiguity(probs, weights)  # Σ_j w_j ‖p_j − p̄‖², Eq. 1 for probabilities


@guarded
def vote_diversity(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Diversity for the 0-1 loss and the majority vote: disagreement with the vote, ``[batch]``.

    Where the vote is right, good diversity: the share of members that disagree with it. Where it
    is wrong, bad diversity: minus the share of members that are right. So it can be negative.
    Shares are sums of weights. A soft label takes the mean of this over the classes it may be:
    ``y(vote) − Σ_j w_j y(label_j)``.

    Differs from the paper: "the disagreement between the predictions of the base learners and the
    ensemble prediction" (collusion, Section 4.2, last line before "Diversity in a general
    setting") is DIV up to its sign, for two classes. With more, members that disagree with a wrong
    vote may be wrong as well and then do not count.

    ``logits`` is ``[members, batch, classes]``; ``targets`` are labels ``[batch]`` or
    probabilities ``[batch, classes]``. Ties go to the lowest class, as in ``majority_vote``.

    >>> logits = torch.eye(3)[[0, 1, 1, 2]][:, None]                  # votes 0, 1, 1, 2: 1 wins
    >>> vote_diversity(logits, torch.tensor([1])), vote_diversity(logits, torch.tensor([0]))
    (tensor([0.5000]), tensor([-0.2500]))
    """
    check_outputs(logits, name="logits")
    check_weights(weights, logits.shape[0])
    check_targets(targets, *logits.shape[1:])
    labels, vote = logits.argmax(-1), majority_vote(logits, weights)
    if targets.is_floating_point():
        of_vote = targets.gather(-1, vote[:, None]).squeeze(-1)
        of_members = targets.expand_as(logits).gather(-1, labels[..., None]).squeeze(-1)
        return (of_vote - weighted_mean(of_members, weights)).to(logits.dtype)
    disagree = weighted_mean((labels != vote).to(logits.dtype), weights)
    right = weighted_mean((labels == targets).to(logits.dtype), weights)
    return torch.where(vote == targets, disagree, -right)


@dataclass(frozen=True)
class ClosedForm:
    """A closed form of diversity, and whether it depends on the targets.

    The same numbers as ``decompose(…).examples.diversity``, without the cancellation of two large
    errors.

    >>> CLOSED_FORMS["mse", "mean"](torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[0.0]]))
    tensor([1.])
    """

    function: Callable[..., Tensor]
    uses_targets: bool

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Per-example diversity ``[batch]``."""
        if self.uses_targets:
            return self.function(outputs, targets, weights)
        return self.function(outputs, weights)


#: The closed form of each loss × combination that has one.
CLOSED_FORMS: dict[tuple[str, str], ClosedForm] = {
    ("mse", "mean"): ClosedForm(ambiguity, uses_targets=False),
    ("cross_entropy", "score"): ClosedForm(kl_diversity, uses_targets=False),
    ("cross_entropy", "probability"): ClosedForm(log_ratio_diversity, uses_targets=True),
    ("brier", "probability"): ClosedForm(brier_diversity, uses_targets=False),
    ("zero_one", "vote"): ClosedForm(vote_diversity, uses_targets=True),
}
