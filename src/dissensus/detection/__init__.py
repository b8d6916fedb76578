"""Detection of out-of-distribution (OOD) data among in-distribution (ID) data by a score.

**OOD is the positive class and higher scores mean OOD**, everywhere in this module; every entry of
``dissensus.scores.SCORES`` points that way. :func:`evaluate` measures a score on ID and OOD
examples, :func:`roc_curve` gives the points of its curve, :func:`threshold_at` turns ID validation
scores into a threshold, and :class:`Detector` puts score and threshold on top of an ensemble.
:class:`Mahalanobis` and :class:`NearestNeighbours` are scores of features, fitted on those of the
training data; :class:`MemberFeatures` takes features from the members of an ensemble.
:func:`compare` measures many scores on many sets at once, and :func:`among_best` says which results
cannot be told apart from the best. :func:`default_score` says which score detects best, by how an
ensemble was trained.

A threshold is a score value, so examples with equal scores are always on the same side of it.
"""

from __future__ import annotations

from dissensus.detection.comparison import MARKED, among_best
from dissensus.detection.default_scores import default_score
from dissensus.detection.detector import Detector
from dissensus.detection.distances import DISTANCES, Mahalanobis, NearestNeighbours
from dissensus.detection.measures import (
    Detection,
    Estimate,
    RocCurve,
    evaluate,
    proportion,
    roc_curve,
    threshold_at,
)
from dissensus.detection.member_features import MemberFeatures
from dissensus.detection.study import (
    ALL_SCORES,
    DEFAULT_SCORES,
    DISTANCE_SCORES,
    MEASURES,
    Divergent,
    Example,
    Study,
    compare,
    curve_rows,
    detection_rows,
    group_means,
    histogram_edges,
    histogram_rows,
    thinned,
)

__all__ = [
    "ALL_SCORES",
    "DEFAULT_SCORES",
    "DISTANCES",
    "DISTANCE_SCORES",
    "MARKED",
    "MEASURES",
    "Detection",
    "Detector",
    "Divergent",
    "Estimate",
    "Example",
    "Mahalanobis",
    "MemberFeatures",
    "NearestNeighbours",
    "RocCurve",
    "Study",
    "among_best",
    "compare",
    "curve_rows",
    "default_score",
    "detection_rows",
    "evaluate",
    "group_means",
    "histogram_edges",
    "histogram_rows",
    "proportion",
    "roc_curve",
    "thinned",
    "threshold_at",
]
