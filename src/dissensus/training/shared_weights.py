"""Shared weights in training: their gradient, and their optimiser beside those of the members.

With ``sharing="adapters"`` (``ensemble.adapters``) some weights belong to all members. Learning
rate and weight decay mean what they mean for one network: a member's own parameters take the step
of its loss, and a shared weight takes that of the mean of the members' gradients. ``r`` and ``s``
do not decay: a member's weight is ``W ∘ s rᵀ``, which would decay three times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from dissensus.ensemble.adapters import kinds_of, shared_names
from dissensus.training.optim import MemberOptimizer, Optimizer, OptimizerParts, Schedule
from dissensus.training.recipe import Recipe
from dissensus.training.torch_optim import (
    OptimizerFactory,
    TorchOptimizer,
    TorchSchedule,
    make_optimizer,
)

Backward = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Settings = Optimizer | OptimizerFactory


def stack_optimizer(
    recipe: Recipe, tensors: Mapping[str, Tensor], stack: nn.Module
) -> MemberOptimizer | TorchOptimizer | SharingOptimizer:
    """What steps ``tensors`` of ``stack``; members that share weights have one rate and decay."""
    optimizer, schedule = recipe.optimizer, recipe.schedule
    assert not isinstance(optimizer, str)
    assert isinstance(schedule, Schedule | TorchSchedule)
    if not shared_names(stack):
        return make_optimizer(optimizer, schedule, list(tensors.values()))
    if recipe.freeze_patience is not None:
        raise ValueError("freeze_patience does not go with sharing='adapters'; use patience")
    for name in ("lr", "weight_decay") if isinstance(optimizer, Optimizer) else ():
        if isinstance(value := getattr(optimizer, name), tuple):
            raise ValueError(f"with sharing='adapters' members share one {name}, got {value}")
    return SharingOptimizer(optimizer, schedule, tensors, stack)


def mean_gradients(backward: Backward, shared: Sequence[bool], trained: Sequence[bool]) -> Backward:
    """``backward`` with the mean over trained members as the gradient of what they share.

    ``shared`` says which parameters are, ``trained`` which of the members that ran are updated.
    The gradient that arrives at the outputs of member ``j`` is scaled, by ``Objective.step_scale``,
    to that of its own loss ``L_j``, and ``backward`` adds up what reaches a shared ``W``::

        ∂W = (1/|T|) Σ_{j∈T} ∂L_j/∂W,   T the trained members

    For an objective that is a mean over members this is its own gradient, as TabM has it.
    """
    count = sum(trained)

    def averaged(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        if count < len(trained):
            mask = torch.tensor(trained, device=gradients[0].device)[:, None, None]
            gradients = [gradient * mask for gradient in gradients]
        sums = backward(gradients)
        return [g / count if common else g for g, common in zip(sums, shared, strict=True)]

    return averaged


class SharingOptimizer(OptimizerParts):
    """An optimiser for each kind of parameter: shared weights, adapters, and what else is own."""

    def __init__(
        self,
        optimizer: Settings,
        schedule: Schedule | TorchSchedule,
        tensors: Mapping[str, Tensor],
        stack: nn.Module,
    ) -> None:
        super().__init__({})
        kinds = kinds_of(stack)
        self.places: dict[str, list[int]] = {}  # of the parameters of each kind
        decays = not isinstance(optimizer, Optimizer) or optimizer.weight_decay != 0
        for place, name in enumerate(tensors):
            kind = "own" if kinds[name] == "adapters" and not decays else kinds[name]
            self.places.setdefault(kind, []).append(place)
        settings = {"adapters": _without_decay(optimizer)}
        for kind, places in self.places.items():
            parameters = [list(tensors.values())[place] for place in places]
            self.parts[kind] = make_optimizer(settings.get(kind, optimizer), schedule, parameters)

    def step(
        self, gradients: Sequence[Tensor], rows: Sequence[int] | None = None, scale: float = 1.0
    ) -> None:
        """One step; ``rows`` are the members of own gradients ``[rows, …]``, None for all."""
        for kind, optimizer in self.parts.items():
            own = [gradients[place] for place in self.places[kind]]
            optimizer.step(own, None if kind == "shared" else rows, scale)

    def select(self, rows: Tensor, parameters: Sequence[Tensor]) -> SharingOptimizer:
        """An optimiser of some ensembles of a fleet (all rows of each), continuing from here."""
        selected = copy(self)
        selected.parts = {}
        members = max(part.members for part in self.parts.values())
        for kind, part in self.parts.items():
            share = members // part.members  # members that have one row in common
            own = [parameters[place] for place in self.places[kind]]
            selected.parts[kind] = part.select(rows[::share] // share, own)
        return selected


def _without_decay(settings: Settings) -> Settings:
    if isinstance(settings, Optimizer):
        return replace(settings, weight_decay=0.0)

    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        optimizer = settings(parameters)
        for group in optimizer.param_groups:
            if "weight_decay" in group:
                group["weight_decay"] = 0.0
        return optimizer

    return make
