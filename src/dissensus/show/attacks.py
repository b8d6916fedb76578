"""Plots of attacks: accuracy under attack, and images before and after."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from dissensus.robustness import Robustness
from dissensus.show.plot import Image, Panel, Plot, Series

#: The most lines of a panel.
_LINES = 6

_AXES = {"eps": "ε", "steps": "steps", "restarts": "restarts"}


def accuracy_plot(robustness: Robustness) -> Plot | None:
    """Accuracy against ε, steps and restarts: one panel for each that was measured."""
    panels = []
    for over, label in _AXES.items():
        curves = [curve for curve in robustness.curves if curve.over == over][:_LINES]
        if not curves:
            continue
        lines = []
        for number, curve in enumerate(curves):
            points = sorted(zip(curve.values, curve.accuracy, strict=True))
            if over == "eps":
                points.insert(0, (0.0, robustness.clean_accuracy.value))
            x, y = zip(*points, strict=True)
            places = x if over == "eps" else [int(value) for value in x]
            lines.append(Series(_wrap(curve.attack), places, y, number))
        title = curves[0].norm if over == "eps" else ""
        lines += [_worst_case(robustness, curves[0].norm)] if over == "eps" else []
        panels.append(Panel(label, "accuracy", lines, title, y_range=(0.0, 1.02)))
    size = (4.2, 3.4)
    return Plot(panels, columns=len(panels), size=size, share_y="all") if panels else None


def _worst_case(robustness: Robustness, norm: str) -> Series:
    """The worst case over all attacks, for each ε in ``norm``, with its interval."""
    worst = [entry for entry in robustness.worst if entry.norm == norm]
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


def attacked_plot(
    examples: Mapping[str, NDArray[Any]], attacks: Sequence[str], classes: Sequence[str]
) -> Plot:
    """Images before and after each attack, as bytes; predictions stand above them.

    ``examples`` are ``original``, ``adversarial``, ``labels`` and ``predictions``.
    """
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
    changed = zip(attacks, examples["adversarial"], examples["predictions"], strict=True)
    for attack, images, predictions in changed:
        panels += row_of(attack, images, predictions.tolist())
    return Plot(panels, columns=len(labels), size=(1.0, 1.15))


def _wrap(spec: str) -> str:
    """A spec in lines that a legend has room for."""
    return textwrap.fill(spec.replace(",", ", "), 34)
