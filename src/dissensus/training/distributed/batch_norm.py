"""BatchNorm over whole batches, of which every rank has some rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dissensus.ensemble import Ensemble
from dissensus.training.distributed.communicator import Communicator


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


def synchronize(ens: Ensemble, link: Communicator) -> list[WholeBatchNorm]:
    """Let every BatchNorm layer of the members see whole batches; returns these layers.

    Members then run one after the other: an exchange cannot be batched over members.
    """
    if link.data is None:
        return []
    if ens.execution == "stacked":
        raise ValueError("sync_batchnorm needs execution='looped' or 'auto', got 'stacked'")
    if isinstance(ens.holder, _BatchNorm):
        raise ValueError("sync_batchnorm needs members of several layers, got a BatchNorm alone")
    layers: list[WholeBatchNorm] = []
    for module in list(ens.holder.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm):
                layers.append(WholeBatchNorm(child, link))
                setattr(module, name, layers[-1])
    if layers:
        ens.execution = "looped"
    return layers
