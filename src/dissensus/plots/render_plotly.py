"""Plots as Plotly's JSON: traces and axes, written by hand.

Colours are tokens (``@0`` for the first method, ``@ink``, ``@accent``), which the page resolves for
light and dark; where panels stand is decided there too, by the width of the screen. All text from
files is escaped, as Plotly reads some tags in text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dissensus.plots.plot import Matrix, Panel, Plot, Series, View

__all__ = ["plot_json", "safe_text"]

_DIGITS = 5

#: Markers by method, so that lines differ in more than their colour.
_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")


def plot_json(plot: Plot) -> dict[str, Any]:
    """What the page needs to draw ``plot``: its choices, and the traces and panels of each view."""
    return {
        "name": plot.name,
        "title": plot.title,
        "choices": list(plot.choices),
        "views": [_view(view) for view in plot.views],
    }


def safe_text(text: str) -> str:
    """Text that Plotly shows as it is.

    >>> safe_text("<b>a</b> & b")
    '&lt;b&gt;a&lt;/b&gt; &amp; b'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _view(view: View) -> dict[str, Any]:
    traces: list[dict[str, Any]] = []
    panels = []
    seen: set[str] = set()
    for place, panel in enumerate(view.panels):
        number = "" if place == 0 else str(place + 1)
        axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        if isinstance(panel, Matrix):
            traces.append(_matrix(panel) | axes)
            panels.append(_matrix_axes(panel))
            continue
        for series in panel.series:
            first = series.legend and series.name not in seen
            traces += [trace | axes for trace in _traces(series, panel, first)]
            seen.add(series.name)
        panels.append(_axes(panel))
    legend = sum(bool(trace.get("showlegend")) for trace in traces) > 1
    shown = {"traces": traces, "panels": panels, "legend": legend}
    return {"choice": list(view.choice), "alt": view.alt, **shown}


# ---- panels of lines ----------------------------------------------------------------------------


def _traces(series: Series, panel: Panel, first: bool) -> list[dict[str, Any]]:
    name, color = safe_text(series.name), f"@{series.style}"
    form = ".1%" if panel.shares else ".4g"
    common: dict[str, Any] = {"name": name, "legendgroup": name, "x": _values(series.x)}
    if isinstance(series.style, int):
        common["meta"] = {"method": series.style}
    where = ":.1%" if panel.x_shares else ""
    hover = f"%{{fullData.name}}<br>{safe_text(panel.x) or 'at'}: %{{x{where}}}<br>"
    hover += f"{safe_text(panel.y)}: %{{y:{form}}}<extra></extra>"
    trace: dict[str, Any] = {**common, "y": _values(series.y), "showlegend": first}
    trace["hovertemplate"] = hover
    if series.told is not None:
        trace["text"] = [safe_text(text) for text in series.told]
        trace["hovertemplate"] = hover.replace("<extra>", "<br>%{text}<extra>")
    if series.kind == "bars":
        trace |= {"type": "bar", "marker": {"color": color}}
        return [trace | _intervals(series, "@ink")]
    marker = {"color": color, "size": 7, "symbol": _symbol(series.style)}
    line = {"color": color, "width": 2, "dash": _dash(series)}
    if series.kind == "points":
        trace |= {"type": "scatter", "mode": "markers", "marker": marker | {"size": 9}}
        return [trace | _intervals(series, color)]
    trace |= {"type": "scatter", "mode": "lines", "line": line}
    if series.kind == "steps":
        trace["line"] = line | {"shape": "hv"}
        trace |= {"fill": "tozeroy", "fillcolor": f"{color}~"} if len(panel.series) < 3 else {}
    elif series.markers and len(series.x) <= 30:
        trace |= {"mode": "lines+markers", "marker": marker}
    return [*_band(series, common, color), trace]


