"""Queue of an engine: batches of cells still to run, claimed so that programs share a folder.

Each program keeps a file in the hidden folder ``.claims`` that names its cells, and holds a lock of
the operating system on it. Whatever ends the program ends the lock too, so no claim outlives its
program and nothing depends on timeouts. Claims only save work; records are whole without them.
Where files cannot be locked (Windows, some network file systems), every program may run every cell.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from dissensus.sweeps.engines.cell_folder import Cell, CellFolder, Record, plain, wanted
from dissensus.tools.files import lock_folder

fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has none

_FOLDER, _LOCK = ".claims", "lock"
_SECONDS_BETWEEN_LOOKS = 0.5

Batch = Sequence[Cell]
OnRecord = Callable[[Record], object]
OnWait = Callable[[int], object]


class Queue:
    """The cells still to run, each claimed as it is handed out.

    Cells that another program has claimed are left to it, and its records used as they appear;
    where it ends without a record, the cell is handed out here.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        folder: CellFolder,
        claims: Claims,
        on_record: OnRecord,
        on_wait: OnWait | None = None,
    ) -> None:
        self.batches = deque([list(batch) for batch in batches])
        self.elsewhere: list[list[Cell]] = []
        self.folder, self.claims = folder, claims
        self.on_record, self.on_wait = on_record, on_wait
        self.announced, self.next_look = 0, 0.0
        self.before = {
            cell["name"]: folder.stamp(cell["name"]) for batch in self.batches for cell in batch
        }

    def __bool__(self) -> bool:
        return bool(self.batches or self.elsewhere)

    @property
    def patience(self) -> float | None:
        """Seconds to wait for this program's own cells before calling :meth:`take` again."""
        return _SECONDS_BETWEEN_LOOKS if self.elsewhere else None

    def take(self) -> list[Cell] | None:
        """Cells to run together, claimed for this program; None if there are none now."""
        while self.batches:
            if ours := self._ours(self.batches.popleft()):
                return ours
        if self.elsewhere and time.monotonic() >= self.next_look:
            self.batches, self.elsewhere = deque(self.elsewhere), []
            self.next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
            return self.take()
        return None

    def put_back(self, batch: Batch) -> None:
        """Run ``batch`` again, before anything else."""
        self.batches.appendleft(list(batch))

    def wait(self) -> None:
        """Wait while other programs run all cells that are left."""
        waiting = sum(len(batch) for batch in self.elsewhere)
        if self.on_wait is not None and waiting and waiting != self.announced:
            self.announced = waiting
            self.on_wait(waiting)
        time.sleep(max(0.0, self.next_look - time.monotonic()))

    def keep(self, record: Record) -> None:
        """Write ``record``, then hand it over."""
        self.folder.write(record)
        self.on_record(record)

    def new_record(self, cell: Cell) -> Record | None:
        """The record of ``cell`` if it has a result, or if it was written since the start."""
        record = self.folder.read(cell["name"])
        if record is None or record["cell"] != plain(cell):
            return None
        new = self.folder.stamp(cell["name"]) != self.before[cell["name"]]
        return record if "result" in record or new else None

    def _ours(self, batch: list[Cell]) -> list[Cell]:
        # First claim, then look: between a look and a claim the other program might finish.
        mine = self.claims.take(cell["name"] for cell in wanted(batch))
        ours, others = set(), []
        for cell in wanted(batch):
            record = self.new_record(cell)
            if record is not None:
                self.on_record(record)
            elif cell["name"] in mine:
                ours.add(cell["name"])
            else:
                others.append(cell)
        if others:
            self.elsewhere.append(others)
        companions = {cell["name"] for cell in batch} - {cell["name"] for cell in wanted(batch)}
        return [cell for cell in batch if cell["name"] in ours | companions] if ours else []


class Crew(ABC):
    """The workers of an engine, from ``__enter__`` to ``__exit__``."""

    jobs: int  # batches that run at once
    machines: int  # that they run on, each with its own memory

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """End all workers."""

    def run(
        self,
        batches: Sequence[Batch],
        folder: CellFolder,
        on_record: OnRecord,
        on_wait: OnWait | None = None,
    ) -> None:
        """Run every batch; each record is on disk before ``on_record`` gets it.

        ``on_wait`` is called with the number of cells left when other programs run all of them.
        """
        with Claims(folder.folder) as claims:
            self.empty(Queue(batches, folder, claims, on_record, on_wait))

    @abstractmethod
    def empty(self, queue: Queue) -> None:
        """Run all that is in the queue."""


class Claims:
    """The cells of a folder that this program runs, claimed until it leaves the context or ends.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> with Claims(place) as one, Claims(place) as other:
    ...     print(sorted(one.take(["a", "b"])), sorted(other.take(["b", "c"])))
    ['a', 'b'] ['c']
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / _FOLDER / secrets.token_hex(8)
        self.file: int | None = None
        self.names: set[str] = set()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        if fcntl is not None:
            # Nobody may see the file before it is locked: it would look like a dead program's.
            with suppress(OSError), exclusive(self.folder):
                file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    self.path.unlink()
                    os.close(file)
                    raise
                self.file = file
        return self

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            self.path.unlink(missing_ok=True)
            os.close(self.file)
            self.file = None
            _remove_empty(self.folder)

    def take(self, names: Iterable[str]) -> set[str]:
        """Claim those of ``names`` that no other program has, and return this program's."""
        cells = set(names)
        if self.file is None or cells <= self.names:
            return cells
        with exclusive(self.folder):
            mine = cells - self._others()
            self.names |= mine
            self.path.write_text(json.dumps(sorted(self.names)), encoding="utf-8")
        return mine

    def _others(self) -> set[str]:
        """The cells that other running programs have claimed; what dead ones left is removed."""
        claimed: set[str] = set()
        for path in self.path.parent.iterdir():
            if path in (self.path, self.path.with_name(_LOCK)):
                continue
            with suppress(FileNotFoundError):  # its program ended just now
                if _locked(path):
                    claimed |= set(json.loads(path.read_text(encoding="utf-8") or "[]"))
                else:
                    path.unlink()
        return claimed


def _locked(path: Path) -> bool:
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of cells, one program at a time; for moments, not for work."""
    try:
        with lock_folder(folder / _FOLDER, name=_LOCK, wait=math.inf):
            yield
    finally:
        _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    """Remove the hidden folder if it is empty."""
    with suppress(OSError):
        (folder / _FOLDER).rmdir()
