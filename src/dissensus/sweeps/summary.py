"""Summary of a sweep: for each point of the grid a row, built from the records alone."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.sweeps.cells import Cell, Record
from dissensus.sweeps.grid import Point, format_value, label
from dissensus.sweeps.selection import select_among_records
from dissensus.tools.verbs import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType
    from rich.table import Table

    from dissensus.show import Series

#: Metrics of each split, and signs of collusion, that a row has.
METRICS = ("ensemble_error", "member_error", "diversity", "accuracy")
SIGNS = ("div_to_err", "debiased_share")


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over repeats; no deviation of a single one."""

    mean: float
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of ``values``; None if there are none.

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, sd=1.4142135623730951)
        """
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass
class Row:
    """One point of the grid: repeats that are done and failed, and metrics by split and name.

    ``best`` is the chosen one, ``indistinct`` are those that cannot be distinguished from the
    one with the lowest error, ``status`` says what the rule of the choice made of the point.
    """

    point: Point
    repeats: int
    done: int = 0
    failed: int = 0
    val: dict[str, Spread] = field(default_factory=dict)
    test: dict[str, Spread] = field(default_factory=dict)
    diagnosis: dict[str, Spread] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    best: bool = False
    indistinct: bool = False
    status: str = ""

    @property
    def label(self) -> str:
        """The point in words."""
        return label(self.point)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record."""
        return {"label": self.label, **asdict(self)}


