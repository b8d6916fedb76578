"""Studies: many scores of known inputs against many sets of unknown inputs, as tables and curves.

Everything here is a pure function of scores, ``scores[set][score]`` ``[rows]``. OOD is the positive
class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dissensus.measures import Detection, Estimate, evaluate, roc_curve
from dissensus.tools.tabular import Tabular

#: Measures of detection, and whether more is better.
MEASURES = {"auroc": True, "aupr_in": True, "aupr_out": True, "fpr95": False}

#: Points of a ROC curve, bins of a histogram and decimals that a record keeps.
_POINTS, _BINS, _DIGITS = 100, 40, 5

#: Rows with the highest scores, and as many with the lowest, whose images are kept.
_EXTREME = 5

Scores = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False, repr=False)
class Study(Tabular):
    """Scores of known and unknown inputs, and how well each score separates them.

    ``known`` is the name of the known set, ``scores[set][score]`` are ``[rows]`` and
    ``detection[score][set]`` the measures of an unknown set against the known one.
    ``thresholds[score]`` come from validation data; ``flagged[score][set]`` is the share of a set,
    the known one included, that lies above.
    """

    known: str
    scores: Scores
    detection: Mapping[str, Mapping[str, Detection]]
    thresholds: Mapping[str, float] = field(default_factory=dict)
    flagged: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each score and unknown set."""
        return detection_rows(self)

    def headline(self) -> str:
        """How many scores, and which sets."""
        sets = ", ".join(name for name in self.scores if name != self.known)
        return f"{len(self.detection)} scores of {self.known} against {sets}"


def compare(
    scores: Scores,
    known: str,
    *,
    thresholds: Mapping[str, float] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Study:
    """Measure every score on the set ``known`` against every other set.

    ``thresholds`` come from known inputs that are not tested on (:func:`threshold_at`).
    ``progress`` is called with 1 after each pair of a score and a set.

    >>> import torch
    >>> scores = {"test": {"pds": torch.zeros(4)}, "far": {"pds": torch.ones(3)}}
    >>> study = compare(scores, "test", thresholds={"pds": 0.0}, bootstrap=0)
    >>> study.detection["pds"]["far"].auroc.value, study.flagged["pds"]
    (1.0, {'test': 0.0, 'far': 1.0})
    """
    detection: dict[str, dict[str, Detection]] = {}
    for score, inliers in scores[known].items():
        detection[score] = {}
        for name in scores:
            if name != known:
                outliers = scores[name][score]
                measures = evaluate(inliers, outliers, bootstrap=bootstrap, seed=seed)
                detection[score][name] = measures
                if progress is not None:
                    progress(1)
    thresholds = thresholds or {}
    flagged = {
        score: {name: float((s[score] > limit).double().mean()) for name, s in scores.items()}
        for score, limit in thresholds.items()
    }
    return Study(known, scores, detection, thresholds, flagged)


def group_means(
    detection: Mapping[str, Detection], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """The mean of each measure over the sets of each group, ``{group: {measure: mean}}``.

    >>> import torch
    >>> sets = {"a": evaluate(torch.zeros(2), torch.ones(2), bootstrap=0)}
    >>> group_means(sets, {"near": ["a"], "far": []})["near"]["auroc"]
    1.0
    """
    return {
        group: {
            measure: math.fsum(getattr(detection[name], measure) for name in names) / len(names)
            for measure in MEASURES
        }
        for group, names in groups.items()
        if names
    }


# ---- rows of a record ---------------------------------------------------------------------------


def detection_rows(study: Study) -> list[dict[str, Any]]:
    """One row for each score and unknown set: its measures, their intervals, and shares flagged."""
    rows = []
    for score, sets in study.detection.items():
        flagged = study.flagged.get(score, {})
        for name, measures in sets.items():
            row: dict[str, Any] = {"score": score, "set": name}
            for measure in MEASURES:
                estimate: Estimate = getattr(measures, measure)
                row[measure] = estimate.value
                for end in ("low", "high"):
                    edge = getattr(estimate, end)
                    row[f"{measure}_{end}"] = None if math.isnan(edge) else edge
            row["threshold"] = study.thresholds.get(score)
            row["flagged"], row["flagged_id"] = flagged.get(name), flagged.get(study.known)
            row["id_examples"], row["ood_examples"] = measures.id_count, measures.ood_count
            rows.append(row)
    return rows


def curve_rows(study: Study) -> list[dict[str, Any]]:
    """One row for each score and unknown set: ``fpr`` and ``tpr``, about a hundred points each."""
    rows = []
    for score, sets in study.detection.items():
        for name in sets:
            inliers, outliers = study.scores[study.known][score], study.scores[name][score]
            false, true, _ = roc_curve(inliers, outliers)
            fpr, tpr = thinned(false.numpy(), true.numpy(), _POINTS)
            rows.append({"score": score, "set": name, "fpr": _rounded(fpr), "tpr": _rounded(tpr)})
    return rows


def histogram_rows(study: Study) -> list[dict[str, Any]]:
    """One row for each score: ``edges`` of bins and ``share[set]``, the part of a set in each.

    The known set is among the sets. Scores beyond the outer edges count in the outer bins.
    """
    rows = []
    for score in study.detection:
        values = {name: scores[score].numpy() for name, scores in study.scores.items()}
        edges = histogram_edges(np.concatenate(list(values.values())), _BINS)
        row: dict[str, Any] = {"score": score, "threshold": study.thresholds.get(score)}
        row["edges"] = [float(f"{edge:.7g}") for edge in edges]
        row["share"] = {name: _rounded(_shares(v, edges)) for name, v in values.items()}
        rows.append(row)
    return rows


def _shares(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[Any]:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return counts / max(1, values.size)


def _rounded(values: NDArray[Any]) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]


# ---- curves and histograms small enough to keep and to draw -------------------------------------


def thinned(
    x: NDArray[Any], y: NDArray[Any], points: int = 400
) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most ``points + 2`` points of a curve, about evenly along its length; the ends stay.

    >>> thinned(np.arange(1001.0), np.zeros(1001), 5)[0].tolist()
    [0.0, 250.0, 500.0, 750.0, 1000.0]
    """
    length = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    index = np.searchsorted(length, np.linspace(0, length[-1], points)).clip(0, len(x) - 1)
    index = np.unique(np.concatenate([[0], index, [len(x) - 1]]))
    return x[index], y[index]


def histogram_edges(values: NDArray[Any], bins: int = 40) -> NDArray[Any]:
    """Edges of bins between the 0.5% and 99.5% quantiles; what lies outside goes to the ends."""
    low, high = np.quantile(values, [0.005, 0.995])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1)


# ---- divergent examples: the inputs of a set with the highest and lowest scores ------------------


@dataclass(frozen=True)
class Example:
    """An image, its score, the ensemble's prediction, members' other predictions, and the truth."""

    image: NDArray[Any]  # [channels, height, width] in [0, 1]
    score: float
    predicted: str
    others: Sequence[str] = ()
    truth: str | None = None


class Divergent(NamedTuple):
    """The most and least divergent examples of one set, by the score called ``score``."""

    score: str
    most: list[Example]
    least: list[Example]


def extreme_rows(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The rows with the highest scores and those with the lowest, the most extreme ones first.

    There are five in each, and at most half of the rows.

    >>> import torch
    >>> [rows.tolist() for rows in extreme_rows(torch.tensor([3.0, 1.0, 2.0, 4.0]))]
    [[3, 0], [1, 2]]
    """
    order = scores.argsort(descending=True)
    count = min(_EXTREME, max(1, len(order) // 2))
    return order[:count], order[-count:].flip(0)
