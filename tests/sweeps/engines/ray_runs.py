"""Programs that the tests of Ray start, stop and kill.

``python -m tests.sweeps.engines.ray_runs FOLDER ENGINE [ADDRESS]`` makes ``FOLDER/ENGINE.ready``,
waits for ``FOLDER/go``, and runs twelve slow cells in ``FOLDER/cells``.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dissensus.sweeps.engines import Cell, engine_named, run_cells
from tests.sweeps.engines.cell_runs import slow, slow_cells


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
    return slow(cell)


def logged_member(outputs: int, log: str) -> Any:
    """A member that leaves the number of the process that made it."""
    from torch import nn

    with Path(log).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return nn.Linear(10, outputs)


def main(words: Sequence[str]) -> None:
    place = Path(words[0])
    engine = engine_named(words[1], jobs=2, address=words[2] if len(words) > 2 else None)
    wanted = [{**cell, "pause": 0.3} for cell in slow_cells(place)]
    try:
        with engine.session():
            (place / f"{words[1]}.ready").touch()
            while not (place / "go").exists():
                time.sleep(0.01)
            run_cells(wanted, slow, place / "cells", engine=engine, progress=False)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    # Where a script runs the tests in the background, Ctrl-C is ignored from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1:])
