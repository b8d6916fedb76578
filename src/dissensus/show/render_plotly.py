"""The Plotly renderer: plots as traces and axes in JSON, for the report's page.

Colours are tokens (``@0`` for the first style, ``@ink``, ``@accent``), which the page resolves for
light and dark; the page also places the panels, by the width of the screen. All text from files is
escaped, as Plotly reads some tags in text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dissensus.show.plot import Image, Matrix, Panel, Plot, Series

_DIGITS = 5

#: Markers by style, so that lines differ in more than their colour.
_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
_DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot"}

#: Dashes by style. Later lines lie on earlier ones and cover less of them, so that five equal
#: curves are all seen; from the sixth on patterns repeat in kind.
_LINES = (
    *("solid", "14px,7px", "9px,9px", "5px,10px", "2px,7px"),
    *("14px,4px,3px,4px", "7px,4px,3px,4px,3px,4px", "20px,6px"),
)


def plot_json(plot: Plot) -> dict[str, Any]:
    """What the page needs to draw ``plot``: traces, panels, and the sentence on what is seen."""
    traces: list[dict[str, Any]] = []
    panels = []
    seen: set[str] = set()
    for place, panel in enumerate(plot.panels):
        number = "" if place == 0 else str(place + 1)
        axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        if isinstance(panel, Matrix | Image):
            trace = _matrix(panel) if isinstance(panel, Matrix) else _image(panel)
            traces.append(trace | axes)
            panels.append(_square_axes(panel))
        elif isinstance(panel, Panel):
            for series in panel.series:
                first = series.legend and series.name not in seen
                traces += [trace | axes for trace in _traces(series, panel, first)]
                seen.add(series.name)
            panels.append(_axes(panel))
    legend = sum(bool(trace.get("showlegend")) for trace in traces) > 1
    return {"alt": plot.alt, "traces": traces, "panels": panels, "legend": legend}


def safe_text(text: str) -> str:
    """Text that Plotly shows as it is.

    >>> safe_text("<b>a</b> & b")
    '&lt;b&gt;a&lt;/b&gt; &amp; b'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# ---- panels of series ---------------------------------------------------------------------------


def _traces(series: Series, panel: Panel, first: bool) -> list[dict[str, Any]]:
    """The trace of a series, after that of its band; turned if the panel is."""
    traces = [*_band(series), _trace(series, panel, first)]
    if panel.horizontal:
        swap = {"x": "y", "y": "x", "error_y": "error_x"}
        traces = [{swap.get(key, key): value for key, value in trace.items()} for trace in traces]
        for trace in traces:
            if trace["type"] == "bar":
                trace["orientation"] = "h"
    return traces


def _trace(series: Series, panel: Panel, first: bool) -> dict[str, Any]:
    color = f"@{series.style}"
    trace = {**_common(series), "y": _values(series.y), "showlegend": first}
    trace["hovertemplate"] = _hover(series, panel)
    if series.hover is not None:
        trace["text"] = [safe_text(text) for text in series.hover]
    if series.kind == "bars":
        if panel.stacked:
            trace |= {"offsetgroup": "0", "base": _values(panel.bases(series))}
        return trace | {"type": "bar", "marker": {"color": color}} | _intervals(series, "@ink")
    marker, dash = {"color": color, "size": 7, "symbol": "circle"}, _DASHES[series.dash]
    if isinstance(series.style, int):
        # Later markers are smaller, so that those below them are seen.
        marker |= {"size": 11 - series.style % 5, "symbol": _MARKERS[series.style % len(_MARKERS)]}
        dash = _LINES[series.style % len(_LINES)] if series.dash == "solid" else dash
    if series.marker is not None:
        marker["symbol"] = _MARKERS[series.marker % len(_MARKERS)]
    line = {"color": color, "width": 2, "dash": dash}
    if series.kind == "points":
        trace |= {"type": "scatter", "mode": "markers", "marker": marker}
        return trace | _intervals(series, color)
    trace |= {"type": "scatter", "mode": "lines", "line": line}
    if series.kind == "steps":
        trace |= {"line": line | {"shape": "hv"}, "y": [*trace["y"], 0.0]}
        trace |= {"fill": "tozeroy", "fillcolor": f"{color}~"} if series.fill else {}
    elif series.markers and len(series.x) <= 30:
        trace |= {"mode": "lines+markers", "marker": marker}
    return trace


def _common(series: Series) -> dict[str, Any]:
    name = safe_text(series.name)
    common: dict[str, Any] = {"name": name, "legendgroup": name, "x": _values(series.x)}
    return common | ({"meta": {"style": series.style}} if isinstance(series.style, int) else {})


