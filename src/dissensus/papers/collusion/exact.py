"""What the two exact experiments share: random draws, relative deviations, the verdict on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from dissensus.objectives import Objective
from dissensus.papers.base import Finding

__all__ = [
    "TOLERANCE",
    "draw_alpha",
    "draw_regression",
    "equal_finding",
    "generator_of",
    "gradient_of",
    "relative_difference",
    "shown",
    "uniform",
    "value_and_gradient",
]

#: Two float64 computations of one number are taken for equal up to this, relative to its size.
TOLERANCE = 1e-12


def generator_of(seed: int) -> torch.Generator:
    """A generator that starts from ``seed``."""
    return torch.Generator().manual_seed(seed)


def uniform(low: float, high: float, generator: torch.Generator) -> float:
    """One number between ``low`` and ``high``."""
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def draw_alpha(generator: torch.Generator, low: float = 1e-3, high: float = 1e3) -> float:
    """A step between ``low`` and ``high``, evenly in its logarithm."""
    return math.exp(uniform(math.log(low), math.log(high), generator))


def draw_regression(members: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Outputs ``[members, batch, outputs]`` and targets ``[batch, outputs]`` in float64.

    Batches of 1 to 8 and 1 to 3 outputs; a spread over members from a tenth to ten times that of
    the targets, so that both small and exploded diversity occur.
    """
    batch = int(torch.randint(1, 9, (), generator=generator))
    outputs = int(torch.randint(1, 4, (), generator=generator))
    spread = 10 ** uniform(-1, 1, generator)
    targets = torch.randn(batch, outputs, generator=generator, dtype=torch.float64)
    center = torch.randn(batch, outputs, generator=generator, dtype=torch.float64)
    away = torch.randn(members, batch, outputs, generator=generator, dtype=torch.float64)
    return center + spread * away, targets


def value_and_gradient(
    objective: Objective, outputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The objective's loss and its gradient with respect to every member's outputs, by autograd."""
    return gradient_of(lambda leaf: objective(leaf, targets).loss, outputs)


def gradient_of(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    """The value of ``function`` and its gradient, by autograd."""
    leaf = at.detach().clone().requires_grad_()
    value = function(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def relative_difference(first: Tensor, second: Tensor) -> float:
    """``max |a − b| / max(|a|, |b|)`` with the largest entries of both below the line."""
    size = max(float(first.abs().max()), float(second.abs().max()))
    return float((first - second).abs().max()) / size if size > 0 else 0.0


def shown(deviation: float) -> str:
    """``"4.3e-16"``, and a plain 0.

    >>> shown(0.0), shown(4.31e-16)
    ('0', '4.3e-16')
    """
    return f"{deviation:.1e}" if deviation else "0"


def equal_finding(
    deviations: Mapping[str, float], tried: str, published: str | None = None
) -> Finding:
    """Holds if the largest relative deviation is rounding; the sentence names it."""
    name = max(deviations, key=lambda key: deviations[key])
    worst = deviations[name]
    sentence = f"largest relative deviation {shown(worst)} ({name.replace('_', ' ')}; {tried})"
    return Finding("holds" if worst <= TOLERANCE else "does not hold", sentence, published)
