"""Plots before they are drawn: data classes for series, panels, matrices and images.

A :class:`Plot` describes what to draw, and knows nothing of the medium:
:func:`~dissensus.show.renderer.save` writes it as SVG or PNG, and :func:`plot_json` hands it to the
script of the report's page. The pattern is always the same: numbers to series, series to panels,
panels to a plot.

>>> beta, mean, low, high = [0.0, 0.5, 1.0], [0.2, 0.1, 0.3], [0.1, 0.0, 0.2], [0.3, 0.2, 0.4]
>>> joint = Series("joint", beta, mean, 0, low=low, high=high)        # a line with a band
>>> single = Series("one network", [0.0, 1.0], [0.4, 0.4], "muted", dash="dotted")
>>> plot = Plot([Panel("β", "test error", [joint, single], title="digits", y_range=(0.0, 0.5))])

``dissensus.show.save(plot, "beta.svg")`` draws it. Bars and points over names stand side by side,
one group for each name; ``horizontal=True`` turns the panel, with the names on the left:

>>> msp = Series("MSP", ["ADP", "LDR", "independent"], [0.90, 0.88, 0.91], 0, "bars")
>>> pds = Series("PDS", ["ADP", "LDR", "independent"], [0.93, 0.95, 0.90], 1, "bars")
>>> plot = Plot([Panel("", "AUROC", [msp, pds], horizontal=True, y_range=(0.5, 1.0))])

:func:`histogram` makes a series of values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = Sequence[float] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Series:
    """One line, or one set of points, bars or steps, of a panel.

    ``x`` are numbers, or names that become the ticks of the axis. ``style`` is a number, which
    chooses colour and marker, or a neutral ink: "ink", "muted", "accent". ``low`` and ``high`` are
    the edges of a band around a line, or of the intervals of points and bars. ``steps`` are a
    histogram: ``x`` are the edges of its bins and ``y`` is one shorter. ``hover`` is text for each
    point, which only interactive plots show.
    """

    name: str
    x: Sequence[float] | Sequence[str] | NDArray[Any]
    y: Values
    style: int | str = 0
    kind: Literal["line", "points", "bars", "steps"] = "line"
    low: Values | None = None
    high: Values | None = None
    dash: Literal["solid", "dashed", "dotted"] = "solid"
    markers: bool = True
    marker: int | None = None
    fill: bool = False
    legend: bool = True
    hover: Sequence[str] | None = None


class Rule(NamedTuple):
    """A thin line across a panel, at the value ``at`` of the axis "x" or "y"."""

    axis: str
    at: float
    text: str = ""


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes; ``x`` and ``y`` are their labels.

    ``legend`` is a place in the panel ("upper left", "best") for a legend of its own; otherwise the
    series are named in the plot's common legend. A ``horizontal`` panel has ``x`` on the vertical
    axis, from the top down, and ``y`` on the horizontal one. ``style`` is the number of the series
    style that the whole panel belongs to, so that a page can hide both together.
    """

    x: str
    y: str
    series: Sequence[Series]
    title: str = ""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    x_percent: bool = False
    y_percent: bool = False
    x_log: bool = False
    y_log: bool = False
    from_zero: bool = False
    square: bool = False
    horizontal: bool = False
    stacked: bool = False
    ticks: bool = True
    rules: Sequence[Rule] = ()
    legend: str = ""
    style: int | None = None

    @property
    def names(self) -> list[str]:
        """The names along ``x``, each once; none where ``x`` are numbers."""
        every = (value for series in self.series for value in series.x)
        return list(dict.fromkeys(value for value in every if isinstance(value, str)))

    def bases(self, series: Series) -> list[float]:
        """Where the bars of ``series`` begin: at 0, or on top of those before it if stacked."""
        heights: dict[Any, float] = {}
        for earlier in self.series[: self.series.index(series)] if self.stacked else ():
            for x, height in zip(earlier.x, earlier.y, strict=True):
                heights[x] = heights.get(x, 0.0) + float(height)
        return [heights.get(x, 0.0) for x in series.x]


@dataclass(frozen=True, eq=False)
class Matrix:
    """A heat map between ``low`` and ``high``; NaN is left empty, small matrices show numbers."""

    title: str
    values: NDArray[Any]
    low: float = 0.0
    high: float = 1.0
    diverging: bool = False
    x: str = "member"
    y: str = ""
    style: int | None = None


@dataclass(frozen=True, eq=False)
class Image:
    """An image ``[channels, height, width]`` in [0, 1], or in 0…255 as bytes, grey or colour.

    ``title`` stands above it (in the accent colour with ``alert``), ``label`` in bold below it,
    ``caption`` below that, and ``side`` to its left.
    """

    image: NDArray[Any]
    title: str = ""
    label: str = ""
    caption: str = ""
    side: str = ""
    alert: bool = False
    inverted: bool = False

    @property
    def pixels(self) -> NDArray[np.float64]:
        """``[height, width, 3]`` in [0, 1]."""
        image = np.asarray(self.image, dtype=np.float64)
        image = image / 255 if self.image.dtype == np.uint8 else image
        colors = np.moveaxis(image[:3] if len(image) >= 3 else image[:1].repeat(3, 0), 0, -1)
        pixels: NDArray[np.float64] = colors.clip(0, 1)
        return 1 - pixels if self.inverted else pixels


@dataclass(frozen=True)
class Text:
    """A place without axes: some words, or nothing."""

    text: str = ""


AnyPanel = Panel | Matrix | Image | Text


@dataclass(frozen=True, eq=False)
class Plot:
    """Panels in rows of ``columns`` (as suits their number if None); ``alt`` says what is seen.

    ``size`` is the width and height of a panel in inches. ``share_y`` gives "all" panels, or those
    of a "row", the same vertical axis.
    """

    panels: Sequence[AnyPanel]
    alt: str = ""
    columns: int | None = None
    size: tuple[float, float] | None = None
    share_y: Literal["none", "row", "all"] = "none"

    @property
    def grid(self) -> tuple[int, int]:
        """The number of rows and columns."""
        count = max(1, len(self.panels))
        if self.columns is not None:
            return -(-count // self.columns), self.columns
        rows = -(-count // 3)
        return rows, -(-count // rows)


def histogram(
    name: str, values: ArrayLike, edges: NDArray[Any], style: int | str = 0, **options: Any
) -> Series:
    """The share of ``values`` in each bin; those beyond the edges count in the first or last bin.

    >>> list(histogram("pds", [0.1, 0.2, 0.9, 7.0], np.array([0.0, 0.5, 1.0])).y)
    [0.5, 0.5]
    """
    clipped = np.clip(np.asarray(values), edges[0], edges[-1])
    counts, _ = np.histogram(clipped, edges)
    share = (counts / max(1, clipped.size)).tolist()
    return Series(name, edges.tolist(), share, style, "steps", **options)


# ---- plots as JSON ------------------------------------------------------------------------------

_DIGITS = 5


def plot_json(plot: Plot) -> dict[str, Any]:
    """``plot`` for the script of the page: every field by its name, except those that are empty.

    Numbers have as many digits as can be seen, and NaN becomes null.

    >>> line = Series("ERR", [1, 2], [0.123456, float("nan")], "ink")
    >>> plot_json(Plot([Panel("epoch", "ERR", [line])]))["panels"][0]["series"][0]["y"]
    [0.12346, None]
    """
    panels = [_plain(panel) | {"kind": type(panel).__name__} for panel in plot.panels]
    return {"alt": plot.alt, "panels": panels}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        values = {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
        return {k: v for k, v in values.items() if v not in (None, "") and v is not False}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
