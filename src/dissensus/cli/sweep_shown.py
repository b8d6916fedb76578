"""What people see of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dissensus.sweeps import Row, Spread, Summary, Watcher, summarize
from dissensus.sweeps.grid import written
from dissensus.sweeps.plan import cell_label

__all__ = ["ShownSweep", "sweep_table"]

_SECONDS_BETWEEN_LINES = 5.0

#: Columns of figures: heading, split, figure, and how the number is written.
_COLUMNS = (
    ("val ERR", "val", "ensemble_error", "{:.4f}"),
    ("test ERR", "test", "ensemble_error", "{:.4f}"),
    ("test DIV", "test", "diversity", "{:.4f}"),
    ("test accuracy", "test", "accuracy", "{:.2%}"),
)


def sweep_table(summary: Summary) -> Table:
    """One line a point of the grid; a star marks the best by validation."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    keys = list(summary.rows[0].point) if summary.rows else []
    table.add_column("", no_wrap=True)
    for key in keys or ["settings"]:
        table.add_column(key, justify="right", no_wrap=True, style="cyan")
    table.add_column("done", justify="right", no_wrap=True)
    columns = [c for c in _COLUMNS if any(c[2] in getattr(row, c[1]) for row in summary.rows)]
    for heading, *_ in columns:
        table.add_column(heading, justify="right")
    told = any(row.verdicts for row in summary.rows)
    if told:
        table.add_column("verdict")
    for row in summary.rows:
        values = [written(row.point[key]) for key in keys] or [row.label]
        found = [_spread(getattr(row, part).get(name), form) for _, part, name, form in columns]
        verdicts = [_verdicts(row)] if told else []
        mark, style = ("*", "bold") if row.best else ("", "")
        table.add_row(mark, *values, _done(row), *found, *verdicts, style=style)
    return table


def _done(row: Row) -> str:
    failed = f" ({row.failed} failed)" if row.failed else ""
    return f"{row.done}/{row.repeats}{failed}"


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return "–"
    mean = form.format(spread.mean)
    return mean if spread.sd is None else f"{mean} ± {form.format(spread.sd)}"


def _verdicts(row: Row) -> str:
    """The word where all repeats agree, else how many had which, the worst first."""
    order = ("colluding", "suspicious", "not judged", "healthy")
    found = [word for word in order if word in row.verdicts]
    if len(found) == 1:
        return found[0]
    return ", ".join(f"{row.verdicts[word]} {word}" for word in found if word != "healthy")


class ShownSweep(Watcher):
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
                get_renderable=self._rendered,
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
        figures = "" if val is None else f", ERR {val['ensemble_error']:.4f}"
        self._line(f"{self.head}, {name}{figures}")

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
            self.table = sweep_table(summarize(self.cells, self.records.values()))

    def _rendered(self) -> RenderableType:
        seconds = int(time.monotonic() - self.started)
        told = f"{self.head or 'checking'}, {seconds // 60}:{seconds % 60:02d}"
        return Group(Text(told), self.table) if self.cells else Text(told)
