"""Figures of unknown inputs (ldr, Section 5) and of attacks: ROC, scores, accuracy left."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np

from dissensus.show.contents import Contents, Number, Record, interval_ends
from dissensus.show.detection import histogram_panel, roc_line, roc_panel
from dissensus.show.figure import Cell, Figure, mark_best, percent, plot_view
from dissensus.show.plot import Panel, Series

# ---- unknown inputs -----------------------------------------------------------------------------


def roc(contents: Contents) -> Figure | None:
    """ROC curves of every score and unknown set, with AUROC."""
    methods = contents.with_detection()
    lines: dict[str, dict[str, list[Series]]] = {}
    for style, method, detection in methods:
        for row in detection.rows("curves"):
            line = roc_line(method.name, row.array("fpr"), row.array("tpr"), style)
            by_set = lines.setdefault(row.text("score"), {})
            by_set.setdefault(row.text("set"), []).append(line)
    views = []
    for score, by_set in lines.items():
        means = {method.name: detection.mean_auroc(score) for _, method, detection in methods}
        values = {name: mean.value for name, mean in means.items() if mean is not None}
        panels = [roc_panel(series, name) for name, series in by_set.items()]
        what = f"The mean AUROC of {score} over the unknown sets"
        views.append(plot_view(panels, what, values, (score,), "{:.3f}".format))
    sources = [detection.record.reference("curves, detection") for _, _, detection in methods]
    return Figure(views, sources, _auroc_rows(contents)) if views else None


def _auroc_rows(contents: Contents) -> list[list[Cell]]:
    measured = [(m, row) for _, m, d in contents.with_detection() for row in d.rows("detection")]
    sets, verdicts = [row.text("set") for _, row in measured], [m.verdict for m, _ in measured]
    numbers = (
        [row.number(key, f"{key}_low", f"{key}_high") for _, row in measured]
        for key in ("auroc", "fpr95")
    )
    aurocs, fprs = (
        mark_best(column, verdicts, sets, highest=highest)
        for column, highest in zip(numbers, (True, False), strict=True)
    )
    return [
        [method.name, row.text("set"), row.text("score"), (auroc, "estimate"), (fpr, "estimate")]
        for (method, row), auroc, fpr in zip(measured, aurocs, fprs, strict=True)
    ]


def score_histograms(contents: Contents) -> Figure | None:
    """The scores of known and unknown inputs, and the threshold between them."""
    panels: dict[tuple[str, str], list[Panel]] = {}
    overlaps: dict[tuple[str, str], dict[str, float]] = {}
    for style, method, detection in contents.with_detection():
        for row in detection.rows("histograms"):
            known, share = detection.id_name, row.arrays("share")
            for name in [name for name in share if name != known]:
                names = {known: f"known ({known})", name: f"unknown ({name})"}
                panel = histogram_panel(row.values, names, method.name, style=style)
                panels.setdefault((row.text("score"), name), []).append(panel)
                overlap = float(np.minimum(share[name], share[known]).sum())
                overlaps.setdefault((row.text("score"), name), {})[method.name] = overlap
    views = [
        plot_view(
            plots,
            f"The overlap of the {choice[0]} of known inputs and of {choice[1]}",
            overlaps[choice],
            choice,
            "{:.0%}".format,
        )
        for choice, plots in panels.items()
    ]
    sources = [d.record.reference("histograms") for _, _, d in contents.with_detection()]
    return Figure(views, sources) if views else None


# ---- attacks ------------------------------------------------------------------------------------


def norm_name(norm: str) -> str:
    """A norm as it is written in text."""
    return {"linf": "L∞", "l2": "L2", "l1": "L1", "l0": "L0"}.get(norm, norm)


def accuracy_epsilon(contents: Contents) -> Figure | None:
    """Accuracy against ε, and the worst case of all attacks at the ε they were run with."""
    by_norm: dict[str, list[Series]] = {}
    table: list[tuple[str, str, str, Number]] = []
    worst: dict[str, float] = {}
    for style, method, record in contents.with_attacks():
        clean = record.number(*(f"clean_accuracy.{key}" for key in ("accuracy", "low", "high")))
        table += [] if clean is None else [(method.name, method.verdict, "no attack", clean)]
        lowest = record.number("worst_case.accuracy")
        worst |= {} if lowest is None else {method.name: lowest.value}
        for curve in record.rows("curves"):
            if curve.text("over") == "eps":
                x, y = curve_points(curve)
                if clean is not None and 0.0 not in x:  # from the clean accuracy on
                    x, y = (0.0, *x), (clean.value, *y)
                line = Series(method.name, x, y, style, hover=[curve.text("attack")] * len(x))
                by_norm.setdefault(curve.text("norm"), []).append(line)
        for row in record.rows("budgets"):
            norm, accuracy = row.text("norm"), row.number("accuracy", "low", "high")
            if accuracy is not None:
                eps = float(row.at("eps"))
                where = f"worst case, {norm_name(norm)} ε = {eps:g}"
                table.append((method.name, method.verdict, where, accuracy))
                low, high = interval_ends([accuracy])
                intervals: dict[str, Any] = {"low": low, "high": high, "legend": False}
                point = (f"{method.name}, worst case", [eps], [accuracy.value], style)
                by_norm.setdefault(norm, []).append(Series(*point, "points", **intervals))
    names, verdicts, wheres, numbers = zip(*table, strict=True) if table else ((), (), (), ())
    marked = mark_best(numbers, verdicts, wheres)
    rows: list[list[Cell]] = [
        [name, where, (number, "percent_interval")]
        for name, where, number in zip(names, wheres, marked, strict=True)
    ]
    views = []
    for norm, series in by_norm.items():
        panel = Panel("ε", "accuracy", series, norm_name(norm), y_percent=True, y_range=(0.0, 1.02))
        what = "Accuracy in the worst case over all attacks"
        views.append(plot_view([panel], what, worst, (norm_name(norm),), percent))
    sources = [record.reference("curves, budgets") for _, _, record in contents.with_attacks()]
    return Figure(views, sources, rows) if views else None


def curve_points(curve: Record) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The values of a curve and their accuracies, in order."""
    x, y = zip(*sorted(zip(curve.at("values"), curve.at("accuracy"), strict=True)), strict=True)
    return x, y


def accuracy_steps(contents: Contents) -> Figure | None:
    """Accuracy against the steps or restarts of each attack: has it converged?"""
    lines: dict[tuple[str, str], list[Series]] = {}
    for style, method, record in contents.with_attacks():
        for curve in record.rows("curves"):
            if curve.text("over") in ("steps", "restarts"):
                series = Series(method.name, *curve_points(curve), style)
                choice = (curve.text("over"), curve.text("attack"))
                lines.setdefault(choice, []).append(series)
    views = []
    for choice, drawn in lines.items():
        labels = (choice[0], "accuracy", drawn, fill(choice[1].replace(",", ", "), 40))
        panel = Panel(*labels, y_percent=True, y_range=(0.0, 1.02))
        falls = {line.name: line.y[-2] - line.y[-1] for line in drawn if len(line.y) > 1}
        what = f"The fall of accuracy at the last of the {choice[0]}"
        views.append(plot_view([panel], what, falls, choice, percent))
    sources = [record.reference("curves") for _, _, record in contents.with_attacks()]
    return Figure(views, sources) if views else None
