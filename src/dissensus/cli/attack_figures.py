"""Figures of ``dissensus attack``: what is left of the accuracy, and inputs before and after."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dissensus.files import replace_atomically
from dissensus.plots.style import add_line, label, new_figure, save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor

    from dissensus.robustness import Robustness

__all__ = ["keep_examples", "write_figures"]

#: How many examples, and rows of attacks, a picture shows; lines, a panel.
_EXAMPLES, _ROWS, _LINES = 8, 6, 6

_AXES = {"eps": "ε", "steps": "steps", "restarts": "restarts"}


def write_figures(found: Robustness, folder: Path, classes: Sequence[str] = ()) -> list[Path]:
    """``accuracy`` and, of images that were broken, ``examples``, each as SVG and PNG."""
    paths = []
    accuracy = _accuracy(found)
    if accuracy is not None:
        paths += save_figure(accuracy, folder, "accuracy")
    examples = _examples(found, classes)
    if examples is not None:
        paths += save_figure(examples, folder, "examples")
    return paths


def _accuracy(found: Robustness) -> Figure | None:
    """Accuracy against ε, steps and restarts, a panel each for what there is."""
    panels = [over for over in _AXES if any(curve.over == over for curve in found.curves)]
    if not panels:
        return None
    figure, axes = new_figure(1, len(panels), width=4.2, height=3.4, sharey=True)
    told: list[str] = []
    for panel, over in zip(axes[0], panels, strict=True):
        curves = [curve for curve in found.curves if curve.over == over][:_LINES]
        for number, curve in enumerate(curves):
            points = sorted(zip(curve.values, curve.accuracy, strict=True))
            if over == "eps":
                points.insert(0, (0.0, found.clean_accuracy.value))
            values, accuracy = zip(*points, strict=True)
            add_line(panel, values, accuracy, number, name=_short(curve.attack))
        if over == "eps":
            _add_worst(panel, found, curves[0].norm)
            panel.set_title(curves[0].norm, loc="left", fontsize=9.0)
        else:
            panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylim(0, 1.02)
        label(panel, _AXES[over], "accuracy" if panel is axes[0][0] else "")
        names = [curve.attack for curve in curves]
        if over == "eps" or names != told:  # the panel before says it already
            panel.legend(fontsize=6.5, frameon=False)
        told = names
    return figure


def _add_worst(panel: Axes, found: Robustness, norm: str) -> None:
    """The worst case over all attacks, for each ε in ``norm``, with its interval."""
    worst = [entry for entry in found.worst if entry.norm == norm]
    values = [entry.accuracy.value for entry in worst]
    below = [entry.accuracy.value - entry.accuracy.low for entry in worst]
    above = [entry.accuracy.high - entry.accuracy.value for entry in worst]
    eps = [entry.eps for entry in worst]
    name = "worst case of all attacks"
    panel.errorbar(eps, values, (below, above), fmt="kx", capsize=3.0, linewidth=1.0, label=name)


def _examples(found: Robustness, classes: Sequence[str]) -> Figure | None:
    """Images that most attacks broke, before and after each attack; predictions stand above."""
    rows, before = found.rows[:_ROWS], found.rows[0].outcome
    shown = shown_examples(found)
    if not len(shown):
        return None
    figure, axes = new_figure(len(rows) + 1, len(shown), width=1.0, height=1.15)

    def name(predicted: int) -> str:
        return textwrap.shorten(classes[predicted], 9, placeholder="…") if classes else ""

    for column, example in enumerate(shown.tolist()):
        _draw(axes[0, column], found.inputs[example], name(int(before.labels[example])))
        for line, row in enumerate(rows, 1):
            predicted = int(row.outcome.predictions[example])
            fooled = predicted != int(before.labels[example])
            image = row.outcome.adversarial[example]
            _draw(axes[line, column], image, name(predicted), fooled=fooled)
    texts = ["original", *(row.label for row in rows)]
    for line, text in enumerate(texts):
        words = textwrap.fill(text.replace(",", ", ").replace(":", ": "), 16)
        axes[line, 0].set_ylabel(words, fontsize=6.0, rotation=0, ha="right", va="center")
    return figure


def shown_examples(found: Robustness) -> Tensor:
    """The rows of images that most attacks broke, a few of them; none where inputs are no images.

    Images that were wrong from the start do not count.
    """
    shape, before = tuple(found.inputs.shape[1:]), found.rows[0].outcome
    right = before.clean_predictions == before.labels
    broken = torch.stack([row.outcome.broken & right for row in found.rows[:_ROWS]])
    times = broken.sum(0)
    order = times.argsort(descending=True, stable=True)[:_EXAMPLES]
    pictures = len(shape) == 3 and shape[0] in (1, 3)
    return order[times[order] > 0] if pictures else order[:0]


def keep_examples(found: Robustness, path: Path) -> bool:
    """Write the examples that figures show to ``path``, ``.npz``; False where there are none.

    ``original`` ``[images, channels, height, width]`` and ``adversarial`` ``[attacks, images, …]``
    as bytes, ``labels`` ``[images]`` and ``predictions`` ``[attacks, images]``; the attacks are the
    first of the record's, in its order.
    """
    shown = shown_examples(found)
    if not len(shown):
        return False
    rows = [row.outcome for row in found.rows[:_ROWS]]
    arrays: dict[str, Any] = {
        "original": _bytes(found.inputs[shown]),
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
    found: NDArray[np.uint8] = (images.cpu().clamp(0, 1) * 255).round().byte().numpy()
    return found


def _draw(axes: Axes, image: Tensor, title: str, *, fooled: bool = False) -> None:
    axes.imshow(image.cpu().permute(1, 2, 0).numpy(), cmap="gray", vmin=0.0, vmax=1.0)
    axes.set_title(title, fontsize=7.0, pad=2.0, color="#D55E00" if fooled else "black")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _short(spec: str) -> str:
    """A spec in lines that a legend has room for."""
    return textwrap.fill(spec.replace(",", ", "), 34)
