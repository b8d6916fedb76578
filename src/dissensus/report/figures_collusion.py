"""Figures of collusion: β sweeps, training, codependence, debiased share (collusion, Section 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dissensus.report.found import Contents, Method, Number, Record, Source, Sweep, SweepLine
from dissensus.report.found import SweepPoint as Point
from dissensus.report.plots import Cell, Panel, Plot, Series, View, listed, percent, short

__all__ = ["beta_sweep", "codependence", "debiased", "runs_as_sweep", "training"]

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

_SPACES = {"score": "scores", "probability": "probabilities", "outputs": "outputs"}

_EPOCHS = 200  # points of a line at most


# ---- the β sweep --------------------------------------------------------------------------------


def beta_sweep(contents: Contents) -> Plot | None:
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
        views.append(View(_sweep_panels(sweep, line), (_line_name(sweep, line),), seen))
        for point in line.points:
            rows.append(_sweep_row(sweep, line, point))
    banded = any(sweep.repeats > 1 for sweep, _ in chosen)
    band = " Bands are ± one standard deviation over repeats." if banded else ""
    return Plot(
        "beta-sweep",
        "From independent to joint training",
        "β = 0 trains each member for itself, β = 1 trains the ensemble alone. ERR is the "
        "ensemble's error, mean ERR its members', DIV the difference." + band,
        views,
        views[0].alt,
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
            series.append(Series(_NAMES[name], x, y, style, low=low, high=high, dashed=second))
        if series:
            axis = "β" if sweep.axis == "beta" else sweep.axis
            if len(series) == 1:
                series = [replace(series[0], legend=False)]
            title = _NAMES[names[0]] if len(series) == 1 else "ERR and mean ERR"
            zero = names == ("div",)
            panels.append(Panel(axis, label, series, title, shares=shares, zero=zero))
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


# ---- training -----------------------------------------------------------------------------------


def training(contents: Contents) -> Plot | None:
    """ERR, mean ERR and DIV after each epoch (collusion, Section 6.2)."""
    views, rows = [], []
    for part, word in (("val", "validation"), ("train", "training")):
        panels = []
        for key, name in (
            ("ensemble_error", "ERR"),
            ("member_error", "mean ERR"),
            ("diversity", "DIV"),
        ):
            series = [
                line
                for number, method in enumerate(contents.methods)
                if (line := _epochs(method, number, f"{part}.{key}")) is not None
            ]
            if series:
                panels.append(Panel("epoch", name, series, name, zero=True))
        if panels:
            views.append(View(panels, (word,)))
    if not views:
        return None
    seen = []
    for method in contents.methods:
        if not method.epochs:
            continue
        last = method.epochs[-1]
        part = "val" if last.number("val.ensemble_error") else "train"
        cells = [last.number(f"{part}.{key}") for key in ("ensemble_error", "member_error")]
        cells.append(last.number(f"{part}.diversity"))
        rows.append(
            [
                method.name,
                f"{last.at('epoch')}, {part}",
                *((number, "short") if number is not None else "–" for number in cells),
            ]
        )
        if cells[2] is not None:
            seen.append((cells[2].value, method.name))
    high, low = (max(seen), min(seen)) if seen else ((0.0, ""), (0.0, ""))
    alt = (
        f"After the last epoch DIV is largest for {high[1]} ({short(high[0])}) and smallest for "
        f"{low[1]} ({short(low[0])})."
        if len(seen) > 1
        else "ERR, mean ERR and DIV after each epoch."
    )
    return Plot(
        "training",
        "ERR and DIV over training",
        "DIV = mean ERR − ERR after each epoch. Where DIV grows while the members' own error "
        "grows with it, members trade their quality for disagreement.",
        views,
        alt,
        ("method", "epoch", "ERR", "mean ERR", "DIV"),
        rows,
        [Source(method.epochs[0].file, "epochs") for method in contents.methods if method.epochs],
        ("measured on",) if len(views) > 1 else (),
    )


def _epochs(method: Method, style: int, key: str) -> Series | None:
    found = [(record.at("epoch"), record.number(key)) for record in method.epochs]
    points = [(float(epoch), number.value) for epoch, number in found if number is not None]
    if len(points) > _EPOCHS:
        places = np.linspace(0, len(points) - 1, _EPOCHS).round().astype(int)
        points = [points[place] for place in places]
    if not points:
        return None
    return Series(method.name, [x for x, _ in points], [y for _, y in points], style)


# ---- what members are without each other --------------------------------------------------------


def codependence(contents: Contents) -> Plot | None:
    """How much ERR rises without random members (collusion, Section 6.1, Figure 4)."""
    lines, points, sources = [], [], []
    rows: list[list[Cell]] = []
    for number, method in enumerate(contents.methods):
        record = method.diagnosis
        if record is None or method.members < 2:
            continue
        x, y, low, high = [0.0], [0.0], [0.0], [0.0]
        error = record.number("codependence.ensemble_error")
        for place, _ in enumerate(record.rows("codependence.drops")):
            key = f"codependence.drops[{place}]"
            dropped, rise = record.number(f"{key}.dropped"), record.number(f"{key}.relative")
            spread = record.number(f"{key}.spread")
            if dropped is None or rise is None or dropped.value == 0:
                continue
            half = spread.value / error.value if spread and error and error.value else 0.0
            x.append(dropped.value / method.members)
            y.append(rise.value)
            low.append(rise.value - half)
            high.append(rise.value + half)
            count = f"{dropped.value:g} of {method.members}"
            rows.append([method.name, count, (rise, "percent"), f"± {percent(half)}"])
        if len(x) > 1:
            lines.append(Series(method.name, x, y, number, low=low, high=high))
            sources.append(Source(record.file, "codependence"))
        index = record.number("codependence.index")
        if index is not None:
            point = Series(method.name, [method.name], [index.value], number, "points")
            points.append(replace(point, legend=not lines))
            rows.append([method.name, "index", (index, "short"), ""])
    if not lines:
        return None
    words = ("members left out", "rise of ERR", lines, "Without random members")
    panels = [Panel(*words, shares=True, x_shares=True)]
    if points:
        rule = ("y", 1.0, "unrelated errors")
        panels.append(Panel("", "", points, "Codependence index", zero=True, rules=(rule,)))
    ends = sorted((line.y[-1], line.name) for line in lines)
    return Plot(
        "codependence",
        "Codependence",
        "How much the ensemble's error rises when random members are left out. Members that "
        "collude need each other; the index is 1 at most for members whose errors are unrelated.",
        [View(panels)],
        f"Without {float(lines[0].x[-1]):.0%} of its members ERR changes most for "
        f"{ends[-1][1]} ({ends[-1][0]:+.0%}) and least for {ends[0][1]} ({ends[0][0]:+.0%}).",
        ("method", "members left out", "rise of ERR, or index", "deviation over draws"),
        rows,
        sources,
    )


def debiased(contents: Contents) -> Plot | None:
    """How much of the members' spread is a constant offset (collusion, Section 6.1, Figure 3)."""
    spaces: dict[str, list[tuple[int, Method, Number]]] = {}
    for number, method in enumerate(contents.methods):
        record = method.diagnosis
        if record is None:
            continue
        part = record.text("judged_on") or "test"
        found = record.at(f"debiased_share.{part}")
        for space in found if isinstance(found, dict) else {}:
            share = record.number(f"debiased_share.{part}.{space}.share")
            if share is not None:
                spaces.setdefault(str(space), []).append((number, method, share))
    if not spaces:
        return None
    views = []
    for space, shares in spaces.items():
        bars = [Series(m.name, [m.name], [s.value], n, "bars", legend=False) for n, m, s in shares]
        panel = Panel("", "share of the spread", bars, "", shares=True, y_range=(0.0, 1.0))
        order = sorted((share.value, method.name) for _, method, share in shares)
        seen = (
            f"In the space of {_SPACES.get(space, space)} constant offsets explain most for "
            f"{order[-1][1]} ({percent(order[-1][0])}) and least for {order[0][1]} "
            f"({percent(order[0][0])})."
        )
        views.append(View([panel], (space,), seen))
    rows: list[list[Cell]] = [
        [method.name, space, (share, "percent")]
        for space, shares in spaces.items()
        for _, method, share in shares
    ]
    return Plot(
        "debiased-share",
        "Debiased share",
        "The part of the members' spread around the ensemble that goes away when each member is "
        "shifted by a constant. Such diversity does nothing for any single input.",
        views,
        views[0].alt,
        ("method", "space", "share"),
        rows,
        [share.source for shares in spaces.values() for _, _, share in shares],
        ("space",) if len(views) > 1 else (),
    )


def _own_share(record: Record) -> Number | None:
    part = record.text("judged_on") or "test"
    space = {"mean": "outputs", "score": "score"}.get(record.text("combine"), "probability")
    share = record.number(f"debiased_share.{part}.{space}.share")
    return share if share is not None and math.isfinite(share.value) else None
