"""Figures of the laboratory: series of means with their intervals."""

from typing import NamedTuple

import numpy as np

from reproductions.figures import estimates


class Estimate(NamedTuple):
    mean: float
    low: float
    high: float
    runs: int


def test_estimates_have_intervals_where_there_are_several_runs() -> None:
    several, single = Estimate(0.5, -0.2, 1.4, 3), Estimate(0.4, -np.inf, np.inf, 1)
    series = estimates("ADP", [0.0, 1.0], [several, several], 2, limits=(0.0, 1.0))
    assert (series.y, series.low, series.high) == ([0.5, 0.5], [0.0, 0.0], [1.0, 1.0])
    assert estimates("ADP", [0.0, 1.0], [several, single]).low is None
