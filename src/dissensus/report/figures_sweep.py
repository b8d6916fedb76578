"""The β sweep: from independent to joint training (collusion, Figures 2 and 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dissensus.plots import Panel, Plot, Series
from dissensus.report.figure import Cell, Figure, View, listed, short
from dissensus.report.found import Contents, Method, Number, Record, Source, Sweep, SweepLine
from dissensus.report.found import SweepPoint as Point

__all__ = ["beta_sweep", "runs_as_sweep"]

#: Panels of a sweep: the numbers in them, what their axis says, and whether they are shares.
_PANELS: tuple[tuple[tuple[str, ...], str, bool], ...] = (
    (("err", "member_err"), "error", False),
    (("div",), "DIV", False),
    (("accuracy",), "accuracy", True),
    (("debiased",), "share of DIV", True),
)
_NAMES = {
    "err": "ERR (ensemble)",
    "member_err": "mean ERR (members)",
    "div": "DIV",
    "accuracy": "accuracy",
    "debiased": "explained by constant offsets",
}


def beta_sweep(contents: Contents) -> Figure | None:
    """ERR, mean ERR, DIV, accuracy and debiased share along β (collusion, Figures 2 and 3)."""
    sweeps = list(contents.sweeps)
    made = runs_as_sweep(contents.methods)
    sweeps += [] if made is None else [made]
    chosen = [(sweep, line) for sweep in sweeps for line in sweep.lines if len(line.points) > 1]
    if not chosen:
        return None
    views, rows = [], []
    for sweep, line in chosen:
        seen = _seen_in_sweep(sweep, line)
        views.append(View(Plot(_sweep_panels(sweep, line), seen), (_line_name(sweep, line),)))
        for point in line.points:
            rows.append(_sweep_row(sweep, line, point))
    banded = any(sweep.repeats > 1 for sweep, _ in chosen)
    band = " Bands are ± one standard deviation over repeats." if banded else ""
    return Figure(
        "beta-sweep",
        "From independent to joint training",
        "β = 0 trains each member for itself, β = 1 trains the ensemble alone. ERR is the "
        "ensemble's error, mean ERR its members', DIV the difference." + band,
        views,
        views[0].plot.alt,
        ("sweep", "at", *_NAMES.values(), "verdicts"),
        rows,
        [Source(sweep.file, "rows") for sweep in dict.fromkeys(s for s, _ in chosen)],
        ("sweep",) if len(views) > 1 else (),
    )


def runs_as_sweep(methods: Sequence[Method]) -> Sweep | None:
    """Runs with three or more different β on the same data, as a sweep of one repeat."""
    groups: dict[tuple[str, int, str], dict[float, Method]] = {}
    for method in methods:
        if method.beta is not None:
            own = groups.setdefault((method.data, method.members, method.split), {})
            own.setdefault(method.beta, method)
    (data, members, split), found = max(
        groups.items(), key=lambda item: len(item[1]), default=(("", 0, ""), {})
    )
    if len(found) < 3:
        return None
    points = []
    for beta, method in sorted(found.items()):
        numbers = dict(method.numbers)
        share = None if method.diagnosis is None else _own_share(method.diagnosis)
        points.append(Point(beta, numbers | ({} if share is None else {"debiased": share})))
    words = f"{data}, {members} members, one run each, {split}"
    first = next(iter(found.values()))
    return Sweep("the runs", first.path, "beta", words, 1, (SweepLine("", tuple(points)),))


def _line_name(sweep: Sweep, line: SweepLine) -> str:
    words = f"{sweep.name}: {line.label}" if line.label else f"{sweep.name} ({sweep.setting})"
    return words if len(words) <= 70 else words[:69] + "…"


def _sweep_panels(sweep: Sweep, line: SweepLine) -> list[Panel]:
    panels = []
    for names, label, shares in _PANELS:
        series = []
        for name in names:
            points = [point for point in line.points if name in point.numbers]
            if len(points) < 2:
                continue
            numbers = [point.numbers[name] for point in points]
            low, high = _band(numbers)
            second = name == "member_err"
            style = "muted" if second else "ink"
            x = [point.x for point in points]
            y = [number.value for number in numbers]
            series.append(
                Series(
                    _NAMES[name],
                    x,
                    y,
                    style,
                    low=low,
                    high=high,
                    dash="dashed" if second else "solid",
                )
            )
        if series:
            axis = "β" if sweep.axis == "beta" else sweep.axis
            if len(series) == 1:
                series = [replace(series[0], legend=False)]
            title = _NAMES[names[0]] if len(series) == 1 else "ERR and mean ERR"
            zero = names == ("div",)
            panels.append(Panel(axis, label, series, title, y_percent=shares, from_zero=zero))
    return panels


def _band(numbers: Sequence[Number]) -> tuple[list[float] | None, list[float] | None]:
    if not all(number.low is not None and number.high is not None for number in numbers):
        return None, None
    return [float(n.low or 0.0) for n in numbers], [float(n.high or 0.0) for n in numbers]


def _sweep_row(sweep: Sweep, line: SweepLine, point: Point) -> list[Cell]:
    cells: list[Cell] = [_line_name(sweep, line), f"{sweep.axis} = {point.x:g}"]
    for name in _NAMES:
        form = "percent" if name in ("accuracy", "debiased") else "short"
        cells.append((point.numbers[name], form) if name in point.numbers else "–")
    told = ", ".join(f"{count} {word}" for word, count in point.verdicts.items())
    return [*cells, told or "–"]


def _seen_in_sweep(sweep: Sweep, line: SweepLine) -> str:
    first, last = line.points[0], line.points[-1]
    axis = "β" if sweep.axis == "beta" else sweep.axis
    where = f"In {_line_name(sweep, line)}, from {axis} = {first.x:g} to {last.x:g}"
    told = [
        f"{name} goes from {short(first.numbers[key].value)} to {short(last.numbers[key].value)}"
        for key, name in (("err", "ERR"), ("member_err", "mean ERR"), ("div", "DIV"))
        if key in first.numbers and key in last.numbers
    ]
    able = [point for point in line.points if "err" in point.numbers]
    lowest = min(able, key=lambda point: point.numbers["err"].value, default=None)
    least = "" if lowest is None else f"; ERR is lowest at {axis} = {lowest.x:g}"
    return f"{where} {listed(told)}{least}."


def _own_share(record: Record) -> Number | None:
    part = record.text("judged_on") or "test"
    space = {"mean": "outputs", "score": "score"}.get(record.text("combine"), "probability")
    return record.number(f"debiased_share.{part}.{space}.share")
