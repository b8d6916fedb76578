"""Engines: batches of cells run in this process, in a pool of processes, or on Ray.

A batch is one cell, or several that train together as a fleet. If a worker dies, its batch runs
again, the last time cell by cell, so that a cell that kills its workers costs only itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dissensus.sweeps.cells import Cell, CellFolder, Record, execute, find_missing
from dissensus.tools.progress import ProgressBar
from dissensus.tools.specs import check_numbers, number

if TYPE_CHECKING:
    from dissensus.sweeps.ray import RayEngine

_ATTEMPTS = 3  # of a cell whose workers die

Batch = Sequence[Cell]
OnRecord = Callable[[Record], object]
#: Runs the cells of a batch and hands over the record of each as it ends.
Work = Callable[[Batch, OnRecord], None]


def run_cells(
    cells: Sequence[Cell],
    run: Callable[[Cell], dict[str, Any]],
    folder: str | Path | CellFolder,
    *,
    jobs: int = 1,
    engine: LocalEngine | RayEngine | None = None,
    on_record: OnRecord | None = None,
    progress: bool = True,
    title: str = "cells",
    again: bool = False,
) -> list[Record]:
    """Run the cells without a result in ``folder``; return all records, in the order of cells.

    A record is ``{"name", "cell", "result"}``, or ``{"name", "cell", "error", "traceback"}`` for a
    cell that failed, with ``seconds`` and ``facts`` (versions, machine, commit, time). A failed
    cell does not stop the others and runs again at the next start. A record made with other
    settings is an error; with ``again`` its cell runs again.

    ``run`` gets a cell and returns its result as plain JSON values. With ``jobs > 1`` it runs in
    that many processes, each with one thread, so it must be a function of a module. Its randomness
    should follow from the cell's settings: cells run in no fixed order. ``engine``, such as
    ``RayEngine()``, takes the place of ``jobs``. ``on_record`` is called with each new record.

    >>> import tempfile
    >>> cells = [{"name": f"beta={beta}", "beta": beta} for beta in (0.0, 0.5)]
    >>> def run(cell):
    ...     return {"loss": 1 + cell["beta"]}
    >>> records = run_cells(cells, run, tempfile.mkdtemp(), progress=False)
    >>> [record["result"]["loss"] for record in records]
    [1.0, 1.5]
    """
    engine = LocalEngine(jobs) if engine is None else engine
    place = folder if isinstance(folder, CellFolder) else CellFolder(folder)
    records, missing = find_missing(cells, place, again=again)
    with ProgressBar(title, len(cells), completed=len(records), show=progress) as bar:

        def end(record: Record) -> None:
            name, error = record["name"], record.get("error")
            records[name] = record
            bar.update(len(records), note=name)
            if error is None:
                seconds = record["seconds"]
                bar.log(f"{title}: {len(records)}/{len(cells)}, {name} took {seconds:.1f} s")
            else:  # stays on the screen
                bar.say(f"{title}: {name} failed: {error.splitlines()[0]}")
            if on_record is not None:
                on_record(record)

        if records:
            bar.say(f"{title}: {len(records)} of {len(cells)} cells are done already")
        if missing:
            with engine.session():
                run_batches([[cell] for cell in missing], Each(run), place, engine, end)
            failed = sum("error" in record for record in records.values())
            text = f"{title}: {len(records) - failed} of {len(cells)} cells done"
            bar.say(f"{text}, {failed} failed" if failed else text)
    return [records[cell["name"]] for cell in cells]


@dataclass(frozen=True)
class Each:
    """Work that runs cells one after another."""

    run: Callable[[Cell], dict[str, Any]]

    def __call__(self, cells: Batch, on_record: OnRecord) -> None:
        for cell in cells:
            on_record(execute(cell, self.run))


def run_batches(
    batches: Sequence[Batch],
    work: Work,
    folder: CellFolder,
    engine: LocalEngine | RayEngine,
    on_record: OnRecord,
) -> None:
    """Run every batch, within ``engine.session()``; a record is on disk before ``on_record``."""

    def keep(record: Record) -> None:
        folder.write(record)
        on_record(record)

    waiting, running = deque(batches), dict[Future[list[Record]], Batch]()
    deaths, limit = Counter[str](), engine.limit
    with termination_as_interrupt():
        while waiting and engine.jobs == 1 and isinstance(engine, LocalEngine):
            work(waiting.popleft(), keep)
        while waiting or running:
            while waiting and len(running) < limit:
                batch = waiting.popleft()
                running[engine.submit(batch, work, folder)] = batch
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                batch = running.pop(future)
                try:
                    records = engine.collect(future, folder)
                except engine.died as error:
                    records, again = _after_death(batch, folder, deaths, type(error).__name__)
                    waiting.extendleft(again)
                for record in records:
                    on_record(record)


def _after_death(
    batch: Batch, folder: CellFolder, deaths: Counter[str], cause: str
) -> tuple[list[Record], list[Batch]]:
    """The records of a batch whose worker died, and the batches that run again."""
    kept, left = find_missing(batch, folder, again=True)
    deaths.update(cell["name"] for cell in left)

    def give_up(cell: Cell) -> dict[str, Any]:
        raise RuntimeError(
            f"the worker that ran the cell died {_ATTEMPTS} times ({cause}), perhaps for lack of "
            "memory"
        )

    again = [cell for cell in left if deaths[cell["name"]] < _ATTEMPTS]
    lost = [execute(cell, give_up) for cell in left if cell not in again]
    for record in lost:
        folder.write(record)
    batches: list[Batch] = [[cell] for cell in again]
    if again and all(deaths[cell["name"]] < _ATTEMPTS - 1 for cell in again):
        batches = [again]
    return [*kept.values(), *lost], batches


# ---- this machine -------------------------------------------------------------------------------


@dataclass
class LocalEngine:
    """This machine: batches one after another in this process, or in ``jobs`` processes.

    Each process is a pool, so that its death breaks no other.
    """

    jobs: int = number(1, low=1)
    died = (BrokenExecutor,)  # what collect raises where a worker died

    def __post_init__(self) -> None:
        check_numbers(self)
        self.limit = self.jobs  # of batches that are handed out at once
        self._pools: dict[ProcessPoolExecutor, Future[list[Record]]] = {}
        self._pipe: Any = None  # a connection, within a session

    def room(self) -> tuple[int, int]:
        """How many batches run at once, and on how many machines."""
        return self.jobs, 1

    @contextmanager
    def session(self) -> Iterator[None]:
        """While entered, workers wait for batches; they end with it, busy or not."""
        if self._pipe is not None:
            yield
            return
        self._pipe, held = multiprocessing.Pipe(duplex=False)
        try:
            yield
        finally:
            held.close()
            for pool in self._pools:
                pool.shutdown(cancel_futures=True)
            self._pools, self._pipe = {}, None

    def submit(self, batch: Batch, work: Work, folder: CellFolder) -> Future[list[Record]]:
        """Give a batch to a free worker, or to a new one."""
        free = (pool for pool, last in self._pools.items() if last.done() and not last.exception())
        pool = next(free, None) or ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(self._pipe,),
        )
        with environment_set(thread_variables(1)):  # the first batch starts the process
            self._pools[pool] = pool.submit(run_batch, batch, work, folder)
        return self._pools[pool]

    def collect(self, future: Future[list[Record]], folder: CellFolder) -> list[Record]:
        """The records of a batch that has ended, which its worker wrote."""
        return future.result()


def _begin(pipe: Connection) -> None:
    """Make this process a worker: Ctrl-C is for its parent, with which it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()


def _end_with_parent(pipe: Connection) -> None:
    """End this process, even in the middle of training, once the parent's end of a pipe is closed.

    The parent closes it to stop its workers; the system does where the parent is killed.
    """
    with suppress(OSError):
        pipe.poll(None)
    os._exit(1)


def run_batch(batch: Batch, work: Work, folder: CellFolder | None) -> list[Record]:
    """In a worker: the records of a batch, each written as it is made if there is a folder."""
    records: list[Record] = []

    def keep(record: Record) -> None:
        if folder is not None:
            folder.write(record)
        records.append(record)

    work(batch, keep)
    return records


# ---- surroundings -------------------------------------------------------------------------------


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


def thread_variables(count: int) -> dict[str, str]:
    """The variables from which libraries read their number of threads when they are loaded."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(count))


@contextmanager
def environment_set(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for processes started meanwhile; afterwards the environment is as before."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
