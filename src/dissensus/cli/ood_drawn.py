"""Figures of ``dissensus ood``: what is drawn of which study, and where it goes."""

from __future__ import annotations

from pathlib import Path

from dissensus.cli.ood_examples import divergent, plain_name
from dissensus.detection import roc_curve
from dissensus.papers.detection_figures import (
    Curve,
    examples_figure,
    histogram_figure,
    roc_figure,
)
from dissensus.plots.style import COLORS, save_figure
from dissensus.shift import Prepared, Study

__all__ = ["draw_examples", "draw_study"]

#: Scores with histograms: the first ones; more would not fit on a page.
_HISTOGRAMS = 4


def draw_study(folder: Path, method: str, found: Study) -> list[Path]:
    """``roc-METHOD.png`` (with AUROC, of the best scores) and ``histograms-METHOD.png``."""
    known = found.scores[found.id_name]
    curves: dict[str, dict[str, Curve]] = {}
    for name in found.scores:
        if name == found.id_name:
            continue
        curves[name] = {}
        for score in _best(found):
            false, true, _ = roc_curve(known[score], found.scores[name][score])
            line = f"{score} {found.detection[score][name].auroc:.3f}"
            curves[name][line] = false.numpy(), true.numpy()
    shown = list(known)[:_HISTOGRAMS]
    values = {
        score: {name: scores[score].numpy() for name, scores in found.scores.items()}
        for score in shown
    }
    figures = {
        "roc": roc_figure(curves),
        "histograms": histogram_figure(values, found.id_name, found.thresholds),
    }
    return [
        path
        for kind, figure in figures.items()
        for path in save_figure(figure, folder, f"{kind}-{plain_name(method)}", ("png",))
    ]


def _best(found: Study) -> list[str]:
    """The scores with the highest mean AUROC over all sets, as many as can be told apart."""
    means = {
        score: sum(measured.auroc for measured in sets.values()) / len(sets)
        for score, sets in found.detection.items()
    }
    return sorted(means, key=lambda score: -means[score])[: len(COLORS)]


def draw_examples(folder: Path, method: str, made: Prepared, found: Study) -> list[Path]:
    """``examples-METHOD-SET.png``: most and least divergent images of each set (ldr, Fig. 3)."""
    paths = []
    for name, divided in divergent(made, found).items():
        stem = f"examples-{plain_name(method)}-{plain_name(name)}"
        figure = examples_figure(divided.most, divided.least, f"{divided.score} ({name})")
        paths += save_figure(figure, folder, stem, ("png",))
    return paths
