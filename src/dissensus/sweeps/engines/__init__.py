"""Units of work, each with a JSON record of its own, so that a long job can stop and resume.

A cell is a dict of plain settings with a name; its record is one file, written once and whole.
Whatever ends a run, Ctrl-C, a kill, a power cut, costs at most the cells that were running; a
second start runs what is missing and what failed. Sweeps and reproductions are made of cells.

>>> import tempfile
>>> cells = [{"name": f"beta={beta}", "beta": beta} for beta in (0.0, 0.5)]
>>> def run(cell):
...     return {"loss": 1 + cell["beta"]}
>>> records = run_cells(cells, run, tempfile.mkdtemp(), progress=False)
>>> [record["result"]["loss"] for record in records]
[1.0, 1.5]
"""

from dissensus.sweeps.engines.cell_folder import Cell, CellFolder, Record, changed_settings, plain
from dissensus.sweeps.engines.engine import (
    ENGINES,
    Engine,
    EngineOptions,
    engine_named,
    run_cells,
)
from dissensus.sweeps.engines.local import LocalEngine
from dissensus.sweeps.engines.queue import Crew
from dissensus.sweeps.engines.ray_engine import RayEngine

__all__ = [
    "ENGINES",
    "Cell",
    "CellFolder",
    "Crew",
    "Engine",
    "EngineOptions",
    "LocalEngine",
    "RayEngine",
    "Record",
    "changed_settings",
    "engine_named",
    "plain",
    "run_cells",
]
