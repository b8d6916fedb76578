"""Cells for the tests of the engines, in a module of their own: new processes import it.

``python -m tests.sweeps.cell_runs FOLDER JOBS`` runs twelve slow cells in ``FOLDER/cells``; with
``busy`` as a third word, cells that never end.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from dissensus.sweeps import Cell, run_cells


def square(cell: Cell) -> dict[str, Any]:
    return {"square": cell["x"] ** 2}


def sometimes(cell: Cell) -> dict[str, Any]:
    """Fails, for odd numbers, as long as the file that it names is not there."""
    if cell["x"] % 2 and not Path(cell["allowed"]).exists():
        raise RuntimeError(f"{cell['x']} is odd")
    return square(cell)


def slow(cell: Cell) -> dict[str, Any]:
    """Takes a moment and leaves a line in ``log`` when it begins."""
    with Path(cell["log"]).open("a") as log:
        log.write(f"{cell['name']} {os.getpid()}\n")
    time.sleep(cell.get("pause", 0.05))
    return square(cell)


def busy(cell: Cell) -> dict[str, Any]:
    """Computes for ever."""
    slow(cell)
    while True:
        sum(range(10**6))


def deadly(cell: Cell) -> dict[str, Any]:
    """The process of cell 1 is killed, as the system does when memory runs out."""
    if cell["x"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(cell)


def threads(cell: Cell) -> dict[str, Any]:
    import torch

    return {"torch": torch.get_num_threads(), "variable": os.environ.get("OMP_NUM_THREADS")}


def slow_cells(folder: Path, count: int = 12) -> list[Cell]:
    return [{"name": f"c{x}", "x": x, "log": str(folder / "log")} for x in range(count)]


if __name__ == "__main__":
    place, jobs = Path(sys.argv[1]), int(sys.argv[2])
    run = busy if sys.argv[3:] == ["busy"] else slow
    run_cells(slow_cells(place), run, place / "cells", jobs=jobs, progress=False)
