"""Figures of detection: ROC curves, histograms of scores, and the examples members differ on.

They take numbers and images alone, so that any study can draw them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dissensus.detection import histogram_edges, thinned
from dissensus.plots.style import COLORS, add_line, label, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Curve", "Example", "examples_figure", "histogram_figure", "roc_figure"]

Curve = tuple[NDArray[Any], NDArray[Any]]


def roc_figure(curves: Mapping[str, Mapping[str, Curve]]) -> Figure:
    """One panel a set: ``curves[set][name]`` are false and true positive rates, OOD positive.

    At most eight curves, as more cannot be told apart; steps are thinned to what can be seen.
    """
    figure, axes = new_figure(1, len(curves), width=3.2, height=3.0, sharey=True)
    for panel, (name, lines) in zip(axes[0], curves.items(), strict=True):
        panel.plot([0, 1], [0, 1], color="#AAAAAA", linewidth=0.8)
        for number, (score, curve) in enumerate(list(lines.items())[: len(COLORS)]):
            x, y = thinned(*curve)
            add_line(panel, x, y, number, name=score, markers=False)
        label(panel, "false positive rate (ID flagged)", "", name)
        panel.legend(fontsize=7.0, frameon=False, loc="lower right")
    axes[0, 0].set_ylabel("true positive rate (OOD flagged)", fontsize=9.0)
    return figure


def histogram_figure(
    scores: Mapping[str, Mapping[str, NDArray[Any]]],
    known: str,
    thresholds: Mapping[str, float] | None = None,
) -> Figure:
    """One panel a score and OOD set: ``scores[score][set]`` against those of the set ``known``.

    The dashed line is the threshold.
    """
    sets = [name for name in next(iter(scores.values())) if name != known]
    figure, axes = new_figure(len(scores), len(sets), width=2.8, height=1.9)
    for row, (score, values) in zip(axes, scores.items(), strict=True):
        edges = histogram_edges(np.concatenate(list(values.values())))
        for panel, name in zip(row, sets, strict=True):
            for number, which in enumerate((known, name)):
                shown = np.clip(values[which], edges[0], edges[-1])
                share = np.full(shown.shape, 1 / max(1, shown.size))
                panel.hist(
                    shown, edges, weights=share, color=COLORS[number], alpha=0.55, label=which
                )
            if thresholds is not None and score in thresholds:
                panel.axvline(thresholds[score], color="#000000", linestyle="--", linewidth=1.0)
            label(panel, score, "", "", legend=True)
            panel.set_yticks([])
    return figure


@dataclass(frozen=True)
class Example:
    """One image with its score, what the ensemble says, what members say instead, and the truth."""

    image: NDArray[Any]  # [channels, height, width] in [0, 1]
    score: float
    predicted: str
    others: Sequence[str] = ()
    truth: str | None = None


def examples_figure(most: Sequence[Example], least: Sequence[Example], score: str) -> Figure:
    """The most divergent examples above, the least divergent below (ldr, Fig. 3).

    Ensemble predictions are bold; predictions of members that differ from it stand below it.
    """
    columns = max(len(most), len(least))
    figure, axes = new_figure(2, columns, width=1.7, height=2.2)
    figure.suptitle(score, fontsize=9.0)
    for row, kind, examples in zip(axes, ("most", "least"), (most, least), strict=True):
        for panel in row:
            panel.set_frame_on(False)
            panel.set_xticks([])
            panel.set_yticks([])
        for panel, example in zip(row, examples, strict=False):
            _show(panel, example)
        row[0].set_ylabel(f"{kind} divergent", fontsize=9.0)
    return figure


def _show(panel: Any, example: Example) -> None:
    image = example.image
    if image.shape[0] == 1:
        panel.imshow(image[0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    else:
        panel.imshow(np.moveaxis(image[:3], 0, -1), interpolation="nearest")
    truth = "" if example.truth is None else f"GT: {_short(example.truth)}, "
    panel.set_title(f"{truth}{example.score:.3g}", fontsize=7.5)
    others = ", ".join(_short(name) for name in example.others[:3])
    panel.set_xlabel(f"\n{others}", fontsize=7.5)  # below the line for the ensemble's own
    panel.text(
        *(0.5, -0.03),
        _short(example.predicted),
        fontweight="bold",
        fontsize=8.0,
        ha="center",
        va="top",
        transform=panel.transAxes,
    )


def _short(name: str, most: int = 16) -> str:
    name = name if len(name) <= most else name[: most - 1] + "…"
    return name.replace("$", r"\$")  # which would start a formula
