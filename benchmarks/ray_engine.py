"""The Ray engine against the local one: 64 small cells on two processes of one thread each.

What counts is wall time once both have started: how long it takes to hand out cells, bring their
records back and write them, beside the training itself. Starting is timed apart, once. Both crews
stand ready through all rounds, so what Ray's own processes do when idle slows both alike.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from rich.console import Console

from benchmarks.timing import Contender, Measurement, Result, Spread, compare
from dissensus.cells import Cell, CellFolder, Crew, Engine, LocalEngine, RayEngine
from dissensus.cells.worker import Each
from dissensus.data import Data, load
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.training import fit

_PROCESSES, _CELLS, _LIMIT = 2, 64, 1.15
_loaded: list[Data] = []


def run(quick: bool) -> list[Result]:
    """Start both engines, then let them take turns; nothing without Ray."""
    if find_spec("ray") is None:
        Console().print('ray: left out, as Ray is not installed (pip install "dissensus[ray]")')
        return []
    count = _CELLS // 4 if quick else _CELLS
    engines: dict[str, Engine] = {
        "local engine": LocalEngine(_PROCESSES),
        "Ray engine": RayEngine(jobs=_PROCESSES),
    }
    with ExitStack() as stack:
        crews: dict[str, Crew] = {}
        starts: dict[str, tuple[float, float]] = {}
        for name, engine in engines.items():
            cpu, wall = time.process_time(), time.perf_counter()
            crews[name] = stack.enter_context(engine.crew(Each(train)))
            rounds_of(crews[name], 2 * _PROCESSES)()
            starts[name] = time.process_time() - cpu, time.perf_counter() - wall
        local, on_ray = (rounds_of(crew, count) for crew in crews.values())
        return [
            compare(
                f"{count} small cells on {_PROCESSES} processes, ratio to the local engine",
                Contender("local engine", local),
                [Contender("Ray engine", on_ray, _LIMIT)],
                repeats=3 if quick else 11,
                clock="wall",
            ),
            _started(starts),
        ]


def train(cell: Cell) -> dict[str, Any]:
    """A small training: three members on the digits that come with the package."""
    if not _loaded:
        _loaded.append(load("digits"))
    found = _loaded[0]
    make = make_factory("mlp", found.train[0].shape[1:], 10, hidden=(64,))
    ens = Ensemble(make, 3, seed=cell["seed"])
    history = fit(
        ens, found.train, "joint", val=found.val, epochs=2, seed=cell["seed"], progress=False
    )
    return {"val": history.epochs[-1]["val"]}


def rounds_of(crew: Crew, count: int) -> Callable[[], None]:
    """One round: ``count`` cells into a folder of their own."""
    cells = [{"name": f"seed={seed}", "seed": seed} for seed in range(count)]

    def one_round() -> None:
        with tempfile.TemporaryDirectory(prefix="dissensus-bench-") as place:
            folder = CellFolder(place)
            crew.run([[cell] for cell in cells], folder, lambda record: None)
            done = len(folder.done())
        if done != count:
            raise RuntimeError(f"{count - done} of {count} cells failed")

    return one_round


def _started(starts: dict[str, tuple[float, float]]) -> Result:
    """Starting as a comparison without a limit."""
    base = starts["local engine"][1]

    def measured(name: str, cpu: float, wall: float) -> Measurement:
        spreads = [Spread.of([value]) for value in (cpu, wall, wall / base)]
        return Measurement(name, 1, spreads[0], spreads[1], spreads[2], limit=None)

    return Result(
        f"Start of {_PROCESSES} processes and their first cells, ratio to the local engine",
        "wall",
        1,
        tuple(measured(name, cpu, wall) for name, (cpu, wall) in starts.items()),
    )
