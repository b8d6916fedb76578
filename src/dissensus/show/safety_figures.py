"""Figures of unknown inputs (ldr, Section 5) and of attacks: ROC, scores, accuracy left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dissensus.show import Panel, Plot, Series
from dissensus.show.contents import Contents, Method, Number, Record
from dissensus.show.detection import roc_line, roc_panel, score_panel
from dissensus.show.figure import Cell, Figure, View, cell, compare, mark_best, percent, short

# ---- unknown inputs -----------------------------------------------------------------------------


def roc(contents: Contents) -> Figure | None:
    """ROC curves of every score and unknown set, with AUROC."""
    methods = contents.with_detection()
    panels: dict[tuple[str, str], list[Series]] = {}
    for style, method, detection in methods:
        for row in detection.rows("curves"):
            line = roc_line(method.name, row.array("fpr"), row.array("tpr"), style)
            panels.setdefault((row.text("score"), row.text("set")), []).append(line)
    if not panels:
        return None
    by_score: dict[str, list[Panel]] = {}
    for score, name in dict.fromkeys(panels):
        by_score.setdefault(score, []).append(roc_panel(panels[score, name], name))
    measured = [(m, row) for _, m, detection in methods for row in detection.rows("detection")]
    sets, verdicts = [row.text("set") for _, row in measured], [m.verdict for m, _ in measured]
    rows: list[list[Cell]] = [
        [method.name, row.text("set"), row.text("score")] for method, row in measured
    ]
    for key, highest in (("auroc", True), ("fpr95", False)):
        numbers = [row.number(key, f"{key}_low", f"{key}_high") for _, row in measured]
        for cells, number in zip(rows, _best_by(sets, numbers, verdicts, highest), strict=True):
            cells.append(cell(number, "estimate"))
    return Figure(
        "roc",
        "ROC curves",
        "The share of unknown inputs that a score flags, against the share of known inputs that it "
        "flags by mistake. The area below the curve is the AUROC: 0.5 is chance, 1 is perfect. "
        "Intervals are bootstrap intervals over inputs. In the table, the best for each set is "
        "shaded with all that are not distinguishable from it.",
        [
            View(Plot(rocs, _auroc_alt(contents, score)), (score,))
            for score, rocs in by_score.items()
        ],
        ("method", "unknown set", "score", "AUROC", "FPR95"),
        rows,
        [detection.record.reference("curves, detection") for _, _, detection in methods],
        ("score",),
    )


def _best_by(
    groups: Sequence[str],
    numbers: Sequence[Number | None],
    verdicts: Sequence[str],
    highest: bool = True,
) -> list[Number | None]:
    """``numbers`` with the best of each group marked."""
    marked = list(numbers)
    for group in dict.fromkeys(groups):
        places = [place for place, name in enumerate(groups) if name == group]
        own = [numbers[place] for place in places]
        words = [verdicts[place] for place in places]
        for place, number in zip(places, mark_best(own, words, highest=highest), strict=True):
            marked[place] = number
    return marked


def _auroc_alt(contents: Contents, score: str) -> str:
    means = {
        method.name: mean.value
        for _, method, detection in contents.with_detection()
        if (mean := detection.mean_auroc(score)) is not None
    }
    return compare(
        f"With {score} the mean AUROC over the unknown sets goes from {{low}} to {{high}}.",
        means,
        "{:.3f}".format,
        single=f"Mean AUROC over the unknown sets with {score}: {{high}}.",
    )


def score_histograms(contents: Contents) -> Figure | None:
    """The scores of known and unknown inputs, and the threshold between them."""
    panels: dict[tuple[str, str], list[Panel]] = {}
    overlaps: dict[tuple[str, str], dict[str, float]] = {}
    rows: list[list[Cell]] = []
    for number, method, detection in contents.with_detection():
        for row in detection.rows("histograms"):
            edges, share, score = row.array("edges"), row.arrays("share"), row.text("score")
            limit = row.number("threshold")
            known = share.pop(detection.id_name)
            for name, heights in [(detection.id_name, known), *share.items()]:
                mean = float((heights * (edges[:-1] + edges[1:]) / 2).sum())
                end = "–" if limit is None else short(limit.value)
                rows.append([method.name, score, name, short(mean), end])
            for name, heights in share.items():
                panel = score_panel(
                    score,
                    Series(f"known ({detection.id_name})", edges, known, kind="steps"),
                    Series(f"unknown ({name})", edges, heights, kind="steps"),
                    None if limit is None else limit.value,
                    method.name,
                    style=number,
                )
                panels.setdefault((score, name), []).append(panel)
                overlap = float(np.minimum(heights, known).sum())
                overlaps.setdefault((score, name), {})[method.name] = overlap
    if not panels:
        return None
    views = []
    for score, name in dict.fromkeys(panels):
        alt = compare(
            f"With {score}, the scores of known inputs and of {name} overlap most for {{high}} and "
            "least for {low}.",
            overlaps[score, name],
            "{:.0%}".format,
            single=f"Overlap of the {score} of known inputs and of {name}: {{high}}.",
        )
        views.append(View(Plot(panels[score, name], alt), (score, name)))
    return Figure(
        "score-histograms",
        "Scores of known and unknown inputs",
        "Higher scores mean more out of distribution. The vertical line is the threshold that "
        "accepts the chosen share of validation inputs; unknown inputs to its left go unnoticed.",
        views,
        ("method", "score", "set", "mean of the score", "threshold"),
        rows,
        [detection.record.reference("histograms") for _, _, detection in contents.with_detection()],
        ("score", "unknown set"),
    )


# ---- attacks ------------------------------------------------------------------------------------


def norm_name(norm: str) -> str:
    """A norm as it is written in text."""
    return {"linf": "L∞", "l2": "L2", "l1": "L1", "l0": "L0"}.get(norm, norm)


def accuracy_epsilon(contents: Contents) -> Figure | None:
    """Accuracy against ε, and the worst case of all attacks at the ε they were run with."""
    by_norm: dict[str, list[Series]] = {}
    table: list[tuple[Method, str, Number]] = []
    worst: dict[str, float] = {}
    for number, method, record in contents.with_attacks():
        clean, lowest = (
            record.number(f"{key}.accuracy", f"{key}.low", f"{key}.high")
            for key in ("clean_accuracy", "worst_case")
        )
        if clean is not None:
            table.append((method, "no attack", clean))
        if lowest is not None:
            worst[method.name] = lowest.value
        for curve in record.rows("curves"):
            if curve.text("over") == "eps":
                line = _epsilon_line(curve, method.name, number, clean)
                by_norm.setdefault(curve.text("norm"), []).append(line)
        for row in record.rows("budgets"):
            eps, accuracy = row.number("eps"), row.number("accuracy", "low", "high")
            if eps is not None and accuracy is not None:
                point = _worst_point(method.name, number, eps.value, accuracy)
                by_norm.setdefault(row.text("norm"), []).append(point)
                where = f"worst case, {norm_name(row.text('norm'))} ε = {eps.value:g}"
                table.append((method, where, accuracy))
    if not by_norm:
        return None
    alt = compare(
        "In the worst case over all attacks accuracy goes from {low} to {high}.",
        worst,
        percent,
        single="Accuracy in the worst case over all attacks: {high}.",
    )
    wheres, verdicts = [where for _, where, _ in table], [method.verdict for method, _, _ in table]
    marked = _best_by(wheres, [number for _, _, number in table], verdicts)
    rows: list[list[Cell]] = [
        [method.name, where, (number, "percent_interval")]
        for (method, where, _), number in zip(table, marked, strict=True)
        if number is not None
    ]
    views = []
    for norm, series in by_norm.items():
        panel = Panel("ε", "accuracy", series, y_percent=True, y_range=(0.0, 1.02))
        plot = Plot([panel], alt or "Accuracy against the size of the change.")
        views.append(View(plot, (norm_name(norm),)))
    return Figure(
        "accuracy-epsilon",
        "Accuracy against ε",
        "Lines: the strongest gradient attack of each record, repeated at several ε. Points with "
        "intervals: the worst case for each input over all attacks. All are upper bounds: a "
        "better attack can only lower them.",
        views,
        ("method", "attack", "accuracy"),
        rows,
        [record.reference("curves, budgets") for _, _, record in contents.with_attacks()],
        ("norm",),
    )


def _points(curve: Record) -> list[tuple[float, float]]:
    """The values of a curve with their accuracies, in order."""
    return sorted(zip(curve.at("values"), curve.at("accuracy"), strict=True))


def _epsilon_line(curve: Record, name: str, number: int, clean: Number | None) -> Series:
    """Accuracy against ε, from the clean accuracy on."""
    start = [] if clean is None else [(0.0, clean.value)]
    points = [*start, *(point for point in _points(curve) if point[0] > 0)]
    hover = [curve.text("attack")] * len(points)
    return Series(name, [x for x, _ in points], [y for _, y in points], number, hover=hover)


def _worst_point(name: str, number: int, eps: float, accuracy: Number) -> Series:
    low, value, high = accuracy.low, accuracy.value, accuracy.high
    return Series(
        *(f"{name}, worst case", [eps], [value], number, "points"),
        low=[value if low is None else low],
        high=[value if high is None else high],
        legend=False,
    )


def accuracy_steps(contents: Contents) -> Figure | None:
    """Accuracy against the steps or restarts of each attack: has it converged?"""
    lines: dict[tuple[str, str], list[Series]] = {}
    rows: list[list[Cell]] = []
    falls = []
    for number, method, record in contents.with_attacks():
        for curve in record.rows("curves"):
            over, attack, points = curve.text("over"), curve.text("attack"), _points(curve)
            if over not in ("steps", "restarts"):
                continue
            x, y = [x for x, _ in points], [y for _, y in points]
            lines.setdefault((over, attack), []).append(Series(method.name, x, y, number))
            ends = (f"{x[0]:g}: {percent(y[0])}", f"{x[-1]:g}: {percent(y[-1])}")
            rows.append([method.name, attack, over, *ends])
            if over == "steps" and len(y) > 1:
                falls.append(y[-2] - y[-1])
    if not lines:
        return None
    alt = "Accuracy against restarts."
    if falls:
        last = max(falls)
        end = "the attacks have nearly converged" if last < 0.02 else "more steps may do more harm"
        alt = f"The last steps lower the accuracy by {100 * last:.1f} points at most: {end}."
    views = []
    for (over, attack), series in lines.items():
        panel = Panel(over, "accuracy", series, y_percent=True, y_range=(0.0, 1.02))
        views.append(View(Plot([panel], alt), (over, attack)))
    return Figure(
        "accuracy-steps",
        "Accuracy against steps",
        "If a curve still falls at its end, the attack was stopped too early, and its accuracy is "
        "too high.",
        views,
        ("method", "attack", "over", "first", "last"),
        rows,
        [record.reference("curves") for _, _, record in contents.with_attacks()],
        ("over", "attack"),
    )
