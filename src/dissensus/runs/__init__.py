"""Runs on disk: what they are, and back from their files to an ensemble and its data.

:func:`load` is also ``dissensus.load``. Nothing heavy is imported before it is needed, so that a
list of runs appears at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dissensus.runs.detect import Detect, Detections, detect
from dissensus.runs.evaluate import Evaluate, Evaluation, evaluate
from dissensus.runs.facts import Facts, check_same_data
from dissensus.runs.folder import Run, describe, find_runs, read_config
from dissensus.runs.loading import (
    data_of,
    device_named,
    load,
    load_data,
    make_ensemble,
    member_factory,
)
from dissensus.runs.settling import (
    augmentation,
    changes,
    check_changes,
    disagreement_inputs,
    settled,
)

if TYPE_CHECKING:
    from dissensus.data import Inputs, read_inputs
    from dissensus.runs.accuracy import (
        Accuracies,
        Candidates,
        GroupAccuracy,
        accuracies,
        group_accuracies,
        mean_estimate,
    )
    from dissensus.runs.scoring import Scorer

__all__ = [
    "Accuracies",
    "Candidates",
    "Detect",
    "Detections",
    "Evaluate",
    "Evaluation",
    "Facts",
    "GroupAccuracy",
    "Inputs",
    "Run",
    "Scorer",
    "accuracies",
    "augmentation",
    "changes",
    "check_changes",
    "check_same_data",
    "data_of",
    "describe",
    "detect",
    "device_named",
    "disagreement_inputs",
    "evaluate",
    "find_runs",
    "group_accuracies",
    "load",
    "load_data",
    "make_ensemble",
    "mean_estimate",
    "member_factory",
    "read_config",
    "read_inputs",
    "settled",
]


#: Names that need torch or NumPy, and the modules that hold them; imported on first use.
_LAZY = {
    "Accuracies": "runs.accuracy",
    "Candidates": "runs.accuracy",
    "GroupAccuracy": "runs.accuracy",
    "Inputs": "data",
    "Scorer": "runs.scoring",
    "accuracies": "runs.accuracy",
    "group_accuracies": "runs.accuracy",
    "mean_estimate": "runs.accuracy",
    "read_inputs": "data",
}


def __getattr__(name: str) -> object:
    """Import what is heavy when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'dissensus.runs' has no attribute {name!r}")
    return getattr(import_module(f"dissensus.{_LAZY[name]}"), name)
