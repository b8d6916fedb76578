"""Forked processes: everything is imported once, so that each command starts at once."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How a command ended; a signal counts as its negative number."""

    status: int
    err: str

    @property
    def refused(self) -> bool:
        """Whether it ended in one sentence about another writer."""
        one = self.err.startswith("dissensus: ") and len(self.err.splitlines()) == 1
        return self.status == 2 and one and "is writing to" in self.err


def command(*words: object) -> Callable[[], None]:
    """The command line as a function."""

    def run() -> None:
        from dissensus.cli import main

        sys.argv = ["dissensus", *map(str, words)]
        main()

    return run


def start(work: Callable[[], object], err: Path) -> int:
    """Run ``work`` in a forked process whose errors go to ``err``; return its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.dup2(os.open(err, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        work()
        status = 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def end(child: int, err: Path) -> Ended:
    """Wait for the process."""
    return Ended(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), err.read_text())


def together(works: list[Callable[[], object]], scratch: Path) -> list[Ended]:
    """Run all at the same time."""
    files = [scratch / f"err{number}" for number in range(len(works))]
    children = [start(work, file) for work, file in zip(works, files, strict=True)]
    return [end(child, file) for child, file in zip(children, files, strict=True)]
