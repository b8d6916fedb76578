"""The training step of one of several processes: its members on its rows of each batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective, Terms
from dissensus.objectives.fast import value_and_gradient
from dissensus.training.distributed.ranks import Communicator, Share
from dissensus.training.recipe import Recipe
from dissensus.training.step import Trainer, autocast, single_precision
from dissensus.training.stream import TrainingBatch

if TYPE_CHECKING:
    from dissensus.training.distributed.run import DistributedRun


class DistributedTrainer(Trainer):
    """Steps this rank's members as one process would step all of them.

    Every rank is given whole batches and takes its rows. A coupled objective is evaluated on the
    gathered outputs of all members and all rows, on every rank alike; so its value and gradient are
    those of one process, also where it is no mean over examples, and each rank takes the part of
    the gradient that belongs to its own outputs. Gradients of parameters are then *summed* over
    ranks with the same members: each has the part of its rows.
    """

    def __init__(self, run: DistributedRun, objective: Objective, recipe: Recipe) -> None:
        super().__init__(run.ens, objective, recipe.of_members(run.own, run.layout.members))
        self.run = run

    def step(
        self, batch: TrainingBatch, frozen: set[int], scale: float, *, check: bool
    ) -> tuple[Tensor, Terms]:
        """Train on one batch; returns outputs and the objective's terms.

        Outputs are those of all members if the objective is coupled, else this rank's own.
        """
        run, drawn, inputs = self.run, batch.drawn, batch.inputs()
        shares = [run.layout.share(len(x), drawn) for x in inputs]
        (positions, rows), (_, extra_rows) = (share.of(run.link.rank) for share in (shares * 2)[:2])
        if not positions:  # none of its members is drawn: outputs of none
            with autocast(batch.x, self.recipe), run.ens.evaluating():
                none = run.ens(batch.x[:1], [0])[:0].expand(-1, len(rows), -1)
            return self._objective([none] * len(inputs), batch, shares, check=check)[:2]
        for layer in run.batch_norms:
            layer.idle = not rows
        everyone = list(range(run.layout.members)) if drawn is None else drawn
        trained = set(self.objective.trained_members(everyone)) - frozen
        local = {run.own.index(member) for member in trained if member in run.own}
        part = TrainingBatch(
            _take(batch.x, rows),
            _take(batch.y, rows),
            None if batch.extra is None else _take(batch.extra, extra_rows),
            None if drawn is None else [run.own.index(everyone[p]) for p in positions],
        )
        outputs, backward = self.members.forward(part, local)
        seen, terms, gradients = self._objective(outputs, batch, shares, check=check)
        if local and math.isfinite(terms.loss):
            self.members.update(self._summed(backward(gradients)), part.drawn, local, scale)
        return seen, terms

    def _objective(
        self,
        outputs: Sequence[Tensor],
        batch: TrainingBatch,
        shares: Sequence[Share],
        *,
        check: bool,
    ) -> tuple[Tensor, Terms, Sequence[Tensor]]:
        """The outputs that the objective saw, its terms, and its gradient at ``outputs``."""
        own = [share.of(self.run.link.rank) for share in shares]
        pieces = [
            output.detach()[:, : len(rows)] for output, (_, rows) in zip(outputs, own, strict=True)
        ]
        if not self.objective.coupled:
            rows = own[0][1]
            terms, gradient = self._part(pieces[0], batch, rows, shares[0], check=check)
            return pieces[0], terms, [_pad(gradient, outputs[0])]
        with torch.no_grad():
            gathered = self.run.exchange.gather(pieces, shares, batch.y)
        terms, gradients = self.evaluate(gathered, batch, check=check)
        slices = [
            _pad(gradient[positions, rows.start : rows.stop], output)
            for gradient, (positions, rows), output in zip(gradients, own, outputs, strict=True)
        ]
        return gathered[0], terms, slices

    def _part(
        self, outputs: Tensor, batch: TrainingBatch, rows: range, share: Share, *, check: bool
    ) -> tuple[Terms, Tensor]:
        """The contribution of this rank's outputs to the mean over all members and rows."""
        members, count = share.shape
        if not outputs.numel():
            return Terms(outputs.sum(), {}), outputs
        logits, y = single_precision(outputs), batch.y[rows.start : rows.stop]
        if check:
            self.objective.check(logits, y)
        each = logits.new_full((len(logits),), len(rows) / (count * members))
        examples = None if batch.weights is None else batch.weights[rows.start : rows.stop]
        terms, (gradient,) = value_and_gradient(self.objective, logits, y, None, each, examples)
        return terms, gradient * self.objective.step_scale(members)

    def _summed(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients summed over the ranks that hold the same members, in one exchange."""
        link = self.run.link
        if link.data is None or not gradients:
            return gradients
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        link.all_reduce(flat, "gradients", link.data)
        parts = flat.split([gradient.numel() for gradient in gradients])
        return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]


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


# ---- BatchNorm over whole batches, of which every rank has some rows ----------------------------


class WholeBatchNorm(_BatchNorm):
    """A BatchNorm layer whose mean and variance are over the rows of all ranks in a data group.

    An ``idle`` rank takes part with rows that do not count.
    """

    link: Communicator
    idle = False

    def forward(self, x: Tensor) -> Tensor:
        """As nn.BatchNorm does it, with statistics of all ranks while training."""
        weight, bias, mean, var = self.weight, self.bias, self.running_mean, self.running_var
        if not self.training and mean is not None:
            return nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, self.eps)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        wide = x.double()  # sums of squares lose digits
        count = wide.new_full((1,), x.numel() / x.shape[1])
        sums = torch.cat([wide.sum(axes), wide.square().sum(axes), count])
        sums = sums * 0.0 if self.idle else sums
        link = self.link
        if sums.requires_grad:  # all ranks used the total
            sums.register_hook(lambda g: link.all_reduce(g.clone(), "statistics", link.data))
        total = sums.clone()
        link.all_reduce(total.detach(), "statistics", link.data)
        size = total[-1].detach()
        average, square = (total[:-1] / size).chunk(2)
        variance = square - average.square()
        if mean is not None and var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            mean.lerp_(average.detach().to(mean.dtype), share)
            var.lerp_((variance.detach() * (size / (size - 1).clamp_min(1))).to(var.dtype), share)
        scale = (variance + self.eps).rsqrt()
        normal = (x - average.to(x.dtype).view(shape)) * scale.to(x.dtype).view(shape)
        if not self.affine:
            return normal
        return normal * weight.view(shape) + bias.view(shape)


def synchronize_norms(ens: Ensemble, link: Communicator) -> list[Any]:
    """Let every BatchNorm layer of the members see whole batches; returns these layers.

    Members then run one after the other: an exchange cannot be batched over members.
    """
    if link.data is None:
        return []
    if ens.execution == "stacked":
        raise ValueError("sync_batchnorm needs execution='looped' or 'auto', got 'stacked'")
    layers: list[Any] = [m for m in ens.holder.modules() if isinstance(m, _BatchNorm)]
    for layer in layers:
        layer.__class__, layer.link = WholeBatchNorm, link
    if layers:
        ens.execution = "looped"
    return layers
