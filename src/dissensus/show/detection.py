"""Plots of detection: ROC curves, histograms of scores, and the examples that divide members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.detection import Divergent, Example, Study, histogram_edges, roc_curve, thinned
from dissensus.show.plot import AnyPanel, Image, Panel, Plot, Rule, Series, Text, histogram

#: The most curves of a panel, which can still be distinguished, and points of a curve.
_CURVES, _POINTS = 8, 200

#: Scores with histograms: the first ones; more would not fit on a page.
_HISTOGRAMS = 4


def roc_plot(study: Study, method: str = "") -> Plot:
    """One panel for each unknown set: the ROC curves of the best scores, with their AUROC.

    ``method`` stands in the titles, before the name of the set.
    """
    known, panels = study.scores[study.known], []
    best = _best_scores(study)
    for name in study.detection[best[0]]:
        lines = []
        for number, score in enumerate(best):
            fpr, tpr, _ = roc_curve(known[score], study.scores[name][score])
            label = f"{score} {study.detection[score][name].auroc:.3f}"
            lines.append(roc_line(label, fpr.numpy(), tpr.numpy(), number))
        title = f"{method}: {name}" if method else name
        panels.append(roc_panel(lines, title, legend="lower right"))
    return Plot(panels, columns=len(panels), size=(3.2, 3.0), share_y="all")


def _best_scores(study: Study) -> list[str]:
    """The scores with the highest mean AUROC over all sets, as many as a panel can show."""
    means = {
        score: sum(measures.auroc for measures in sets.values()) / len(sets)
        for score, sets in study.detection.items()
    }
    return sorted(means, key=lambda score: -means[score])[:_CURVES]


def roc_line(name: str, fpr: NDArray[Any], tpr: NDArray[Any], style: int) -> Series:
    """A ROC curve, thinned to what can be seen; OOD inputs are the positive ones."""
    points = (fpr, tpr) if len(fpr) <= _POINTS else thinned(fpr, tpr, _POINTS - 2)
    return Series(name, *points, style, markers=False)


def roc_panel(lines: Sequence[Series], title: str = "", *, legend: str = "") -> Panel:
    """ROC curves and the line of chance."""
    chance = Series("chance", [0.0, 1.0], [0.0, 1.0], "muted", dash="dashed", markers=False)
    labels = ("known inputs flagged", "unknown inputs flagged", [*lines, chance], title)
    ends = (0.0, 1.0)
    return Panel(*labels, x_percent=True, y_percent=True, square=True, y_range=ends, legend=legend)


def histogram_plot(study: Study) -> Plot:
    """One panel for each of the first scores and each unknown set, against the known set."""
    panels = []
    for score, sets in list(study.detection.items())[:_HISTOGRAMS]:
        values = {name: scores[score].numpy() for name, scores in study.scores.items()}
        edges = histogram_edges(np.concatenate(list(values.values())))
        series = {name: histogram(name, scores, edges) for name, scores in values.items()}
        known, limit = series[study.known], study.thresholds.get(score)
        panels += [score_panel(score, known, series[name], limit, legend="best") for name in sets]
    return Plot(panels, columns=len(study.scores) - 1, size=(2.8, 1.9))


def score_panel(
    score: str,
    known: Series,
    unknown: Series,
    threshold: float | None = None,
    title: str = "",
    **options: Any,
) -> Panel:
    """The histograms of a score on known and unknown inputs, and the threshold between them."""
    series = [replace(known, style="muted", fill=True), replace(unknown, style="accent", fill=True)]
    rules = () if threshold is None else (Rule("x", threshold),)
    labels = (score, "share of inputs", series, title)
    return Panel(*labels, y_percent=True, from_zero=True, rules=rules, **options)


def divergent_plot(divergent: Divergent, name: str) -> Plot:
    """The most divergent examples of a set above, the least divergent below (ldr, Fig. 3).

    Ensemble predictions are bold; predictions of members that differ from it stand below it.
    """
    columns = max(len(divergent.most), len(divergent.least))
    panels: list[AnyPanel] = []
    for kind, examples in (("most", divergent.most), ("least", divergent.least)):
        side = f"{kind}\ndivergent\nby {divergent.score} ({name})"
        panels += [_image(example, "" if i else side) for i, example in enumerate(examples)]
        panels += [Text()] * (columns - len(examples))
    return Plot(panels, columns=columns, size=(1.7, 2.2))


def _image(example: Example, side: str) -> Image:
    truth = "" if example.truth is None else f"GT: {_short(example.truth)}, "
    others = ", ".join(_short(name) for name in example.others[:3])
    title = f"{truth}{example.score:.3g}"
    return Image(example.image, title, _short(example.predicted), others, side)


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
