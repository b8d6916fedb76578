"""Figures of unknown inputs: ROC curves and histograms of scores (ldr, Section 5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dissensus.plots import Panel, Plot, Rule, Series
from dissensus.report.figure import Cell, Figure, View, short
from dissensus.report.found import Contents, Detected, Histogram, Method

__all__ = ["detected_methods", "histograms", "roc", "shown_score"]

#: The score that tables and sentences speak of, where it is there.
_SCORE = "pds"


def detected_methods(contents: Contents) -> list[tuple[int, Method, Detected]]:
    """The methods with a record of ``dissensus ood``, with their numbers."""
    return [
        (number, method, method.detected)
        for number, method in enumerate(contents.methods)
        if method.detected is not None and method.detected.rows
    ]


def shown_score(contents: Contents) -> str:
    """PDS, or the first score of the first record without it; empty without records."""
    found = detected_methods(contents)
    names = [row.score for _, _, detected in found for row in detected.rows]
    return _SCORE if _SCORE in names else next(iter(names), "")


def roc(contents: Contents) -> Figure | None:
    """ROC curves of every score and unknown set, with AUROC."""
    found = detected_methods(contents)
    curves = [line for _, _, detected in found for line in detected.curves]
    if not curves:
        return None
    pairs = _pairs((line.score, line.set) for line in curves)
    views = []
    for score in dict.fromkeys(score for score, _ in pairs):
        sets = [name for other, name in pairs if other == score]
        panels = [_roc_panel(found, score, name) for name in sets]
        views.append(View(Plot(panels, _best_auroc(contents, score)), (score,)))
    rows: list[list[Cell]] = []
    for _, method, detected in found:
        for row in detected.rows:
            other: Cell = "–" if row.fpr95 is None else (row.fpr95, "estimate")
            rows.append([method.name, row.set, row.score, (row.auroc, "estimate"), other])
    return Figure(
        "roc",
        "ROC curves",
        "How many unknown inputs a score flags when it flags so many known ones. The area below "
        "is the AUROC: 0.5 is chance, 1 is perfect. Intervals are bootstrap ones over inputs.",
        views,
        views[0].plot.alt,
        ("method", "unknown set", "score", "AUROC", "FPR95"),
        rows,
        [detected.record_source("curves, detection") for _, _, detected in found],
        ("score",),
    )


def _roc_panel(found: list[tuple[int, Method, Detected]], score: str, name: str) -> Panel:
    chance = Series("chance", [0.0, 1.0], [0.0, 1.0], "muted", dash="dashed", markers=False)
    lines = [
        Series(method.name, line.fpr.tolist(), line.tpr.tolist(), number, markers=False)
        for number, method, detected in found
        for line in detected.curves
        if (line.score, line.set) == (score, name)
    ]
    return Panel(
        "known inputs flagged",
        "unknown inputs flagged",
        [*lines, chance],
        name,
        y_percent=True,
        x_percent=True,
        square=True,
        y_range=(0.0, 1.0),
    )


def _best_auroc(contents: Contents, score: str) -> str:
    means = [
        (mean.value, method.name)
        for _, method, detected in detected_methods(contents)
        if (mean := detected.mean_auroc(score)) is not None
    ]
    if not means:
        return "ROC curves of each score and set."
    high, low = max(means), min(means)
    if len(means) == 1:
        return f"By {score} {high[1]} reaches a mean AUROC of {high[0]:.3f} over the unknown sets."
    return (
        f"By {score} the mean AUROC over the unknown sets is highest for {high[1]} ({high[0]:.3f}) "
        f"and lowest for {low[1]} ({low[0]:.3f})."
    )


def histograms(contents: Contents) -> Figure | None:
    """The scores of known and unknown inputs, and the threshold between them."""
    found = [
        (method, detected, histogram)
        for _, method, detected in detected_methods(contents)
        for histogram in detected.histograms
    ]
    if not found:
        return None
    views = []
    pairs = _pairs(
        (histogram.label, name)
        for _, detected, histogram in found
        for name in histogram.share
        if name != detected.id_name
    )
    for score, name in pairs:
        panels = [
            _histogram_panel(contents, method, detected.id_name, histogram, name)
            for method, detected, histogram in found
            if histogram.label == score and name in histogram.share
        ]
        views.append(View(Plot(panels, _overlap(found, score, name)), (score, name)))
    rows: list[list[Cell]] = []
    sets = list(dict.fromkeys(name for _, name in pairs))
    for method, detected, histogram in found:
        for name in (detected.id_name, *sets):
            if name in histogram.share:
                row = (method.name, histogram.label, name, _mean_score(histogram, name))
                limit = "–" if histogram.threshold is None else short(histogram.threshold)
                rows.append([*row, limit])
    return Figure(
        "score-histograms",
        "Scores of known and unknown inputs",
        "Higher scores mean more out of distribution. The vertical rule is the threshold that "
        "accepts the chosen share of validation inputs; unknown inputs left of it go unnoticed.",
        views,
        views[0].plot.alt,
        ("method", "score", "set", "mean of the score", "threshold"),
        rows,
        [detected.record_source("histograms") for _, detected, _ in found],
        ("score", "unknown set"),
    )


def _histogram_panel(
    contents: Contents, method: Method, known: str, histogram: Histogram, name: str
) -> Panel:
    series = [
        Series(
            f"{kind} ({which})",
            histogram.edges.tolist(),
            histogram.share[which].tolist(),
            style,
            "steps",
            fill=True,
        )
        for which, kind, style in ((known, "known", "muted"), (name, "unknown", "accent"))
        if which in histogram.share
    ]
    rules = () if histogram.threshold is None else (Rule("x", histogram.threshold),)
    return Panel(
        histogram.label,
        "share of inputs",
        series,
        method.name,
        y_percent=True,
        from_zero=True,
        rules=rules,
        style=contents.methods.index(method),
    )


def _mean_score(histogram: Histogram, name: str) -> str:
    middles = (histogram.edges[:-1] + histogram.edges[1:]) / 2
    return short(float((middles * histogram.share[name]).sum()))


def _overlap(found: list[tuple[Method, Detected, Histogram]], score: str, name: str) -> str:
    """How much of known and unknown lies together."""
    told = []
    for method, detected, histogram in found:
        if histogram.label == score and {detected.id_name, name} <= histogram.share.keys():
            both = (histogram.share[detected.id_name], histogram.share[name])
            shared = sum(min(a, b) for a, b in zip(*both, strict=True))
            told.append((float(shared), method.name))
    if not told:
        return f"Histograms of {score}."
    least, most = min(told), max(told)
    return (
        f"By {score}, known inputs and {name} overlap least for {least[1]} ({least[0]:.0%} of "
        f"their mass) and most for {most[1]} ({most[0]:.0%})."
    )


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[Any, Any]]:
    """Each pair once, the usual score first."""
    unique = list(dict.fromkeys(pairs))
    return sorted(unique, key=lambda pair: pair[0] != _SCORE)
