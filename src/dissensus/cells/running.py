"""Run cells here or in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from dissensus.cells.folder import Cell, CellFolder, Record, check_cells, execute, plain, settle
from dissensus.cells.progress import CellProgress
from dissensus.cells.worker import one_thread_each, serve

__all__ = ["run_cells"]

_SECONDS_TO_STOP = 10.0

Run = Callable[[Cell], dict[str, Any]]


def run_cells(
    cells: Sequence[Cell],
    run: Run,
    folder: str | Path | CellFolder,
    *,
    jobs: int = 1,
    on_record: Callable[[Record], object] | None = None,
    progress: bool = True,
    title: str = "",
    again: bool = False,
) -> list[Record]:
    """Run the cells that ``folder`` has no result of yet; return all records, in order of cells.

    A record is ``{"name", "cell", "result"}``, or ``{"name", "cell", "error", "traceback"}`` for a
    cell that failed, with ``seconds`` and ``facts`` (versions, machine, commit, time). A failed
    cell does not stop the others and is run again at the next start. A record that was made with
    other settings than the cell's is refused, or with ``again`` run once more and replaced.

    ``run`` gets a cell and returns its result as plain JSON values. With ``jobs > 1`` it runs in
    that many processes, each with one torch thread, so it must be a function of a module. All its
    chance should follow from the cell's settings: cells run in no fixed order.

    ``on_record`` is called with each new record; ``progress`` shows a bar on a terminal.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    place = folder if isinstance(folder, CellFolder) else CellFolder(folder)
    check_cells(cells)
    records, missing = settle(cells, place, again=again)
    place.folder.mkdir(parents=True, exist_ok=True)
    with CellProgress(title, len(cells), len(records), show=progress) as bar:
        many = min(jobs, len(missing)) > 1
        made = _in_processes(missing, run, place, jobs) if many else _here(missing, run, place)
        with closing(made):
            for record in made:
                records[record["name"]] = record
                bar.record(record)
                if on_record is not None:
                    on_record(record)
    return [records[cell["name"]] for cell in cells]


def _here(cells: Sequence[Cell], run: Run, folder: CellFolder) -> Generator[Record]:
    for cell in cells:
        record = _made_meanwhile(cell, folder)
        if record is None:
            record = execute(cell, run)
            folder.write(record)
        yield record


def _made_meanwhile(cell: Cell, folder: CellFolder) -> Record | None:
    """The result that another start on the same folder wrote since this one began."""
    record = folder.read(cell["name"])
    fits = record is not None and "result" in record and record["cell"] == plain(cell)
    return record if fits else None


# ---- processes ----------------------------------------------------------------------------------


class _Worker:
    """A process that runs one cell after another and writes their records itself."""

    def __init__(self, run: Run, folder: CellFolder) -> None:
        context = multiprocessing.get_context("spawn")
        self.end, far = context.Pipe()
        self.process = context.Process(target=serve, args=(far, run, folder.folder))
        self.cell: Cell | None = None
        with one_thread_each():
            self.process.start()
        far.close()  # so that a dead process is seen as the end of the pipe

    def give(self, cell: Cell) -> None:
        self.cell = cell
        self.end.send(cell)

    def take(self, folder: CellFolder) -> Record:
        """The record of its cell, or one that says that the process died."""
        assert self.cell is not None
        cell, self.cell = self.cell, None
        try:
            record: Record = self.end.recv()
        except (EOFError, ConnectionError):
            record = self._post_mortem(cell)
            folder.write(record)
        return record

    def _post_mortem(self, cell: Cell) -> Record:
        self.process.join(_SECONDS_TO_STOP)
        code = self.process.exitcode
        cause = ", perhaps for lack of memory" if code == -9 else ""

        def died(_: Cell) -> dict[str, Any]:
            raise RuntimeError(f"the process that ran the cell ended with status {code}{cause}")

        return execute(cell, died)

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def stop(self) -> None:
        """End the process: at once if it runs a cell, else by telling it that there are no more."""
        if self.cell is not None:
            self.process.terminate()
        self.end.close()
        self.process.join(_SECONDS_TO_STOP)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _in_processes(
    cells: Sequence[Cell], run: Run, folder: CellFolder, jobs: int
) -> Generator[Record]:
    """Yield records as they are made; leaving early ends the processes and loses what they run."""
    waiting = deque(cells)
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.cell is not None for worker in workers):
            while waiting and _room(workers, jobs):
                record = _made_meanwhile(waiting[0], folder)
                if record is not None:
                    waiting.popleft()
                    yield record
                    continue
                _free(workers, run, folder).give(waiting.popleft())
            busy = {worker.end: worker for worker in workers if worker.cell is not None}
            for end in wait(list(busy)):
                assert isinstance(end, Connection)
                worker = busy[end]
                record = worker.take(folder)
                if not worker.alive:
                    workers.remove(worker)
                    worker.stop()
                yield record
    finally:
        for worker in workers:
            worker.stop()


def _room(workers: Sequence[_Worker], jobs: int) -> bool:
    return sum(worker.cell is not None for worker in workers) < jobs


def _free(workers: list[_Worker], run: Run, folder: CellFolder) -> _Worker:
    for worker in workers:
        if worker.cell is None and worker.alive:
            return worker
    workers.append(_Worker(run, folder))
    return workers[-1]
