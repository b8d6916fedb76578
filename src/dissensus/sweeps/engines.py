"""Where batches of cells run: in this process, or in several of one thread each."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dissensus.cells import Cell, CellFolder, Record
from dissensus.cells.folder import execute
from dissensus.cells.worker import one_thread_each
from dissensus.sweeps.work import Workshop

__all__ = ["ENGINES", "LocalEngine"]

_SECONDS_TO_STOP = 10.0

Batch = Sequence[Cell]
OnRecord = Callable[[Record], object]


class LocalEngine:
    """This machine: batches one after another here, or in ``jobs`` processes."""

    def __init__(self, workshop: Workshop, jobs: int = 1) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.workshop, self.jobs = workshop, jobs
        self.workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers = []

    def run(self, batches: Sequence[Batch], folder: CellFolder, on_record: OnRecord) -> None:
        """Train every batch; each record is on disk before ``on_record`` gets it."""
        if self.jobs == 1 or (len(batches) == 1 and not self.workers):
            for batch in batches:
                self.workshop.run(batch, folder, on_record)
            return
        waiting = deque(batches)
        while waiting or any(worker.busy for worker in self.workers):
            while waiting and sum(worker.busy for worker in self.workers) < self.jobs:
                self._free().give(waiting.popleft(), folder.folder)
            busy: dict[Any, _Worker] = {w.end: w for w in self.workers if w.busy}
            for end in wait(list(busy)):
                for record in busy[end].take(folder):
                    on_record(record)
            for worker in [w for w in self.workers if not w.alive and not w.busy]:
                self.workers.remove(worker)
                worker.stop()

    def _free(self) -> _Worker:
        for worker in self.workers:
            if not worker.busy and worker.alive:
                return worker
        self.workers.append(_Worker(self.workshop))
        return self.workers[-1]


#: Every engine by the name that ``--engine`` knows it by.
ENGINES: dict[str, type[LocalEngine]] = {"local": LocalEngine}


class _Worker:
    """A process that trains one batch after another and writes the records itself."""

    def __init__(self, workshop: Workshop) -> None:
        context = multiprocessing.get_context("spawn")
        self.end, far = context.Pipe()
        plain = Workshop(workshop.device, workshop.data_dir, workshop.trust)
        self.process = context.Process(target=_serve, args=(far, plain))
        self.busy = False
        self.left: list[Cell] = []
        with one_thread_each():
            self.process.start()
        far.close()  # so that a dead process is seen as the end of the pipe

    def give(self, batch: Batch, folder: Path) -> None:
        self.busy, self.left = True, list(batch)
        with suppress(ConnectionError):  # it died; taking its records will say so
            self.end.send((self.left, folder))

    def take(self, folder: CellFolder) -> list[Record]:
        """The record of a cell that ended; those of all that are left, if the process died."""
        try:
            record: Record | None = self.end.recv()
        except (EOFError, ConnectionError):
            self.busy = False
            return [self._post_mortem(cell, folder) for cell in self.left]
        if record is None:  # the batch is over
            self.busy = False
            return []
        self.left = [cell for cell in self.left if cell["name"] != record["name"]]
        return [record]

    def _post_mortem(self, cell: Cell, folder: CellFolder) -> Record:
        self.process.join(_SECONDS_TO_STOP)
        code = self.process.exitcode
        cause = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""

        def died(_: Cell) -> dict[str, Any]:
            raise RuntimeError(f"the process that trained it ended with status {code}{cause}")

        record = execute(cell, died)
        folder.write(record)
        return record

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def stop(self) -> None:
        """End the process: at once if it trains, else by telling it that there is no more."""
        if self.busy:
            self.process.terminate()
        self.end.close()
        self.process.join(_SECONDS_TO_STOP)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _serve(pipe: Connection, workshop: Workshop) -> None:
    """Take batches, write their records, and send each as it is made, None after the last."""
    # Ctrl-C reaches every process of a terminal; the parent decides, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch = sys.modules["torch"]
    torch.set_num_threads(1)
    while True:
        try:
            batch, folder = pipe.recv()
            workshop.run(batch, CellFolder(folder), pipe.send)
            pipe.send(None)
        except (EOFError, ConnectionError, KeyboardInterrupt):  # no more, or told to stop
            return
