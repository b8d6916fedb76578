"""The Ray engine against the local one: 64 small cells on two processes of one thread each.

What counts is wall time once both have started: how long it takes to hand out cells, bring their
records back and write them, beside the training itself. Starting is timed apart, once. The workers
of both stand ready through all rounds, so what Ray's own processes do when idle slows both alike.

On a busy machine the system may give one engine's processes more of the cores than the other's. The
second figure is free of that: of each round, the time of its processes against the time that its
cells say they took, which is 1 for an engine that costs nothing.
"""

import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from rich.console import Console

from benchmarks.timing import Check, Contender, Measurement, Result, Spread, compare
from dissensus.data import Data, load
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.sweeps import Cell, CellFolder, LocalEngine, RayEngine, Record
from dissensus.sweeps.pool import run_batches, run_each
from dissensus.training import fit

_PROCESSES, _CELLS, _LIMIT = 2, 64, 1.15
_loaded: list[Data] = []


def run(quick: bool) -> list[Result]:
    """Start both engines, then let them take turns; nothing without Ray."""
    if find_spec("ray") is None:
        Console().print('ray: left out, as Ray is not installed (pip install "dissensus[ray]")')
        return []
    count = _CELLS // 4 if quick else _CELLS
    engines: dict[str, LocalEngine | RayEngine] = {
        "local engine": LocalEngine(_PROCESSES),
        "Ray engine": RayEngine(jobs=_PROCESSES),
    }
    with ExitStack() as stack:
        starts: dict[str, tuple[float, float]] = {}
        for name, engine in engines.items():
            cpu, wall = time.process_time(), time.perf_counter()
            stack.enter_context(engine.session())
            Rounds(engine, 2 * _PROCESSES)()
            starts[name] = time.process_time() - cpu, time.perf_counter() - wall
        local, on_ray = (Rounds(engine, count) for engine in engines.values())
        result = compare(
            f"{count} small cells on {_PROCESSES} processes, ratio to the local engine",
            Contender("local engine", local),
            [Contender("Ray engine", on_ray, _LIMIT)],
            repeats=3 if quick else 11,
            clock="wall",
        )
    beyond = statistics.median(on_ray.beyond) / statistics.median(local.beyond)
    check = Check("processes' time / cells' own time, Ray against local", beyond, _LIMIT)
    return [replace(result, checks=(check,)), _started(starts)]


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


@dataclass
class Rounds:
    """Called, it runs ``count`` cells into a folder of their own."""

    engine: LocalEngine | RayEngine
    count: int
    beyond: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        cells = [{"name": f"seed={seed}", "seed": seed} for seed in range(self.count)]
        records: list[Record] = []
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="dissensus-bench-") as place:
            batches = [[cell] for cell in cells]
            run_batches(
                batches, partial(run_each, train), CellFolder(place), self.engine, records.append
            )
        wall = time.perf_counter() - began
        failed = sum("error" in record for record in records)
        if failed:
            raise RuntimeError(f"{failed} of {self.count} cells failed")
        self.beyond.append(_PROCESSES * wall / sum(record["seconds"] for record in records))


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
