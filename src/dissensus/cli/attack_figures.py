"""Plots of ``dissensus attack``: accuracy under attack, and images before and after."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dissensus.files import replace_atomically
from dissensus.plots import Image, Panel, Plot, Series, save

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from dissensus.robustness import Robustness

__all__ = ["keep_examples", "write_figures"]

#: How many examples, and rows of attacks, a picture shows; lines, a panel.
_EXAMPLES, _ROWS, _LINES = 8, 6, 6

_AXES = {"eps": "ε", "steps": "steps", "restarts": "restarts"}


def write_figures(attacked: Robustness, folder: Path, classes: Sequence[str] = ()) -> list[Path]:
    """``accuracy`` and, of images that were broken, ``examples``, each as SVG and PNG."""
    plots = {"accuracy": accuracy_plot(attacked), "examples": examples_plot(attacked, classes)}
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


def examples_plot(attacked: Robustness, classes: Sequence[str]) -> Plot | None:
    """Images that most attacks broke, before and after each attack; predictions stand above."""
    rows, before = attacked.rows[:_ROWS], attacked.rows[0].outcome
    examples = shown_examples(attacked).tolist()
    if not examples:
        return None

    def row_of(text: str, inputs: Tensor, predictions: Tensor) -> list[Image]:
        side = textwrap.fill(text.replace(",", ", ").replace(":", ": "), 16)
        return [
            Image(
                inputs[example].cpu().numpy(),
                textwrap.shorten(classes[predicted], 9, placeholder="…") if classes else "",
                side="" if place else side,
                alert=predicted != int(before.labels[example]),
            )
            for place, example in enumerate(examples)
            for predicted in [int(predictions[example])]
        ]

    images = row_of("original", attacked.inputs, before.labels)
    for row in rows:
        images += row_of(row.label, row.outcome.adversarial, row.outcome.predictions)
    return Plot(images, columns=len(examples), size=(1.0, 1.15))


def shown_examples(attacked: Robustness) -> Tensor:
    """The rows of images that most attacks broke, a few of them; none where inputs are no images.

    Images that were wrong from the start do not count.
    """
    shape, before = tuple(attacked.inputs.shape[1:]), attacked.rows[0].outcome
    right = before.clean_predictions == before.labels
    broken = torch.stack([row.outcome.broken & right for row in attacked.rows[:_ROWS]])
    times = broken.sum(0)
    order = times.argsort(descending=True, stable=True)[:_EXAMPLES]
    pictures = len(shape) == 3 and shape[0] in (1, 3)
    return order[times[order] > 0] if pictures else order[:0]


def keep_examples(attacked: Robustness, path: Path) -> bool:
    """Write the examples that figures show to ``path``, ``.npz``; False where there are none.

    ``original`` ``[images, channels, height, width]`` and ``adversarial`` ``[attacks, images, …]``
    as bytes, ``labels`` ``[images]`` and ``predictions`` ``[attacks, images]``; the attacks are the
    first of the record's, in its order.
    """
    shown = shown_examples(attacked)
    if not len(shown):
        return False
    rows = [row.outcome for row in attacked.rows[:_ROWS]]
    arrays: dict[str, Any] = {
        "original": _bytes(attacked.inputs[shown]),
        "adversarial": _bytes(torch.stack([row.adversarial[shown] for row in rows])),
        "labels": rows[0].labels[shown].numpy(),
        "predictions": torch.stack([row.predictions[shown] for row in rows]).numpy(),
    }

    def write(part: Path) -> None:
        with part.open("wb") as file:
            np.savez_compressed(file, **arrays)

    replace_atomically(path, write)
    return True


def _bytes(images: Tensor) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = (images.cpu().clamp(0, 1) * 255).round().byte().numpy()
    return pixels


def _wrap(spec: str) -> str:
    """A spec in lines that a legend has room for."""
    return textwrap.fill(spec.replace(",", ", "), 34)
