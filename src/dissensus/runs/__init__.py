"""Runs on disk, and the verbs on them: each a function with the options of its command.

>>> from dissensus import runs
>>> runs.Predict(members=True)
Predict(members=True, score=(), trust=False, device='auto')

:func:`load` is also ``dissensus.load``. Nothing heavy is imported before it is needed, so that
``dissensus --help`` and a list of runs appear at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dissensus.runs.attack import AttackOptions, RunRobustness, attack
from dissensus.runs.config import (
    augmentation,
    batch_augmentation,
    check_augmentation,
    complete_config,
    disagreement_inputs,
)
from dissensus.runs.data import DataSummary, check_same_data, data_of, load_data
from dissensus.runs.detections import Detect, Detections
from dissensus.runs.diagnose import Diagnose, RunDiagnosis, diagnose
from dissensus.runs.evaluate import Evaluate, RunEvaluation, compute_metrics, evaluate
from dissensus.runs.folder import (
    RESULTS,
    RunDescription,
    describe,
    find_runs,
    read_config,
    read_result,
)
from dissensus.runs.load import device_named, load, make_ensemble, member_factory
from dissensus.runs.predict import Predict, PredictedInputs, predict
from dissensus.runs.settings import Settings, resolve
from dissensus.runs.train import Train, TrainedRun, resume_command, train, use_threads
from dissensus.tools.lazy import lazy_attributes

if TYPE_CHECKING:
    from dissensus.runs.accuracy import (
        Accuracies,
        Candidates,
        GroupAccuracy,
        accuracies,
        mean_estimate,
    )
    from dissensus.runs.score_sets import detect

__all__ = [
    "RESULTS",
    "Accuracies",
    "AttackOptions",
    "Candidates",
    "DataSummary",
    "Detect",
    "Detections",
    "Diagnose",
    "Evaluate",
    "GroupAccuracy",
    "Predict",
    "PredictedInputs",
    "RunDescription",
    "RunDiagnosis",
    "RunEvaluation",
    "RunRobustness",
    "Settings",
    "Train",
    "TrainedRun",
    "accuracies",
    "attack",
    "augmentation",
    "batch_augmentation",
    "check_augmentation",
    "check_same_data",
    "complete_config",
    "compute_metrics",
    "data_of",
    "describe",
    "detect",
    "device_named",
    "diagnose",
    "disagreement_inputs",
    "evaluate",
    "find_runs",
    "load",
    "load_data",
    "make_ensemble",
    "mean_estimate",
    "member_factory",
    "predict",
    "read_config",
    "read_result",
    "resolve",
    "resume_command",
    "train",
    "use_threads",
]


#: These need torch or NumPy.
_ACCURACY = (
    *("Accuracies", "Candidates", "GroupAccuracy"),
    *("accuracies", "mean_estimate"),
)
__getattr__ = lazy_attributes(
    __name__, {name: f"accuracy:{name}" for name in _ACCURACY} | {"detect": "score_sets:detect"}
)
