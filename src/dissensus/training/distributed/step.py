"""The training step of one of several processes: its members on its rows of each batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dissensus.objectives import Objective, Terms
from dissensus.objectives.fast import value_and_gradient
from dissensus.training.distributed.sharding import ShardedMembers
from dissensus.training.optim import Optimizer
from dissensus.training.recipe import Recipe
from dissensus.training.step import Trainer, single_precision
from dissensus.training.stream import Batch

if TYPE_CHECKING:
    from dissensus.training.distributed.process_group import ProcessGroup
    from dissensus.training.layout import Share


class DistributedTrainer(Trainer):
    """Steps this rank's members as one process would step all of them.

    Every rank is given whole batches and takes its rows. A coupled objective is evaluated on the
    gathered outputs of all members and all rows, on every rank alike; so its value and gradient are
    those of one process, also where it is no mean over examples, and each rank takes the part of
    the gradient that belongs to its own outputs. Gradients of parameters are then *summed* over
    ranks with the same members: each has the part of its rows.
    """

    def __init__(self, process: ProcessGroup, objective: Objective, recipe: Recipe) -> None:
        own = dataclasses.replace(recipe, optimizer=_own_settings(recipe, process))
        shards = process.shards
        members = None if shards is None else ShardedMembers(process.ens, own, shards)
        super().__init__(process.ens, objective, own, members)
        self.process = process
        self.batch = Batch(torch.empty(0), torch.empty(0), None, None)  # the whole one
        self.shares: list[Share] = []  # of its outputs: on labelled inputs, and on others

    def step(
        self, batch: Batch, frozen: set[int], scale: float, *, check: bool
    ) -> tuple[Tensor, Terms]:
        """Train on one batch; returns outputs and the objective's terms.

        Outputs are those of all members if the objective is coupled, else this rank's own.
        """
        process, layout, drawn = self.process, self.process.layout, batch.drawn
        sizes = [len(batch.x)] if batch.extra is None else [len(batch.x), len(batch.extra)]
        self.batch, self.shares = batch, [layout.share(size, drawn) for size in sizes]
        positions, rows = self.shares[0].of(process.rank)
        everyone = list(range(process.members)) if drawn is None else drawn
        if not positions:
            none = batch.x.new_empty(0, len(rows), 0, dtype=torch.get_default_dtype())
            return self.evaluate([none] * len(sizes), batch, check=check)[:2]
        trained = set(self.objective.trained_members(everyone)) - frozen
        for layer in process.batch_norms:
            layer.idle = not rows
        extra_rows = self.shares[-1].of(process.rank)[1]
        part = Batch(
            _take(batch.x, rows),
            _take(batch.y, rows),
            None if batch.extra is None else _take(batch.extra, extra_rows),
            None if drawn is None else [process.own.index(everyone[p]) for p in positions],
            None if batch.weights is None else _take(batch.weights, rows),
        )
        local = {process.own.index(member) for member in trained if member in process.own}
        return self.train(part, local, scale, check=check)

    def evaluate(
        self, outputs: Sequence[Tensor], batch: Batch, *, check: bool
    ) -> tuple[Tensor, Terms, Sequence[Tensor]]:
        """The objective on the outputs of all ranks, or this rank's part of its mean."""
        rank, shares = self.process.rank, self.shares
        own = [share.of(rank) for share in shares]
        pieces = [
            output.detach()[:, : len(rows)] for output, (_, rows) in zip(outputs, own, strict=True)
        ]
        if not self.objective.coupled:
            terms, gradient = self._evaluate_part(pieces[0], own[0][1], check=check)
            return pieces[0], terms, [_pad(gradient, outputs[0])]
        with torch.no_grad():
            gathered = self.process.exchange.gather(pieces, shares, self.batch.y)
        whole, terms, gradients = super().evaluate(gathered, self.batch, check=check)
        slices = [
            _pad(gradient[positions, rows.start : rows.stop], output)
            for gradient, (positions, rows), output in zip(gradients, own, outputs, strict=True)
        ]
        return whole, terms, slices

    def _evaluate_part(self, outputs: Tensor, rows: range, *, check: bool) -> tuple[Terms, Tensor]:
        """The contribution of this rank's outputs to the mean over all members and rows."""
        members, count = self.shares[0].shape
        if not outputs.numel():
            return Terms(outputs.sum(), {}), outputs
        logits, batch = single_precision(outputs), self.batch
        y = batch.y[rows.start : rows.stop]
        if check:
            self.objective.check(logits, y)
        each = logits.new_full((len(logits),), len(rows) / (count * members))
        examples = None if batch.weights is None else batch.weights[rows.start : rows.stop]
        terms, (gradient,) = value_and_gradient(self.objective, logits, y, None, each, examples)
        return terms, gradient * self.objective.step_scale(members)

    def reduce(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients summed over the ranks that hold the same members, in one exchange."""
        link = self.process.link
        if link.data is None or not gradients or self.process.shards is not None:
            return gradients  # of split members FSDP2 takes the sum
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        link.all_reduce(flat, "gradients", link.data)
        parts = flat.split([gradient.numel() for gradient in gradients])
        return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]

    def locate(self, outputs: Tensor) -> str:
        """Whose outputs are not finite, in front of an error's text."""
        process = self.process
        if not self.objective.coupled:
            return f"on rank {process.rank} (members {_join(process.own)}) "
        finite = outputs.isfinite().flatten(1).all(1).tolist()
        everyone = self.batch.drawn or range(process.members)
        bad = [member for member, good in zip(everyone, finite, strict=True) if not good]
        if not bad:
            return ""
        ranks = sorted({process.layout.owner(member) for member in bad})
        return f"rank {_join(ranks)} gave outputs that are not finite (members {_join(bad)}); "


def _own_settings(recipe: Recipe, process: ProcessGroup) -> Any:
    """The optimiser with the learning rates and weight decays of this rank's members."""
    settings = recipe.optimizer
    if process.shards is not None and not recipe.named:
        raise ValueError(
            "shard=True splits the parameters of a member, which an optimizer or a scheduler of "
            "torch cannot follow; name them: optimizer='adamw:lr=1e-3', schedule='cosine'"
        )
    if not isinstance(settings, Optimizer):
        return settings
    rates, decays = settings.for_members(process.members)
    lr, decay = (tuple(values[member] for member in process.own) for values in (rates, decays))
    return dataclasses.replace(settings, lr=lr, weight_decay=decay)


def _take(values: Tensor, rows: range) -> Tensor:
    """Some rows; where there are none, two that are run and not counted, as layers need some."""
    return values[rows.start : rows.stop] if rows else values[:2]


def _pad(gradient: Tensor, outputs: Tensor) -> Tensor:
    """A gradient at all outputs that were run, zero at rows that do not count."""
    if gradient.shape == outputs.shape:
        return gradient
    if not outputs.numel():
        return outputs
    padded = gradient.new_zeros(outputs.shape)
    padded[:, : gradient.shape[1]] = gradient
    return padded


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