def _intervals(series: Series, color: str) -> dict[str, Any]:
    if series.low is None or series.high is None:
        return {}
    above = [high - y for high, y in zip(series.high, series.y, strict=True)]
    below = [y - low for low, y in zip(series.low, series.y, strict=True)]
    bars = {"type": "data", "symmetric": False, "array": _values(above), "color": color}
    return {"error_y": bars | {"arrayminus": _values(below), "thickness": 1.5, "width": 4}}


def _band(series: Series, common: dict[str, Any], color: str) -> list[dict[str, Any]]:
    if series.low is None or series.high is None:
        return []
    x = common["x"]
    edges = _values([*series.high, *reversed(series.low)])
    outline = {"x": [*x, *reversed(x)], "y": edges, "fill": "toself", "fillcolor": f"{color}~"}
    quiet = {"hoverinfo": "skip", "showlegend": False, "mode": "lines", "type": "scatter"}
    return [common | outline | quiet | {"line": {"width": 0, "color": color}}]


def _dash(series: Series) -> str:
    """Solid, dashed where asked, dotted where colours begin again."""
    again = isinstance(series.style, int) and series.style >= len(_MARKERS)
    return "dash" if series.dashed else "dot" if again else "solid"


def _symbol(style: int | str) -> str:
    return _MARKERS[style % len(_MARKERS)] if isinstance(style, int) else "circle"


def _axes(panel: Panel) -> dict[str, Any]:
    y: dict[str, Any] = {}
    y |= {"tickformat": ".0%"} if panel.shares else {}
    y |= {"range": list(panel.y_range)} if panel.y_range else {}
    y |= {"rangemode": "tozero"} if panel.zero else {}
    named = any(isinstance(value, str) for series in panel.series for value in series.x)
    x: dict[str, Any] = {"title": {"text": safe_text(panel.x)}}
    x |= {"type": "category"} if named else {"zeroline": False}
    x |= {"tickformat": ".0%"} if panel.x_shares else {}
    rules = [{"axis": a, "at": at, "text": safe_text(text)} for a, at, text in panel.rules]
    words = {"title": safe_text(panel.title), "label": safe_text(panel.y)}
    place = {"method": panel.method, "square": panel.square}
    return {**words, "x": x, "y": y, "rules": rules, **place}


# ---- matrices -----------------------------------------------------------------------------------


def _matrix(matrix: Matrix) -> dict[str, Any]:
    rows, columns = matrix.values.shape
    z = [[None if math.isnan(v) else round(v, _DIGITS) for v in row] for row in matrix.values]
    shown = [["" if v is None else f"{v:.2f}" for v in row] for row in z]
    rows_are = safe_text(matrix.y or matrix.x)
    hover = f"{rows_are} %{{y}}, {safe_text(matrix.x)} %{{x}}: %{{z:.3f}}<extra></extra>"
    return {
        "type": "heatmap",
        "z": z,
        "x": [str(number) for number in range(columns)],
        "y": [str(number) for number in range(rows)],
        "zmin": matrix.low,
        "zmax": matrix.high,
        "colorscale": "@diverging" if matrix.diverging else "@sequential",
        "showscale": False,
        "hovertemplate": hover,
        "text": shown,
        "texttemplate": "%{text}" if max(rows, columns) <= 6 else "",
        "xgap": 1,
        "ygap": 1,
    }


def _matrix_axes(matrix: Matrix) -> dict[str, Any]:
    quiet = {"type": "category", "showgrid": False, "zeroline": False}
    return {
        "title": safe_text(matrix.title),
        "x": {"title": {"text": safe_text(matrix.x)}, **quiet},
        "y": {**quiet, "autorange": "reversed"},
        "label": f"rows: {safe_text(matrix.y)}" if matrix.y else "",
        "method": matrix.method,
        "rules": [],
        "square": True,
    }


def _values(values: Sequence[Any]) -> list[Any]:
    """Plain numbers with as many digits as can be seen; text as it is, but safe."""
    return [
        safe_text(value) if isinstance(value, str) else float(f"{float(value):.{_DIGITS}g}")
        for value in values
    ]
