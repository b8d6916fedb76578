"""Exposure, geometry and compression."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from dissensus.data.corruptions.fields import normal, smooth, unit, warp

__all__ = ["brightness", "contrast", "elastic_transform", "jpeg_compression", "pixelate"]


def brightness(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """More value at the same hue and saturation; the levels are added to the brightest channel."""
    added = (0.1, 0.2, 0.3, 0.4, 0.5)[severity - 1]
    value = x.amax(1, keepdim=True)
    brighter = (value + added).clamp_max(1)
    black = value < 1e-6  # has no hue: becomes grey
    return torch.where(black, brighter, x * brighter / value.clamp_min(1e-6))


def contrast(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Every channel drawn to its mean; the levels are what is left of the contrast."""
    left = (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1]
    mean = x.mean((-2, -1), keepdim=True)
    return mean + left * (x - mean)


def elastic_transform(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """A smooth random displacement; the levels are its deviation, for 32 × 32 pixels."""
    amplitude = (0.7, 1.1, 1.6, 2.2, 3.0)[severity - 1] * unit(x)
    fields = normal((2, x.shape[0], *x.shape[-2:]), generator, x)
    fields = smooth(fields, 3 * unit(x))
    fields = fields / fields.square().mean((-2, -1), keepdim=True).sqrt().clamp_min(1e-12)
    return warp(x, amplitude * fields[0], amplitude * fields[1])


def pixelate(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Fewer, larger pixels; the levels are the share of the side that is left."""
    share = (0.75, 0.6, 0.5, 0.35, 0.25)[severity - 1]
    height, width = x.shape[-2:]
    return _coarsen(height, share, x) @ x @ _coarsen(width, share, x).T


def _coarsen(side: int, share: float, like: Tensor) -> Tensor:
    """The matrix that averages over ``share · side`` equal stretches and spreads them back.

    Both ways by the exact overlap of old and new pixels: with plain nearest neighbours a size that
    does not divide the side distorts more than the next coarser one that does.
    """
    count = max(2, round(side * share))
    edges = torch.linspace(0, side, count + 1, device=like.device, dtype=like.dtype)
    start = torch.arange(side, device=like.device, dtype=like.dtype)
    overlap = torch.minimum(edges[1:, None], start + 1) - torch.maximum(edges[:-1, None], start)
    overlap = overlap.clamp_min(0)
    return overlap.T @ (overlap / overlap.sum(1, keepdim=True))


# The example quantisation tables of the JPEG standard (ITU-T T.81, Annex K).
_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
# RGB to luminance and two colour differences (ITU-R BT.601).
_TO_YCC = (
    (0.299, 0.587, 0.114),
    (-0.168736, -0.331264, 0.5),
    (0.5, -0.418688, -0.081312),
)


def jpeg_compression(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The loss of JPEG: 8 × 8 cosine transform, rounding to the quality's steps, and back.

    The levels are qualities. Three channels are taken for RGB; any other number is compressed
    channel by channel as luminance.
    """
    quality = (25, 18, 13, 9, 6)[severity - 1]
    tables = torch.tensor([_LUMINANCE, _CHROMINANCE, _CHROMINANCE], device=x.device, dtype=x.dtype)
    steps = ((tables * 50 / quality + 0.5).floor()).clamp(1, 255)
    if x.shape[1] == 3:
        to = torch.tensor(_TO_YCC, device=x.device, dtype=x.dtype)
        planes = torch.einsum("dc,nchw->ndhw", to, x)
        planes = _quantise(planes - planes.new_tensor([0.5, 0, 0])[:, None, None], steps)
        planes = planes + planes.new_tensor([0.5, 0, 0])[:, None, None]
        return torch.einsum("cd,ndhw->nchw", torch.linalg.inv(to), planes).clamp(0, 1)
    return (_quantise(x - 0.5, steps[:1].expand(x.shape[1], 8, 8)) + 0.5).clamp(0, 1)


def _quantise(planes: Tensor, steps: Tensor) -> Tensor:
    """Round the cosine coefficients of each 8 × 8 block to multiples of ``steps`` (in 1/255)."""
    batch, channels, height, width = planes.shape
    padded = pad(planes, (0, -width % 8, 0, -height % 8), mode="replicate") * 255
    rows, columns = padded.shape[-2] // 8, padded.shape[-1] // 8
    blocks = padded.reshape(batch, channels, rows, 8, columns, 8).transpose(3, 4)
    basis = _cosines(planes)
    steps = steps[:, None, None]
    coefficients = ((basis @ blocks @ basis.T) / steps).round() * steps
    restored = (basis.T @ coefficients @ basis).transpose(3, 4).reshape(padded.shape)
    return restored[..., :height, :width] / 255


def _cosines(like: Tensor) -> Tensor:
    """The orthonormal 8-point cosine transform (DCT-II)."""
    k = torch.arange(8, device=like.device, dtype=like.dtype)
    basis = torch.cos(math.pi / 8 * (k[None] + 0.5) * k[:, None]) / 2
    basis[0] = math.sqrt(1 / 8)
    return basis
