"""The matplotlib renderer: plots as figures for papers, SVG or PNG.

There is no global state, and the same plot gives the same bytes. The colours are those of Okabe
and Ito, which colour-blind readers can tell apart; lines differ in their markers too. matplotlib
belongs to the extra ``plots`` and is imported when something is drawn.
"""

from __future__ import annotations

import textwrap
import warnings
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dissensus.show.plot import AnyPanel, Image, Matrix, Panel, Plot, Series, Text
from dissensus.tools.files import replace_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Blue, vermilion, green, purple, orange, sky, yellow and black; two more for ten classes.
_COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000"),
    *("#8C564B", "#7F7F7F"),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine has it
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "figure.dpi": 100.0,
    "savefig.dpi": 150.0,
    "svg.hashsalt": "dissensus",  # ids of SVG elements follow from it instead of from chance
    "svg.fonttype": "path",
}

_INKS = {"ink": "#000000", "muted": "#888888", "accent": "#D55E00"}
_DASHES = {"solid": "-", "dashed": "--", "dotted": ":"}
#: The width and height of a panel in inches.
_SIZES = {"panel": (3.4, 2.6), "square": (2.7, 2.6), "image": (1.7, 2.1)}
#: Lines of more points than this have no markers.
_MARKED = 30
#: Points of panels with more than this are small.
_CROWD = 100


def save(plot: Plot | Figure, path: str | Path) -> Path:
    """Draw ``plot`` and write it to ``path``, ``.svg`` or ``.png``; equal plots are equal files.

    A figure of :func:`draw` is written as it is.
    """
    path = Path(path)
    ending = path.suffix.lower().removeprefix(".")
    if ending not in ("svg", "png"):
        raise ValueError(f"a figure must be .svg or .png, got {path.name}")
    figure = draw(plot) if isinstance(plot, Plot) else plot
    nothing: dict[str, Any] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    write = partial(figure.savefig, format=ending, metadata=nothing[ending])
    with _import_matplotlib().rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that is missing, a layout that failed
        replace_atomically(path, write)
    return path


def draw(plot: Plot) -> Figure:
    """Draw ``plot``; the figure can be changed before it is saved, and notebooks show it."""
    matplotlib = _import_matplotlib()
    rows, columns = plot.grid
    width, height = plot.size or _SIZES[_shape(plot)]
    shared: Any = False if plot.share_y == "none" else plot.share_y
    with matplotlib.rc_context(_STYLE):
        figure = _figure_class()(figsize=(width * columns, height * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey=shared)
        for place, panel_axes in enumerate(axes.flat):
            panel = plot.panels[place] if place < len(plot.panels) else Text()
            _draw_any(panel_axes, panel)
            if shared and place % columns:
                panel_axes.set_ylabel("")
        _add_legend(figure, axes)
    return figure


@cache
def _figure_class() -> type[Figure]:
    """matplotlib's figure with an image of its own: notebooks show others only if pyplot did."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            image = BytesIO()
            self.savefig(image, format="png", dpi=80, metadata={"Software": None})
            return image.getvalue()

    return NotebookFigure


def _import_matplotlib() -> Any:
    """matplotlib, or an error that says what to install."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ValueError(
            "figures need matplotlib, which is not installed: pip install 'dissensus[plots]'"
        ) from error
    return matplotlib


def _draw_any(axes: Axes, panel: AnyPanel) -> None:
    if isinstance(panel, Panel):
        _draw_panel(axes, panel)
    elif isinstance(panel, Matrix):
        _draw_matrix(axes, panel)
    elif isinstance(panel, Image):
        _draw_image(axes, panel)
    elif panel.text:
        axes.set_axis_off()
        axes.text(0.05, 0.5, panel.text, fontsize=11.0, va="center")
    else:
        axes.set_visible(False)


def _shape(plot: Plot) -> str:
    if any(isinstance(panel, Image) for panel in plot.panels):
        return "image"
    square = any(isinstance(p, Matrix) or getattr(p, "square", False) for p in plot.panels)
    return "square" if square else "panel"


