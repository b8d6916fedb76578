"""Fields for corruptions: random numbers, smoothing, warping, clouds of noise."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import conv2d, grid_sample, pad

__all__ = ["clouds", "normal", "smooth", "streak", "uniform", "unit", "warp"]


def unit(x: Tensor) -> float:
    """One pixel of a 32 × 32 image, in pixels of this one; never below half a pixel."""
    return max(min(x.shape[-2:]), 16) / 32


def normal(shape: tuple[int, ...], generator: Generator, like: Tensor) -> Tensor:
    """Standard normal numbers drawn on the CPU, so that every device sees the same."""
    return torch.randn(shape, generator=generator).to(like)


def uniform(shape: tuple[int, ...], generator: Generator, like: Tensor) -> Tensor:
    """Numbers uniform in [0, 1), drawn on the CPU."""
    return torch.rand(shape, generator=generator).to(like)


def smooth(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of every channel, border pixels repeated."""
    reach = max(1, math.ceil(3 * sigma))
    steps = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
    kernel = kernel / kernel.sum()
    flat = x.reshape(-1, 1, *x.shape[-2:])
    flat = pad(flat, (reach,) * 4, mode="replicate")
    flat = conv2d(conv2d(flat, kernel[None, None, :, None]), kernel[None, None, None, :])
    return flat.reshape(x.shape)


def warp(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """``out[n, :, i, j] = x[n, :, i + down, j + right]``, bilinear; borders are mirrored.

    ``down`` and ``right`` are in pixels and broadcast to ``[batch, height, width]``.
    """
    batch, _, height, width = x.shape
    rows = torch.arange(height, device=x.device, dtype=x.dtype)[None, :, None] + down
    columns = torch.arange(width, device=x.device, dtype=x.dtype)[None, None, :] + right
    shape = (batch, height, width)
    grid = torch.stack(
        [
            ((2 * columns + 1) / width - 1).expand(shape),
            ((2 * rows + 1) / height - 1).expand(shape),
        ],
        -1,
    )
    return grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def streak(x: Tensor, length: float, angle: Tensor) -> Tensor:
    """Mean of ``x`` along a line of ``length`` pixels in direction ``angle`` ``[batch]``."""
    count = 2 * math.ceil(length) + 1
    sin, cos = angle.sin()[:, None, None], angle.cos()[:, None, None]
    total = torch.zeros_like(x)
    for step in range(count):
        at = length * (step / (count - 1) - 0.5)
        total = total + warp(x, at * sin, at * cos)
    return total / count


def clouds(x: Tensor, roughness: float, generator: Generator) -> Tensor:
    """Fractal noise ``[batch, 1, height, width]`` in [0, 1]: white noise with a 1/f^r spectrum."""
    batch, _, height, width = x.shape
    noise = normal((batch, 1, height, width), generator, x).float()
    rows = torch.fft.fftfreq(height, device=x.device)[:, None] * height
    columns = torch.fft.rfftfreq(width, device=x.device)[None] * width
    frequency = (rows**2 + columns**2).sqrt()
    frequency[0, 0] = 1.0
    spectrum = torch.fft.rfft2(noise) / frequency**roughness
    field: Tensor = torch.fft.irfft2(spectrum, s=(height, width)).to(x.dtype)
    low, high = field.amin((-2, -1), keepdim=True), field.amax((-2, -1), keepdim=True)
    scaled: Tensor = (field - low) / (high - low).clamp_min(1e-12)
    return scaled
