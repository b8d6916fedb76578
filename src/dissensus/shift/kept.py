"""What a record keeps of a study for figures: ROC curves and histograms, thinned."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.detection import histogram_edges, roc_curve, thinned
from dissensus.shift.study import Study

__all__ = ["curve_rows", "histogram_rows"]

_POINTS, _BINS, _DIGITS = 100, 40, 5


def curve_rows(method: str, found: Study) -> list[dict[str, Any]]:
    """One row for each score and OOD set: ``fpr`` and ``tpr``, about a hundred points each."""
    rows = []
    known = found.scores[found.id_name]
    for score in found.detection:
        for name in found.detection[score]:
            false, true, _ = roc_curve(known[score], found.scores[name][score])
            fpr, tpr = thinned(false.numpy(), true.numpy(), _POINTS)
            row: dict[str, Any] = {"method": method, "score": score, "set": name}
            rows.append({**row, "fpr": _rounded(fpr), "tpr": _rounded(tpr)})
    return rows


def histogram_rows(method: str, found: Study) -> list[dict[str, Any]]:
    """One row for each score: ``edges`` of bins and ``share[set]``, the part of a set in each.

    The ID set is among the sets. Scores beyond the outer edges count in the outer bins.
    """
    rows = []
    for score in found.detection:
        values = {name: scores[score].numpy() for name, scores in found.scores.items()}
        edges = histogram_edges(np.concatenate(list(values.values())), _BINS)
        share = {name: _rounded(_shares(own, edges)) for name, own in values.items()}
        row: dict[str, Any] = {"method": method, "score": score}
        row["threshold"] = found.thresholds.get(score)
        rows.append({**row, "edges": [float(f"{edge:.7g}") for edge in edges], "share": share})
    return rows


def _shares(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[Any]:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return counts / max(1, values.size)


def _rounded(values: NDArray[Any]) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]
