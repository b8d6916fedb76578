"""Local engine: cells in this process, or in several of one thread each."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Self

from dissensus.sweeps.engines.cell_folder import Cell, CellFolder, Record
from dissensus.sweeps.engines.queue import Batch, Claims, OnRecord, OnWait, Queue
from dissensus.sweeps.engines.worker import (
    Work,
    death_record,
    environment_set,
    serve,
    thread_variables,
)

__all__ = ["LocalCrew", "LocalEngine"]

_SECONDS_TO_STOP = 10.0


@dataclass(frozen=True)
class LocalEngine:
    """This machine: batches one after another in this process, or in ``jobs`` processes."""

    jobs: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.jobs, bool) or not isinstance(self.jobs, int) or self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}")

    def session(self) -> AbstractContextManager[None]:
        """Nothing has to be started."""
        return nullcontext()

    def crew(self, work: Work) -> LocalCrew:
        """Processes that do ``work``; a context manager."""
        return LocalCrew(self.jobs, work)


class LocalCrew:
    """Processes that live until the context exits; none for one job."""

    machines = 1

    def __init__(self, jobs: int, work: Work) -> None:
        self.jobs, self.work = jobs, work
        self.workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers = []

    def run(
        self,
        batches: Sequence[Batch],
        folder: CellFolder,
        on_record: OnRecord,
        on_wait: OnWait | None = None,
    ) -> None:
        """Run every batch; each record is on disk before ``on_record`` gets it."""
        with Claims(folder.folder) as claims:
            queue = Queue(batches, folder, claims, on_record, on_wait)
            if self.jobs == 1 or (len(batches) == 1 and not self.workers):
                self._here(queue)
            else:
                self._in_processes(queue)

    def _here(self, queue: Queue) -> None:
        def keep(record: Record) -> None:
            queue.folder.write(record)
            queue.on_record(record)

        while queue:
            batch = queue.take()
            if batch is None:
                queue.wait()
            else:
                self.work(batch, keep)

    def _in_processes(self, queue: Queue) -> None:
        while queue or any(worker.busy for worker in self.workers):
            while sum(worker.busy for worker in self.workers) < self.jobs:
                batch = queue.take()
                if batch is None:
                    break
                self._free().give(batch, queue.folder.folder)
            busy: dict[Any, _Worker] = {w.end: w for w in self.workers if w.busy}
            if not busy:
                queue.wait()
            for end in wait(list(busy), queue.patience) if busy else ():
                for record in busy[end].take(queue):
                    queue.on_record(record)
            for worker in [w for w in self.workers if not w.alive and not w.busy]:
                self.workers.remove(worker)
                worker.stop()

    def _free(self) -> _Worker:
        for worker in self.workers:
            if not worker.busy and worker.alive:
                return worker
        self.workers.append(_Worker(self.work))
        return self.workers[-1]


class _Worker:
    """A process that runs one batch after another and writes the records itself."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.end, far = context.Pipe()
        self.process = context.Process(target=serve, args=(far, work))
        self.busy = False
        self.left: list[Cell] = []
        with environment_set(thread_variables(1)):
            self.process.start()
        far.close()  # so that a dead process is seen as the end of the pipe

    def give(self, batch: Batch, folder: Path) -> None:
        self.busy, self.left = True, list(batch)
        with suppress(ConnectionError):  # it died; taking its records will say so
            self.end.send((self.left, folder))

    def take(self, queue: Queue) -> list[Record]:
        """The record of a cell that ended; those of all that are left, if the process died."""
        try:
            record: Record | None = self.end.recv()
        except (EOFError, ConnectionError):
            self.busy = False
            return [queue.new_record(cell) or self._post_mortem(cell, queue) for cell in self.left]
        if record is None:  # the batch is over
            self.busy = False
            return []
        self.left = [cell for cell in self.left if cell["name"] != record["name"]]
        return [record]

    def _post_mortem(self, cell: Cell, queue: Queue) -> Record:
        self.process.join(_SECONDS_TO_STOP)
        code = self.process.exitcode
        cause = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        record = death_record(
            cell, f"the process that ran the cell ended with status {code}{cause}"
        )
        queue.folder.write(record)
        return record

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def stop(self) -> None:
        """End the process: at once if it is busy, else by closing its pipe."""
        if self.busy:
            self.process.terminate()
        self.end.close()
        self.process.join(_SECONDS_TO_STOP)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
