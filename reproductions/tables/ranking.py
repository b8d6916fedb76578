"""Ranks and ratios of the contenders, from the records.

A table counts once: measures are means over its splits, those that all compared contenders have. A
contender without a result on a table (no fit within the limit, or a failure) comes last there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from benchmarks.records import Record
from reproductions.statistics import Estimate, bootstrap_interval
from reproductions.tables.cells import Cell, cell_of

Floats = NDArray[np.float64]
#: ``error`` is RMSE or error rate; ``score`` is CRPS or NLL.
Measure = Literal["error", "score"]


@dataclass(frozen=True)
class Comparison:
    """A measure of some contenders on some tables: ``values`` ``[tables, contenders]``.

    ``splits`` are those that the mean was taken over, for each table. Infinite is what a contender
    did not finish.
    """

    tables: tuple[str, ...]
    contenders: tuple[str, ...]
    values: Floats
    splits: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> Floats:
        """The rank of each contender on each table, 1 the best; equals share their mean rank."""
        ranks: Floats = rankdata(self.values, axis=1)
        return ranks

    def mean_rank(self, contender: str) -> Estimate:
        """Its mean rank, with a 95% bootstrap interval over the tables."""
        own = self.ranks[:, self.contenders.index(contender)]
        return bootstrap_interval(own)

    def ratios(self) -> Floats:
        """Each value relative to the best of its table."""
        ratios: Floats = self.values / self.values.min(1, keepdims=True)
        return ratios

    def against_others(self, contender: str) -> list[tuple[str, str, float]]:
        """For each table the best of the others, and the contender's value relative to it."""
        place = self.contenders.index(contender)
        others = np.delete(self.values, place, axis=1)
        names = [name for name in self.contenders if name != contender]
        best = others.argmin(1)
        ratios = self.values[:, place] / others.min(1)
        return [
            (table, names[b], float(ratio))
            for table, b, ratio in zip(self.tables, best, ratios, strict=True)
        ]

    def select(self, tables: Iterable[str]) -> "Comparison":
        """The same for some of the tables."""
        wanted = set(tables)
        chosen = [place for place, name in enumerate(self.tables) if name in wanted]
        return Comparison(
            tuple(self.tables[place] for place in chosen),
            self.contenders,
            self.values[chosen],
            tuple(self.splits[place] for place in chosen),
        )


def compare(
    records: Iterable[Record], measure: Measure, contenders: Sequence[str], tables: Sequence[str]
) -> Comparison:
    """Compare contenders on the tables of which each has a record."""
    found = {cell_of(record): record for record in records}
    splits: dict[tuple[str, str], set[int]] = {}
    for cell in found:
        splits.setdefault((cell.table, cell.contender), set()).add(cell.split)
    rows, kept, shared = [], [], []
    for table in tables:
        if not all((table, name) in splits for name in contenders):
            continue
        # A fit beyond the limit is not tried again on other splits.
        unfinished = {n for n in contenders if _is_unfinished(found, table, n, splits)}
        finished = [splits[table, name] for name in contenders if name not in unfinished]
        common = set.intersection(*finished) if finished else set()
        if not common:
            continue
        values = [
            np.inf
            if name in unfinished
            else _mean(measure, [found[Cell(table, name, s)] for s in sorted(common)])
            for name in contenders
        ]
        rows.append(values)
        kept.append(table)
        shared.append(tuple(sorted(common)))
    array = np.array(rows, np.float64).reshape(len(rows), len(contenders))
    return Comparison(tuple(kept), tuple(contenders), array, tuple(shared))


def _is_unfinished(
    found: dict[Cell, Record], table: str, name: str, splits: dict[tuple[str, str], set[int]]
) -> bool:
    own = (found[Cell(table, name, split)] for split in splits[table, name])
    return any(record["status"] != "done" for record in own)


def _mean(measure: Measure, records: Sequence[Record]) -> float:
    return float(np.mean([value_of(record, measure) for record in records]))


def value_of(record: Record, measure: Measure) -> float:
    """The value of a measure in a record.

    An error rate has half a wrong row added, so that a ratio to a rate of 0 is finite.
    """
    if measure == "score":
        return float(record["nll"] if "nll" in record else record["crps"])
    half_a_row = 0.5 / record["test_rows"] if record["task"] == "classification" else 0.0
    return float(record["error"] + half_a_row)


def per_table(records: Iterable[Record], key: str) -> dict[tuple[str, str], Any]:
    """The mean of a value over the splits of each (contender, table) that has it."""
    values: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if key in record:
            values.setdefault((record["contender"], record["table"]), []).append(record[key])
    return {pair: float(np.mean(own)) for pair, own in values.items()}
