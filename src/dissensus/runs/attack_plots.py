"""Plots of attacks: accuracy under attack, and images before and after."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dissensus.plots import Image, Panel, Plot, Series, save
from dissensus.robustness import Robustness
from dissensus.runs.attack import RunRobustness

__all__ = ["save_plots"]

#: The most lines of a panel.
_LINES = 6

_AXES = {"eps": "ε", "steps": "steps", "restarts": "restarts"}


def save_plots(result: RunRobustness, folder: Path) -> list[Path]:
    """Write ``accuracy`` and, of images that were broken, ``examples``, each as SVG and PNG."""
    plots = {"accuracy": accuracy_plot(result.robustness), "examples": examples_plot(result)}
    return [
        save(plot, folder / f"{name}.{ending}")
        for name, plot in plots.items()
        if plot is not None
        for ending in ("svg", "png")
    ]


def accuracy_plot(attacked: Robustness) -> Plot | None:
    """Accuracy against ε, steps and restarts: one panel for each that was measured."""
    panels = []
    for over, label in _AXES.items():
        curves = [curve for curve in attacked.curves if curve.over == over][:_LINES]
        if not curves:
            continue
        lines = []
        for number, curve in enumerate(curves):
            points = sorted(zip(curve.values, curve.accuracy, strict=True))
            if over == "eps":
                points.insert(0, (0.0, attacked.clean_accuracy.value))
            x, y = zip(*points, strict=True)
            places = x if over == "eps" else [int(value) for value in x]
            lines.append(Series(_wrap(curve.attack), places, y, number))
        title = curves[0].norm if over == "eps" else ""
        lines += [_worst_case(attacked, curves[0].norm)] if over == "eps" else []
        panels.append(Panel(label, "accuracy", lines, title, y_range=(0.0, 1.02)))
    size = (4.2, 3.4)
    return Plot(panels, columns=len(panels), size=size, share_y="all") if panels else None


def _worst_case(attacked: Robustness, norm: str) -> Series:
    """The worst case over all attacks, for each ε in ``norm``, with its interval."""
    worst = [entry for entry in attacked.worst if entry.norm == norm]
    return Series(
        "worst case of all attacks",
        [entry.eps for entry in worst],
        [entry.accuracy.value for entry in worst],
        "ink",
        "points",
        low=[entry.accuracy.low for entry in worst],
        high=[entry.accuracy.high for entry in worst],
        marker=6,
    )


def examples_plot(result: RunRobustness) -> Plot | None:
    """Images that most attacks broke, before and after each attack; predictions stand above."""
    examples, classes = result.examples, result.classes
    if not examples:
        return None
    labels = examples["labels"].tolist()

    def row_of(text: str, images: NDArray[Any], predictions: list[int]) -> list[Image]:
        side = textwrap.fill(text.replace(",", ", ").replace(":", ": "), 16)
        return [
            Image(
                image / 255,
                textwrap.shorten(classes[predicted], 9, placeholder="…") if classes else "",
                side="" if place else side,
                alert=predicted != labels[place],
            )
            for place, (image, predicted) in enumerate(zip(images, predictions, strict=True))
        ]

    panels = row_of("original", examples["original"], labels)
    changed = zip(examples["adversarial"], examples["predictions"], strict=True)
    for row, (images, predictions) in zip(result.robustness.rows, changed, strict=False):
        panels += row_of(row.label, images, predictions.tolist())
    return Plot(panels, columns=len(labels), size=(1.0, 1.15))


def _wrap(spec: str) -> str:
    """A spec in lines that a legend has room for."""
    return textwrap.fill(spec.replace(",", ", "), 34)
