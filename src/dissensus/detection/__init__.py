"""Detection of out-of-distribution (OOD) data among in-distribution (ID) data by a score.

**OOD is the positive class and higher scores mean OOD**, everywhere in this module; every entry of
``dissensus.scores.SCORES`` points that way. :func:`evaluate` measures a score on ID and OOD
examples, :func:`roc_curve` gives the points of its curve, :func:`threshold_at` turns ID validation
scores into a threshold, and :class:`Detector` puts score and threshold on top of an ensemble.
``FITTED_SCORES`` are scores of features (:class:`Mahalanobis`, :class:`NearestNeighbours`,
:class:`ViM`, :class:`ReAct`) and combinations with them, which are fitted to training data;
:class:`MemberFeatures` takes features from the members of an ensemble.
:func:`compare` measures many scores on many sets at once, and :func:`among_best` says which results
cannot be told apart from the best. :func:`default_score` says which score detects best, by how an
ensemble was trained.

A threshold is a score value, so examples with equal scores are always on the same side of it.
"""

from __future__ import annotations

from dissensus.detection.comparison import MARKED, among_best
from dissensus.detection.default_scores import default_score
from dissensus.detection.detector import Detector
from dissensus.detection.distances import Mahalanobis, NearestNeighbours
from dissensus.detection.feature_scores import DISTANCES, FITTED_SCORES, is_fitted
from dissensus.detection.last_layer import LastLayer
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
from dissensus.detection.react import ReAct
from dissensus.detection.study import (
    ALL_SCORES,
    DEFAULT_SCORES,
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
from dissensus.detection.tail_scale import TailScale
from dissensus.detection.vim import ViM

__all__ = [
    "ALL_SCORES",
    "DEFAULT_SCORES",
    "DISTANCES",
    "FITTED_SCORES",
    "MARKED",
    "MEASURES",
    "Detection",
    "Detector",
    "Divergent",
    "Estimate",
    "Example",
    "LastLayer",
    "Mahalanobis",
    "MemberFeatures",
    "NearestNeighbours",
    "ReAct",
    "RocCurve",
    "Study",
    "TailScale",
    "ViM",
    "among_best",
    "compare",
    "curve_rows",
    "default_score",
    "detection_rows",
    "evaluate",
    "group_means",
    "histogram_edges",
    "histogram_rows",
    "is_fitted",
    "proportion",
    "roc_curve",
    "thinned",
    "threshold_at",
]
