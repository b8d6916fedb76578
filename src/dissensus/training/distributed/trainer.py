"""Steps of a rank: its members on its rows, with the objective seeing the outputs of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dissensus.objectives import Objective, Terms
from dissensus.objectives.fast import value_and_gradient
from dissensus.training.distributed.sharding import ShardTrainer
from dissensus.training.optim import Optimizer
from dissensus.training.recipe import Recipe
from dissensus.training.steps import Trainer, evaluate_objective, make_trainer
from dissensus.training.stream import Batch

if TYPE_CHECKING:
    from dissensus.training.distributed.team import Team
    from dissensus.training.layout import Share

__all__ = ["TeamTrainer"]


class TeamTrainer:
    """Steps this rank's members as one process would step all of them.

    Every rank is given whole batches and takes its rows. A coupled objective is evaluated on the
    gathered outputs of all members and all rows, on every rank alike; so its value and gradient are
    those of one process, also where it is no mean over examples. Gradients are then *summed* over
    ranks with the same members: each has the part of its rows.
    """

    def __init__(self, team: Team, objective: Objective, recipe: Recipe) -> None:
        self.team, self.objective, self.recipe = team, objective, recipe
        own = dataclasses.replace(recipe, optimizer=_own_settings(recipe, team))
        self.inner: Trainer | ShardTrainer = (
            make_trainer(team.ens, objective, own)
            if team.shards is None
            else ShardTrainer(team.ens, objective, own, team.shards)
        )
        self.inner.meet = self._meet
        if team.group.data is not None:
            self.inner.reduce = self._summed
        self._batch = Batch(torch.empty(0), torch.empty(0), None, None)
        self._share: Share = team.layout.share(0)

    def step(
        self, batch: Batch, frozen: set[int], scale: float, *, check: bool
    ) -> tuple[Tensor, Terms]:
        """Train on one batch; returns outputs and the objective's terms.

        Outputs are those of all members if the objective is coupled, else this rank's own.
        """
        team, drawn = self.team, batch.drawn
        share = team.layout.share(len(batch.x), drawn)
        self._batch, self._share = batch, share
        positions, rows = share.of(team.rank)
        everyone = list(range(team.members)) if drawn is None else drawn
        if not positions:
            none = batch.x.new_empty(0, len(rows), 0, dtype=torch.get_default_dtype())
            ends = [none] if batch.extra is None else [none, none]
            return self._meet(self.objective, ends, batch, check=check)[:2]
        trained = set(self.objective.trained_members(everyone)) - frozen
        own = [team.own.index(everyone[position]) for position in positions]
        for layer in team.synchronised:
            layer.idle = not rows
        part = Batch(
            _taken(batch.x, rows),
            _taken(batch.y, rows),
            None if batch.extra is None else _taken(batch.extra, self._extra_rows()),
            None if drawn is None else own,
            None if batch.weights is None else _taken(batch.weights, rows),
        )
        local = {team.own.index(member) for member in trained if member in team.own}
        return self.inner.step_trained(part, local, scale, check=check)

    def _extra_rows(self) -> range:
        assert self._batch.extra is not None
        return self.team.layout.share(len(self._batch.extra)).of(self.team.rank)[1]

    def _meet(
        self, objective: Objective, ends: Sequence[Tensor], batch: Batch, *, check: bool
    ) -> tuple[Tensor, Terms, Sequence[Tensor]]:
        """The objective on the outputs of all ranks, or this rank's part of its mean."""
        team, batch = self.team, self._batch  # the whole one, not this rank's rows of it
        pieces = [ends[0][:, : len(self._share.of(team.rank)[1])].detach()]
        if not objective.coupled:
            terms, gradient = self._part(objective, pieces[0], check=check)
            return pieces[0], terms, [_padded(gradient, ends[0])]
        shares = [self._share]
        if batch.extra is not None:
            pieces.append(ends[1][:, : len(self._extra_rows())].detach())
            shares.append(team.layout.share(len(batch.extra), batch.drawn))
        with torch.no_grad():
            gathered = team.exchange.gather(pieces, shares, batch.y)
        outputs, terms, gradients = evaluate_objective(objective, gathered, batch, check=check)
        at_ends = []
        for gradient, share, end in zip(gradients, shares, ends, strict=True):
            positions, rows = share.of(team.rank)
            at_ends.append(_padded(gradient[positions, rows.start : rows.stop], end))
        return outputs, terms, at_ends

    def _part(self, objective: Objective, outputs: Tensor, *, check: bool) -> tuple[Terms, Tensor]:
        """What this rank's outputs add to the mean over all members and all rows."""
        members, count = self._share.shape
        rows = self._share.of(self.team.rank)[1]
        if not outputs.numel():
            return Terms(outputs.sum(), {}), outputs
        y = self._batch.y[rows.start : rows.stop]
        seen = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        if check:
            objective.check(seen, y)
        each = seen.new_full((len(seen),), len(rows) / (count * members))
        weights = self._batch.weights
        own = None if weights is None else weights[rows.start : rows.stop]
        terms, (gradient,) = value_and_gradient(objective, seen, y, None, each, own)
        return terms, gradient

    def _summed(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients summed over the ranks that hold the same members, in one exchange."""
        group = self.team.group
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        group.all_reduce(flat, "gradients", group.data)
        parts = flat.split([gradient.numel() for gradient in gradients])
        return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]

    def where(self, outputs: Tensor) -> str:
        """Whose outputs are not finite, in front of an error's text."""
        layout, team = self.team.layout, self.team
        if not self.objective.coupled:
            return f"on rank {team.rank} (members {_listed(team.own)}) "
        finite = outputs.detach().isfinite().flatten(1).all(1).tolist()
        everyone = self._batch.drawn or range(team.members)
        bad = [member for member, good in zip(everyone, finite, strict=True) if not good]
        if not bad:
            return ""
        ranks = sorted({layout.owner(member) for member in bad})
        return f"rank {_listed(ranks)} gave outputs that are not finite (members {_listed(bad)}); "

    def tensors(self) -> dict[str, Tensor]:
        """What has to be saved of this rank's optimiser."""
        return self.inner.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what :meth:`tensors` returned."""
        self.inner.load(tensors)


def _own_settings(recipe: Recipe, team: Team) -> Optimizer:
    """The optimiser with the learning rates and weight decays of this rank's members."""
    settings = recipe.optimizer
    assert isinstance(settings, Optimizer)
    rates, decays = settings.for_members(team.members)
    lr, decay = (tuple(values[member] for member in team.own) for values in (rates, decays))
    return dataclasses.replace(settings, lr=lr, weight_decay=decay)


def _padded(gradient: Tensor, end: Tensor) -> Tensor:
    """A gradient at the rows that count; 0 at those that were only run (see :func:`_taken`)."""
    whole = torch.zeros_like(end)
    if end.numel():
        whole[:, : gradient.shape[1]] = gradient
    return whole


def _taken(values: Tensor, rows: range) -> Tensor:
    """Some rows; where there are none, two that are run and not counted, as layers need some."""
    return values[rows.start : rows.stop] if rows else values[:2]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
