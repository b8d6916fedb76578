"""Runs on disk: what they are, and back from their files to an ensemble and its data.

:func:`load` is also ``dissensus.load``. Nothing heavy is imported before it is needed, so that a
list of runs appears at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

__all__ = [
    "Evaluate",
    "Evaluation",
    "Facts",
    "Inputs",
    "Run",
    "augmentation",
    "changes",
    "check_changes",
    "check_same_data",
    "data_of",
    "describe",
    "device_named",
    "disagreement_inputs",
    "evaluate",
    "find_runs",
    "load",
    "load_data",
    "make_ensemble",
    "member_factory",
    "read_config",
    "read_inputs",
    "settled",
]


def __getattr__(name: str) -> object:
    """Import what needs torch when it is first asked for."""
    if name not in ("Inputs", "read_inputs"):
        raise AttributeError(f"module 'dissensus.runs' has no attribute {name!r}")
    from dissensus import data

    return getattr(data, name)
