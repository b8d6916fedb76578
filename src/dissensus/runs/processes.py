"""Processes of one training: ``torchrun --nproc-per-node 2 -m dissensus train …``.

The processes agree on what to do; only the first prints and writes. Nothing of this is part of a
run's settings: a run can be resumed with any number of processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dissensus.training.distributed import Communicator, Distributed

__all__ = ["Processes", "distributed_settings", "is_first_process", "open_processes"]

T = TypeVar("T")


def is_first_process() -> bool:
    """Whether this process is the one that prints; known before anything is imported."""
    return os.environ.get("RANK", "0") == "0"


def distributed_settings(
    distributed: bool | None, mesh: str | None, timeout: float, **options: bool
) -> Distributed | None:
    """The settings of a job with several processes; None for one process.

    With ``distributed=None`` it is such a job if ``torchrun`` has started this process.
    """
    several = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if distributed is False or (distributed is None and not several):
        if mesh is not None:
            raise ValueError("--mesh is for several processes; start them with torchrun")
        return None
    from dissensus.training.distributed import Distributed

    members, data = (None, None) if mesh is None else _mesh_sizes(mesh)
    return Distributed(members, data, timeout, **options)


def _mesh_sizes(mesh: str) -> tuple[int, int]:
    try:
        members, data = (int(size) for size in mesh.lower().replace("×", "x").split("x"))
    except ValueError:
        raise ValueError(
            f"--mesh must be ranks along members x ranks along data, such as 4x2, got {mesh!r}"
        ) from None
    return members, data


class Processes:
    """The processes of a training; without ``settings`` there is one."""

    def __init__(self, settings: Distributed | None, device: str) -> None:
        self.settings, self.first = settings, True
        self.group: Communicator | None = None
        if settings is None:
            return
        from dissensus.runs.load import device_named
        from dissensus.training.distributed import Communicator

        self.group = Communicator(device_named(device), settings.timeout)
        self.first = self.group.first

    def on_first(self, work: Callable[[], T]) -> T:
        """Do ``work`` on the first process alone; return its result, a plain value, on all."""
        return work() if self.group is None else self.group.on_first(work)

    def first_then_others(self, work: Callable[[], T]) -> T:
        """Do ``work`` here once the first process has done it, which may have to download."""
        results: list[T] = []
        self.on_first(lambda: results.append(work()))
        return results[0] if results else work()

    def resumes(self, resume: bool, exists: Callable[[], bool]) -> bool:
        """Whether to resume a run: if asked, or if torchrun restarts it after a failure."""
        if self.group is None:
            return resume
        from dissensus.training.distributed import restarts

        return self.on_first(lambda: resume or (restarts() > 0 and exists()))


@contextmanager
def open_processes(settings: Distributed | None, device: str) -> Iterator[Processes]:
    """The processes of a training, while it runs."""
    processes = Processes(settings, device)
    try:
        yield processes
    except Exception as error:
        if processes.group is not None and not isinstance(error, ConnectionError):
            processes.group.heartbeat.report(error)
        raise
    finally:
        if processes.group is not None:
            processes.group.close()
