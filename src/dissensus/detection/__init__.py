"""How well a score tells in-distribution (ID) from out-of-distribution (OOD) data, and using it.

**OOD is the positive class and higher scores mean OOD**, everywhere in this module; every entry of
``dissensus.scores.SCORES`` points that way. :func:`evaluate` measures a score on ID and OOD
examples, :func:`roc_curve` gives the points of its curve, :func:`threshold_at` turns ID validation
scores into a threshold, and :class:`Detector` puts score and threshold on top of an ensemble.
:class:`Mahalanobis` and :class:`NearestNeighbours` are scores of features, fitted on those of the
training data.

A threshold is a score value, so examples with equal scores are always on the same side of it.
"""

from __future__ import annotations

from dissensus.detection.curves import histogram_edges, thinned
from dissensus.detection.detector import DISTANCES, Detector
from dissensus.detection.mahalanobis import Mahalanobis
from dissensus.detection.measures import (
    Detection,
    Estimate,
    RocCurve,
    evaluate,
    roc_curve,
    threshold_at,
)
from dissensus.detection.neighbours import NearestNeighbours

__all__ = [
    "DISTANCES",
    "Detection",
    "Detector",
    "Estimate",
    "Mahalanobis",
    "NearestNeighbours",
    "RocCurve",
    "evaluate",
    "histogram_edges",
    "roc_curve",
    "thinned",
    "threshold_at",
]
