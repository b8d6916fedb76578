"""Detection of out-of-distribution (OOD) data among in-distribution (ID) data by a score.

**OOD is the positive class and higher scores mean OOD**, everywhere in this room; every entry of
``dissensus.scores.SCORES`` points that way. :class:`Detector` puts score and threshold on top of an
ensemble; :func:`fit_together` and :func:`score_together` do so for several at once.
``FITTED_SCORES`` are scores of features (:class:`Mahalanobis`, :class:`NearestNeighbours`,
:class:`ViM`, :class:`ReAct`) and combinations with them, which are fitted to training data;
:class:`MemberFeatures` takes features from the members of an ensemble. :func:`default_score` says
which score detects best, by how an ensemble was trained.

:func:`evaluate` measures a score on ID and OOD examples (:mod:`dissensus.measures`), and
:func:`compare` measures many scores on many sets at once.
"""

from __future__ import annotations

from dissensus.detection.detector import Detector, fit_together, score_together
from dissensus.detection.distances import Mahalanobis, NearestNeighbours, RelativeMahalanobis
from dissensus.detection.forward_pass import ForwardPass, MemberFeatures
from dissensus.detection.logit_scores import LastLayers, ReAct, ViM
from dissensus.detection.registry import (
    ALL_SCORES,
    DEFAULT_SCORES,
    FITTED_SCORES,
    Combined,
    default_score,
    is_fitted,
)
from dissensus.detection.study import (
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
from dissensus.detection.tail_scale import TailScale, combine_tails
from dissensus.measures import (
    MARKED,
    Detection,
    Estimate,
    RocCurve,
    among_best,
    evaluate,
    proportion,
    roc_curve,
    threshold_at,
)

__all__ = [
    "ALL_SCORES",
    "DEFAULT_SCORES",
    "FITTED_SCORES",
    "MARKED",
    "MEASURES",
    "Combined",
    "Detection",
    "Detector",
    "Divergent",
    "Estimate",
    "Example",
    "ForwardPass",
    "LastLayers",
    "Mahalanobis",
    "MemberFeatures",
    "NearestNeighbours",
    "ReAct",
    "RelativeMahalanobis",
    "RocCurve",
    "Study",
    "TailScale",
    "ViM",
    "among_best",
    "combine_tails",
    "compare",
    "curve_rows",
    "default_score",
    "detection_rows",
    "evaluate",
    "fit_together",
    "group_means",
    "histogram_edges",
    "histogram_rows",
    "is_fitted",
    "proportion",
    "roc_curve",
    "score_together",
    "thinned",
    "threshold_at",
]
