"""The other side of the pipe: a process that runs cells until there are no more."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dissensus.cells.folder import Cell, CellFolder, execute

__all__ = ["one_thread_each", "serve"]

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def serve(pipe: Connection, run: Callable[[Cell], dict[str, Any]], folder: Path) -> None:
    """Take cells from ``pipe``, write their records to ``folder`` and send them back.

    The record is on disk before it is sent, so that not even the death of the parent loses it.
    """
    # Ctrl-C reaches every process of a terminal; the parent decides, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    place = CellFolder(folder)
    while True:
        try:
            cell = pipe.recv()
        except (EOFError, ConnectionError):
            return
        _one_thread()
        record = execute(cell, run)
        place.write(record)
        try:
            pipe.send(record)
        except (BrokenPipeError, ConnectionError):
            return


def _one_thread() -> None:
    """Several processes share the cores; threads in each would only make them wait."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes started meanwhile load their libraries with one thread.

    Libraries read these variables when they are loaded, which a new process does before it comes
    to any code of ours; so it must inherit them.
    """
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
