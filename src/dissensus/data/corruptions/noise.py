"""Noise: of the sensor, of few photons, of broken pixels."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from dissensus.data.corruptions.fields import normal, uniform

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise"]


def gaussian_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Normal noise added to every pixel; the levels are its deviation."""
    deviation = (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1]
    return (x + deviation * normal(tuple(x.shape), generator, x)).clamp(0, 1)


def shot_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Poisson counts of the light; the levels are the photons of a white pixel."""
    photons = (60.0, 25.0, 12.0, 5.0, 3.0)[severity - 1]
    counts = torch.poisson((x * photons).cpu().float(), generator=generator)
    return (counts.to(x) / photons).clamp(0, 1)


def impulse_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Single values turned black or white; the levels are their share."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
    hit = uniform(tuple(x.shape), generator, x) < share
    white = (uniform(tuple(x.shape), generator, x) < 0.5).to(x)
    return torch.where(hit, white, x)
