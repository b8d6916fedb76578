"""Where cells run: engines by name, and what every engine can do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from dissensus.sweeps.engines.folder import CellFolder
from dissensus.sweeps.engines.local import LocalEngine
from dissensus.sweeps.engines.on_ray import RayEngine
from dissensus.sweeps.engines.queue import Batch, OnRecord, OnWait
from dissensus.sweeps.engines.worker import Work

__all__ = ["ENGINES", "Crew", "Engine", "engine_named"]


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
