"""Ensembles on data unlike their training data: detecting them, and who still answers right.

:func:`study` scans known and unknown inputs once, in batches, with all scores of a :class:`Scorer`;
:func:`accuracies` compares the ensemble with its soups and members on labelled shifted data;
:func:`unknown` finds inputs by what ``dissensus ood --ood`` calls them, and :func:`prepare` makes
all of it ready for a run.
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
from dissensus.shift.sources import Origin, Source, known, unknown
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
    "Origin",
    "Prepared",
    "Question",
    "Scan",
    "Scorer",
    "Source",
    "Study",
    "accuracies",
    "curve_rows",
    "detection_rows",
    "group_accuracies",
    "group_means",
    "histogram_rows",
    "known",
    "mean_estimate",
    "prepare",
    "study",
    "study_files",
    "unknown",
]
