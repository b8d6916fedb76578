"""Engines by name, the protocol that each follows, and cells run by any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dissensus.sweeps.engines.cell_folder import Cell, CellFolder, Record, find_missing
from dissensus.sweeps.engines.local import Each, LocalEngine, Work, termination_as_interrupt
from dissensus.sweeps.engines.queue import Crew
from dissensus.sweeps.engines.ray_engine import RayEngine
from dissensus.tools.progress import ProgressBar
from dissensus.tools.verbs import option


class Engine(Protocol):
    """Settings that say where to run."""

    def session(self) -> AbstractContextManager[None]:
        """What several crews share, such as a running Ray."""

    def crew(self, work: Work) -> Crew:
        """Workers that do ``work``."""


#: Engines by name, as ``--engine`` takes it.
ENGINES: dict[str, type[LocalEngine] | type[RayEngine]] = {"local": LocalEngine, "ray": RayEngine}


def engine_named(name: str, **settings: Any) -> LocalEngine | RayEngine:
    """The engine ``name``; settings that are None keep its defaults.

    >>> engine_named("ray", cpus=2)
    RayEngine(jobs=None, cpus=2, gpus=0.0, address=None, attempts=3)
    """
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    given = {key: value for key, value in settings.items() if value is not None}
    if name == "local" and given.keys() - {"jobs"}:
        raise ValueError("--cpus-per-run, --gpus-per-run and --ray-address are for --engine ray")
    return ENGINES[name](**given)


@dataclass(frozen=True)
class EngineOptions:
    """Options of verbs that run cells: the engine, and the share of the machine of each run."""

    jobs: int | None = option(
        None,
        "Processes at once, each with one thread; on Ray, runs at once.",
        panel="Engine",
        default_text="1; on Ray as many as fit",
    )
    engine: str = option(
        "local", "Where it runs: local, or ray (needs dissensus[ray]).", panel="Engine"
    )
    cpus_per_run: int | None = option(
        None, "Cores, and threads, of each run on Ray.", panel="Engine", default_text="1"
    )
    gpus_per_run: float | None = option(
        None,
        "GPUs of each run on Ray, 0.5 to share one; without it runs see none.",
        panel="Engine",
    )
    ray_address: str | None = option(
        None,
        "A Ray cluster, host:6379 or auto; else $RAY_ADDRESS, else a Ray of this machine.",
        panel="Engine",
    )

    def make_engine(self) -> LocalEngine | RayEngine:
        """The engine with these settings."""
        return engine_named(
            self.engine,
            jobs=self.jobs,
            cpus=self.cpus_per_run,
            gpus=self.gpus_per_run,
            address=self.ray_address,
        )


def run_cells(
    cells: Sequence[Cell],
    run: Callable[[Cell], dict[str, Any]],
    folder: str | Path | CellFolder,
    *,
    jobs: int = 1,
    engine: Engine | None = None,
    on_record: Callable[[Record], object] | None = None,
    progress: bool = True,
    title: str = "cells",
    again: bool = False,
) -> list[Record]:
    """Run the cells without a result in ``folder``; return all records, in the order of cells.

    A record is ``{"name", "cell", "result"}``, or ``{"name", "cell", "error", "traceback"}`` for a
    cell that failed, with ``seconds`` and ``facts`` (versions, machine, commit, time). A failed
    cell does not stop the others and runs again at the next start. A record made with other
    settings is an error; with ``again`` its cell runs again. Cells that another program on the same
    folder runs are left to it, and its records are used.

    ``run`` gets a cell and returns its result as plain JSON values. With ``jobs > 1`` it runs in
    that many processes, each with one torch thread, so it must be a function of a module. Its
    randomness should follow from the cell's settings: cells run in no fixed order. ``engine``, such
    as ``RayEngine()``, takes the place of ``jobs``. ``on_record`` is called with each new record.
    """
    engine = LocalEngine(jobs) if engine is None else engine
    place = folder if isinstance(folder, CellFolder) else CellFolder(folder)
    records, missing = find_missing(cells, place, again=again)
    place.folder.mkdir(parents=True, exist_ok=True)
    before, total = len(records), len(cells)
    with ProgressBar(title, total, completed=before, show=progress) as bar:

        def end(record: Record) -> None:
            records[record["name"]] = record
            name, error = record["name"], record.get("error")
            bar.update(len(records), note=name)
            if error is not None:  # stays on the screen
                bar.say(f"{title}: {name} failed: {error.splitlines()[0]}")
            else:
                bar.log(f"{title}: {done()}/{total}, {name} took {record['seconds']:.1f} s")
            if on_record is not None:
                on_record(record)

        def done() -> int:
            return sum("error" not in record for record in records.values())

        def wait(count: int) -> None:
            bar.say(f"{title}: {count} cells are run by another program; waiting for them")

        if before:
            bar.say(f"{title}: {before} of {total} cells are done already")
        if missing:
            with termination_as_interrupt(), engine.crew(Each(run)) as crew:
                crew.run([[cell] for cell in missing], place, end, wait)
        failed = len(records) - done()
        if done() > before:
            text = f"{title}: {done()} of {total} cells done"
            bar.say(f"{text}, {failed} failed" if failed else text)
    return [records[cell["name"]] for cell in cells]
