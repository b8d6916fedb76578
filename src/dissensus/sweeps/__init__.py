"""Sweeps: grids of settings and searches among them, trained as fleets, kept as records.

>>> points(parse_grid(["beta=0:0.2:0.1"]))
[{'beta': 0.0}, {'beta': 0.1}, {'beta': 0.2}]
"""

from dissensus.sweeps.grid import parse_grid, points
from dissensus.sweeps.plan import Plan
from dissensus.sweeps.run import Watcher, run_sweep
from dissensus.sweeps.search import Trial, best_trial, propose, search
from dissensus.sweeps.storage import SharedStudy
from dissensus.sweeps.summary import Row, Spread, Summary, summarize

__all__ = [
    "Plan",
    "Row",
    "SharedStudy",
    "Spread",
    "Summary",
    "Trial",
    "Watcher",
    "best_trial",
    "parse_grid",
    "points",
    "propose",
    "run_sweep",
    "search",
    "summarize",
]
