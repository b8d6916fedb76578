"""Runs on disk: what they are, and back from their files to an ensemble and its data.

:func:`load` is also ``dissensus.load``. Nothing heavy is imported before it is needed, so that a
list of runs appears at once.
"""

from __future__ import annotations

from dissensus.runs.facts import Facts, check_same_data
from dissensus.runs.folder import Run, describe, find_runs, read_config
from dissensus.runs.inputs import Inputs, read_inputs
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

__all__ = [
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
    "find_runs",
    "load",
    "load_data",
    "make_ensemble",
    "member_factory",
    "read_config",
    "read_inputs",
    "settled",
]
