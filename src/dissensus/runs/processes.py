"""Processes of one training: ``torchrun --nproc-per-node 2 -m dissensus train …``.

The processes agree on what to do; only the first prints and writes. Nothing of this is part of a
run's settings: a run can be resumed with any number of processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dissensus.runs.load import device_named

if TYPE_CHECKING:
    from dissensus.runs.train import Train
    from dissensus.training.distributed.ranks import Communicator, Distributed

T = TypeVar("T")


def distributed_settings(options: Train) -> Distributed | None:
    """The settings of a job with several processes; None for one process.

    Where ``options`` leave it open, it is such a job if ``torchrun`` has started this process.
    """
    several, mesh = options.distributed, options.mesh
    if several is None:
        several = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if not several:
        if mesh is not None:
            raise ValueError("--mesh is for several processes; start them with torchrun")
        return None
    from dissensus.training import Distributed

    members, data = None, None
    if mesh is not None:
        try:
            members, data = (int(size) for size in mesh.lower().replace("×", "x").split("x"))
        except ValueError:
            raise ValueError(f"--mesh must be ranks such as 4x2, got {mesh!r}") from None
    return Distributed(members, data, options.rank_timeout, options.sync_batchnorm)


class Processes:
    """The processes of a training; without ``settings`` there is one."""

    def __init__(self, settings: Distributed | None, device: str) -> None:
        self.settings, self.first = settings, True
        self.group: Communicator | None = None
        if settings is not None:
            from dissensus.training.distributed.ranks import Communicator

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
        from dissensus.training.distributed.ranks import restarts

        return self.on_first(lambda: resume or (restarts() > 0 and exists()))
