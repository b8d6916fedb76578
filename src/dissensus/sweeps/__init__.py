"""Sweeps: grids of settings and searches among them, trained as fleets, kept as records.

:func:`sweep` is what ``dissensus sweep`` does, :func:`load` reads what it wrote; ``Plan`` and
``run_sweep`` are its parts.

>>> points(parse_grid(["beta=0:0.2:0.1"]))
[{'beta': 0.0}, {'beta': 0.1}, {'beta': 0.2}]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dissensus.sweeps.grid import parse_grid, points
from dissensus.sweeps.search import SharedStudy, Trial, best_trial, propose, search
from dissensus.sweeps.summary import Row, Spread, Summary, summarize
from dissensus.sweeps.sweep import Sweep, resume_command, sweep
from dissensus.tools.lazy import lazy_attributes

if TYPE_CHECKING:
    from dissensus.sweeps.plan import Plan
    from dissensus.sweeps.run import Watcher, load, run_sweep

__all__ = [
    "Plan",
    "Row",
    "SharedStudy",
    "Spread",
    "Summary",
    "Sweep",
    "Trial",
    "Watcher",
    "best_trial",
    "load",
    "parse_grid",
    "points",
    "propose",
    "resume_command",
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
        "run_sweep": "run:run_sweep",
    },
)