@dataclass(repr=False)
class Summary(Result):
    """All rows; one is chosen by validation ERR, never by test data: see ``sweeps/selection.py``.

    Only points with the most repeats done can be the best: a few lucky splits must not win.
    ``failures`` are the errors of failed cells by name, ``path`` is the folder of the sweep, and
    ``quiet`` is True if the sweep was asked to print nothing.
    """

    rows: list[Row]
    failures: dict[str, str] = field(default_factory=dict)
    path: Path | None = None
    searched: bool = False
    quiet: bool = False
    chosen_by: str = ""

    @property
    def best(self) -> Row | None:
        """The point that validation chooses; None where nothing was validated."""
        return next((row for row in self.rows if row.best), None)

    @property
    def done(self) -> int:
        """How many cells have a result."""
        return sum(row.done for row in self.rows)

    @property
    def total(self) -> int:
        """How many cells there are."""
        return sum(row.repeats for row in self.rows)

    def headline(self) -> str:
        """How many cells are done, and the best point."""
        best = "" if self.best is None else f", best by validation: {self.best.label}"
        return f"{self.done} of {self.total} cells done{best}"

    def to_dict(self) -> dict[str, Any]:
        """The content of ``summary.json``."""
        best = self.best
        return {
            "cells": self.total,
            "done": self.done,
            "failed": self.failures,
            "chosen_by": self.chosen_by,
            "best": None if best is None else {"point": best.point, "label": best.label},
            "rows": [row.to_dict() for row in self.rows],
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """For each point its settings, and means and deviations such as ``val_accuracy_mean``."""
        return [
            {**row.point, "repeats": row.repeats, "done": row.done, "best": row.best}
            | {"indistinct": row.indistinct, "status": row.status}
            | {
                f"{split}_{name}_{key}": value
                for split, spreads in (("val", row.val), ("test", row.test))
                for name, spread in spreads.items()
                for key, value in vars(spread).items()
            }
            for row in self.rows
        ]

    def plot(self) -> Figure:
        """Validation and test ERR, DIV and accuracy along the first numeric axis of the grid.

        Other settings have a line each; bands are ± one standard deviation over repeats.
        """
        from dissensus.show import Panel, Plot, draw

        keys = list(self.rows[0].point) if self.rows else []
        numeric = [k for k in keys if all(_is_number(row.point[k]) for row in self.rows)]
        axis = next(iter([*numeric, *keys]), "settings")
        panels = []
        for heading, part, name, _ in _COLUMNS:
            if rows := [row for row in self.rows if name in getattr(row, part)]:
                panels.append(Panel(axis, heading, _lines(rows, axis, part, name)))
        return draw(Plot(panels))

    def display(self) -> Iterator[RenderableType]:
        """The table, the best point, and what was written."""
        yield self.table()
        best = self.best
        if best is None:
            yield "No point is best: there are no validation data to choose by (--val)."
        else:
            yield (
                f"Best by validation (*): {best.label} (mean ERR "
                f"{best.val['ensemble_error'].mean:.4f} over {best.done} of {best.repeats} "
                f"repeats), {self.chosen_by}."
            )
            yield from self._comparisons()
        if self.searched:
            yield f"The choice of each search stands in its records, as chosen: {self.path}/cells"
        if self.path is not None:
            files = f"sweep.toml, summary.json, {self.done} records in cells/"
            yield f"Written to {self.path}: {files}"

    def _comparisons(self) -> Iterator[str]:
        """Sentences on the points that were not chosen and yet are no worse."""
        equals = [row.label for row in self.rows if row.indistinct and not row.best]
        if equals:
            yield f"Not distinguishable from the lowest ERR (=): {'; '.join(equals)}"
        refused = [row.label for row in self.rows if row.status.startswith("colluding")]
        if refused:
            yield f"Left out, as their members collude without a clear gain: {'; '.join(refused)}"

    def table(self) -> Table:
        """One line for each point of the grid; a star marks the chosen one, "=" its equals."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        keys = list(self.rows[0].point) if self.rows else []
        table.add_column("", no_wrap=True)
        for key in keys or ["settings"]:
            table.add_column(key, justify="right", no_wrap=True, style="cyan")
        table.add_column("done", justify="right", no_wrap=True)
        columns = [c for c in _COLUMNS if any(c[2] in getattr(row, c[1]) for row in self.rows)]
        for heading, *_ in columns:
            table.add_column(heading, justify="right")
        judged = any(row.verdicts for row in self.rows)
        if judged:
            table.add_column("verdict")
        for row in self.rows:
            values = [format_value(row.point[key]) for key in keys] or [row.label]
            cells = [_format(getattr(row, part).get(name), form) for _, part, name, form in columns]
            verdicts = [_verdicts(row)] if judged else []
            mark, style = ("*", "bold") if row.best else ("=" if row.indistinct else "", "")
            failed = f" ({row.failed} failed)" if row.failed else ""
            done = f"{row.done}/{row.repeats}{failed}"
            table.add_row(mark, *values, done, *cells, *verdicts, style=style)
        return table


#: Columns of the table: heading, split, metric, and the format of the number.
_COLUMNS = (
    ("val ERR", "val", "ensemble_error", "{:.4f}"),
    ("test ERR", "test", "ensemble_error", "{:.4f}"),
    ("test DIV", "test", "diversity", "{:.4f}"),
    ("test accuracy", "test", "accuracy", "{:.2%}"),
)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lines(rows: Sequence[Row], axis: str, part: str, name: str) -> list[Series]:
    """A metric along ``axis``: for each choice of the other settings a line, points over names."""
    from dissensus.show import Series

    groups: dict[str, list[Row]] = {}
    for row in rows:
        rest = {key: value for key, value in row.point.items() if key != axis}
        groups.setdefault(label(rest) if rest else "", []).append(row)
    lines = []
    for style, (others, group) in enumerate(groups.items()):
        values = [row.point.get(axis, row.label) for row in group]
        numeric = all(_is_number(value) for value in values)
        x = values if numeric else [format_value(value) for value in values]
        spreads = [getattr(row, part)[name] for row in group]
        means, sds = [spread.mean for spread in spreads], [spread.sd or 0.0 for spread in spreads]
        low = [mean - sd for mean, sd in zip(means, sds, strict=True)]
        high = [mean + sd for mean, sd in zip(means, sds, strict=True)]
        band: dict[str, Any] = {"low": low, "high": high} if any(sds) else {}
        lines.append(Series(others, x, means, style, "line" if numeric else "points", **band))
    return lines


def _format(spread: Spread | None, form: str) -> str:
    if spread is None:
        return "–"
    mean = form.format(spread.mean)
    return mean if spread.sd is None else f"{mean} ± {form.format(spread.sd)}"


def _verdicts(row: Row) -> str:
    """The word where all repeats agree, else the count of each but healthy, the worst first."""
    order = ("colluding", "suspicious", "not judged", "healthy")
    words = [word for word in order if word in row.verdicts]
    if len(words) == 1:
        return words[0]
    return ", ".join(f"{row.verdicts[word]} {word}" for word in words if word != "healthy")


def summarize(cells: Sequence[Cell], records: Iterable[Record]) -> Summary:
    """The table of ``cells`` from the records there are."""
    known = {record["name"]: record for record in records}
    grouped: dict[int, list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(cell["number"], []).append(cell)
    rows, done = [], []
    for group in grouped.values():
        there = [known[cell["name"]] for cell in group if cell["name"] in known]
        rows.append(_row(group[0]["point"], len(group), there))
        done.append([record for record in there if "result" in record])
    names = {cell["name"] for cell in cells}
    failed = {n: r["error"] for n, r in known.items() if n in names and "error" in r}
    return Summary(rows, failed, chosen_by=_choose(rows, done))


def _choose(rows: Sequence[Row], done: Sequence[Sequence[Record]]) -> str:
    """Mark the point to use and its equals; returns why it is that one."""
    most = max((row.done for row in rows), default=0)
    able = [
        (row, records)
        for row, records in zip(rows, done, strict=True)
        if row.done == most and "ensemble_error" in row.val
    ]
    if not able:
        return ""
    selection = select_among_records([records for _, records in able])
    for at, (row, _) in enumerate(able):
        row.best = at == selection.chosen
        row.indistinct, row.status = selection.indistinct[at], selection.status[at]
    return selection.reason


def _row(point: Point, repeats: int, records: Sequence[Record]) -> Row:
    results = [record["result"] for record in records if "result" in record]
    row = Row(point, repeats, len(results), len(records) - len(results))
    for part, names in (("val", METRICS), ("test", METRICS), ("diagnosis", SIGNS)):
        for name in names:
            values = [result.get(part, {}).get(name) for result in results]
            spread = Spread.of([value for value in values if value is not None])
            if spread is not None:
                getattr(row, part)[name] = spread
    words = (result.get("diagnosis", {}).get("verdict") for result in results)
    row.verdicts = dict(Counter(word for word in words if word))
    return row
