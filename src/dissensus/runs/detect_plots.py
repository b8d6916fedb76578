"""Plots of detection: ROC curves, histograms of scores, and divergent images of one method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dissensus.detection import Divergent, Study, roc_curve
from dissensus.plots import save
from dissensus.plots.detection import MOST_CURVES, Curve, examples_plot, histogram_plot, roc_plot
from dissensus.runs.detect import file_name

__all__ = ["save_plots"]

#: Scores with histograms: the first ones; more would not fit on a page.
_HISTOGRAMS = 4


def save_plots(
    folder: Path, method: str, study: Study, divergent: Mapping[str, Divergent]
) -> list[Path]:
    """Write ``roc-METHOD.png``, ``histograms-METHOD.png`` and ``examples-METHOD-SET.png``."""
    values = {
        score: {name: scores[score].numpy() for name, scores in study.scores.items()}
        for score in list(study.detection)[:_HISTOGRAMS]
    }
    stem = file_name(method)
    plots = {
        f"roc-{stem}": roc_plot(_curves(study)),
        f"histograms-{stem}": histogram_plot(values, study.known, study.thresholds),
    }
    for name, examples in divergent.items():
        title = f"{examples.score} ({name})"
        plot = examples_plot(examples.most, examples.least, title)
        plots[f"examples-{stem}-{file_name(name)}"] = plot
    return [save(plot, folder / f"{name}.png") for name, plot in plots.items()]


def _curves(study: Study) -> dict[str, dict[str, Curve]]:
    """For each unknown set the curves of the best scores, with their AUROC."""
    curves: dict[str, dict[str, Curve]] = {}
    for score in _best_scores(study):
        for name, measures in study.detection[score].items():
            inliers, outliers = study.scores[study.known][score], study.scores[name][score]
            false, true, _ = roc_curve(inliers, outliers)
            line = f"{score} {measures.auroc:.3f}"
            curves.setdefault(name, {})[line] = false.numpy(), true.numpy()
    return curves


def _best_scores(study: Study) -> list[str]:
    """The scores with the highest mean AUROC over all sets, as many as a panel can show."""
    means = {
        score: sum(measures.auroc for measures in sets.values()) / len(sets)
        for score, sets in study.detection.items()
    }
    return sorted(means, key=lambda score: -means[score])[:MOST_CURVES]
