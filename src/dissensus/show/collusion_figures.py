"""Figures of collusion: the β sweep, codependence and the debiased share (collusion, Section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dissensus.diagnostics import THRESHOLDS
from dissensus.show import Panel, Plot, Rule, Series
from dissensus.show.contents import (
    Contents,
    Method,
    Number,
    Reference,
    Sweep,
    SweepLine,
    interval_ends,
)
from dissensus.show.figure import (
    Cell,
    Figure,
    View,
    cell,
    compare,
    join_names,
    mark_best,
    percent,
    short,
)
from dissensus.show.metrics import METRICS, SWEEP_METRICS
from dissensus.show.sweep_files import judged_space, runs_as_sweep

#: Panels of a sweep: the label of the vertical axis, and the metrics.
_PANELS = {
    "error": ("ensemble_error", "member_error"),
    "DIV": ("diversity",),
    "accuracy": ("accuracy",),
    "share of DIV": ("debiased_share",),
}
_OWN_SPACE = "where members are averaged"
_SPACES = {"score": "scores", "probability": "probabilities", "outputs": "outputs"}

# ---- the β sweep --------------------------------------------------------------------------------


def beta_sweep(contents: Contents) -> Figure | None:
    """ERR, mean ERR, DIV, accuracy and debiased share along β (collusion, Figures 2 and 3)."""
    lines = [(s, line) for s in contents.sweeps for line in s.lines if len(line.points) > 1]
    from_runs = runs_as_sweep(contents.methods)
    if from_runs is not None and len(from_runs.lines[0].points) > 2:  # two are a comparison
        lines.append((from_runs, from_runs.lines[0]))
    if not lines:
        return None
    sweeps = list(dict.fromkeys(sweep for sweep, _ in lines))
    lead = (
        "With β = 0 each member is trained on its own, with β = 1 only the ensemble is trained. "
        "ERR is the ensemble's error, mean ERR that of its members, DIV the difference. The "
        "debiased share is the part of DIV that constant offsets of members explain."
    )
    if any(sweep.repeats > 1 for sweep in sweeps):
        lead += (
            " Bands are ± one standard deviation over repeats. In the table, the best of each "
            "sweep is shaded with all that are not distinguishable from it, repeat by repeat."
        )
    for sweep in sweeps:
        if sweep.choice:
            lead += f" In {sweep.name}, validation data choose {sweep.choice}."
    return Figure(
        "beta-sweep",
        "From independent to joint training",
        lead,
        [
            View(Plot(_sweep_panels(*item), _sweep_alt(*item)), (_line_name(*item),))
            for item in lines
        ],
        ("sweep", "at", *(METRICS[name].heading for name in SWEEP_METRICS), "verdicts"),
        [row for item in lines for row in _sweep_rows(*item)],
        [Reference(sweep.file, "rows") for sweep in sweeps],
        ("sweep",),
    )


def _line_name(sweep: Sweep, line: SweepLine) -> str:
    words = f"{sweep.name}: {line.label}" if line.label else f"{sweep.name} ({sweep.setting})"
    return words if len(words) <= 70 else words[:69] + "…"


def _axis_name(sweep: Sweep) -> str:
    return "β" if sweep.axis == "beta" else sweep.axis


def _sweep_panels(sweep: Sweep, line: SweepLine) -> list[Panel]:
    panels = []
    for label, names in _PANELS.items():
        series = [s for name in names if (s := _sweep_series(line, name)) is not None]
        if series:
            title = " and ".join(each.name for each in series)
            series = [replace(each, legend=len(series) > 1) for each in series]
            shares = METRICS[names[0]].form == "percent"
            axes = (_axis_name(sweep), label, series, title)
            panels.append(Panel(*axes, y_percent=shares, from_zero=label == "DIV"))
    return panels


def _sweep_series(line: SweepLine, name: str) -> Series | None:
    points = [(point.x, point.numbers[name]) for point in line.points if name in point.numbers]
    if len(points) < 2:
        return None
    low, high = interval_ends([number for _, number in points])
    return Series(
        METRICS[name].heading,
        [x for x, _ in points],
        [number.value for _, number in points],
        "muted" if name == "member_error" else "ink",
        low=low,
        high=high,
        dash="dashed" if name == "member_error" else "solid",
    )


def _sweep_rows(sweep: Sweep, line: SweepLine) -> list[list[Cell]]:
    """One row for each point, with the best of each column marked."""
    verdicts = [point.verdict for point in line.points]
    columns: list[list[Cell]] = []
    for name in SWEEP_METRICS:
        metric, numbers = METRICS[name], [point.numbers.get(name) for point in line.points]
        # ± one standard deviation is no interval of the mean: without parts nothing is marked.
        repeated = all(n is None or (n.parts is not None and len(n.parts) > 1) for n in numbers)
        if metric.better and repeated:
            numbers = mark_best(numbers, verdicts, highest=metric.better == "high")
        columns.append([cell(number, metric.form) for number in numbers])
    return [
        [
            _line_name(sweep, line),
            f"{sweep.axis} = {point.x:g}",
            *(column[place] for column in columns),
            ", ".join(f"{count} {word}" for word, count in point.verdicts.items()) or "–",
        ]
        for place, point in enumerate(line.points)
    ]


def _sweep_alt(sweep: Sweep, line: SweepLine) -> str:
    first, last = line.points[0], line.points[-1]
    changes = [
        f"{METRICS[name].heading} goes from {short(first.numbers[name].value)} to "
        f"{short(last.numbers[name].value)}"
        for name in ("ensemble_error", "member_error", "diversity")
        if name in first.numbers and name in last.numbers
    ]
    where = f"In {_line_name(sweep, line)}, from {_axis_name(sweep)} = {first.x:g} to {last.x:g}"
    return f"{where} {join_names(changes)}."


# ---- codependence and offsets -------------------------------------------------------------------


def codependence(contents: Contents) -> Figure | None:
    """How much ERR rises without random members (collusion, Section 6.1, Figure 4)."""
    lines, points, sources = [], [], []
    rows: list[list[Cell]] = []
    for number, method in enumerate(contents.methods):
        record = method.diagnosis
        if record is None or method.members < 2:
            continue
        x, y, low, high = [0.0], [0.0], [0.0], [0.0]
        error = record.number("codependence.ensemble_error")
        for drop in record.rows("codependence.drops"):
            dropped, rise = drop.number("dropped"), drop.number("relative")
            spread = drop.number("spread")
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
            sources.append(record.reference("codependence"))
        index = record.number("codependence.index")
        if index is not None:
            point = (method.name, [method.name], [index.value], number)
            points.append(Series(*point, "points", legend=not lines))
            rows.append([method.name, "index", (index, "short"), ""])
    if not lines:
        return None
    labels = ("members left out", "rise of ERR", lines, "Without random members")
    panels = [Panel(*labels, y_percent=True, x_percent=True)]
    if points:
        rules = (Rule("y", 1.0, "unrelated errors"),)
        panels.append(Panel("", "", points, "Codependence index", from_zero=True, rules=rules))
    alt = compare(
        f"Without {float(lines[0].x[-1]):.0%} of its members ERR changes most for {{high}} and "
        "least for {low}.",
        {line.name: line.y[-1] for line in lines},
        "{:+.0%}".format,
    )
    return Figure(
        "codependence",
        "Codependence",
        "How much the ensemble's error rises when random members are left out. Members that "
        "collude need each other; if members' errors are unrelated, the index is at most 1.",
        [View(Plot(panels, alt))],
        ("method", "members left out", "rise of ERR, or index", "deviation over draws"),
        rows,
        sources,
    )


class _Offsets(NamedTuple):
    """The offsets of a method in one space; ``size`` is share · DIV / ERR, in its own space."""

    number: int
    method: Method
    space: str
    share: Number
    size: float | None = None


def debiased_share(contents: Contents) -> Figure | None:
    """How much of the members' spread is a constant offset (collusion, Section 6.1, Figure 3)."""
    offsets = [each for item in enumerate(contents.methods) for each in _offsets(*item)]
    if not offsets:
        return None
    own = [each for each in offsets if each.size is not None]
    views = [View(_own_offsets_plot(own), (_OWN_SPACE,))] if own else []
    for space in dict.fromkeys(each.space for each in offsets):
        shares = [each for each in offsets if each.space == space]
        where = f"In the space of {_SPACES.get(space, space)} constant offsets explain"
        views.append(View(Plot([_share_panel(shares)], _share_alt(where, shares)), (space,)))
    rows: list[list[Cell]] = [
        [
            each.method.name,
            each.space,
            (each.share, "percent"),
            "–" if each.size is None else short(each.size),
            each.method.verdict or "–",
        ]
        for each in offsets
    ]
    return Figure(
        "debiased-share",
        "Debiased share",
        "The part of the members' spread around the ensemble that goes away when each member is "
        "shifted by a constant. Such diversity does nothing for any single input. A large part of "
        "a small spread is harmless: shifts are a sign of collusion if they cancel and are large "
        "beside the ensemble's error.",
        views,
        ("method", "space", "share", "share · DIV / ERR", "verdict"),
        rows,
        [each.share.source for each in offsets],
        ("space",),
    )


