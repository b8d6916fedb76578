"""Plots of detection: ROC curves, histograms of scores, and the examples that divide members.

They take numbers and images alone, so that any study can draw them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.detection import Example, histogram_edges, thinned
from dissensus.plots.plot import AnyPanel, Image, Panel, Plot, Rule, Series, Text, histogram

__all__ = ["MOST_CURVES", "Curve", "examples_plot", "histogram_plot", "roc_plot"]

Curve = tuple[NDArray[Any], NDArray[Any]]

#: More curves than this cannot be told apart.
MOST_CURVES = 8


def roc_plot(curves: Mapping[str, Mapping[str, Curve]]) -> Plot:
    """One panel for each set: ``curves[set][name]`` are false and true positive rates."""
    panels = [_roc_panel(lines, name) for name, lines in curves.items()]
    return Plot(panels, columns=len(panels), size=(3.2, 3.0), share_y="all")


def _roc_panel(curves: Mapping[str, Curve], title: str) -> Panel:
    """At most eight ROC curves, thinned to what can be seen; OOD inputs are the positive ones."""
    lines = [
        Series(name, *thinned(*curve), number, markers=False)
        for number, (name, curve) in enumerate(list(curves.items())[:MOST_CURVES])
    ]
    chance = Series("chance", [0.0, 1.0], [0.0, 1.0], "muted", dash="dotted", markers=False)
    labels = ("false positive rate (ID flagged)", "true positive rate (OOD flagged)")
    return Panel(*labels, [*lines, chance], title, square=True, legend="lower right")


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
        limit = (thresholds or {}).get(score)
        rules = () if limit is None else (Rule("x", limit),)
        for name in sets:
            bars = [
                histogram(which, values[which], edges, number, fill=True)
                for number, which in enumerate((known, name))
            ]
            panels.append(Panel(score, "share", bars, rules=rules, legend="best"))
    return Plot(panels, columns=len(sets), size=(2.8, 1.9))


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
