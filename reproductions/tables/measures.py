"""Measures on test rows: error, NLL, CRPS, and the coverage of intervals.

Every predictive distribution of a number is compared by its quantiles at :data:`LEVELS`, so that
residuals and quantiles of a model's own are judged alike.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: The levels of the quantiles from which the CRPS is computed.
LEVELS: Floats = np.arange(1, 100) / 100
#: Probabilities are clipped here from below, then made to sum to 1 again.
SMALLEST = 1e-7


def error_rate(probs: Floats, labels: NDArray[Any]) -> float:
    """The share of rows whose most probable class is another one."""
    return float((probs.argmax(1) != labels).mean())


def nll(probs: Floats, labels: NDArray[Any]) -> float:
    """The mean of −log p(label), p clipped to at least :data:`SMALLEST` and normalised.

    >>> round(nll(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 1])), 4)  # (ln 2 + 7 ln 10) / 2
    8.4056
    """
    clipped = np.clip(probs, SMALLEST, None)
    clipped /= clipped.sum(1, keepdims=True)
    return float(-np.log(clipped[np.arange(len(labels)), labels]).mean())


def rmse(predictions: Floats, y: Floats) -> float:
    """The root mean squared error."""
    return float(np.sqrt(((predictions - y) ** 2).mean()))


def crps(quantiles: Floats, y: Floats, levels: Floats = LEVELS) -> float:
    """The mean CRPS of distributions given by ``quantiles`` ``[rows, levels]``.

    CRPS = 2 ∫ ρ_τ(y − q(τ)) dτ with the pinball loss ρ_τ(u) = u (τ − 1[u < 0]), the integral taken
    as the mean over the levels.

    >>> crps(np.array([[1.0, 3.0]]), np.array([4.0]), np.array([0.25, 0.75]))  # 0.25·3 + 0.75·1
    1.5
    """
    u = y[:, None] - quantiles
    return float(2 * (u * (levels - (u < 0))).mean())


def residual_quantiles(predictions: Floats, residuals: Floats, levels: Floats = LEVELS) -> Floats:
    """Quantiles ``[rows, levels]`` of each prediction plus the distribution of the residuals."""
    found: Floats = predictions[:, None] + np.quantile(residuals, levels)
    return found


def coverage(low: Floats, high: Floats, y: Floats) -> float:
    """The share of rows whose target lies in its interval, bounds included."""
    return float(((low <= y) & (y <= high)).mean())
