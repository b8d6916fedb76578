"""The stream of training batches, with all that chance decides about them.

Order, drawn members, augmentation and dropout each have random numbers of their own, seeded by the
run's seed and the epoch. In the middle of an epoch their state can be saved and restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from dissensus.data.strangers import Strangers
from dissensus.objectives import Objective
from dissensus.training.batches import (
    Augmentation,
    Batches,
    MemberBatches,
    TensorBatches,
    as_batches,
    bootstrap_rows,
    derived_seed,
    split_weights,
)
from dissensus.training.recipe import Recipe

# What random numbers are drawn for, each with a stream of its own.
ORDER, _DRAWS, _LAYERS, _AUGMENT, _EXTRA, STRANGERS, _BOOTSTRAP = range(7)

_Pair = tuple[Tensor, Tensor | None]


class LabelledAugmentation(Protocol):
    """An augmentation that may change labels, and how many examples there are, as well."""

    labelled: bool

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The batch to train on in place of ``(x, y)``."""


class TrainingBatch(NamedTuple):
    """One training batch: inputs, targets, unlabelled inputs if any, members (None: all).

    ``weights`` say how much each example counts; None: all the same. With ``own``, inputs, targets
    and weights are ``[members, batch, …]``: each member has examples of its own.
    """

    x: Tensor
    y: Tensor
    extra: Tensor | None
    drawn: list[int] | None
    weights: Tensor | None = None
    own: bool = False

    def inputs(self) -> list[Tensor]:
        """Labelled inputs and, if there are any, unlabelled ones."""
        return [self.x] if self.extra is None else [self.x, self.extra]


