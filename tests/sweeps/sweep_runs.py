"""Sweeps for the tests, in a module of their own: new processes import it.

``python -m tests.sweeps.sweep_runs FOLDER JOBS`` runs a sweep of small fleets in ``FOLDER``.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from dissensus.runs import Settings, resolve
from dissensus.sweeps import Plan, run_sweep
from dissensus.tools.verbs import collect

BETAS = [0.0, 0.3, 1.0]


def sections(**changes: Any) -> dict[str, dict[str, Any]]:
    """Settings by the names of their options, small ones unless said otherwise."""
    small = {
        "data": "diabetes",
        "objective": "augmented",
        "members": 3,
        "epochs": 4,
        "batch_size": 64,
        "model_options": ["hidden=8"],
        "optimizer": "adam:lr=0.01",
        "device": "cpu",
    }
    return resolve(collect(Settings, None, {**small, **changes}))


def long_plan(**changes: Any) -> Plan:
    """Fleets of three kinds, one after another, each a moment of work."""
    grid = {"beta": BETAS, "batch_size": [8, 12, 16]}
    return Plan(sections(epochs=15, **changes), grid, repeats=2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_sweep(long_plan(), Path(sys.argv[1]), jobs=int(sys.argv[2]))
