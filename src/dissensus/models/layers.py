"""Layers and checks that architectures share: normalisation of inputs, norm layers.

Everything here runs under ``torch.func.vmap`` over stacked parameters: standard modules, no
operation that writes into its input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn

from dissensus.tools.guards import check_finite, check_shape
from dissensus.tools.specs import check_choice

#: The layers that may stand where the papers have batch normalisation.
NORMS: dict[str, str] = {
    "batch": "BatchNorm2d: statistics of the batch in training, running ones in evaluation",
    "group": "GroupNorm with at most 8 groups: no statistics to keep, any batch size",
    "none": "no normalisation",
}


class InputNormalize(nn.Module):
    """``(x − mean) / std`` for each channel (or feature), as the first layer of a member.

    With it inside the model, attacks, corruptions and users all see inputs in [0, 1]. ``mean`` and
    ``std`` are buffers: they are saved with the model and never trained. Inputs are
    ``[batch, channels, …]``; one number serves all channels.

    >>> layer = InputNormalize(mean=[0.5], std=[0.25])
    >>> layer(torch.ones(1, 1, 2, 2)).flatten().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float] | float, std: Sequence[float] | float) -> None:
        super().__init__()
        means, stds = (torch.as_tensor(v, dtype=torch.float32).reshape(-1) for v in (mean, std))
        check_shape(means, name="mean", channels=None)
        check_shape(stds, name="std", channels=len(means))
        check_finite(torch.stack([means, stds]), name="mean and std")
        if bool((stds <= 0).any()):
            raise ValueError(f"std must be positive, got {stds.tolist()}; 1 suits constants")
        self.register_buffer("mean", means)
        self.register_buffer("std", stds)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised; the shape stays as it is."""
        shape = (-1,) + (1,) * (x.ndim - 2)
        return (x - self.mean.view(shape)) / self.std.view(shape)

    def extra_repr(self) -> str:
        return f"channels={len(self.mean)}"


class ScaledLinear(nn.Module):
    """``(c g ∘ x) Wᵀ + b``: a linear layer with a gain ``c g`` for each input.

    The gains start at 1, ``g = 1/c``. An adaptive optimiser moves every parameter by about its
    learning rate, so a gain moves ``c = rate`` times as fast as a weight: inputs that matter grow
    and, under weight decay, the others fade within a few epochs. Networks for tables need that most
    (the diagonal layer of RealMLP, Holzmüller et al. 2024).

    >>> layer = ScaledLinear(3, 2)
    >>> x = torch.ones(1, 3)
    >>> bool(torch.allclose(layer(x), x @ layer.weight.T + layer.bias))
    True
    """

    def __init__(self, in_features: int, out_features: int, rate: float = 20.0) -> None:
        super().__init__()
        linear = nn.Linear(in_features, out_features)
        self.weight, self.bias, self.rate = linear.weight, linear.bias, rate
        self.gain = nn.Parameter(torch.full((in_features,), 1 / rate))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, in_features]`` to ``[batch, out_features]``."""
        return nn.functional.linear(self.rate * self.gain * x, self.weight, self.bias)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape[-2:]
        return f"in_features={inputs}, out_features={outputs}, rate={self.rate:g}"


class LeafTracer(fx.Tracer):
    """Traces a module's forward, without looking into those for which ``is_leaf(module, path)``."""

    def __init__(self, is_leaf: Callable[[nn.Module, str], bool]) -> None:
        super().__init__()
        self.is_leaf = is_leaf

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.is_leaf(m, module_qualified_name)


def norm_layer(norm: str, channels: int) -> nn.Module:
    """The layer of :data:`NORMS` called ``norm`` for ``channels`` channels.

    >>> norm_layer("group", 16).num_groups, norm_layer("group", 6).num_groups
    (8, 2)
    """
    check_choice("resnet", "norm", norm, list(NORMS))
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(8, channels), channels)
    return nn.Identity()


def conv_size(size: int, kernel: int, stride: int = 1, padding: int = 0) -> int:
    """Side length after a convolution or pooling: ``⌊(size + 2·padding − kernel)/stride⌋ + 1``.

    >>> conv_size(conv_size(32, 5, 2), 5, 2)   # Table 3 without padding: 20 · 5 · 5 = 500
    5
    """
    return (size + 2 * padding - kernel) // stride + 1


def check_image_shape(input_shape: Sequence[int], model: str, smallest: int = 1) -> None:
    """Raise unless ``input_shape`` is ``(channels, height, width)`` of at least ``smallest``."""
    shape = tuple(input_shape)
    if len(shape) != 3 or min(shape) < 1:
        axes = "(channels, height, width)"
        raise ValueError(f"{model} takes images {axes}, got {shape}; for a table use 'mlp'")
    if min(shape[1:]) < smallest:
        least = f"{smallest} × {smallest}"
        raise ValueError(f"{model} needs images of at least {least}, got {shape[1:]}; pad them")
