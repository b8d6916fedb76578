"""Curves and histograms small enough to keep and to draw."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["histogram_edges", "thinned"]


def thinned(
    x: NDArray[Any], y: NDArray[Any], points: int = 400
) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most ``points + 2`` points of a curve, about evenly along its length; the ends stay.

    >>> thinned(np.arange(1001.0), np.zeros(1001), 5)[0].tolist()
    [0.0, 250.0, 500.0, 750.0, 1000.0]
    """
    way = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    chosen = np.searchsorted(way, np.linspace(0, way[-1], points)).clip(0, len(x) - 1)
    chosen = np.unique(np.concatenate([[0], chosen, [len(x) - 1]]))
    return x[chosen], y[chosen]


def histogram_edges(values: NDArray[Any], bins: int = 40) -> NDArray[Any]:
    """Edges of bins between the 0.5% and 99.5% quantiles; what lies outside goes to the ends."""
    low, high = np.quantile(values, [0.005, 0.995])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1)
