"""Exact experiments: random draws, gradients, relative deviations, and minima found by search.

As in Section 3.3 of the adp paper, a search takes the networks away: the members' logits for one
example are free, and an objective is minimised over them from random starts, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from dissensus.objectives import Objective


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


def extremes(draws: Iterable[dict[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """The least and the largest value of each deviation over random draws."""
    rows = list(draws)
    least, most = ({key: pick(row[key] for row in rows) for key in rows[0]} for pick in (min, max))
    return least, most


# ---- minima -------------------------------------------------------------------------------------

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Minimum:
    """The predictions ``[members, classes]`` with the least loss of all starts; the label is 0."""

    probs: Floats
    loss: float
    losses: list[float]

    @property
    def mean(self) -> Floats:
        """The ensemble's prediction, Eq. 1."""
        return np.asarray(self.probs.mean(0))

    @property
    def log_diversity(self) -> float:
        """The logarithm of Eq. 3, without the floor that training adds."""
        wrong = self.probs[:, 1:]
        unit = wrong / np.linalg.norm(wrong, axis=1, keepdims=True)
        return float(np.linalg.slogdet(unit @ unit.T)[1])


def minimize_objective(
    objective: Objective, members: int, classes: int, *, starts: int, seed: int, spread: float = 1.0
) -> Minimum:
    """Minimise ``objective`` over the logits of one example of class 0, by L-BFGS."""
    labels = torch.zeros(1, dtype=torch.long)
    shape = (members, 1, classes)

    def loss(flat: Floats) -> tuple[float, Floats]:
        value, gradient = value_and_gradient(
            objective, torch.from_numpy(flat.reshape(shape)), labels
        )
        return float(value), gradient.numpy().ravel()

    ends: list[tuple[float, Floats]] = []
    for start in range(starts):
        at = spread * torch.randn(
            shape, generator=generator_of(1000 * seed + start), dtype=torch.float64
        )
        # Entries that tend to 0 do so along logits without end; the steps' size is what ends it.
        limits = {"maxiter": 4000, "maxfun": 8000, "ftol": 1e-15, "gtol": 1e-10}
        result = minimize(loss, at.numpy().ravel(), jac=True, method="L-BFGS-B", options=limits)
        ends.append((float(result.fun), result.x))
    least, flat = min(ends, key=lambda pair: pair[0])
    logits: Tensor = torch.from_numpy(flat.reshape(members, classes))
    return Minimum(logits.softmax(-1).numpy(), least, [value for value, _ in ends])
