"""Plots of ``dissensus ood``: ROC curves, histograms and examples of each study."""

from __future__ import annotations

from pathlib import Path

from dissensus.cli.ood_examples import divergent, plain_name
from dissensus.detection import roc_curve
from dissensus.plots import save
from dissensus.plots.detection import (
    MOST_CURVES,
    Curve,
    examples_plot,
    histogram_plot,
    roc_plot,
)
from dissensus.shift import Prepared, Study

__all__ = ["draw_examples", "draw_study"]

#: Scores with histograms: the first ones; more would not fit on a page.
_HISTOGRAMS = 4


def draw_study(folder: Path, method: str, study: Study) -> list[Path]:
    """``roc-METHOD.png`` (with AUROC, of the best scores) and ``histograms-METHOD.png``."""
    known = study.scores[study.id_name]
    curves: dict[str, dict[str, Curve]] = {}
    for name in study.scores:
        if name == study.id_name:
            continue
        curves[name] = {}
        for score in _best_scores(study):
            false, true, _ = roc_curve(known[score], study.scores[name][score])
            line = f"{score} {study.detection[score][name].auroc:.3f}"
            curves[name][line] = false.numpy(), true.numpy()
    values = {
        score: {name: scores[score].numpy() for name, scores in study.scores.items()}
        for score in list(known)[:_HISTOGRAMS]
    }
    plots = {
        "roc": roc_plot(curves),
        "histograms": histogram_plot(values, study.id_name, study.thresholds),
    }
    return [save(plot, folder / f"{kind}-{plain_name(method)}.png") for kind, plot in plots.items()]


def _best_scores(study: Study) -> list[str]:
    """The scores with the highest mean AUROC over all sets, as many as a panel can show."""
    means = {
        score: sum(measured.auroc for measured in sets.values()) / len(sets)
        for score, sets in study.detection.items()
    }
    return sorted(means, key=lambda score: -means[score])[:MOST_CURVES]


def draw_examples(folder: Path, method: str, prepared: Prepared, study: Study) -> list[Path]:
    """``examples-METHOD-SET.png``: most and least divergent images of each set (ldr, Fig. 3)."""
    paths = []
    for name, divided in divergent(prepared, study).items():
        plot = examples_plot(divided.most, divided.least, f"{divided.score} ({name})")
        file = f"examples-{plain_name(method)}-{plain_name(name)}.png"
        paths.append(save(plot, folder / file))
    return paths
