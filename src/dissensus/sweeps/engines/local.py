"""Local engine: cells in this process, or in several processes with one thread each."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from dissensus.sweeps.engines.cell_folder import Cell, CellFolder, Record, execute, wanted
from dissensus.sweeps.engines.queue import Batch, Crew, Queue
from dissensus.tools.records import threads
from dissensus.tools.specs import check_numbers, number

_SECONDS_TO_STOP = 10.0
_PR_SET_PDEATHSIG = 1  # of prctl(2)


#: Runs cells, together or one after another, and hands over the record of each as it ends.
Work = Callable[[Sequence[Cell], Callable[[Record], object]], None]


@dataclass(frozen=True)
class Each:
    """Work that runs cells one after another."""

    run: Callable[[Cell], dict[str, Any]]

    def __call__(self, cells: Sequence[Cell], on_record: Callable[[Record], object]) -> None:
        for cell in cells:
            on_record(execute(cell, self.run))


@dataclass(frozen=True)
class LocalEngine:
    """This machine: batches one after another in this process, or in ``jobs`` processes."""

    jobs: int = number(1, low=1)

    def __post_init__(self) -> None:
        check_numbers(self)

    def session(self) -> AbstractContextManager[None]:
        """Nothing has to be started."""
        return nullcontext()

    def crew(self, work: Work) -> LocalCrew:
        """Processes that do ``work``."""
        return LocalCrew(self.jobs, work)


class LocalCrew(Crew):
    """Processes that live until the context exits; none for one job."""

    machines = 1

    def __init__(self, jobs: int, work: Work) -> None:
        self.jobs, self.work = jobs, work
        self.workers: list[_Worker] = []

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers = []

    def empty(self, queue: Queue) -> None:
        """Run all that is in the queue, in this process where one is enough."""
        if self.jobs == 1 or (len(queue.batches) == 1 and not self.workers):
            self._run_here(queue)
        else:
            self._run_in_processes(queue)

    def _run_here(self, queue: Queue) -> None:
        before = threads()
        if self.jobs > 1:
            use_threads(1)  # as many as a worker has: numbers depend on it
        try:
            while queue:
                batch = queue.take()
                if batch is None:
                    queue.wait()
                else:
                    self.work(batch, queue.keep)
        finally:
            if before is not None:
                use_threads(before)

    def _run_in_processes(self, queue: Queue) -> None:
        while queue or any(worker.busy for worker in self.workers):
            while sum(worker.busy for worker in self.workers) < self.jobs:
                batch = queue.take()
                if batch is None:
                    break
                self._free_worker().give(batch, queue.folder.folder)
            busy: dict[Any, _Worker] = {w.end: w for w in self.workers if w.busy}
            if not busy:
                queue.wait()
            for end in wait(list(busy), queue.patience) if busy else ():
                busy[end].take(queue)
            for worker in [w for w in self.workers if not w.alive and not w.busy]:
                self.workers.remove(worker)
                worker.stop()

    def _free_worker(self) -> _Worker:
        for worker in self.workers:
            if not worker.busy and worker.alive:
                return worker
        self.workers.append(_Worker(self.work))
        return self.workers[-1]


def _serve(pipe: Connection, work: Work) -> None:
    """Run batches; write and send each record as it is made, and None after the last.

    A record is on disk before it is sent, so that not even the death of the parent loses it.
    """
    # These signals reach every process of a terminal or a job; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    while True:
        try:
            batch, folder = pipe.recv()
            place = CellFolder(folder)

            def keep(record: Record, place: CellFolder = place) -> None:
                place.write(record)
                pipe.send(record)

            use_threads(1)
            work(batch, keep)
            pipe.send(None)
        except (EOFError, ConnectionError, KeyboardInterrupt):  # no more work
            return


class _Worker:
    """A process that runs one batch after another and writes the records itself."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.end, far = context.Pipe()
        self.process = context.Process(target=_serve, args=(far, work))
        self.busy = False
        self.left: list[Cell] = []
        with environment_set(thread_variables(1)):
            self.process.start()
        far.close()  # so that a dead process is seen as the end of the pipe

    def give(self, batch: Batch, folder: Path) -> None:
        self.busy, self.left = True, wanted(batch)
        with suppress(ConnectionError):  # it died; taking its records will say so
            self.end.send((list(batch), folder))

    def take(self, queue: Queue) -> None:
        """Hand over the next record; if the process died, those of all cells that are left."""
        try:
            record: Record | None = self.end.recv()
        except (EOFError, ConnectionError):
            self.busy = False
            self._record_death(queue)
            return
        if record is None:  # the batch is over
            self.busy = False
            return
        self.left = [cell for cell in self.left if cell["name"] != record["name"]]
        queue.on_record(record)

    def _record_death(self, queue: Queue) -> None:
        self.process.join(_SECONDS_TO_STOP)
        code = self.process.exitcode
        cause = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        how = f"the process that ran the cell ended with status {code}{cause}"
        for cell in self.left:
            record = queue.new_record(cell)
            if record is None:
                queue.keep(death_record(cell, how))
            else:  # written, but not sent any more
                queue.on_record(record)

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def stop(self) -> None:
        """End the process: at once if it is busy, else by closing its pipe."""
        if self.busy:
            self.process.kill()  # its records are whole, and it has nothing else to keep
        self.end.close()
        self.process.join(_SECONDS_TO_STOP)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


# ---- surroundings of a worker, here and on Ray ---------------------------------------------------


def death_record(cell: Cell, how: str) -> Record:
    """The record of a cell whose process ended before the cell did."""

    def raise_it(_: Cell) -> dict[str, Any]:
        raise RuntimeError(how)

    return {**execute(cell, raise_it), "died": True}


def end_with_parent() -> None:
    """End this process when its parent ends, in whatever way, even in the middle of training."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":  # at once, even if no thread gets its turn
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """While entered, SIGTERM interrupts as Ctrl-C does; afterwards its handler is as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def use_threads(count: int) -> None:
    """Let torch use this many threads, if it is loaded: processes share the cores."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def thread_variables(count: int) -> dict[str, str]:
    """The variables from which libraries read their number of threads when they are loaded.

    A new process loads them before it comes to any code of ours; so it must inherit these.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(count))


@contextmanager
def environment_set(variables: dict[str, str], *also: str) -> Iterator[None]:
    """Set variables for processes started meanwhile, and restore them afterwards.

    The variables named in ``also``, which other code sets, are restored too.
    """
    before = {name: os.environ.get(name) for name in (*variables, *also)}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
