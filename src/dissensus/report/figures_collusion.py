"""Figures of collusion: training, codependence, debiased share (collusion, Section 6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dissensus.plots import Panel, Plot, Rule, Series
from dissensus.report.figure import Cell, Figure, View, percent, short
from dissensus.report.found import Contents, Method, Number, Source

__all__ = ["codependence", "debiased", "training"]

_SPACES = {"score": "scores", "probability": "probabilities", "outputs": "outputs"}

_EPOCHS = 200  # points of a line at most


# ---- training -----------------------------------------------------------------------------------


def training(contents: Contents) -> Figure | None:
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
                panels.append(Panel("epoch", name, series, name, from_zero=True))
        if panels:
            views.append(View(Plot(panels), (word,)))
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
    return Figure(
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
    panels = [Panel(*words, y_percent=True, x_percent=True)]
    if points:
        rule = Rule("y", 1.0, "unrelated errors")
        panels.append(Panel("", "", points, "Codependence index", from_zero=True, rules=(rule,)))
    ends = sorted((line.y[-1], line.name) for line in lines)
    return Figure(
        "codependence",
        "Codependence",
        "How much the ensemble's error rises when random members are left out. Members that "
        "collude need each other; the index is 1 at most for members whose errors are unrelated.",
        [View(Plot(panels))],
        f"Without {float(lines[0].x[-1]):.0%} of its members ERR changes most for "
        f"{ends[-1][1]} ({ends[-1][0]:+.0%}) and least for {ends[0][1]} ({ends[0][0]:+.0%}).",
        ("method", "members left out", "rise of ERR, or index", "deviation over draws"),
        rows,
        sources,
    )


def debiased(contents: Contents) -> Figure | None:
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
        panel = Panel("", "share of the spread", bars, "", y_percent=True, y_range=(0.0, 1.0))
        order = sorted((share.value, method.name) for _, method, share in shares)
        seen = (
            f"In the space of {_SPACES.get(space, space)} constant offsets explain most for "
            f"{order[-1][1]} ({percent(order[-1][0])}) and least for {order[0][1]} "
            f"({percent(order[0][0])})."
        )
        views.append(View(Plot([panel], seen), (space,)))
    rows: list[list[Cell]] = [
        [method.name, space, (share, "percent")]
        for space, shares in spaces.items()
        for _, method, share in shares
    ]
    return Figure(
        "debiased-share",
        "Debiased share",
        "The part of the members' spread around the ensemble that goes away when each member is "
        "shifted by a constant. Such diversity does nothing for any single input.",
        views,
        views[0].plot.alt,
        ("method", "space", "share"),
        rows,
        [share.source for shares in spaces.values() for _, _, share in shares],
        ("space",) if len(views) > 1 else (),
    )
