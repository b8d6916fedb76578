"""The best predictions for one example, found by search: what the paper's theorems are about.

As in Section 3.3 the networks are taken away: the members' logits for one example are free, and an
objective is minimised over them from random starts, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from dissensus.objectives import Objective
from dissensus.papers.collusion.exact import generator_of, value_and_gradient

__all__ = ["Best", "minimised"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Best:
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


def minimised(
    objective: Objective, members: int, classes: int, *, starts: int, seed: int, spread: float = 1.0
) -> Best:
    """Minimise ``objective`` over the logits of one example of class 0, by L-BFGS."""
    labels = torch.zeros(1, dtype=torch.long)
    shape = (members, 1, classes)

    def loss(flat: Floats) -> tuple[float, Floats]:
        value, gradient = value_and_gradient(
            objective, torch.from_numpy(flat.reshape(shape)), labels
        )
        return float(value), gradient.numpy().ravel()

    found: list[tuple[float, Floats]] = []
    for start in range(starts):
        at = spread * torch.randn(
            shape, generator=generator_of(1000 * seed + start), dtype=torch.float64
        )
        # Entries that tend to 0 do so along logits without end; the steps' size is what ends it.
        limits = {"maxiter": 4000, "maxfun": 8000, "ftol": 1e-15, "gtol": 1e-10}
        result = minimize(loss, at.numpy().ravel(), jac=True, method="L-BFGS-B", options=limits)
        found.append((float(result.fun), result.x))
    least, flat = min(found, key=lambda pair: pair[0])
    logits: Tensor = torch.from_numpy(flat.reshape(members, classes))
    return Best(logits.softmax(-1).numpy(), least, [value for value, _ in found])