def _offsets(number: int, method: Method) -> list[_Offsets]:
    record = method.diagnosis
    if record is None:
        return []
    part, own = judged_space(record)
    spaces = record.at(f"debiased_share.{part}")
    ratio = record.number(f"explosion.{part}.ratio")
    offsets = []
    for space in spaces if isinstance(spaces, dict) else {}:
        share = record.number(f"debiased_share.{part}.{space}.share")
        if share is not None:
            size = share.value * ratio.value if ratio and space == own else None
            offsets.append(_Offsets(number, method, str(space), share, size))
    return offsets


def _share_panel(shares: Sequence[_Offsets]) -> Panel:
    bars = [
        Series(o.method.name, [o.method.name], [o.share.value], o.number, "bars", legend=False)
        for o in shares
    ]
    return Panel("", "share of the spread", bars, y_percent=True, y_range=(0.0, 1.0))


def _share_alt(where: str, shares: Sequence[_Offsets]) -> str:
    values = {offsets.method.name: offsets.share.value for offsets in shares}
    return compare(f"{where} most for {{high}} and least for {{low}}.", values, percent)


def _own_offsets_plot(own: Sequence[_Offsets]) -> Plot:
    """Shares where each ensemble averages, and their size beside its error."""
    sizes = {o.method.name: o.size for o in own if o.size is not None}
    points = [
        Series(o.method.name, [o.method.name], [o.size], o.number, "points", legend=False)
        for o in own
        if o.size  # a logarithm has no place for 0
    ]
    panels = [_share_panel(own)]
    if points:
        rules = (Rule("y", THRESHOLDS.offset_size_suspicious, "counts as a sign"),)
        panels.append(Panel("", "share · DIV / ERR", points, y_log=True, rules=rules))
    alt = _share_alt("Where the ensemble averages, constant offsets explain", own)
    beside = "Beside the ensemble's error they are largest for {high} and smallest for {low}."
    return Plot(panels, f"{alt} {compare(beside, sizes)}")
