"""Sweeps: grids of settings and searches among them, trained as fleets, kept as records.

:func:`sweep` does the work of ``dissensus sweep``, :func:`load` reads its folder; ``Plan`` and
``run_sweep`` are its parts. :func:`run_cells` runs any units of work, on this machine or on Ray.

>>> points(parse_grid(["beta=0:0.2:0.1"]))
[{'beta': 0.0}, {'beta': 0.1}, {'beta': 0.2}]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dissensus.sweeps.cells import Cell, CellFolder, Record, changed_settings, plain
from dissensus.sweeps.grid import parse_grid, points
from dissensus.sweeps.options import EngineOptions, Sweep
from dissensus.sweeps.pool import LocalEngine, run_cells
from dissensus.sweeps.ray import RayEngine
from dissensus.sweeps.search import SharedStudy, Trial, best_trial, propose, search
from dissensus.sweeps.summary import Row, Spread, Summary, summarize
from dissensus.tools.lazy import lazy_attributes

if TYPE_CHECKING:
    from dissensus.sweeps.plan import Plan
    from dissensus.sweeps.run import Watcher, load, resume_command, run_sweep, sweep

__all__ = [
    "Cell",
    "CellFolder",
    "EngineOptions",
    "LocalEngine",
    "Plan",
    "RayEngine",
    "Record",
    "Row",
    "SharedStudy",
    "Spread",
    "Summary",
    "Sweep",
    "Trial",
    "Watcher",
    "best_trial",
    "changed_settings",
    "load",
    "parse_grid",
    "plain",
    "points",
    "propose",
    "resume_command",
    "run_cells",
    "run_sweep",
    "search",
    "summarize",
    "sweep",
]

#: These need torch.
__getattr__ = lazy_attributes(
    __name__,
    {
        "Plan": "plan:Plan",
        "Watcher": "run:Watcher",
        "load": "run:load",
        "resume_command": "run:resume_command",
        "run_sweep": "run:run_sweep",
        "sweep": "run:sweep",
    },
)
