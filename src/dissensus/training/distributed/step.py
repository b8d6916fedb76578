"""The training step of one of several processes: its members on its rows of each batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective, Terms
from dissensus.objectives.fast import value_and_gradient
from dissensus.training.distributed.ranks import Communicator, Share
from dissensus.training.optim import Optimizer
from dissensus.training.recipe import Recipe
from dissensus.training.step import Trainer, single_precision
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
        own = replace(recipe, optimizer=_own_settings(recipe.optimizer, run))
        super().__init__(run.ens, objective, own)
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
        if not positions:  # none of its members is drawn
            none = batch.x.new_empty(0, len(rows), 0, dtype=torch.get_default_dtype())
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


def _own_settings(settings: Any, run: DistributedRun) -> Any:
    """The optimiser with the learning rates and weight decays of this rank's members."""
    if not isinstance(settings, Optimizer):
        return settings
    rates, decays = settings.for_members(run.layout.members)
    lr, decay = (tuple(values[member] for member in run.own) for values in (rates, decays))
    return replace(settings, lr=lr, weight_decay=decay)


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


class WholeBatchNorm(nn.Module):
    """A BatchNorm layer whose mean and variance are over the rows of all ranks in a data group.

    Stands in the place of a layer with the layer's own tensors under the same names. An ``idle``
    rank takes part with rows that do not count.
    """

    def __init__(self, layer: _BatchNorm, link: Communicator) -> None:
        super().__init__()
        self._parameters, self._buffers = layer._parameters, layer._buffers
        self.eps, self.momentum = layer.eps, layer.momentum
        self.tracks = layer.track_running_stats
        self.link = [link]  # in a list: a copy of the layer must not copy the communicator
        self.idle = False
        self.train(layer.training)

    def __deepcopy__(self, memo: dict[int, Any]) -> WholeBatchNorm:
        return self

    def forward(self, x: Tensor) -> Tensor:
        """As nn.BatchNorm does it, with statistics of all ranks while training."""
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        mean, var = self._buffers.get("running_mean"), self._buffers.get("running_var")
        if not self.training and mean is not None:
            return nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, self.eps)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        wide = x.double()  # sums of squares lose digits
        count = wide.new_full((1,), x.numel() / x.shape[1])
        sums = torch.cat([wide.sum(axes), wide.square().sum(axes), count])
        summed: Any = _Summed.apply
        total: Tensor = summed(sums * 0.0 if self.idle else sums, self.link[0])
        size = total[-1].detach()
        average, square = (total[:-1] / size).chunk(2)
        variance = square - average.square()
        if self.tracks and mean is not None and var is not None:
            self._track(mean, var, average.detach(), variance.detach(), float(size))
        scale = (variance + self.eps).rsqrt()
        normal = (x - average.to(x.dtype).view(shape)) * scale.to(x.dtype).view(shape)
        if weight is None or bias is None:
            return normal
        return normal * weight.view(shape) + bias.view(shape)

    def _track(
        self, mean: Tensor, var: Tensor, average: Tensor, variance: Tensor, size: float
    ) -> None:
        tracked = self._buffers["num_batches_tracked"]
        assert tracked is not None
        tracked.add_(1)
        share = 1.0 / float(tracked) if self.momentum is None else self.momentum
        mean.lerp_(average.to(mean.dtype), share)
        var.lerp_((variance * (size / max(size - 1, 1))).to(var.dtype), share)


class _Summed(torch.autograd.Function):
    """The sum over ranks; each rank's gradient of it is the sum of all ranks', as all used it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, link: Communicator) -> Tensor:
        ctx.link = link
        return link.all_reduce(values.clone(), "statistics", link.data)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        link = ctx.link
        return link.all_reduce(gradient.contiguous().clone(), "statistics", link.data), None


def synchronize_norms(ens: Ensemble, link: Communicator) -> list[WholeBatchNorm]:
    """Let every BatchNorm layer of the members see whole batches; returns these layers.

    Members then run one after the other: an exchange cannot be batched over members.
    """
    if link.data is None:
        return []
    if ens.execution == "stacked":
        raise ValueError("sync_batchnorm needs execution='looped' or 'auto', got 'stacked'")
    layers: list[WholeBatchNorm] = []
    for module in list(ens.holder.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm):
                layers.append(WholeBatchNorm(child, link))
                setattr(module, name, layers[-1])
    if layers:
        ens.execution = "looped"
    return layers
