"""Shared weights in training: their gradient, and their optimiser beside those of the members.

With ``sharing="adapters"`` (``ensemble.adapters``) some weights belong to all members. Learning
rate and weight decay go on meaning what they mean for one network: what is a member's own takes the
step of its loss, and a shared weight that of the mean of the members' gradients. ``r`` and ``s`` do
not decay: a member's weight is ``W ∘ s rᵀ``, which would decay three times.
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
        raise ValueError(
            "freeze_patience keeps a member as it is, but with sharing='adapters' the weights that "
            "it shares go on changing; use patience"
        )
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
            gradients = [g * _column(trained, g) for g in gradients]
        found = backward(gradients)
        return [g / count if common else g for g, common in zip(found, shared, strict=True)]

    return averaged


def _column(trained: Sequence[bool], like: Tensor) -> Tensor:
    return torch.tensor(trained, device=like.device)[:, None, None]


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
        """Step schedulers of torch after an epoch or a batch."""
        for optimizer in self.parts.values():
            optimizer.advance(every, metric)

    def select(self, rows: Tensor, parameters: Sequence[Tensor]) -> SharingOptimizer:
        """An optimiser of some ensembles of a fleet, all rows of each, which go on from here."""
        kept = SharingOptimizer.__new__(SharingOptimizer)
        kept.places, kept.parts = self.places, {}
        for kind, optimizer in self.parts.items():
            assert isinstance(optimizer, MemberOptimizer)
            share = max(part.members for part in self._members()) // optimizer.members
            own = [parameters[place] for place in self.places[kind]]
            kept.parts[kind] = optimizer.select(rows[::share] // share, own)
        return kept

    def _members(self) -> list[MemberOptimizer]:
        return [part for part in self.parts.values() if isinstance(part, MemberOptimizer)]

    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint needs."""
        return {
            f"{kind}.{name}": tensor
            for kind, optimizer in self.parts.items()
            for name, tensor in optimizer.state().items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from what :meth:`state` returned."""
        for kind, optimizer in self.parts.items():
            start = f"{kind}."
            optimizer.load(
                {n.removeprefix(start): t for n, t in state.items() if n.startswith(start)}
            )


def _without_decay(settings: Settings) -> Settings:
    if isinstance(settings, Optimizer):
        return replace(settings, weight_decay=0.0)

    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        made = settings(parameters)
        for group in made.param_groups:
            if "weight_decay" in group:
                group["weight_decay"] = 0.0
        return made

    return make
