"""Plots of detection: ROC curves, histograms of scores, and the examples that divide members.

They take numbers and images alone, so that any study can draw them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.detection import Example, histogram_edges, thinned
from dissensus.plots.plot import AnyPanel, Image, Panel, Plot, Rule, Series, Text, histogram

__all__ = [
    "MOST_CURVES",
    "Curve",
    "examples_plot",
    "histogram_plot",
    "roc_line",
    "roc_panel",
    "roc_plot",
    "score_panel",
]

Curve = tuple[NDArray[Any], NDArray[Any]]

#: More curves than this cannot be told apart.
MOST_CURVES = 8
_POINTS = 200


def roc_plot(curves: Mapping[str, Mapping[str, Curve]]) -> Plot:
    """One panel for each set: ``curves[set][name]`` are false and true positive rates."""
    panels = []
    for title, lines in curves.items():
        chosen = list(lines.items())[:MOST_CURVES]
        series = [roc_line(name, *curve, number) for number, (name, curve) in enumerate(chosen)]
        panels.append(roc_panel(series, title, legend="lower right"))
    return Plot(panels, columns=len(panels), size=(3.2, 3.0), share_y="all")


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


def histogram_plot(
    scores: Mapping[str, Mapping[str, NDArray[Any]]],
    known: str,
    thresholds: Mapping[str, float] | None = None,
) -> Plot:
    """One panel for each score and OOD set: ``scores[score][set]`` against the set ``known``."""
    panels = []
    sets = [name for name in next(iter(scores.values())) if name != known]
    for score, values in scores.items():
        edges = histogram_edges(np.concatenate(list(values.values())))
        series = {name: histogram(name, own, edges) for name, own in values.items()}
        limit = (thresholds or {}).get(score)
        panels += [
            score_panel(score, series[known], series[name], limit, legend="best") for name in sets
        ]
    return Plot(panels, columns=len(sets), size=(2.8, 1.9))


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


def examples_plot(most: Sequence[Example], least: Sequence[Example], score: str) -> Plot:
    """The most divergent examples above, the least divergent below (ldr, Fig. 3).

    Ensemble predictions are bold; predictions of members that differ from it stand below it.
    """
    columns = max(len(most), len(least))
    panels: list[AnyPanel] = []
    for kind, examples in (("most", most), ("least", least)):
        side = f"{kind}\ndivergent\nby {score}"
        panels += [_image(one, "" if place else side) for place, one in enumerate(examples)]
        panels += [Text()] * (columns - len(examples))
    return Plot(panels, columns=columns, size=(1.7, 2.2))


def _image(example: Example, side: str) -> Image:
    truth = "" if example.truth is None else f"GT: {_short(example.truth)}, "
    others = ", ".join(_short(name) for name in example.others[:3])
    title = f"{truth}{example.score:.3g}"
    return Image(example.image, title, _short(example.predicted), others, side)


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
