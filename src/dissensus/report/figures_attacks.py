"""Figures of attacks: what is left of the accuracy against ε, steps and restarts."""

from __future__ import annotations

from dataclasses import replace

from dissensus.plots import Panel, Plot, Series
from dissensus.report.figure import Cell, Figure, View, percent
from dissensus.report.found import Attacked, Contents, Method

__all__ = ["attacked_methods", "epsilon", "steps"]

_OVER = {"steps": "steps", "restarts": "restarts"}


def attacked_methods(contents: Contents) -> list[tuple[int, Method, Attacked]]:
    """The methods with a record of ``dissensus attack``, with their numbers."""
    return [
        (number, method, method.attacked)
        for number, method in enumerate(contents.methods)
        if method.attacked is not None
    ]


def epsilon(contents: Contents) -> Figure | None:
    """Accuracy against ε, and the worst case of all attacks at the ε they were run with."""
    found = attacked_methods(contents)
    norms = list(
        dict.fromkeys(
            [c.norm for _, _, a in found for c in a.curves if c.over == "eps"]
            + [b.norm for _, _, a in found for b in a.budgets]
        )
    )
    views = []
    for norm in norms:
        series = []
        for number, method, attacked in found:
            series += _against_eps(number, method, attacked, norm)
        if series:
            panel = Panel("ε", "accuracy", series, y_percent=True, y_range=(0.0, 1.02))
            views.append(View(Plot([panel]), (_norm(norm),)))
    if not views:
        return None
    rows: list[list[Cell]] = []
    for _, method, attacked in found:
        if attacked.clean is not None:
            rows.append([method.name, "no attack", (attacked.clean, "percent_interval")])
        for budget in attacked.budgets:
            where = f"worst case, {_norm(budget.norm)} ε = {budget.eps:g}"
            rows.append([method.name, where, (budget.accuracy, "percent_interval")])
    return Figure(
        "accuracy-epsilon",
        "Accuracy against ε",
        "Lines: the strongest gradient attack of each record, run again at several ε. Points with "
        "intervals: the worst case for each input over all attacks. All are upper bounds: a "
        "better attack can only lower them.",
        views,
        _seen(found),
        ("method", "attack", "accuracy"),
        rows,
        [attacked.record_source("curves, budgets") for _, _, attacked in found],
        ("norm",) if len(views) > 1 else (),
    )


def _against_eps(number: int, method: Method, attacked: Attacked, norm: str) -> list[Series]:
    series = []
    start = [] if attacked.clean is None else [(0.0, attacked.clean.value)]
    for curve in attacked.curves:
        if curve.over == "eps" and curve.norm == norm:
            both = zip(curve.values.tolist(), curve.accuracy.tolist(), strict=True)
            points = [*start, *(point for point in both if point[0] > 0)]
            x, y = [x for x, _ in points], [y for _, y in points]
            told = [curve.attack] * len(points)
            series.append(Series(method.name, x, y, number, hover=told))
    worst = [budget for budget in attacked.budgets if budget.norm == norm]
    if worst:
        numbers = [budget.accuracy for budget in worst]
        ends = [
            [n.value if end is None else end for n, end in zip(numbers, side, strict=True)]
            for side in ([n.low for n in numbers], [n.high for n in numbers])
        ]
        name = f"{method.name}, worst case"
        x = [budget.eps for budget in worst]
        y = [n.value for n in numbers]
        point = Series(name, x, y, number, "points", low=ends[0], high=ends[1])
        series.append(replace(point, legend=False))
    return series


def _seen(found: list[tuple[int, Method, Attacked]]) -> str:
    worst = [
        (attacked.worst.value, method.name)
        for _, method, attacked in found
        if attacked.worst is not None
    ]
    if not worst:
        return "Accuracy against the size of the change."
    high, low = max(worst), min(worst)
    if len(worst) == 1:
        return f"In the worst case over all attacks {high[1]} keeps {percent(high[0])} accuracy."
    return (
        f"In the worst case over all attacks {high[1]} keeps most accuracy ({percent(high[0])}) "
        f"and {low[1]} least ({percent(low[0])})."
    )


def steps(contents: Contents) -> Figure | None:
    """Accuracy after so many steps or restarts of each attack: has it converged?"""
    found = attacked_methods(contents)
    keys = dict.fromkeys(
        (curve.over, curve.attack)
        for _, _, attacked in found
        for curve in attacked.curves
        if curve.over in _OVER
    )
    views = []
    rows: list[list[Cell]] = []
    fell = []
    for over, attack in keys:
        series = []
        for number, method, attacked in found:
            for curve in attacked.curves:
                if (curve.over, curve.attack) == (over, attack):
                    x, y = curve.values.tolist(), curve.accuracy.tolist()
                    series.append(Series(method.name, x, y, number))
                    ends = (f"{x[0]:g}: {percent(y[0])}", f"{x[-1]:g}: {percent(y[-1])}")
                    rows.append([method.name, attack, over, *ends])
                    if over == "steps" and len(y) > 1:
                        fell.append(y[-2] - y[-1])
        panel = Panel(_OVER[over], "accuracy", series, y_percent=True, y_range=(0.0, 1.02))
        views.append(View(Plot([panel]), (over, attack)))
    if not views:
        return None
    last = max(fell, default=0.0)
    alt = (
        f"The last stretch of steps takes off {100 * last:.1f} points of accuracy at most: "
        + ("the attacks have nearly converged." if last < 0.02 else "more steps may do more harm.")
        if fell
        else "Accuracy against restarts."
    )
    return Figure(
        "accuracy-steps",
        "Accuracy against steps",
        "A curve that still falls at its end says that the attack was stopped too early, and that "
        "its number is too high.",
        views,
        alt,
        ("method", "attack", "over", "first", "last"),
        rows,
        [attacked.record_source("curves") for _, _, attacked in found],
        ("over", "attack"),
    )


def _norm(norm: str) -> str:
    return {"linf": "L∞", "l2": "L2", "l1": "L1", "l0": "L0"}.get(norm, norm)
