"""Engines: batches of cells run in this process, in a pool of processes, or on Ray.

A batch is one cell, or several that train together as a fleet. If a worker dies, the rest of its
batch runs again, cell by cell, so that a cell that kills its workers costs only itself.
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
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    total = len(cells)
    with ProgressBar(title, total, completed=len(records), show=progress) as bar:

        def end(record: Record) -> None:
            name, error = record["name"], record.get("error")
            records[name] = record
            bar.update(len(records), note=name)
            if error is None:
                bar.log(f"{title}: {len(records)}/{total}, {name} took {record['seconds']:.1f} s")
            else:  # stays on the screen
                bar.say(f"{title}: {name} failed: {error.splitlines()[0]}")
            if on_record is not None:
                on_record(record)

        if records:
            bar.say(f"{title}: {len(records)} of {total} cells are done already")
        if missing:
            with engine.session():
                batches = [[cell] for cell in missing]
                run_batches(batches, partial(run_each, run), place, engine, end)
            failed = sum("error" in record for record in records.values())
            bar.say(f"{title}: {total - failed} of {total} cells done, {failed} failed")
    return [records[cell["name"]] for cell in cells]


def run_each(run: Callable[[Cell], dict[str, Any]], cells: Batch, on_record: OnRecord) -> None:
    """Work that runs cells one after another."""
    for cell in cells:
        on_record(execute(cell, run))


class Room(NamedTuple):
    """How many batches run at once, on how many machines, and how many more wait at the engine."""

    jobs: int
    machines: int = 1
    ahead: int = 0


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
    deaths = Counter[str]()
    with termination_as_interrupt():
        while waiting and engine == LocalEngine(1):
            work(waiting.popleft(), keep)
        room = engine.room()
        while waiting or running:
            while waiting and len(running) < room.jobs + room.ahead:
                batch = waiting.popleft()
                running[engine.submit(batch, work, folder)] = batch
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                batch = running.pop(future)
                try:
                    for record in future.result():
                        (on_record if engine.workers_write else keep)(record)
                except engine.died as error:
                    kept, left = find_missing(batch, folder, again=True)
                    for record in kept.values():
                        on_record(record)
                    for cell in left:
                        deaths[cell["name"]] += 1
                        if deaths[cell["name"]] < _ATTEMPTS:
                            waiting.appendleft([cell])
                        else:
                            keep(execute(cell, partial(_give_up, type(error).__name__)))


def _give_up(cause: str, cell: Cell) -> dict[str, Any]:
    """In place of a cell whose workers died too often."""
    raise RuntimeError(f"{_ATTEMPTS} workers died ({cause}), perhaps for lack of memory")


# ---- this machine -------------------------------------------------------------------------------


@dataclass
class LocalEngine:
    """This machine: batches one after another in this process, or in ``jobs`` processes."""

    jobs: int = number(1, low=1)
    workers_write = True
    died = (BrokenExecutor,)  # what a batch raises if its worker died

    def __post_init__(self) -> None:
        check_numbers(self)
        # A pool for each worker: the death of one breaks no other.
        self._pools: dict[ProcessPoolExecutor, Future[list[Record]]] = {}

    def room(self) -> Room:
        """The processes."""
        return Room(self.jobs)

    @contextmanager
    def session(self) -> Iterator[None]:
        """While entered, workers wait for batches; they end with it, busy or not."""
        self._pipe, held = multiprocessing.Pipe(duplex=False)
        try:
            yield
        finally:
            held.close()
            for pool in self._pools:
                pool.shutdown(cancel_futures=True)
            self._pools.clear()

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


def run_batch(batch: Batch, work: Work, folder: CellFolder | None = None) -> list[Record]:
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
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
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
