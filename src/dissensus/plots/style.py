"""Drawing with matplotlib by hand, for figures that are no :class:`~dissensus.plots.Plot` yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dissensus.plots.render_matplotlib import COLORS, MARKERS, STYLE, import_matplotlib, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLORS", "MARKERS", "add_line", "label", "new_figure", "save_figure"]


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 3.6, height: float = 2.8, **options: Any
) -> tuple[Figure, NDArray[Any]]:
    """A figure and its axes ``[rows, columns]``; ``width`` and ``height`` of one panel."""
    matplotlib = import_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def add_line(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    number: int = 0,
    *,
    band: tuple[ArrayLike, ArrayLike] | None = None,
    name: str | None = None,
    markers: bool = True,
    **options: Any,
) -> None:
    """Draw line ``number`` (its colour and marker) with an error band from ``band[0]`` to [1]."""
    color = options.pop("color", COLORS[number % len(COLORS)])
    marker = MARKERS[number % len(MARKERS)] if markers else None
    axes.plot(np.asarray(x), np.asarray(y), color=color, marker=marker, label=name, **options)
    if band is not None:
        low, high = (np.asarray(edge) for edge in band)
        axes.fill_between(np.asarray(x), low, high, color=color, alpha=0.18, linewidth=0)


def label(axes: Axes, x: str, y: str, title: str = "", *, legend: bool = False) -> None:
    """Name both axes and the panel; ``legend`` adds a small one."""
    axes.set_xlabel(x, fontsize=9.0)
    axes.set_ylabel(y, fontsize=9.0)
    if title:
        axes.set_title(title, loc="left", fontsize=10.0)
    if legend:
        axes.legend(fontsize=8.0, frameon=False)


def save_figure(figure: Figure, folder: str | Path, name: str, formats: Any) -> list[Path]:
    """Write ``name`` in each of ``formats``."""
    return [save(figure, Path(folder) / f"{name}.{ending}") for ending in formats]
