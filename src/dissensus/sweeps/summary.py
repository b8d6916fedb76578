"""A sweep in one table: each point of the grid over its repeats, built from the records alone."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dissensus.sweeps.engines import Cell, Record
from dissensus.sweeps.grid import Point, label

__all__ = ["Row", "Spread", "Summary", "summarize"]

#: What is summed up of each split.
FIGURES = ("ensemble_error", "member_error", "diversity", "accuracy")
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
    """One point of the grid: repeats that are done and failed, and figures by split and name."""

    point: Point
    repeats: int
    done: int = 0
    failed: int = 0
    val: dict[str, Spread] = field(default_factory=dict)
    test: dict[str, Spread] = field(default_factory=dict)
    diagnosis: dict[str, Spread] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    best: bool = False

    @property
    def label(self) -> str:
        """The point in words."""
        return label(self.point)

    def plain(self) -> dict[str, Any]:
        """Plain values for a record."""
        found: dict[str, Any] = {"point": self.point, "label": self.label, "best": self.best}
        found |= {"repeats": self.repeats, "done": self.done, "failed": self.failed}
        for part in ("val", "test", "diagnosis"):
            spreads: dict[str, Spread] = getattr(self, part)
            found[part] = {name: vars(spread) for name, spread in spreads.items()}
        return {**found, "verdicts": self.verdicts}


@dataclass
class Summary:
    """All rows; the best is the one of lowest mean validation ERR, never chosen by test data.

    Only points with the most repeats done can be the best, so that lucky splits are not compared
    with all of them.
    """

    rows: list[Row]
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> Row | None:
        """The best point by validation; None where nothing was validated."""
        return next((row for row in self.rows if row.best), None)

    @property
    def done(self) -> int:
        """How many cells have a result."""
        return sum(row.done for row in self.rows)

    @property
    def total(self) -> int:
        """How many cells there are."""
        return sum(row.repeats for row in self.rows)

    def plain(self) -> dict[str, Any]:
        """What ``summary.json`` holds."""
        best = self.best
        return {
            "cells": self.total,
            "done": self.done,
            "failed": self.failures,
            "chosen_by": "lowest mean validation ERR",
            "best": None if best is None else {"point": best.point, "label": best.label},
            "rows": [row.plain() for row in self.rows],
        }


def summarize(cells: Sequence[Cell], records: Iterable[Record]) -> Summary:
    """The table of ``cells`` from the records there are."""
    known = {record["name"]: record for record in records}
    grouped: dict[int, list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(cell["number"], []).append(cell)
    rows = []
    for group in grouped.values():
        found = [known[cell["name"]] for cell in group if cell["name"] in known]
        rows.append(_row(group[0]["point"], len(group), found))
    most = max((row.done for row in rows), default=0)
    able = [row for row in rows if row.done == most and "ensemble_error" in row.val]
    if able:
        min(able, key=lambda row: row.val["ensemble_error"].mean).best = True
    names = {cell["name"] for cell in cells}
    failed = {n: r["error"] for n, r in known.items() if n in names and "error" in r}
    return Summary(rows, failed)


def _row(point: Point, repeats: int, records: Sequence[Record]) -> Row:
    results = [record["result"] for record in records if "result" in record]
    row = Row(point, repeats, len(results), len(records) - len(results))
    for part, names in (("val", FIGURES), ("test", FIGURES), ("diagnosis", SIGNS)):
        for name in names:
            values = [result.get(part, {}).get(name) for result in results]
            spread = Spread.of([value for value in values if value is not None])
            if spread is not None:
                getattr(row, part)[name] = spread
    words = (result.get("diagnosis", {}).get("verdict") for result in results)
    row.verdicts = dict(Counter(word for word in words if word))
    return row
