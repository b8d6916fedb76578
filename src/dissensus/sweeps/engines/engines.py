"""Where cells run: engines by name, and what every engine can do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from dissensus.sweeps.engines.folder import CellFolder
from dissensus.sweeps.engines.local import LocalEngine
from dissensus.sweeps.engines.on_ray import RayEngine
from dissensus.sweeps.engines.queue import Batch, OnRecord, OnWait
from dissensus.sweeps.engines.worker import Work
from dissensus.verbs import option

__all__ = ["ENGINES", "Crew", "Engine", "EngineOptions", "engine_named"]


class Crew(Protocol):
    """Those who work, from when they are entered until they are left."""

    @property
    def jobs(self) -> int:
        """How many batches run at once."""

    @property
    def machines(self) -> int:
        """On how many machines, each with a memory of its own."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def run(
        self,
        batches: Sequence[Batch],
        folder: CellFolder,
        on_record: OnRecord,
        on_wait: OnWait | None = None,
    ) -> None:
        """Run every batch; each record is on disk before ``on_record`` gets it.

        ``on_wait`` is told how many cells are left when all of them are another program's.
        """


class Engine(Protocol):
    """Plain settings that say where to run."""

    def session(self) -> AbstractContextManager[None]:
        """What several crews can share: start it once, around all of them."""

    def crew(self, work: Work) -> Crew:
        """A crew for ``work``."""


#: Every engine by the name that ``--engine`` knows it by.
ENGINES: dict[str, type[LocalEngine] | type[RayEngine]] = {"local": LocalEngine, "ray": RayEngine}


def engine_named(
    name: str,
    *,
    jobs: int | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    address: str | None = None,
) -> LocalEngine | RayEngine:
    """The engine of that name; settings that are None, or not its own, are as it has them.

    >>> engine_named("ray", cpus=2)
    RayEngine(jobs=None, cpus=2, gpus=0.0, address=None, attempts=3)
    """
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    given = {"jobs": jobs, "cpus": cpus, "gpus": gpus, "address": address}
    known = {key: value for key, value in given.items() if value is not None}
    if ENGINES[name] is RayEngine:
        return RayEngine(**known)  # type: ignore[arg-type]
    if known.keys() - {"jobs"}:
        raise ValueError("--cpus-per-run, --gpus-per-run and --ray-address are for --engine ray")
    return LocalEngine(**known)  # type: ignore[arg-type]


@dataclass(frozen=True)
class EngineOptions:
    """Options of verbs that run cells: the engine, and the share of the machine of each run."""

    jobs: int | None = option(
        None,
        "Processes at once, of one thread each; on Ray runs at once.",
        panel="Engine",
        default_text="1; on Ray all that there is room for",
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
        """The engine that they ask for."""
        return engine_named(
            self.engine,
            jobs=self.jobs,
            cpus=self.cpus_per_run,
            gpus=self.gpus_per_run,
            address=self.ray_address,
        )
