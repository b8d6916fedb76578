"""Figures: the parts of plots that studies draw with, and the lines that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from dissensus.show import AnyPanel, Image, Matrix, Panel, Plot, Rule, Series, Text
from dissensus.show import draw as draw
from dissensus.show import histogram as histogram
from dissensus.show import save as save
from reproductions.statistics import Estimate, mean_interval

__all__ = [
    "AnyPanel",
    "Image",
    "Matrix",
    "Panel",
    "Plot",
    "Rule",
    "Series",
    "Text",
    "curve_series",
    "draw",
    "estimates",
    "histogram",
    "save",
]


def estimates(
    name: str,
    x: Sequence[float] | Sequence[str],
    values: Sequence[Estimate],
    style: int | str = 0,
    kind: Literal["line", "points", "bars"] = "line",
    *,
    limits: tuple[float, float] = (-np.inf, np.inf),
    **options: Any,
) -> Series:
    """The means of ``values`` with their intervals, cut off at ``limits``.

    There are no intervals if one of the values comes from a single run.
    """
    low: list[float] | None = None
    high: list[float] | None = None
    if all(value.runs > 1 for value in values):
        low = [max(value.low, limits[0]) for value in values]
        high = [min(value.high, limits[1]) for value in values]
    means = [value.mean for value in values]
    return Series(name, x, means, style, kind, low=low, high=high, **options)


def curve_series(
    name: str, x: Sequence[Any], curves: Iterable[Sequence[float]], style: int, **options: Any
) -> Series:
    """A line through the means over runs of each point of ``curves``, with their intervals.

    Curves of different lengths, as early stopping leaves them, end where the shortest does.
    """
    points = [mean_interval(values) for values in zip(*curves, strict=False)]
    return estimates(name, x[: len(points)], points, style, markers=False, **options)
