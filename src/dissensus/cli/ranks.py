"""One command in several processes: ``torchrun --nproc-per-node 2 -m dissensus train …``.

The processes agree on what to do, the first alone shows and writes. Nothing of it is part of a
run's settings: a run goes on with any number of processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dissensus.training.distributed import Distributed, Group

__all__ = ["Ranks", "asked_for", "ranks", "speaks"]

T = TypeVar("T")


def speaks() -> bool:
    """Whether this process is the one that shows; known before anything is imported."""
    return os.environ.get("RANK", "0") == "0"


def asked_for(
    distributed: bool | None, mesh: str | None, timeout: float, **options: bool
) -> Distributed | None:
    """The settings of a job with several processes; None for one process.

    Where nothing is said, it is one job if ``torchrun`` has started this process.
    """
    several = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if distributed is False or (distributed is None and not several):
        if mesh is not None:
            raise ValueError("--mesh is for several processes; start them with torchrun")
        return None
    from dissensus.training.distributed import Distributed

    members, data = (None, None) if mesh is None else _sizes(mesh)
    return Distributed(members, data, timeout, **options)


def _sizes(mesh: str) -> tuple[int, int]:
    try:
        members, data = (int(size) for size in mesh.lower().replace("×", "x").split("x"))
    except ValueError:
        raise ValueError(
            f"--mesh must be ranks along members x ranks along data, such as 4x2, got {mesh!r}"
        ) from None
    return members, data


class Ranks:
    """The processes of a command; without ``settings`` it is one."""

    def __init__(self, settings: Distributed | None, device: str) -> None:
        self.settings, self.first = settings, True
        self.group: Group | None = None
        if settings is None:
            return
        from dissensus.runs import device_named
        from dissensus.training.distributed import Group

        self.group = Group(device_named(device), settings.timeout)
        self.first = self.group.first

    def on_first(self, work: Callable[[], T]) -> T:
        """What ``work`` returns on the first process, which alone does it; plain values."""
        return work() if self.group is None else self.group.on_first(work)

    def first_first(self, work: Callable[[], T]) -> T:
        """What ``work`` returns here, once the first process has done it: it may download."""
        found: list[T] = []
        self.on_first(lambda: found.append(work()))
        return found[0] if found else work()

    def resuming(self, resume: bool, begun: Callable[[], bool]) -> bool:
        """Whether to go on with a run: as asked, or where torchrun starts anew after a failure."""
        if self.group is None:
            return resume
        from dissensus.training.distributed import restarts

        return self.on_first(lambda: resume or (restarts() > 0 and begun()))


@contextmanager
def ranks(settings: Distributed | None, machine: dict[str, Any]) -> Iterator[Ranks]:
    """The processes of a command, while it runs."""
    together = Ranks(settings, machine["device"])
    try:
        yield together
    except Exception as error:
        if together.group is not None and not isinstance(error, ConnectionError):
            together.group.watch.report(error)
        raise
    finally:
        if together.group is not None:
            together.group.close()
