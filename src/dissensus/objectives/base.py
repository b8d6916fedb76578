"""Objectives: the base class, a frozen dataclass around a formula in plain torch.

A subclass writes its formula in one method, :meth:`Objective.terms`, which returns a value for each
example; the base class takes the mean over examples, with or without example weights. A formula
checks nothing, has no branch that depends on data, can be differentiated any number of times, and
runs under ``torch.func.vmap``. Calling an objective checks shapes, labels and weights first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from dissensus.outputs import (
    check_floats,
    check_labels,
    check_logits,
    check_outputs,
    check_weights,
)
from dissensus.tools.guards import check_finite, describe, guarded
from dissensus.tools.specs import check_choice, check_numbers, number

__all__ = [
    "Objective",
    "Terms",
    "check_hard_labels",
    "number",
    "sample_without_replacement",
]


class Terms(NamedTuple):
    """The loss to minimise and the parts that it is made of, by name: scalars.

    Inside :meth:`Objective.terms` a value may also be ``[batch]``, one number for each example.
    """

    loss: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Objective(ABC):
    """The base of all objectives; see ``Independent`` for the smallest example.

    A subclass is a frozen dataclass whose numbers are declared with :func:`number` and whose
    formula is :meth:`terms`. To add one: one class, one line in ``OBJECTIVES``, one test.
    """

    #: Fields that may be tensors in :meth:`terms`, one value for each ensemble of a fleet.
    hyperparameters: ClassVar[tuple[str, ...]] = ()
    #: Whether :meth:`terms` takes ``disagreement``: outputs on unlabelled data to disagree on.
    needs_disagreement: ClassVar[bool] = False
    #: Whether :meth:`terms` takes ``example_weights``, because its terms depend on the whole batch.
    weighs_examples: ClassVar[bool] = False
    #: False where the loss is a weighted mean over members and over examples, of which every
    #: process can take its own part; True where one output's gradient depends on the others.
    coupled: ClassVar[bool] = True
    #: How the loss counts members: ``"mean"``, or ``"sum"`` where each one's own loss is in it in
    #: full. Trainers multiply the gradient of a mean by the members, see :meth:`step_scale`.
    reduction: ClassVar[str] = "mean"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_choice(type(self).__name__, "reduction", self.reduction, ["mean", "sum"])

    @guarded
    def __call__(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        example_weights: Tensor | None = None,
    ) -> Terms:
        """The loss and its parts for ``outputs`` ``[members, batch, outputs]`` and their targets.

        ``disagreement`` are the same members' outputs ``[members, batch', classes]`` on unlabelled
        data, for objectives with ``needs_disagreement``. ``weights`` ``[members]`` sum to 1.
        ``example_weights`` ``[batch]`` count an example v_n times: ``Σ_n v_n ℓ_n / batch``. A
        weight of 2 is the example twice, one of 0 leaves it out.
        """
        self.check_inputs(outputs, targets, disagreement, weights, example_weights)
        check_finite(outputs, name="outputs")
        if disagreement is not None:
            check_finite(disagreement, name="disagreement")
        if targets.is_floating_point():
            targets = targets.to(outputs.dtype)
        return self.evaluate(outputs, targets, disagreement, weights, example_weights)

    def evaluate(
        self,
        outputs: Tensor,
        targets: Tensor,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        example_weights: Tensor | None = None,
    ) -> Terms:
        """The same without the checks: the mean of :meth:`terms` over examples."""
        given = {"disagreement": disagreement} if self.needs_disagreement else {}
        if self.weighs_examples:
            given["example_weights"] = example_weights
        loss, parts = self.terms(outputs, targets, weights=weights, **given)
        if example_weights is not None and loss.ndim == 0 and not self.weighs_examples:
            raise ValueError(
                f"{type(self).__name__} returns a scalar loss; for example weights return [batch]"
            )
        mean = {name: _mean(part, example_weights) for name, part in parts.items()}
        return Terms(_mean(loss, example_weights), mean)

    @abstractmethod
    def terms(self, *args: Any, **kwargs: Any) -> Terms:
        """The formula: ``terms(self, outputs, targets, weights=None)``.

        Returns loss and parts as ``[batch]``, a value for each example, or as scalars that are
        means already. ``disagreement`` comes as a further argument with ``needs_disagreement``, and
        ``example_weights`` with ``weighs_examples``; loss and parts must then be scalars.
        """

    def with_values(self, **values: Any) -> Self:
        """A copy with other hyperparameters, unchecked: they may be tensors.

        Under ``vmap`` each ensemble of a fleet gets its own:

        >>> from dissensus.objectives import Augmented
        >>> outputs, targets = torch.zeros(2, 4, 3), torch.zeros(4, dtype=torch.long)
        >>> def loss(beta: Tensor) -> Tensor:
        ...     return Augmented().with_values(beta=beta).evaluate(outputs, targets).loss
        >>> torch.func.vmap(loss)(torch.tensor([0.0, 0.5])).shape
        torch.Size([2])
        """
        other = copy(self)
        for name, value in values.items():
            object.__setattr__(other, name, value)
        return other

    def check_inputs(
        self,
        outputs: Tensor,
        targets: Tensor,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        example_weights: Tensor | None = None,
    ) -> None:
        """Raise a ``ValueError`` that says what is wrong with the arguments of a call."""
        self.check(outputs, targets)
        self._check_disagreement(outputs, disagreement)
        check_weights(weights, outputs.shape[0])
        if weights is not None and weights.requires_grad:
            raise ValueError("weights get no gradient from an objective; pass weights.detach()")
        if example_weights is not None:
            self._check_example_weights(outputs, example_weights)

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise a ``ValueError`` that says what arrived and what to do, or return."""

    def sample_members(
        self, members: int, generator: torch.Generator | None = None
    ) -> Sequence[int] | None:
        """Which members a batch uses: sorted indices, or None for all of them.

        Only these are run forward, and ``outputs`` then holds only them, in this order.
        """
        return None

    def trained_members(self, drawn: Sequence[int]) -> Sequence[int]:
        """Which of the members drawn for a batch it updates; all of them unless overridden."""
        return drawn

    def step_scale(self, members: int) -> int:
        """What a trainer multiplies the gradient of a batch by that ``members`` took part in.

        Each member then takes the step of its own loss: learning rate, weight decay and clipping
        mean what they mean for one network.
        """
        return members if self.reduction == "mean" else 1

    def spec(self) -> str:
        """The string that ``objectives.parse`` turns back into this objective."""
        from dissensus.objectives import spec

        return spec(self)

    def _check_example_weights(self, outputs: Tensor, example_weights: Tensor) -> None:
        if self.needs_disagreement:
            raise ValueError(
                f"{type(self).__name__} has a term on unlabelled data: leave example_weights=None"
            )
        check_floats(example_weights, name="example_weights")
        got = tuple(example_weights.shape)
        if got != tuple(outputs.shape[1:2]):
            raise ValueError(f"example_weights must be [batch] = ({outputs.shape[1]},), got {got}")

    def _check_disagreement(self, outputs: Tensor, disagreement: Tensor | None) -> None:
        name = type(self).__name__
        if disagreement is None:
            if self.needs_disagreement:
                raise ValueError(
                    f"{name} needs disagreement=, the members' outputs on unlabelled data"
                )
            return
        if not self.needs_disagreement:
            raise ValueError(f"{name} takes no disagreement data; leave disagreement=None")
        check_outputs(disagreement, finite=False)
        members, _, classes = outputs.shape
        if disagreement.shape[0] != members or disagreement.shape[2] != classes:
            raise ValueError(
                f"disagreement must be [{members}, batch, {classes}], got {describe(disagreement)}"
            )


def _mean(values: Tensor, example_weights: Tensor | None) -> Tensor:
    """The mean over examples of ``[batch]``; a scalar is one already."""
    if values.ndim == 0:
        return values
    if example_weights is not None:
        values = values * example_weights.to(values.dtype)
    return values.mean()


def check_hard_labels(name: str, logits: Tensor, targets: Tensor) -> None:
    """Raise unless ``logits`` come with integer labels, for objectives that need a true class."""
    check_logits(logits, finite=False)
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        got = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
        raise ValueError(f"{name} needs integer class labels, got {got}")
    check_labels(targets, logits.shape[1], logits.shape[2])


def sample_without_replacement(
    members: int, count: int, generator: torch.Generator | None
) -> list[int]:
    """``count`` of ``members`` indices, each subset equally likely, sorted."""
    return sorted(torch.randperm(members, generator=generator)[:count].tolist())
