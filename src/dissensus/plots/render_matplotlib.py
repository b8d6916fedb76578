"""The page's figures for papers: matplotlib, one file each, in the common style of all figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dissensus.plots.plot import Matrix, Panel, Plot, Series, View
from dissensus.plots.style import COLORS, MARKERS, label, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "save"]

_INKS = {"ink": "#000000", "muted": "#888888", "accent": "#D55E00"}
_COLUMNS = 3


def save(figure: Figure, path: str | Path) -> Path:
    """Write ``figure`` to ``path``, ``.svg`` or ``.png``; equal figures are equal files."""
    path = Path(path)
    ending = path.suffix.lower().removeprefix(".")
    if ending not in ("svg", "png"):
        raise ValueError(f"a figure goes to .svg or .png, got {path.name}")
    (found,) = save_figure(figure, path.parent, path.stem, (ending,))
    return found


def draw(plot: Plot, choice: str | None = None) -> Figure:
    """``plot`` in the view that ``choice`` names, a part of its choices; the first one else."""
    view = _chosen(plot, choice)
    rows = -(-len(view.panels) // _COLUMNS)
    columns = -(-len(view.panels) // rows)
    square = any(isinstance(panel, Matrix) or panel.square for panel in view.panels)
    size = {"width": 2.7, "height": 2.6} if square else {"width": 3.4, "height": 2.6}
    figure, axes = new_figure(rows, columns, **size)
    for place, own in enumerate(axes.flat):
        if place >= len(view.panels):
            own.set_visible(False)
            continue
        panel = view.panels[place]
        if isinstance(panel, Matrix):
            _draw_matrix(own, panel)
        else:
            _draw_panel(own, panel)
    _add_legend(figure, axes)
    return figure


def _chosen(plot: Plot, choice: str | None) -> View:
    if choice is None:
        return plot.views[0]
    words = choice.split(",")
    for view in plot.views:
        if all(any(word.strip() in name for name in view.choice) for word in words):
            return view
    known = "; ".join(", ".join(view.choice) for view in plot.views[:12])
    raise ValueError(f"{plot.name} has no view {choice!r}; it has: {known}")


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for series in panel.series:
        _draw_series(axes, series)
    for direction, value, text in panel.rules:
        line = axes.axvline if direction == "x" else axes.axhline
        line(value, color="#888888", linestyle=":", linewidth=1.0)
        if text:
            where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "fontsize": 7.0}
            axes.annotate(text, (1, value), ha="right", va="bottom", **where)
    label(axes, panel.x, panel.y, panel.title)
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    elif panel.zero:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    for shown, axis, ends in (
        (panel.shares, axes.yaxis, axes.get_ylim()),
        (panel.x_shares, axes.xaxis, axes.get_xlim()),
    ):
        if shown:
            from matplotlib.ticker import PercentFormatter

            axis.set_major_formatter(PercentFormatter(1.0, int(ends[1] - ends[0] < 0.05)))
    if any(isinstance(value, str) for series in panel.series for value in series.x):
        axes.tick_params("x", labelrotation=30)


def _draw_series(axes: Axes, series: Series) -> None:
    color, marker = _look(series.style)
    common: dict[str, Any] = {"color": color, "label": series.name if series.legend else None}
    if series.kind == "bars":
        axes.bar(series.x, series.y, **common)
        return
    x, y = list(series.x), np.asarray(series.y)
    if series.kind == "points":
        around = None
        if series.low is not None and series.high is not None:
            around = np.stack([y - np.asarray(series.low), np.asarray(series.high) - y])
        axes.errorbar(x, y, around, fmt=marker, capsize=2.5, linewidth=1.0, **common)
        return
    if series.kind == "steps":
        axes.stairs(y[:-1], x, **common)
        return
    dash = "--" if series.dashed else "-"
    shown = marker if series.markers and len(x) <= 30 else None
    axes.plot(x, y, marker=shown, linestyle=dash, **common)
    if series.low is not None and series.high is not None:
        low, high = np.asarray(series.low), np.asarray(series.high)
        axes.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0)


def _look(style: int | str) -> tuple[str, str]:
    if isinstance(style, str):
        return _INKS[style], "o"
    return COLORS[style % len(COLORS)], MARKERS[style % len(MARKERS)]


def _draw_matrix(axes: Axes, matrix: Matrix) -> None:
    colors = "RdBu_r" if matrix.diverging else "Blues"
    axes.imshow(matrix.values, cmap=colors, vmin=matrix.low, vmax=matrix.high)
    axes.grid(visible=False)
    middle = matrix.low + 0.6 * (matrix.high - matrix.low)
    if max(matrix.values.shape) <= 6:
        for (row, column), value in np.ndenumerate(matrix.values):
            if np.isfinite(value):
                ink = "white" if value > middle else "black"
                place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.0}
                axes.text(column, row, f"{value:.2f}", color=ink, **place)
    label(axes, matrix.x, matrix.y, matrix.title)


def _add_legend(figure: Figure, axes: Any) -> None:
    """One legend for all panels, below them."""
    known: dict[str, Any] = {}
    for own in axes.flat:
        for handle, name in zip(*own.get_legend_handles_labels(), strict=True):
            known.setdefault(name, handle)
    if len(known) > 1:
        figure.legend(
            list(known.values()),
            list(known),
            loc="outside lower center",
            ncols=min(5, len(known)),
            frameon=False,
            fontsize=8.0,
        )
