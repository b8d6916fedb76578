"""Worker process: runs batches of cells from a pipe until there are no more."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from dissensus.sweeps.engines.cell_folder import Cell, CellFolder, Record, execute

__all__ = [
    "Each",
    "Work",
    "death_record",
    "environment_set",
    "serve",
    "thread_variables",
    "use_threads",
]

#: Runs cells, together or one after another, and hands over the record of each as it ends.
Work = Callable[[Sequence[Cell], Callable[[Record], object]], None]


@dataclass(frozen=True)
class Each:
    """Work that runs cells one after another."""

    run: Callable[[Cell], dict[str, Any]]

    def __call__(self, cells: Sequence[Cell], on_record: Callable[[Record], object]) -> None:
        for cell in cells:
            on_record(execute(cell, self.run))


def serve(pipe: Connection, work: Work) -> None:
    """Take batches, write their records, and send each as it is made, None after the last.

    A record is on disk before it is sent, so that not even the death of the parent loses it.
    """
    # Ctrl-C reaches every process of a terminal; the parent decides, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
        except (EOFError, ConnectionError, KeyboardInterrupt):  # no more, or told to stop
            return


def death_record(cell: Cell, how: str) -> Record:
    """The record of a cell whose process ended before the cell did."""

    def raise_it(_: Cell) -> dict[str, Any]:
        raise RuntimeError(how)

    return execute(cell, raise_it)


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
    """Set variables for processes started meanwhile; afterwards they are as before.

    So are those named in ``also``, which other code sets.
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
