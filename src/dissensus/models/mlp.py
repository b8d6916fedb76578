"""Dense networks: a linear model and a multi-layer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from dissensus.models.layers import check_count, check_rate

__all__ = ["linear", "mlp"]


def linear(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """One linear layer on the flattened input: logistic or linear regression.

    >>> linear((8,), 3)
    Sequential(
      (0): Linear(in_features=8, out_features=3, bias=True)
    )
    """
    return mlp(input_shape, outputs, hidden=())


def mlp(
    input_shape: Sequence[int],
    outputs: int,
    *,
    hidden: Sequence[int] | int = (128, 128),
    dropout: float = 0.0,
) -> nn.Module:
    """A perceptron with ReLU hidden layers of the sizes ``hidden``, on the flattened input.

    Collusion's tables use 1 to 3 layers of 10 to 30 neurons without dropout (Appendix B).
    ``dropout`` is applied after every hidden activation.

    >>> [tuple(p.shape) for p in mlp((16,), 1, hidden=(30, 20)).parameters()]
    [(30, 16), (30,), (20, 30), (20,), (1, 20), (1,)]
    """
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"input_shape must hold positive sizes, got {shape}")
    check_count("outputs", outputs)
    check_rate("dropout", dropout)
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    layers: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
    size = math.prod(shape)
    for width in widths:
        check_count("hidden", width)
        layers += [nn.Linear(size, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        size = width
    return nn.Sequential(*layers, nn.Linear(size, outputs))
