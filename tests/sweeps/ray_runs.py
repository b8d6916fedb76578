"""Cells and programs for the tests of Ray, in a module of their own: new processes import it.

``python -m tests.sweeps.ray_runs FOLDER [ADDRESS]`` makes ``FOLDER/ready``, waits for
``FOLDER/go``, and runs twelve slow cells in ``FOLDER/cells``.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from dissensus.sweeps import Cell, RayEngine, run_cells
from tests.sweeps.cell_runs import slow, slow_cells, square


def surroundings(cell: Cell) -> dict[str, Any]:
    """What a worker was given to work with."""
    import torch

    names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "DISSENSUS_DATA")
    return {"threads": torch.get_num_threads(), **{name: os.environ.get(name) for name in names}}


def deadly_once(cell: Cell) -> dict[str, Any]:
    """The first worker that comes to cell 1 is killed."""
    begun = Path(f"{cell['log']}-{cell['x']}")
    if cell["x"] == 1 and not begun.exists():
        begun.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(cell)


if __name__ == "__main__":
    # Where a script runs the tests in the background, Ctrl-C is ignored from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place = Path(sys.argv[1])
    engine = RayEngine(jobs=2, address=sys.argv[2] if len(sys.argv) > 2 else None)
    try:
        with engine.session():
            (place / "ready").touch()
            while not (place / "go").exists():
                time.sleep(0.01)
            wanted = [{**cell, "pause": 0.3} for cell in slow_cells(place)]
            run_cells(wanted, slow, place / "cells", engine=engine, progress=False)
    except KeyboardInterrupt:
        sys.exit(130)
