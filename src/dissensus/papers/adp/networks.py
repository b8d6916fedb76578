"""A network that two cores can train and attack; a cell names it by import path."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

__all__ = ["strided_cnn"]


def strided_cnn(
    input_shape: Sequence[int], outputs: int, *, width: int = 8, hidden: int = 64
) -> nn.Module:
    """Two 3 × 3 convolutions of stride 2, a hidden linear layer, ReLU; no normalisation.

    The paper's ResNet-20 costs a core 0.1 s an image and member for each step of an attack; this
    one a ten-thousandth of that, so that a hundred steps and several restarts can be afforded.

    >>> sum(p.numel() for p in strided_cnn((1, 28, 28), 10).parameters())
    52138
    """
    channels, height, columns = input_shape
    flat = 2 * width * -(-height // 4) * -(-columns // 4)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )
