"""Figures of collusion: the β sweep, codependence and the debiased share (collusion, Section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dissensus.diagnostics import THRESHOLDS
from dissensus.show.contents import Contents, Reference, SweepLine, interval_ends
from dissensus.show.figure import Figure, percent, plot_view
from dissensus.show.metrics import METRICS
from dissensus.show.plot import Panel, Rule, Series
from dissensus.show.sweep_files import debiased_share_of, judged_space, runs_as_sweep

#: Panels of a sweep: the label of the vertical axis, and the metrics.
_PANELS = {
    "error": ("ensemble_error", "member_error"),
    "DIV": ("diversity",),
    "accuracy": ("accuracy",),
    "share of DIV": ("debiased_share",),
}


def beta_sweep(contents: Contents) -> Figure | None:
    """ERR, mean ERR, DIV, accuracy and debiased share along β (collusion, Figures 2 and 3)."""
    lines = [line for line in all_lines(contents) if len(line.points) > 1]
    views = []
    for line in lines:
        panels = []
        for label, names in _PANELS.items():
            all_series = (_sweep_series(line, name, legend=len(names) > 1) for name in names)
            series = [each for each in all_series if each is not None]
            if series:
                title = " and ".join(each.name for each in series)
                shares = METRICS[names[0]].form == "percent"
                axes = ("β" if line.axis == "beta" else line.axis, label, series, title)
                panels.append(Panel(*axes, y_percent=shares, from_zero=label == "DIV"))
        errors = {
            f"{line.axis} = {point.x:g}": point.numbers["ensemble_error"].value
            for point in line.points
            if "ensemble_error" in point.numbers
        }
        views.append(plot_view(panels, "ERR", errors, (line.name,)))
    sources = dict.fromkeys(Reference(line.file, "rows") for line in lines)
    return Figure(views, list(sources)) if views else None


def all_lines(contents: Contents) -> list[SweepLine]:
    """The lines of sweeps, and one of the runs if they have three values of β or more."""
    own = runs_as_sweep(contents.methods)
    return [*contents.sweeps, *([own] if own is not None and len(own.points) > 2 else [])]


def _sweep_series(line: SweepLine, name: str, *, legend: bool) -> Series | None:
    points = [(point.x, point.numbers[name]) for point in line.points if name in point.numbers]
    if len(points) < 2:
        return None
    x, numbers = zip(*points, strict=True)
    low, high = interval_ends(numbers)
    looks: dict[str, Any] = {"style": "ink", "legend": legend}
    if name == "member_error":
        looks |= {"style": "muted", "dash": "dashed"}
    y = [number.value for number in numbers]
    return Series(METRICS[name].heading, x, y, low=low, high=high, **looks)


def codependence(contents: Contents) -> Figure | None:
    """How much ERR rises without random members (collusion, Section 6.1, Figure 4)."""
    lines, points, sources = [], [], []
    for style, method in enumerate(contents.methods):
        record = method.diagnosis
        if record is None or method.members < 2:
            continue
        x, y, low, high = [0.0], [0.0], [0.0], [0.0]
        error = record.number("codependence.ensemble_error")
        for drop in record.rows("codependence.drops"):
            dropped, rise, spread = map(drop.number, ("dropped", "relative", "spread"))
            if dropped is not None and rise is not None and dropped.value > 0:
                half = spread.value / error.value if spread and error and error.value else 0.0
                x.append(dropped.value / method.members)
                y.append(rise.value)
                low.append(rise.value - half)
                high.append(rise.value + half)
        if len(x) > 1:
            lines.append(Series(method.name, x, y, style, low=low, high=high))
            sources.append(record.reference("codependence"))
        index = record.number("codependence.index")
        if index is not None:
            point = (method.name, [method.name], [index.value], style)
            points.append(Series(*point, "points", legend=not lines))
    if not lines:
        return None
    axes = ("members left out", "rise of ERR", lines, "Without random members")
    panels = [Panel(*axes, y_percent=True, x_percent=True)]
    if points:
        rules = (Rule("y", 1.0, "unrelated errors"),)
        panels.append(Panel("", "", points, "Codependence index", from_zero=True, rules=rules))
    rises = {line.name: line.y[-1] for line in lines}
    what = f"The rise of ERR without {lines[0].x[-1]:.0%} of the members"
    return Figure([plot_view(panels, what, rises, form=percent)], sources)


def debiased_share(contents: Contents) -> Figure | None:
    """How much of the members' spread is a constant offset (collusion, Section 6.1, Figure 3)."""
    own, sizes, sources = {}, {}, []
    spaces: dict[str, dict[int, float]] = {}
    for style, method in enumerate(contents.methods):
        if method.diagnosis is None:
            continue
        part, own_space = judged_space(method.diagnosis)
        for space in method.diagnosis.at(f"debiased_share.{part}") or ():
            share, size = debiased_share_of(method.diagnosis, space)
            if share is not None:
                spaces.setdefault(space, {})[style] = share.value
                sources.append(share.source)
                if space == own_space:
                    own[style] = share.value
                    sizes[style] = size
    names = [method.name for method in contents.methods]

    def series(kind: Literal["bars", "points"], values: Mapping[int, float]) -> list[Series]:
        """One series for each method; the logarithm of the sizes has no place for 0."""
        return [
            Series(names[style], [names[style]], [value], style, kind, legend=False)
            for style, value in values.items()
            if value or kind == "bars"
        ]

    views = []
    for space, shares in {"where members are averaged": own, **spaces}.items():
        bars = series("bars", shares)
        panels = [Panel("", "share of the spread", bars, y_percent=True, y_range=(0.0, 1.0))]
        if shares is own and any(sizes.values()):
            rules = (Rule("y", THRESHOLDS.offset_size_suspicious, "counts as a sign"),)
            points = series("points", sizes)
            panels.append(Panel("", "share · DIV / ERR", points, y_log=True, rules=rules))
        what = f"The share of the spread that offsets explain ({space})"
        values = {names[style]: share for style, share in shares.items()}
        views += [plot_view(panels, what, values, (space,), percent)] if shares else []
    return Figure(views, sources) if views else None
