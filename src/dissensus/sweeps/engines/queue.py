"""Batches of cells that wait to be run, as an engine takes them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from dissensus.sweeps.engines.claims import Claims
from dissensus.sweeps.engines.folder import Cell, CellFolder, Record, plain

__all__ = ["Batch", "OnRecord", "OnWait", "Queue"]

_SECONDS_BETWEEN_LOOKS = 0.5

Batch = Sequence[Cell]
OnRecord = Callable[[Record], object]
OnWait = Callable[[int], object]


class Queue:
    """What is still to run: cells that no other program has, each claimed as it is handed out.

    Cells of another program are left to it. Its records are taken over as they appear; when it
    ends without one, the cell is handed out here.
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
        self.told, self.next_look = 0, 0.0
        self.before = {
            cell["name"]: folder.stamp(cell["name"]) for batch in self.batches for cell in batch
        }

    def __bool__(self) -> bool:
        return bool(self.batches or self.elsewhere)

    @property
    def patience(self) -> float | None:
        """For how many seconds to wait for this program's own cells before asking again."""
        return _SECONDS_BETWEEN_LOOKS if self.elsewhere else None

    def take(self) -> list[Cell] | None:
        """Cells to run together, from now on this program's; None if there are none now."""
        while self.batches:
            if ours := self._ours(self.batches.popleft()):
                return ours
        if self.elsewhere and time.monotonic() >= self.next_look:
            self.batches, self.elsewhere = deque(self.elsewhere), []
            self.next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
            return self.take()
        return None

    def put_back(self, batch: Batch) -> None:
        """To be run once more, before anything else."""
        self.batches.appendleft(list(batch))

    def wait(self) -> None:
        """Pass the time while all that is left is with other programs."""
        waiting = sum(len(batch) for batch in self.elsewhere)
        if self.on_wait is not None and waiting and waiting != self.told:
            self.told = waiting
            self.on_wait(waiting)
        time.sleep(max(0.0, self.next_look - time.monotonic()))

    def made(self, cell: Cell) -> Record | None:
        """The record of ``cell`` that was written since: a result, or a failure that is new."""
        record = self.folder.read(cell["name"])
        if record is None or record["cell"] != plain(cell):
            return None
        new = self.folder.stamp(cell["name"]) != self.before[cell["name"]]
        return record if "result" in record or new else None

    def _ours(self, batch: list[Cell]) -> list[Cell]:
        # First claim, then look: between a look and a claim the other program might finish.
        mine = self.claims.take(cell["name"] for cell in batch)
        ours, others = [], []
        for cell in batch:
            record = self.made(cell)
            if record is not None:
                self.on_record(record)
            elif cell["name"] in mine:
                ours.append(cell)
            else:
                others.append(cell)
        if others:
            self.elsewhere.append(others)
        return ours