class Stream:
    """Training batches, epoch by epoch."""

    def __init__(
        self,
        train: Any,
        objective: Objective,
        disagreement: Any,
        augment: Augmentation | LabelledAugmentation | None,
        recipe: Recipe,
        members: int,
        device: torch.device,
        rank: int = 0,
    ) -> None:
        """Raises before any work if data and objective do not fit."""
        name, size = type(objective).__name__, recipe.batch_size
        if objective.needs_disagreement and disagreement is None:
            raise ValueError(
                f"{name} needs disagreement=, unlabelled data to disagree on, or 'strangers'"
            )
        if disagreement is not None and not objective.needs_disagreement:
            raise ValueError(f"{name} takes no disagreement data; leave disagreement=None")
        objective.sample_members(members, torch.Generator())  # raises if it cannot draw that many
        train, weights = split_weights(train)
        if weights is not None and augment is not None:
            raise ValueError("augment may change which examples there are; train without weights")
        batches = as_batches(train, size, shuffle=True, device=device)
        self.own_batches = recipe.own_batches
        if recipe.own_batches:
            batches = _own_batches(batches, objective, augment, recipe, members)
        # Unlabelled inputs: strangers made from each training batch, or batches of them.
        self.strangers, self.extra = as_strangers(disagreement), None
        if disagreement is not None and self.strangers is None:
            self.extra = as_batches(disagreement, size, shuffle=True, device=device, labelled=False)
        for source, what in ((batches, "training"), (self.extra, "disagreement")):
            if source is not None and len(source) == 0:
                raise ValueError(f"the {what} data are empty, got 0 batches")
        self.train, self.objective, self.augment = batches, objective, augment
        self.weights = None if weights is None else weights.to(device)
        self.members, self.device, self.seed = members, device, recipe.seed
        self.rank = rank  # of several processes; layers of each draw for themselves
        self.draws, self.changes, self.strange = (torch.Generator() for _ in range(3))

    def __len__(self) -> int:
        return len(self.train)

    def first_inputs(self) -> Tensor:
        """The inputs of the very first batch; where each member has its own, the first one's."""
        x, _ = next(self.train.epoch(derived_seed(self.seed, 0, ORDER)))
        return (x[0] if self.own_batches else x).to(self.device)

    def epoch(
        self, epoch: int, start: int = 0, saved: dict[str, Tensor] | None = None
    ) -> Iterator[TrainingBatch]:
        """The batches of an epoch from ``start`` on; ``saved`` is the :meth:`randomness` there."""
        seed = derived_seed(self.seed, epoch, ORDER)
        source, weights = self.train.epoch(seed, start), self._weights(seed, start)
        extras = self._extras(epoch, start)
        pair = next(source, None)
        _seed_layers(self._seed_of_layers(epoch, start), self.device)
        self.draws.manual_seed(derived_seed(self.seed, epoch, _DRAWS))
        if self.augment is not None:
            self.changes.manual_seed(derived_seed(self.seed, epoch, _AUGMENT))
        if self.strangers is not None:
            self.strange.manual_seed(derived_seed(self.seed, epoch, STRANGERS))
        if saved:
            self._restore(saved)
        while pair is not None:
            x, y = pair
            if y is None:
                raise ValueError("a training batch must be (x, y), got x alone")
            x, y = self._augmented(x.to(self.device), y.to(self.device))
            extra = None if extras is None else next(extras)[0].to(self.device)
            if self.strangers is not None:
                extra = self.strangers(x, self.strange)
            drawn = self.objective.sample_members(self.members, self.draws)
            members, own = None if drawn is None else list(drawn), self.own_batches
            batch = TrainingBatch(x, y, extra, members, next(weights), own)
            yield batch if members is None or not own else _draw(batch, members)
            pair = next(source, None)

    def _weights(self, seed: int, start: int) -> Iterator[Tensor | None]:
        """The weights of each batch's examples; without end where there are none."""
        if self.weights is None:
            return repeat(None)
        assert isinstance(self.train, TensorBatches)  # fit has looked
        weights = self.weights[self.train.order(seed)]
        return iter(weights.split(self.train.sizes, -1)[start:])

    def _seed_of_layers(self, epoch: int, start: int) -> int:
        if self.rank == 0:
            return derived_seed(self.seed, epoch, _LAYERS)
        return derived_seed(self.seed, epoch, _LAYERS, self.rank, start)

    def _augmented(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        augment = self.augment
        if augment is None:
            return x, y
        if getattr(augment, "labelled", False):
            return cast(LabelledAugmentation, augment)(x, y, self.changes)
        plain = cast(Augmentation, augment)
        if not self.own_batches:
            return plain(x, self.changes), y
        return plain(x.flatten(0, 1), self.changes).unflatten(0, x.shape[:2]), y

    def randomness(self) -> dict[str, Tensor]:
        """The state of all random numbers, between two batches."""
        states = {
            "layers": torch.get_rng_state(),
            "draws": self.draws.get_state(),
            "changes": self.changes.get_state(),
            "strangers": self.strange.get_state(),
        }
        if self.device.type == "cuda":
            states["device"] = torch.cuda.get_rng_state(self.device)
        return states

    def _restore(self, saved: dict[str, Tensor]) -> None:
        if "layers" in saved:  # not where another number of processes goes on
            torch.set_rng_state(saved["layers"])
        if "device" in saved:
            torch.cuda.set_rng_state(saved["device"], self.device)
        self.draws.set_state(saved["draws"])
        self.changes.set_state(saved["changes"])
        self.strange.set_state(saved["strangers"])

    def _extras(self, epoch: int, start: int) -> Iterator[_Pair] | None:
        """Unlabelled batches without end, beginning anew where they run out."""
        if self.extra is None:
            return None
        extra = self.extra

        def forever() -> Iterator[_Pair]:
            turn, first = divmod(start, len(extra))
            while True:  # there is at least one batch: fit has looked
                yield from extra.epoch(derived_seed(self.seed, epoch, _EXTRA, turn), first)
                turn, first = turn + 1, 0

        return forever()


def _draw(batch: TrainingBatch, members: list[int]) -> TrainingBatch:
    """A batch in which each member has its own examples, with those of some members."""
    weights = None if batch.weights is None else batch.weights[members]
    return batch._replace(x=batch.x[members], y=batch.y[members], weights=weights)


def _seed_layers(seed: int, device: torch.device) -> None:
    """Seed the random numbers of layers; ``torch.manual_seed`` asks every device, slowly."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def as_strangers(disagreement: Any) -> Augmentation | None:
    """What makes strangers, from a function or the text of a mix; None for data and nothing."""
    if isinstance(disagreement, str):
        return Strangers.parse(disagreement)
    return disagreement if callable(disagreement) else None


def _own_batches(
    batches: Batches,
    objective: Objective,
    augment: Augmentation | LabelledAugmentation | None,
    recipe: Recipe,
    members: int,
) -> MemberBatches:
    """Batches of each member's own, or an error that says why there are none."""
    name = type(objective).__name__
    asked = "bootstrap=True" if recipe.bootstrap else "shuffle='members'"
    if objective.coupled:
        raise ValueError(
            f"{asked} gives members their own rows, but {name} compares members; use 'independent'"
        )
    if getattr(augment, "labelled", False):
        raise ValueError(
            f"{asked} gives each member its own examples; adversarial examples are made for all"
        )
    if objective.needs_disagreement or not isinstance(batches, TensorBatches):
        what = (
            "unlabelled data" if objective.needs_disagreement else "a DataLoader or streamed data"
        )
        raise ValueError(f"{asked} needs (x, y) tensors in memory alone, and got {what}")
    examples = len(batches.x)
    rows = torch.arange(examples).expand(members, -1)
    if recipe.bootstrap:
        rows = bootstrap_rows(examples, members, derived_seed(recipe.seed, _BOOTSTRAP))
    own_order = recipe.shuffle == "members"
    return MemberBatches(batches, recipe.batch_size, rows, own_order=own_order)
