"""Random numbers that belong to one example: no generator, no state, no order.

A number is a hash of the seed, the example's index, what it is drawn for, and its place in the
tensor. So an attack's chance does not depend on the batch size, on which examples have left the
batch, or on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["ball", "normal", "uniform"]

_GOLDEN = 0x9E3779B97F4A7C15


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _mixed(z: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014) on int64, which wraps around."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def uniform(
    seed: int, examples: Tensor, draw: Sequence[int], shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Numbers in [0, 1), ``[examples, *shape]``; ``draw`` says what for, as (restart, step).

    >>> both = uniform(0, torch.tensor([3, 8]), (0,), (2,), torch.float64)
    >>> bool((both[1:] == uniform(0, torch.tensor([8]), (0,), (2,), torch.float64)).all())
    True
    """
    key = int(np.random.SeedSequence([seed, *draw]).generate_state(1, np.uint64)[0])
    streams = _mixed(examples.long() * _signed(_GOLDEN) + _signed(key))
    places = torch.arange(1, math.prod(shape) + 1, device=examples.device) * _signed(_GOLDEN)
    bits = (_mixed(streams[:, None] + places) >> 11) & ((1 << 53) - 1)
    return (bits.double() * 2.0**-53).to(dtype).reshape(len(examples), *shape)


def normal(
    seed: int, examples: Tensor, draw: Sequence[int], shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Standard normal numbers, by Box and Muller (1958)."""
    pairs = uniform(seed, examples, draw, (2, *shape), torch.float64)
    radius = (-2 * torch.log1p(-pairs[:, 0])).sqrt()
    return (radius * torch.cos(2 * math.pi * pairs[:, 1])).to(dtype)


def ball(seed: int, examples: Tensor, draw: Sequence[int], like: Tensor, norm: str) -> Tensor:
    """Points in the unit ball of ``norm``, uniform, of the shape of ``like``."""
    shape = tuple(like.shape[1:])
    if norm == "linf":
        return 2 * uniform(seed, examples, draw, shape, like.dtype) - 1
    points = normal(seed, examples, (*draw, 1), shape, like.dtype).flatten(1)
    radius = uniform(seed, examples, (*draw, 2), (1,), like.dtype) ** (1 / points.shape[1])
    length: Tensor = points.norm(dim=1, keepdim=True)
    points = points / length.clamp_min(torch.finfo(like.dtype).tiny)
    return (points * radius).reshape(like.shape)
