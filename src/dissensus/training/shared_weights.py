"""Shared weights in training: their gradient, and their optimiser beside those of the members.

With ``sharing="adapters"`` (``ensemble.adapters``) some weights belong to all members. Learning
rate and weight decay mean what they mean for one network: a member's own parameters take the step
of its loss, and a shared weight takes that of the mean of the members' gradients. ``r`` and ``s``
do not decay: a member's weight is ``W ∘ s rᵀ``, which would decay three times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dissensus.ensemble.adapters import kinds_of
from dissensus.training.optim import MemberOptimizer, Optimizer
from dissensus.training.recipe import Recipe
from dissensus.training.torch_optim import OptimizerFactory, TorchOptimizer

Backward = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Settings = Optimizer | OptimizerFactory
#: From parameters and their optimiser's settings to what steps them.
Make = Callable[[list[Tensor], Settings], MemberOptimizer | TorchOptimizer]


def check_recipe(recipe: Recipe) -> None:
    """Raise for settings that treat members apart, where they share weights."""
    if recipe.freeze_patience is not None:
        raise ValueError("freeze_patience does not go with sharing='adapters'; use patience")
    optimizer = recipe.optimizer
    if isinstance(optimizer, Optimizer):
        for name, value in (("lr", optimizer.lr), ("weight_decay", optimizer.weight_decay)):
            if isinstance(value, tuple):
                raise ValueError(
                    f"with sharing='adapters' members share weights and so one {name}, got {value}"
                )


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


class SharingOptimizer:
    """An optimiser for each kind of parameter: shared weights, adapters, and what else is own.

    It stands for a ``MemberOptimizer`` of the same parameters, ``tensors`` of ``stack``.
    """

    def __init__(
        self, make: Make, settings: Settings, tensors: Mapping[str, Tensor], stack: nn.Module
    ) -> None:
        kinds = kinds_of(stack)
        self.places: dict[str, list[int]] = {}  # of the parameters of each kind
        decays = not isinstance(settings, Optimizer) or settings.weight_decay != 0
        for place, name in enumerate(tensors):
            kind = "own" if kinds[name] == "adapters" and not decays else kinds[name]
            self.places.setdefault(kind, []).append(place)
        parameters = list(tensors.values())
        self.parts: dict[str, MemberOptimizer | TorchOptimizer] = {
            kind: make(
                [parameters[place] for place in places],
                _without_decay(settings) if kind == "adapters" else settings,
            )
            for kind, places in self.places.items()
        }

    def step(
        self, gradients: Sequence[Tensor], rows: Sequence[int] | None = None, scale: float = 1.0
    ) -> None:
        """One step; ``rows`` are the members of own gradients ``[rows, …]``, None for all."""
        for kind, optimizer in self.parts.items():
            own = [gradients[place] for place in self.places[kind]]
            optimizer.step(own, None if kind == "shared" else rows, scale)

    def advance(self, every: str, metric: float = math.nan) -> None:
        for optimizer in self.parts.values():
            optimizer.advance(every, metric)

    def select(self, rows: Tensor, parameters: Sequence[Tensor]) -> SharingOptimizer:
        """An optimiser of some ensembles of a fleet (all rows of each), continuing from here."""
        selected = SharingOptimizer.__new__(SharingOptimizer)
        selected.places, selected.parts = self.places, {}
        parts = {k: part for k, part in self.parts.items() if isinstance(part, MemberOptimizer)}
        members = max(part.members for part in parts.values())
        for kind, part in parts.items():
            share = members // part.members  # members that have one row in common
            own = [parameters[place] for place in self.places[kind]]
            selected.parts[kind] = part.select(rows[::share] // share, own)
        return selected

    def state(self) -> dict[str, Tensor]:
        return {
            f"{kind}.{name}": tensor
            for kind, optimizer in self.parts.items()
            for name, tensor in optimizer.state().items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        for kind, optimizer in self.parts.items():
            start = f"{kind}."
            optimizer.load(
                {n.removeprefix(start): t for n, t in state.items() if n.startswith(start)}
            )


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
