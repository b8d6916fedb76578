"""LDR: members that disagree on the hard part of the training data itself (*ldr*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.losses import cross_entropy
from dissensus.objectives.base import (
    Objective,
    Terms,
    check_hard_labels,
    number,
    sample_without_replacement,
)
from dissensus.objectives.disagreement import PAIR_TERMS, mean_over_pairs
from dissensus.outputs import weighted_mean
from dissensus.tools.guards import formula
from dissensus.tools.specs import check_choice


@formula
def hardness_weights(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    example_weights: Tensor | None = None,
) -> Tensor:
    """``α_n = CE_n / (mean CE)²`` of the logit-averaged prediction, ``[batch]`` (ldr, Eq. 4).

    High-loss examples weigh more, and their mean is 1 / mean CE (Eq. 5): the whole batch weighs
    little until the ensemble is trained. A constant for the gradient. A batch with a loss of
    exactly 0 has no hard example: its weights are 0. ``example_weights`` weigh the mean CE.

    >>> probs = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> hardness_weights(probs.log(), torch.tensor([0, 0]))
    tensor([0.6412, 1.2824])
    """
    with torch.no_grad():
        ce = cross_entropy(log_softmax(weighted_mean(logits, weights), -1), labels)
        if example_weights is None:
            mean = ce.mean()
        else:
            mean = (ce * example_weights).sum() / example_weights.sum()
        # Eq. 4; dividing twice keeps a small mean from underflowing.
        return torch.where(mean > 0, ce / mean / mean, 0.0)


@dataclass(frozen=True)
class LDR(Objective):
    """Loss-guided diversification: ``mean CE + λ mean_n α_n · mean over pairs of G`` (ldr, Eq. 6).

    ``strength`` is λ, ``active`` the number of members ``|I|`` drawn for each batch (the stochastic
    sum of Appendix A.5.1; None uses all), ``regularizer`` the pair term G: ``"a2d"`` (Eq. 3),
    ``"divdis"`` or ``"jsd"``. α_n are :func:`hardness_weights`, from the drawn members.

    Differs from the paper: G is averaged over pairs (its Appendix A.13), where Equation 6 divides a
    sum over m < l by M (M − 1), half as much; λ here is half of Equation 6's λ and equals that of
    the published code. Both members of a pair take the part of "the first" in Eq. 3, half each.

    In the runs of ``results/ldr.md`` it did not detect unknown inputs better than ``Independent``:
    the term moves members apart, but on known inputs as much as on unknown ones. With a large λ,
    members collude: a constant shift of its own logits makes each predict one class for almost all
    inputs, and only the average of logits is right. ``diagnose`` finds it.

    >>> LDR(active=2).sample_members(5, torch.Generator().manual_seed(0))
    [0, 4]
    """

    hyperparameters = ("strength",)
    weighs_examples = True

    strength: float = number(1.0, low=0.0)
    active: int | None = number(2, low=1)
    regularizer: str = "a2d"
    label_smoothing: float = number(0.0, low=0.0, high=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("LDR", "regularizer", self.regularizer, list(PAIR_TERMS))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_hard_labels("LDR", outputs, targets)

    def sample_members(
        self, members: int, generator: torch.Generator | None = None
    ) -> Sequence[int] | None:
        if self.active is None or self.active == members:
            return None
        if self.active > members:
            raise ValueError(
                f"LDR: cannot draw active={self.active} members from {members}; lower active"
            )
        return sample_without_replacement(members, self.active, generator)

    def terms(
        self,
        logits: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        example_weights: Tensor | None = None,
    ) -> Terms:
        log_probs = log_softmax(logits, -1)
        ce = weighted_mean(cross_entropy(log_probs, labels, self.label_smoothing), weights)
        alpha = hardness_weights(logits, labels, weights, example_weights)  # Eq. 4 and 5
        if example_weights is not None:
            ce, alpha = ce * example_weights.to(ce.dtype), alpha * example_weights.to(ce.dtype)
        pairs = PAIR_TERMS[self.regularizer](log_probs, alpha)  # mean_n α_n G(p^m, p^l), Eq. 3
        disagreement = mean_over_pairs(pairs, weights)
        mean_ce = ce.mean()  # Eq. 1
        loss = mean_ce + self.strength * disagreement  # Eq. 6
        return Terms(loss, {"cross_entropy": mean_ce, "disagreement": disagreement})
