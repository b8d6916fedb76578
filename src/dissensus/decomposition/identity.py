"""Definitions 4.1 and 4.2 of *collusion*: ERR, mean ERR, and DIV as their difference.

Debiasing takes the constant offsets of the members out of it (Section 6.1 and Appendix C.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from dissensus.losses import LossLike, check_loss, check_loss_inputs, errors
from dissensus.outputs import check_outputs, check_weights, to_logits, weighted_mean
from dissensus.tools.guards import guarded
from dissensus.tools.tabular import Tabular


class DecompositionTerms(NamedTuple):
    """The terms of each example, ``[batch]``, and ``per_member`` ``[members, batch]``."""

    ensemble_error: Tensor
    member_error: Tensor
    diversity: Tensor
    per_member: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Decomposition(Tabular):
    """What :func:`decompose` returns: averages over the batch, as scalar tensors.

    ``diversity = member_error − ensemble_error``, exactly. ``per_member`` ``[members]`` holds each
    member's error, ``examples`` the same decomposition for every example.
    """

    ensemble_error: Tensor
    member_error: Tensor
    diversity: Tensor
    per_member: Tensor
    examples: DecompositionTerms
    loss: str
    combine: str

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each term, then one for the error of each member."""
        terms = {key: getattr(self, key) for key in ("ensemble_error", "member_error", "diversity")}
        terms |= {f"error of member {member}": own for member, own in enumerate(self.per_member)}
        return [{"term": term, "value": float(value)} for term, value in terms.items()]

    def headline(self) -> str:
        """ERR = mean ERR − DIV, in numbers."""
        return (
            f"{self.loss} {self.ensemble_error.item():.4g} = {self.member_error.item():.4g} "
            f"(mean of {len(self.per_member)} members) − {self.diversity.item():.4g} (diversity)"
        )

    def summary(self) -> str:
        """Say the decomposition in one plain sentence."""
        gain = self.diversity.item()
        effect = f"takes {gain:.4g} off" if gain >= 0 else f"adds {-gain:.4g} to"
        return (
            f"Combining {len(self.per_member)} members by {self.combine} {effect} their mean "
            f"{self.loss} of {self.member_error.item():.4g}, so the ensemble's is "
            f"{self.ensemble_error.item():.4g}."
        )


@guarded
def decompose(
    outputs: Tensor,
    targets: Tensor,
    loss: LossLike = "cross_entropy",
    combine: str | None = None,
    weights: Tensor | None = None,
    space: str = "logits",
) -> Decomposition:
    """Split the members' mean error into the ensemble's error and diversity.

    ``ERR = L(f̄, y)``, ``mean ERR = Σ_j w_j L(f_j, y)`` (collusion, Definition 4.1) and
    ``DIV = mean ERR − ERR`` (Definition 4.2), each averaged over the examples.

    ``outputs`` is ``[members, batch, outputs]``: logits, or predictions in regression. ``targets``
    are labels ``[batch]``, probabilities ``[batch, classes]``, or ``[batch, outputs]`` for mse.
    ``loss`` is ``"mse"``, ``"cross_entropy"``, ``"brier"``, ``"zero_one"`` or a callable
    ``(prediction, target) -> [batch]``, which receives logits with ``combine="score"``,
    probabilities with ``"probability"`` and the outputs as they are with ``"mean"``. ``combine`` is
    ``"probability"``, ``"score"``, ``"mean"``, for the 0-1 loss also ``"vote"``; None takes the
    loss's own: the mean for mse and callables, else ``"probability"``. Probabilities in place of
    logits are refused unless ``space="probs"`` (or ``"log_probs"``) says that they are such.

    DIV is never negative where the loss is convex in the averaged outputs: mse, cross-entropy both
    ways, Brier with ``"probability"``. Elsewhere (Brier with ``"score"``, the 0-1 loss) Definition
    4.2 still applies, but DIV may be negative: combining can then make things worse.

    >>> import torch
    >>> outputs = torch.tensor([[[1.0]], [[3.0]]])                    # two members say 1 and 3
    >>> result = decompose(outputs, torch.tensor([[0.0]]), loss="mse")
    >>> float(result.member_error), float(result.ensemble_error), float(result.diversity)
    (5.0, 4.0, 1.0)
    >>> result.summary()
    "Combining 2 members by mean takes 1 off their mean mse of 5, so the ensemble's is 4."
    """
    chosen = check_loss(loss, combine)
    if chosen != "mean":
        outputs = to_logits(outputs, space)
    elif space != "logits":
        raise ValueError(f"space={space!r} is for class probabilities, and outputs are averaged")
    terms = decomposition_terms(outputs, targets, loss, chosen, weights)
    ensemble_error, member_error = terms.ensemble_error.mean(), terms.member_error.mean()
    return Decomposition(
        ensemble_error=ensemble_error,
        member_error=member_error,
        diversity=member_error - ensemble_error,
        per_member=terms.per_member.mean(-1),
        examples=terms,
        loss=getattr(loss, "__name__", "loss") if callable(loss) else loss,
        combine=chosen,
    )


@guarded
def decomposition_terms(
    outputs: Tensor,
    targets: Tensor,
    loss: LossLike = "cross_entropy",
    combine: str | None = None,
    weights: Tensor | None = None,
) -> DecompositionTerms:
    """The core of :func:`decompose`: every example's terms, under vmap too.

    >>> import torch
    >>> outputs = torch.tensor([[[1.0], [0.0]], [[3.0], [0.0]]])
    >>> decomposition_terms(outputs, torch.zeros(2, 1), "mse").diversity
    tensor([1., 0.])
    """
    chosen = check_loss(loss, combine)
    check_loss_inputs(outputs, targets, loss)
    check_weights(weights, outputs.shape[0])
    values = errors(outputs, targets, loss, chosen, weights)
    per_member = values.member.to(outputs.dtype)
    ensemble_error = values.ensemble.to(outputs.dtype)
    member_error = weighted_mean(per_member, weights)  # Definition 4.1 (b)
    diversity = member_error - ensemble_error  # Definition 4.2
    return DecompositionTerms(ensemble_error, member_error, diversity, per_member)


# ---- debiasing -----------------------------------------------------------------------------------


@guarded
def optimal_offsets(outputs: Tensor, weights: Tensor | None = None) -> Tensor:
    """Each member's constant offset from the ensemble, ``[members, outputs]``.

    ``b_j = mean_i f_j(x_i) − mean_i f̄(x_i)``: of all offsets that leave the ensemble's prediction
    as it is, those whose removal leaves least ambiguity (collusion, Appendix C.1, Eq. 3–6).

    Differs from the paper: with weights the constraint is ``Σ_j w_j b_j = 0``; the paper's
    ``Σ_j b_j = 0`` keeps the prediction only for equal weights.

    >>> import torch
    >>> optimal_offsets(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])).flatten()
    tensor([-1.,  1.])
    """
    check_outputs(outputs)
    check_weights(weights, outputs.shape[0])
    return (outputs - weighted_mean(outputs, weights)).mean(1)  # Appendix C.1, after Eq. 6


@guarded
def debias(outputs: Tensor, weights: Tensor | None = None) -> Tensor:
    """The outputs without each member's constant offset, ``[members, batch, outputs]``.

    ``f_j − b_j`` with the b_j of :func:`optimal_offsets` (collusion, Section 6.1, "Debiased
    diversity"). The mean prediction stays; what diversity remains differs between examples.

    >>> import torch
    >>> debias(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])).flatten()
    tensor([2., 3., 2., 3.])
    """
    return outputs - optimal_offsets(outputs, weights)[:, None]