def _hover(series: Series, panel: Panel) -> str:
    """Plotly's template of what is shown at a point."""
    x, y = ("y", "x") if panel.horizontal else ("x", "y")
    where = ":.1%" if panel.x_percent else ""
    form = ".1%" if panel.y_percent else ".4g"
    lines = ["%{fullData.name}", f"{safe_text(panel.x) or 'at'}: %{{{x}{where}}}"]
    lines += [f"{safe_text(panel.y)}: %{{{y}:{form}}}"]
    lines += [] if series.hover is None else ["%{text}"]
    return "<br>".join(lines) + "<extra></extra>"


def _intervals(series: Series, color: str) -> dict[str, Any]:
    if series.low is None or series.high is None:
        return {}
    above = [high - y for high, y in zip(series.high, series.y, strict=True)]
    below = [y - low for low, y in zip(series.low, series.y, strict=True)]
    bars = {"type": "data", "symmetric": False, "array": _values(above), "color": color}
    return {"error_y": bars | {"arrayminus": _values(below), "thickness": 1.5, "width": 4}}


def _band(series: Series) -> list[dict[str, Any]]:
    if series.low is None or series.high is None or series.kind != "line":
        return []
    common, color = _common(series), f"@{series.style}"
    x, edges = common["x"], _values([*series.high, *reversed(list(series.low))])
    outline = {"x": [*x, *reversed(x)], "y": edges, "fill": "toself", "fillcolor": f"{color}~"}
    quiet = {"hoverinfo": "skip", "showlegend": False, "mode": "lines", "type": "scatter"}
    return [common | outline | quiet | {"line": {"width": 0, "color": color}}]


def _axes(panel: Panel) -> dict[str, Any]:
    x: dict[str, Any] = {"title": {"text": safe_text(panel.x)}}
    x |= {"type": "category"} if panel.names else {"zeroline": False}
    x |= _axis(panel.x_percent, panel.x_range, panel.x_log)
    y = _axis(panel.y_percent, panel.y_range, panel.y_log)
    y |= {"rangemode": "tozero"} if panel.from_zero else {}
    label = panel.y
    if panel.horizontal:
        title = {"title": {"text": safe_text(panel.y)}}
        x, y, label = y | title, {**x, "title": {}, "autorange": "reversed"}, panel.x
    if not panel.ticks:
        x, y = x | {"showticklabels": False}, y | {"showticklabels": False}
    rules = [{"axis": a, "at": at, "text": safe_text(text)} for a, at, text in panel.rules]
    words = {"title": safe_text(panel.title), "label": safe_text(label)}
    return {**words, "x": x, "y": y, "rules": rules, "style": panel.style, "square": panel.square}


def _axis(percent: bool, ends: tuple[float, float] | None, log: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"tickformat": ".0%"} if percent else {}
    if ends is not None:  # Plotly wants the exponents of a logarithmic axis
        axis["range"] = [math.log10(end) for end in ends] if log else list(ends)
    return axis | ({"type": "log"} if log else {})


# ---- matrices and images ------------------------------------------------------------------------


def _matrix(matrix: Matrix) -> dict[str, Any]:
    rows, columns = matrix.values.shape
    values = matrix.values.tolist()
    z = [[None if math.isnan(v) else round(v, _DIGITS) for v in row] for row in values]
    texts = [["" if v is None else f"{v:.2f}" for v in row] for row in z]
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
        "text": texts,
        "texttemplate": "%{text}" if max(rows, columns) <= 6 else "",
        "xgap": 1,
        "ygap": 1,
    }


def _image(image: Image) -> dict[str, Any]:
    z = (255 * image.pixels).round().astype(int).tolist()
    return {"type": "image", "z": z, "x": [], "hoverinfo": "skip", "showlegend": False}


def _square_axes(panel: Matrix | Image) -> dict[str, Any]:
    quiet: dict[str, Any] = {"showgrid": False, "zeroline": False}
    if isinstance(panel, Matrix):
        quiet["type"] = "category"
        style, below, label = panel.style, panel.x, f"rows: {panel.y}" if panel.y else ""
    else:
        quiet["showticklabels"] = False
        below = ", ".join(filter(None, (panel.label, panel.caption)))
        style, label = None, panel.side
    return {
        "title": safe_text(panel.title),
        "x": {"title": {"text": safe_text(below)}, **quiet},
        "y": {**quiet, "autorange": "reversed"},
        "label": safe_text(label),
        "style": style,
        "rules": [],
        "square": True,
    }


def _values(values: Iterable[Any]) -> list[Any]:
    """Plain numbers with as many digits as can be seen; text as it is, but safe."""
    return [
        safe_text(value) if isinstance(value, str) else float(f"{float(value):.{_DIGITS}g}")
        for value in values
    ]