# ---- panels of series ---------------------------------------------------------------------------


def _draw_panel(axes: Axes, panel: Panel) -> None:
    names, (offsets, width) = panel.names, _offsets(panel)
    for series, offset in zip(panel.series, offsets, strict=True):
        x = np.array([names.index(v) + offset if isinstance(v, str) else v for v in series.x])
        _draw_series(axes, panel, series, x, width)
    for rule in panel.rules:
        line = axes.axvline if rule.axis == "x" else axes.axhline
        line(rule.at, color="#888888", linestyle=":", linewidth=1.0)
        if rule.text:
            where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "fontsize": 7.0}
            axes.annotate(rule.text, (1, rule.at), ha="right", va="bottom", **where)
    _finish_axes(axes, panel)


def _offsets(panel: Panel) -> tuple[list[float], float]:
    """Bars and points that share a name stand side by side: how far off, and how wide each is."""
    beside = [series for series in panel.series if series.kind in ("bars", "points")]
    places = [name for series in beside for name in set(series.x) if isinstance(name, str)]
    if panel.stacked or len(set(places)) == len(places):
        return [0.0] * len(panel.series), 0.7
    width = 0.8 / len(beside)
    middle = (len(beside) - 1) / 2
    offsets = {id(series): (number - middle) * width for number, series in enumerate(beside)}
    return [offsets.get(id(series), 0.0) for series in panel.series], 0.92 * width


def _draw_series(axes: Axes, panel: Panel, series: Series, x: NDArray[Any], width: float) -> None:
    color, marker = _look(series)
    y, errors, turned = np.asarray(series.y), _errors(series), panel.horizontal
    label = _escape(series.name) if series.legend and series.name else None
    common: dict[str, Any] = {"color": color, "label": label}
    intervals: dict[str, Any] = {"xerr" if turned else "yerr": errors}
    if series.kind == "bars":
        bars, start = (axes.barh, "left") if turned else (axes.bar, "bottom")
        base: dict[str, Any] = {start: panel.bases(series), "ecolor": "#333333"}
        bars(x, y, width, **base, **intervals, **common)
    elif series.kind == "points":
        crowded = sum(len(other.x) for other in panel.series) > _CROWD
        common |= {"markersize": 2.5, "capsize": 0.0} if crowded else {"capsize": 2.5}
        across, along = (y, x) if turned else (x, y)
        axes.errorbar(across, along, fmt=marker, linewidth=1.0, **intervals, **common)
    elif series.kind == "steps":
        axes.stairs(y, x, **common)
        if series.fill:
            axes.stairs(y, x, color=color, fill=True, alpha=0.3)
    else:
        marked = series.markers and len(x) <= _MARKED
        common |= {"linestyle": _DASHES[series.dash], "marker": marker if marked else None}
        axes.plot(x, y, **common)
        if series.low is not None and series.high is not None:
            band: dict[str, Any] = {"color": color, "alpha": 0.16, "linewidth": 0}
            axes.fill_between(x, np.asarray(series.low), np.asarray(series.high), **band)


def _look(series: Series) -> tuple[str, str]:
    """The colour and the marker of a series."""
    if isinstance(series.style, str):
        return _INKS[series.style], _MARKERS[series.marker or 0]
    number = series.style if series.marker is None else series.marker
    return _COLORS[series.style % len(_COLORS)], _MARKERS[number % len(_MARKERS)]


def _escape(text: str) -> str:
    """``text`` without mathematics: matplotlib takes what stands between dollars for a formula."""
    return text.replace("$", r"\$")


def _errors(series: Series) -> NDArray[Any] | None:
    if series.low is None or series.high is None:
        return None
    y = np.asarray(series.y)
    around = np.stack([y - np.asarray(series.low), np.asarray(series.high) - y])
    return around.clip(min=0.0)  # rounding


