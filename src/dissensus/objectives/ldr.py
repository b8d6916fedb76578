"""LDR: disagree on the hard part of the training data itself (*ldr*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dissensus.losses import mean_cross_entropy
from dissensus.objectives.base import (
    Objective,
    Terms,
    check_hard_labels,
    number,
    sample_without_replacement,
)
from dissensus.objectives.disagreement import PAIR_TERMS, disagreement_term, pair_shares
from dissensus.objectives.fused import (
    Asked,
    Top,
    disagreement_at_top,
    grad_of_mean,
    scaled_mean,
    slope_at_top,
)
from dissensus.objectives.gradients import Factor, WrittenOut, add_scaled
from dissensus.outputs import weighted_mean

__all__ = ["LDR", "hardness_weights"]


def hardness_weights(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """``α_n = CE_n / (mean CE)²`` of the logit-averaged prediction, ``[batch]`` (ldr, Eq. 4).

    High-loss examples weigh more, and their mean is 1 / mean CE (Eq. 5): the whole batch weighs
    little until the ensemble is trained. A constant for the gradient. A batch with a loss of
    exactly 0 has no hard example: its weights are 0.

    >>> probs = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> hardness_weights(probs.log(), torch.tensor([0, 0]))
    tensor([0.6412, 1.2824])
    """
    with torch.no_grad():
        return _hardness(logits, labels.long(), weights)


def _hardness(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    ce = functional.cross_entropy(weighted_mean(logits, weights), labels, reduction="none")
    safe = ce.mean().clamp_min(torch.finfo(ce.dtype).tiny)
    return ce / safe / safe  # Eq. 4; dividing twice keeps a small mean from underflowing


@dataclass(frozen=True)
class LDR(Objective):
    """Loss-guided diversification: ``mean CE + λ mean_n α_n · mean over pairs of G`` (ldr, Eq. 6).

    ``strength`` is λ, ``active`` the number of members |I| drawn for each batch (the stochastic sum
    of Appendix A.5.1; None uses all), ``regularizer`` the pair term G: ``"a2d"`` (Eq. 3),
    ``"divdis"`` or ``"jsd"``. α_n are :func:`hardness_weights`, from the drawn members.

    Differs from the paper: G is averaged over pairs (its Appendix A.13), where Equation 6 divides a
    sum over m < l by M (M − 1), half as much; λ here is half of Equation 6's λ and equals that of
    the published code. Both members of a pair take the part of "the first" in Eq. 3, half each.

    In the runs of ``results/ldr.md`` it did not detect unknown inputs better than ``Independent``:
    where members' top probabilities are below one half, as on most hard examples there, the
    gradient of Eq. 3 draws members together.

    >>> LDR(active=2).sample_members(5, torch.Generator().manual_seed(0))
    [0, 4]
    """

    hyperparameters = ("strength",)

    strength: float = number(1.0, low=0.0)
    active: int | None = 2
    regularizer: str = "a2d"
    label_smoothing: float = number(0.0, low=0.0, high=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        active = self.active
        integer = isinstance(active, int) and not isinstance(active, bool)
        if active is not None and (not integer or active < 1):
            raise ValueError(
                f"LDR: active must be None or an integer of at least 1, got {active!r}"
            )
        if self.regularizer not in PAIR_TERMS:
            known = ", ".join(repr(name) for name in PAIR_TERMS)
            raise ValueError(f"LDR: regularizer must be one of {known}, got {self.regularizer!r}")

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_hard_labels("LDR", outputs, targets)

    def sample_members(
        self, members: int, generator: torch.Generator | None = None
    ) -> Sequence[int] | None:
        if self.active is None or self.active == members:
            return None
        if self.active > members:
            raise ValueError(
                f"LDR: active={self.active} members a batch cannot be drawn from {members}; "
                "lower active or raise members"
            )
        return sample_without_replacement(members, self.active, generator)

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        strength = hyperparameters["strength"]
        if self.regularizer == "a2d" and not self.label_smoothing:
            pairs = pair_shares(outputs, weights)
            given = outputs, targets, weights, pairs
            loss, ce, disagreement = ldr_parts.total((strength,), *given)  # Eq. 6
        else:
            alpha = hardness_weights(outputs, targets, weights)
            ce = mean_cross_entropy(outputs, targets, weights, self.label_smoothing)
            disagreement = disagreement_term(self.regularizer, outputs, alpha, weights)
            loss = add_scaled(ce, disagreement, strength)  # Eq. 6
        return Terms(loss, {"cross_entropy": ce, "disagreement": disagreement})


def _compute_ldr(
    logits: Tensor, labels: Tensor, weights: Tensor | None, pairs: Tensor
) -> tuple[Tensor, ...]:
    members = logits.shape[0]
    labels = labels.long()
    share = pairs * _hardness(logits, labels, weights)
    top = Top.of(logits)
    # Each member is asked for the class that every member predicts, and for the true one.
    classes = torch.cat([top.label.transpose(0, 1), labels.view(1, 1, -1)], 1)
    index = classes.expand(members, -1, -1)
    log_q = logits.transpose(1, 2).gather(1, index).sub_(top.log_sum)
    value, asked = disagreement_at_top(top, log_q[:, :members], share)
    ce = scaled_mean(log_q[:, members], weights, scale=-1.0)
    return ce, value, share, index, *top, *asked


def _ldr_gradient(grads: Sequence[Factor], inputs: Sequence[Any], kept: Sequence[Tensor]) -> Tensor:
    _, weights, _ = inputs
    share, index, top, asked = *kept[:2], Top(*kept[2:8]), Asked(*kept[8:])
    members, _, batch = top.rest.shape
    minus_ce = grad_of_mean(-grads[0], top.rest.transpose(1, 2), weights)
    minus_ce = minus_ce.expand(members, 1, batch)
    return slope_at_top(index, top, asked, share * grads[1], minus_ce).transpose(1, 2)


#: The members' mean cross-entropy and the second term of Eq. 6 without λ, of logits, hard labels,
#: member weights and ``pair_shares``.
ldr_parts = WrittenOut("LDR", _compute_ldr, values=2, gradient=_ldr_gradient)
