"""One look for all figures: no global state, the same bytes from the same records.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; lines differ in
their markers too. matplotlib belongs to the extra ``plots`` and is imported when something is
drawn.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dissensus.files import replace_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLORS", "MARKERS", "add_line", "label", "new_figure", "save_figure"]

#: Okabe and Ito's palette: blue, vermilion, green, purple, orange, sky, yellow, black.
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#F0E442",
    "#000000",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine has it
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "figure.dpi": 100.0,
    "savefig.dpi": 150.0,
    "svg.hashsalt": "dissensus",  # ids of SVG elements follow from it instead of from chance
    "svg.fonttype": "path",
}


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 3.6, height: float = 2.8, **options: Any
) -> tuple[Figure, NDArray[Any]]:
    """A figure and its axes ``[rows, columns]``; ``width`` and ``height`` are those of one panel.

    ``options`` go to ``Figure.subplots``, such as ``sharex=True``.
    """
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
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


def save_figure(
    figure: Figure, folder: str | Path, name: str, formats: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Write ``name.svg`` and ``name.png``, without date or version, so that equal is equal."""
    matplotlib = _matplotlib()
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    paths = []
    for ending in formats:
        path = Path(folder) / f"{name}.{ending}"
        with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
            warnings.simplefilter("error")  # a glyph that is missing, a layout that failed
            write = partial(figure.savefig, format=ending, metadata=metadata[ending])
            replace_atomically(path, write)
        paths.append(path)
    return paths


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ValueError(
            "figures need matplotlib, which is not installed: pip install 'dissensus[plots]'"
        ) from error
    return matplotlib
