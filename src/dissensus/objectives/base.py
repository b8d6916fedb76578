"""What every objective is: a frozen dataclass around a pure function of the one tensor.

An objective has two doors. Calling it checks shapes, labels and weights and says what is wrong in
words. Its :meth:`Objective.core` checks nothing, takes its hyperparameters as arguments (floats or
tensors), has no branch that depends on data, and so runs under ``torch.func.vmap``: the way to
train many ensembles at once, each with hyperparameters of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from dissensus.outputs import check_labels, check_logits, check_weights
from dissensus.specs import check_numbers, number

__all__ = [
    "Objective",
    "Terms",
    "check_hard_labels",
    "number",
    "sample_without_replacement",
]


class Terms(NamedTuple):
    """What an objective returns: the scalar to minimise, and the parts it is made of, by name."""

    loss: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Objective(ABC):
    """The base of all objectives; see ``Independent`` for the smallest example.

    A subclass is a frozen dataclass whose numbers are declared with :func:`number` and whose
    :meth:`core` computes the terms. To add one: one class, one line in ``OBJECTIVES``, one test.
    """

    #: Fields that :meth:`core` takes as arguments, so that they may be tensors that differ by run.
    hyperparameters: ClassVar[tuple[str, ...]] = ()
    #: Whether a call needs ``disagreement``: outputs on unlabelled data to disagree on.
    needs_disagreement: ClassVar[bool] = False
    #: False where the loss is a weighted mean over members and over examples, of which every
    #: process can take its own part; True where one output's gradient depends on the others.
    coupled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_numbers(self)

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
        ``example_weights`` ``[batch]`` are those of :meth:`weighted`.
        """
        self.check(outputs, targets)
        self._check_disagreement(outputs, disagreement)
        check_weights(weights, outputs.shape[0])
        if weights is not None and weights.requires_grad:
            raise ValueError(
                "weights are constants of an objective and get no gradient from it; pass "
                "weights.detach()"
            )
        if example_weights is not None:
            self._check_example_weights(outputs, example_weights)
            return self.weighted(
                outputs, targets, example_weights, weights=weights, **self.values()
            )
        return self.core(
            outputs, targets, disagreement=disagreement, weights=weights, **self.values()
        )

    @abstractmethod
    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        """The terms, unchecked and pure; ``hyperparameters`` as in :meth:`values`."""

    def weighted(
        self,
        outputs: Tensor,
        targets: Tensor,
        example_weights: Tensor,
        *,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        """The terms where example n counts ``example_weights[n]`` times: ``Σ_n v_n ℓ_n / batch``.

        All weights 1 give :meth:`core`, a weight of 2 is the example twice (in a batch that is
        still called as large as it was), and one of 0 leaves it out. Unchecked and pure, as
        ``core`` is. This one serves every objective that is a mean over examples of terms that
        depend on one example alone; ``LDR``, whose terms depend on the batch, has its own.
        """

        def one(own: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            terms = self.core(own[:, None], target[None], weights=weights, **hyperparameters)
            return terms.loss, terms.parts

        losses, parts = vmap(one, in_dims=(1, 0))(outputs, targets)
        share = example_weights.to(losses.dtype) / outputs.shape[1]
        return Terms(losses @ share, {name: part @ share for name, part in parts.items()})

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise a ``ValueError`` that says what arrived and what to do, or return."""

    def values(self) -> dict[str, Any]:
        """The hyperparameters by name, to pass to :meth:`core` as they are or changed."""
        return {name: getattr(self, name) for name in self.hyperparameters}

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

    def spec(self) -> str:
        """The string that ``objectives.parse`` turns back into this objective."""
        from dissensus.objectives import spec

        return spec(self)

    def _check_example_weights(self, outputs: Tensor, example_weights: Tensor) -> None:
        if self.needs_disagreement:
            raise ValueError(
                f"{type(self).__name__} has a term on unlabelled data, which example weights do "
                "not reach; leave example_weights=None"
            )
        if tuple(example_weights.shape) != tuple(outputs.shape[1:2]):
            raise ValueError(
                f"example_weights must be [batch] = ({outputs.shape[1]},), got "
                f"{tuple(example_weights.shape)}"
            )

    def _check_disagreement(self, outputs: Tensor, disagreement: Tensor | None) -> None:
        name = type(self).__name__
        if disagreement is None:
            if self.needs_disagreement:
                raise ValueError(
                    f"{name} needs disagreement=, the members' outputs on unlabelled data, "
                    "[members, batch, classes]; LDR does without such data"
                )
            return
        if not self.needs_disagreement:
            raise ValueError(f"{name} takes no disagreement data; leave disagreement=None")
        check_logits(disagreement, finite=False)
        members, _, classes = outputs.shape
        if disagreement.shape[0] != members or disagreement.shape[2] != classes:
            raise ValueError(
                f"disagreement must be [{members}, batch, {classes}], like the outputs, got "
                f"{tuple(disagreement.shape)}"
            )


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