def _finish_axes(axes: Axes, panel: Panel) -> None:
    """Labels, limits, scales and ticks."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    turned = panel.horizontal
    _label_axes(axes, *((panel.y, panel.x) if turned else (panel.x, panel.y)), panel.title)
    x, y = ("y", "x") if turned else ("x", "y")
    x_axis, y_axis = (axes.yaxis, axes.xaxis) if turned else (axes.xaxis, axes.yaxis)
    for letter, axis, log, ends, percent in (
        (x, x_axis, panel.x_log, panel.x_range, panel.x_percent),
        (y, y_axis, panel.y_log, panel.y_range, panel.y_percent),
    ):
        axes.set(**({f"{letter}scale": "log"} if log else {}))
        axes.set(**({f"{letter}lim": ends} if ends is not None else {}))
        low, high = axis.get_view_interval()
        if percent:
            axis.set_major_formatter(PercentFormatter(1.0, int(high - low < 0.05)))
    if panel.x_log:
        _tick_values(x_axis, panel)
    if panel.from_zero and panel.y_range is None:
        axes.set(**{f"{y}lim": (min(0.0, y_axis.get_view_interval()[0]), None)})
    names = panel.names
    if names:
        figure: Any = axes.figure
        width = figure.get_figwidth() / figure.axes[-1].get_gridspec().ncols
        slanted = not turned and sum(map(len, names)) > 9 * width
        slant: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        x_axis.set_ticks(range(len(names)), names, fontsize=8.0, **(slant if slanted else {}))
        edges = (-0.5, len(names) - 0.5)
        axes.set(**{f"{x}lim": edges[::-1] if turned else edges})
    elif not panel.x_log and all(
        isinstance(value, int | np.integer) for series in panel.series for value in series.x
    ):  # x counts something: epochs, steps, members
        x_axis.set_major_locator(MaxNLocator("auto", integer=True))
    if not panel.ticks:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
    if panel.legend:
        place: Any = panel.legend
        axes.legend(loc=place, fontsize=7.5)


def _tick_values(axis: Any, panel: Panel) -> None:
    """Ticks of a logarithmic axis at the values themselves, if they are few."""
    values = sorted({float(value) for series in panel.series for value in series.x})
    if len(values) <= 8:
        axis.set_ticks(values, [f"{value:g}" for value in values])
        axis.set_ticks([], minor=True)


def _label_axes(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(textwrap.fill(y, 36))
    axes.set_title(_escape(title))


# ---- matrices and images ------------------------------------------------------------------------


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
    rows, columns = matrix.values.shape
    axes.set_xticks(range(columns) if columns <= 6 else range(0, columns, 5))
    axes.set_yticks(range(rows) if rows <= 6 else range(0, rows, 5))
    _label_axes(axes, matrix.x, matrix.y, matrix.title)


def _draw_image(axes: Axes, image: Image) -> None:
    axes.imshow(image.pixels, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.set_frame_on(False)
    ink = _INKS["accent"] if image.alert else "black"
    axes.set_title(_escape(image.title), loc="center", fontsize=7.5, pad=2.0, color=ink)
    if image.label:
        below: dict[str, Any] = {"fontweight": "bold", "fontsize": 8.0, "ha": "center", "va": "top"}
        axes.text(0.5, -0.03, _escape(image.label), transform=axes.transAxes, **below)
    if image.label or image.caption:  # the caption stands below the line of the label
        axes.set_xlabel("\n" + _escape(image.caption), fontsize=7.5)
    if image.side:
        axes.set_ylabel(image.side, fontsize=7.0, rotation=0, ha="right", va="center")


def _add_legend(figure: Figure, axes: Any) -> None:
    """One legend below all panels for those that have none of their own."""
    handles: dict[str, Any] = {}
    for panel_axes in axes.flat:
        if panel_axes.get_legend() is None:
            for handle, name in zip(*panel_axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
    if len(handles) > 1:
        columns = min(5, len(handles))
        style: dict[str, Any] = {"ncols": columns, "fontsize": 8.0}
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", **style)
