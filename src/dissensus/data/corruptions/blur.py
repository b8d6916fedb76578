"""Blur: out of focus, through glass, in motion, zooming. Lengths are for 32 × 32 and scale."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample, pad

from dissensus.data.corruptions.fields import smooth, streak, uniform, unit, warp

__all__ = ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur"]


def defocus_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Convolution with a disc; the levels are its radius."""
    radius = (1.2, 1.6, 2.0, 2.5, 3.1)[severity - 1] * unit(x)
    kernel = _disc(radius, x)
    reach = kernel.shape[-1] // 2
    flat = pad(x.reshape(-1, 1, *x.shape[-2:]), (reach,) * 4, mode="replicate")
    return conv2d(flat, kernel).reshape(x.shape)


def _disc(radius: float, like: Tensor, fine: int = 9) -> Tensor:
    """A disc of any radius with soft edges: the covered part of each pixel, by sub-sampling."""
    reach = max(1, math.ceil(radius))
    side = (2 * reach + 1) * fine
    place = (torch.arange(side, device=like.device, dtype=like.dtype) + 0.5) / fine - reach - 0.5
    inside = (place[:, None] ** 2 + place[None] ** 2 <= radius**2).to(like)
    kernel = inside.reshape(2 * reach + 1, fine, 2 * reach + 1, fine).sum((1, 3))
    return (kernel / kernel.sum())[None, None]


def glass_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Every pixel taken from a random near one, then a slight blur; the levels are the reach."""
    reach = (0.7, 1.0, 1.4, 1.9, 2.5)[severity - 1] * unit(x)
    shape = (x.shape[0], *x.shape[-2:])
    down, right = (2 * uniform(shape, generator, x) - 1 for _ in range(2))
    return smooth(warp(x, reach * down, reach * right), 0.3 * reach)


def motion_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The mean along a line in a random direction for each image; the levels are its length."""
    length = (2.5, 3.5, 5.0, 6.5, 8.5)[severity - 1] * unit(x)
    return streak(x, length, math.pi * uniform((x.shape[0],), generator, x))


def zoom_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The mean of pictures enlarged about the centre; the levels are the largest enlargement."""
    largest = (1.12, 1.2, 1.3, 1.42, 1.56)[severity - 1]
    count = 8
    total = torch.zeros_like(x)
    for step in range(count):
        shrink = 1 / (1 + (largest - 1) * step / (count - 1))
        theta = torch.tensor([[shrink, 0, 0], [0, shrink, 0]], device=x.device, dtype=x.dtype)
        grid = affine_grid(theta.expand(x.shape[0], 2, 3), list(x.shape), align_corners=False)
        total = total + grid_sample(x, grid, padding_mode="border", align_corners=False)
    return total / count
