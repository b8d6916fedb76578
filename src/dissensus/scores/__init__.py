"""Scores of how unusual an input looks to an ensemble, one number for each example.

**For every score, higher means more out of distribution.** What a paper defines as a confidence is
negated here. ``SCORES["pds"](logits)`` gives one score, :func:`parse` one by a name that may hold a
temperature, ``"bma:temperature=2"``; :func:`score_all` gives many in one pass over the tensor, a
few examples at a time, and :func:`score_file` the same of a file that need not fit into memory.

``weights`` ``[members]`` weigh the members of every mean. Where there is no mean (a maximum, a
count, a determinant) a member of weight 0 is left out and other weights change nothing.
"""

from __future__ import annotations

from dissensus.scores.functions import (
    SCORES,
    Logits,
    bma,
    confidence,
    disagreement,
    energy,
    ensemble_diversity,
    entropy,
    max_logit,
    max_softmax,
    mean_entropy,
    mutual_information,
    pds,
    pds_sum,
    unique,
    variance,
)
from dissensus.scores.named_scores import (
    NamedScore,
    at_temperature,
    parse,
    score_all,
    score_file,
)

__all__ = [
    "SCORES",
    "Logits",
    "NamedScore",
    "at_temperature",
    "bma",
    "confidence",
    "disagreement",
    "energy",
    "ensemble_diversity",
    "entropy",
    "max_logit",
    "max_softmax",
    "mean_entropy",
    "mutual_information",
    "parse",
    "pds",
    "pds_sum",
    "score_all",
    "score_file",
    "unique",
    "variance",
]
