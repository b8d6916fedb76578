"""LDR: disagree on the hard part of the training data itself (*ldr*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.losses import cross_entropy, mean_cross_entropy
from dissensus.objectives.arrays import Array, Namespace, Torch
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
    mean_of_members,
    scaled_mean,
    slope_at_top,
)
from dissensus.objectives.gradients import Factor, WrittenOut, add_scaled
from dissensus.outputs import mean_over_members, weighted_mean

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
        alpha: Tensor = _hardness(Torch, Torch.classes_first(logits), labels, weights)
        return alpha.flatten()


def _hardness(xp: Namespace, z: Array, labels: Array, weights: Array | None) -> Array:
    mean = mean_of_members(xp, z, weights)
    top = xp.largest(mean)
    ce = top - xp.take(mean, xp.index(labels, mean))
    ce += xp.log(xp.sum(xp.exp_(mean - top), 0))  # added last, it keeps its digits
    safe = xp.at_least(xp.total(ce) / ce.shape[-1], xp.tiny(ce))
    ce /= safe
    ce /= safe  # Eq. 4; dividing twice keeps a small mean from underflowing
    return ce


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

    def weighted(
        self,
        outputs: Tensor,
        targets: Tensor,
        example_weights: Tensor,
        *,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        """Eq. 6 of weighed examples; the mean CE in α_n (Eq. 4) is weighed too."""
        share = example_weights.to(outputs.dtype)
        own = cross_entropy(log_softmax(outputs, -1), targets, self.label_smoothing)
        ce = mean_over_members(own * share, weights)
        with torch.no_grad():
            hard = cross_entropy(log_softmax(weighted_mean(outputs, weights), -1), targets)
            tiny = torch.finfo(hard.dtype).tiny
            mean = ((hard @ share) / share.sum().clamp_min(tiny)).clamp_min(tiny)
            alpha = hard / mean / mean * share
        term = disagreement_term(self.regularizer, outputs, alpha, weights)
        loss = add_scaled(ce, term, hyperparameters["strength"])
        return Terms(loss, {"cross_entropy": ce, "disagreement": term})


def _compute_ldr(
    xp: Namespace, z: Array, labels: Array, weights: Array | None, pairs: Array
) -> tuple[Array, ...]:
    top = Top.of(xp, z)
    true = xp.index(labels, z)
    ce = scaled_mean(xp, top.log_sum - xp.take(z, true), weights)
    share = pairs * _hardness(xp, z, labels, weights)
    value, asked = disagreement_at_top(xp, z, top, share)
    return ce, value, true, share, *top, *asked


def _ldr_gradient(
    xp: Namespace, factors: Sequence[Factor], others: Sequence[Any], kept: Sequence[Array]
) -> Array:
    _, weights, _ = others
    true, share, top, asked = *kept[:2], Top(*kept[2:9]), Asked(*kept[9:])
    g_ce = grad_of_mean(xp, factors[0], top.rest, weights)
    slope = slope_at_top(xp, top, asked, share * factors[1], g_ce)
    return xp.add_at(slope, true, -g_ce)


#: The members' mean cross-entropy and the second term of Eq. 6 without λ, of logits, hard labels,
#: member weights and ``pair_shares``.
ldr_parts = WrittenOut("LDR", _compute_ldr, values=2, gradient=_ldr_gradient)
