"""Weather, procedural: flakes, crystals and clouds are drawn, not taken from photographs."""

from __future__ import annotations

import math

from torch import Generator, Tensor

from dissensus.data.corruptions.fields import clouds, streak, uniform, unit

__all__ = ["fog", "frost", "snow"]


def snow(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Streaks of falling flakes over a whitened picture; the levels are density and whitening."""
    density, whitening = ((0.02, 0.08), (0.04, 0.13), (0.06, 0.18), (0.09, 0.23), (0.13, 0.28))[
        severity - 1
    ]
    batch, _, height, width = x.shape
    flakes = (uniform((batch, 1, height, width), generator, x) < density).to(x)
    # Wind from either side: 45 to 135 degrees from the horizontal.
    angle = math.pi * (0.25 + 0.5 * uniform((batch,), generator, x))
    length = 3 * unit(x)
    falling = (streak(flakes, length, angle) * max(length, 1.0)).clamp(0, 1)
    return x + (whitening + (1 - whitening) * falling) * (1 - x)


def frost(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Bright ridged crystals that cover the picture; the levels are how opaque they are."""
    opacity = (0.3, 0.45, 0.6, 0.72, 0.85)[severity - 1]
    ridges = 1 - (2 * clouds(x, 1.3, generator) - 1).abs()
    cover = clouds(x, 2.0, generator)
    brightness = 0.6 + 0.4 * ridges
    return x + opacity * (0.3 + 0.7 * cover * ridges) * (brightness - x)


def fog(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Fractal clouds in front of the picture; the levels are their thickness."""
    thickness = (0.4, 0.7, 1.1, 1.6, 2.3)[severity - 1]
    mist = 0.4 + 0.6 * clouds(x, 1.7, generator)
    return (x + thickness * mist) / (1 + thickness)
