"""Ensembles on data unlike their training data: detecting them, and who still answers right.

:func:`study` scans known and unknown inputs once, in batches, with all scores of a :class:`Scorer`;
:func:`accuracies` compares the ensemble with its soups and members on labelled shifted data;
:func:`prepare` makes all of it ready for a run, with inputs of ``data.find_inputs``.
"""

from __future__ import annotations

from dissensus.shift.accuracy import (
    Accuracies,
    Candidates,
    GroupAccuracy,
    accuracies,
    group_accuracies,
    mean_estimate,
)
from dissensus.shift.features import MemberFeatures
from dissensus.shift.kept import curve_rows, histogram_rows
from dissensus.shift.of_runs import Prepared, Question, prepare
from dissensus.shift.scoring import (
    ALL_SCORES,
    DEFAULT_SCORES,
    DISTANCE_SCORES,
    FileScorer,
    Scan,
    Scorer,
)
from dissensus.shift.study import Study, detection_rows, group_means, study, study_files

__all__ = [
    "ALL_SCORES",
    "DEFAULT_SCORES",
    "DISTANCE_SCORES",
    "Accuracies",
    "Candidates",
    "FileScorer",
    "GroupAccuracy",
    "MemberFeatures",
    "Prepared",
    "Question",
    "Scan",
    "Scorer",
    "Study",
    "accuracies",
    "curve_rows",
    "detection_rows",
    "group_accuracies",
    "group_means",
    "histogram_rows",
    "mean_estimate",
    "prepare",
    "study",
    "study_files",
]
