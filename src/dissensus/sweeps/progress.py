"""Progress of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dissensus.sweeps.plan import cell_label
from dissensus.sweeps.run import Watcher
from dissensus.sweeps.summary import summarize

__all__ = ["SweepProgress"]

_SECONDS_BETWEEN_LINES = 5.0


class SweepProgress(Watcher):
    """The table as it fills; without a terminal a line now and then, and every failure."""

    def __init__(self, *, show: bool) -> None:
        self.show, self.console = show, Console(stderr=True)
        self.live: Live | None = None
        self.cells: Sequence[dict[str, Any]] = ()
        self.records: dict[str, dict[str, Any]] = {}
        self.started, self.last_line, self.before = time.monotonic(), 0.0, 0
        self.head, self.table = "", Table()

    def __enter__(self) -> Self:
        if self.show and self.console.is_terminal:
            self.live = Live(
                get_renderable=self._renderable,
                console=self.console,
                transient=True,
                refresh_per_second=4,
            )
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def searching(self, trials: int, total: int) -> None:
        self.head = f"search: {trials}/{total} trials"
        self._line(self.head, always=trials == total)

    def begin(self, cells: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> None:
        self.cells, self.before = cells, len(records)
        self.records = {record["name"]: record for record in records}
        if records:
            self.say(f"sweep: {len(records)} of {len(cells)} cells are done already")
        self._update()

    def record(self, record: dict[str, Any]) -> None:
        self.records[record["name"]] = record
        self._update()
        name, error = cell_label(record["cell"]), record.get("error")
        if error is not None:
            self.say(f"sweep: {name} failed: {error.splitlines()[0]}")
            return
        val = record["result"].get("val", record["result"].get("test"))
        error = "" if val is None else f", ERR {val['ensemble_error']:.4f}"
        self._line(f"{self.head}, {name}{error}")

    def waiting(self, count: int) -> None:
        self.say(f"sweep: {count} cells are run by another program; waiting for them")

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.show:
            self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _line(self, text: str, *, always: bool = False) -> None:
        late = time.monotonic() - self.last_line >= _SECONDS_BETWEEN_LINES
        if self.live is None and (late or always):
            self.last_line = time.monotonic()
            self.say(text)

    def _update(self) -> None:
        self.head = f"sweep: {len(self.records)}/{len(self.cells)} cells"
        if self.live is not None:
            self.table = summarize(self.cells, self.records.values()).table()

    def _renderable(self) -> RenderableType:
        seconds = int(time.monotonic() - self.started)
        title = f"{self.head or 'checking'}, {seconds // 60}:{seconds % 60:02d}"
        return Group(Text(title), self.table) if self.cells else Text(title)
