"""Images in memory: bytes as numbers, rows drawn by a seed, and images of another size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from dissensus.tools.guards import guarded


def to_unit(pixels: NDArray[np.uint8]) -> Tensor:
    """uint8 pixels as float32 in [0, 1]."""
    return torch.from_numpy(np.require(pixels, requirements=["C", "W"])).float().div_(255)


def draw_rows(count: int, limit: int | None, seed: int, name: str) -> NDArray[np.int64]:
    """``limit`` of ``count`` rows, drawn by the seed, in their order; all where it is None."""
    if limit is None:
        return np.arange(count, dtype=np.int64)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= count:
        raise ValueError(f"{name} must be a number of rows from 1 to {count}, got {limit!r}")
    # Another stream than the one that cuts validation, which starts from the seed alone.
    order: NDArray[np.int64] = np.random.default_rng([seed, 1]).permutation(count)[:limit]
    return np.sort(order).astype(np.int64)


@guarded
def fit_images(x: Tensor, input_shape: Sequence[int]) -> Tensor:
    """Bring images ``[rows, channels, height, width]`` to ``(channels, height, width)``.

    Colour becomes grey by the mean of the channels, grey becomes colour by repetition; sizes
    change by area averaging downwards and bilinearly upwards. So a set of unknown images can be
    given to a model that was trained on others.

    >>> fit_images(torch.rand(2, 3, 32, 32), (1, 8, 8)).shape
    torch.Size([2, 1, 8, 8])
    """
    shape = tuple(input_shape)
    if x.ndim != 4 or len(shape) != 3:
        raise ValueError(
            f"images must be [rows, channels, height, width] and the shape wanted (channels, "
            f"height, width), got {tuple(x.shape)} and {shape}"
        )
    channels, height, width = shape
    if x.shape[1] != channels:
        grey = x.mean(1, keepdim=True)
        x = grey.expand(-1, channels, -1, -1)
    if tuple(x.shape[2:]) != (height, width):
        smaller = height <= x.shape[2] and width <= x.shape[3]
        mode, align = ("area", None) if smaller else ("bilinear", False)
        x = interpolate(x, size=(height, width), mode=mode, align_corners=align)
    return x.contiguous()
