"""Diagnostics of collusion: is diversity real, or do members shift predictions in opposite ways?

The paper is *collusion* (Jeffares et al.), Sections 6.1 and 6.2. Members collude when what looks
like diversity cancels in the average: ``f_j = f + c_j`` with ``Σ_j w_j c_j = 0`` (Appendix F).

:func:`diagnose` runs all of them. They are pure functions of the predictions, each with
a ``sentence`` in plain words: :func:`explosion`, :func:`debiased_share`, :func:`leftover_offset`,
:func:`codependence`, :func:`generalization_gap`, :func:`dominance`, :func:`pairwise`. The verdict
is :func:`judge` with the thresholds of :data:`THRESHOLDS`.
"""

from __future__ import annotations

from dissensus.diagnostics.collusion import (
    DebiasedShare,
    Explosion,
    GeneralizationGap,
    LeftoverOffset,
    debiased_share,
    explosion,
    generalization_gap,
    leftover_offset,
)
from dissensus.diagnostics.diagnosis import Diagnosis, diagnose
from dissensus.diagnostics.members import (
    Codependence,
    Dominance,
    Drop,
    Pairwise,
    codependence,
    dominance,
    pairwise,
)
from dissensus.diagnostics.split import Split, looks_like_probs
from dissensus.diagnostics.verdict import THRESHOLDS, Thresholds, Verdict, judge

__all__ = [
    "THRESHOLDS",
    "Codependence",
    "DebiasedShare",
    "Diagnosis",
    "Dominance",
    "Drop",
    "Explosion",
    "GeneralizationGap",
    "LeftoverOffset",
    "Pairwise",
    "Split",
    "Thresholds",
    "Verdict",
    "codependence",
    "debiased_share",
    "diagnose",
    "dominance",
    "explosion",
    "generalization_gap",
    "judge",
    "leftover_offset",
    "looks_like_probs",
    "pairwise",
]
