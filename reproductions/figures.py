"""Figures: the parts of plots that studies draw with, and the lines that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dissensus.show import AnyPanel, Image, Matrix, Panel, Plot, Rule, Series, Text
from dissensus.show import draw as draw
from dissensus.show import estimates as estimates
from dissensus.show import histogram as histogram
from dissensus.show import save as save
from reproductions.statistics import mean_interval

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


def curve_series(
    name: str, x: Sequence[Any], curves: Iterable[Sequence[float]], style: int, **options: Any
) -> Series:
    """A line through the means over runs of each point of ``curves``, with their intervals.

    Curves of different lengths, as early stopping leaves them, end where the shortest does.
    """
    points = [mean_interval(values) for values in zip(*curves, strict=False)]
    return estimates(name, x[: len(points)], points, style, markers=False, **options)
