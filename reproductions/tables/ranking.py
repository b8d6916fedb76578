"""Ranks and ratios of the contenders, from the records.

A table counts once: measures are means over its splits, those that all compared contenders have. A
contender without a result on a table (no fit within the limit, or a failure) comes last there.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from reproductions.statistics import Estimate, bootstrap_interval
from reproductions.study import Record
from reproductions.tables.contenders import CONTENDERS, OURS
from reproductions.tables.sources import TABLES

Floats = NDArray[np.float64]
#: The settings and the results of a fit.
Fit = dict[str, Any]
#: ``error`` is RMSE or error rate; ``score`` is CRPS or NLL.
Measure = Literal["error", "score"]


@dataclass(frozen=True)
class Ranking:
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

    def mean_rank(self, contender: str, part: str | None = None) -> Estimate:
        """Its mean rank, with a 95% bootstrap interval over the tables (of a ``part``)."""
        chosen = [part in (None, TABLES[name].part) for name in self.tables]
        return bootstrap_interval(self.ranks[chosen, self.contenders.index(contender)])

    def firsts(self, contender: str) -> int:
        """On how many tables it is the best, or equals it."""
        own = self.values[:, self.contenders.index(contender)]
        return int((own == self.values.min(1)).sum())

    def ratios(self) -> Floats:
        """Each value relative to the best of its table."""
        ratios: Floats = self.values / self.values.min(1, keepdims=True)
        return ratios

    def against_others(self, contender: str) -> list[tuple[str, str, float]]:
        """For each table the best of the others, and the contender's value relative to it."""
        place = self.contenders.index(contender)
        others = np.delete(self.values, place, axis=1)
        names = [name for name in self.contenders if name != contender]
        ratios = self.values[:, place] / others.min(1)
        return [
            (table, names[best], float(ratio))
            for table, best, ratio in zip(self.tables, others.argmin(1), ratios, strict=True)
        ]


def fits(records: Iterable[Record]) -> list[Fit]:
    """The settings and the results of each record in one dict."""
    return [{**record["cell"], **record["result"]} for record in records]


def compare(records: Iterable[Fit], measure: Measure, contenders: Sequence[str]) -> Ranking:
    """Compare contenders on the tables of which each has a record."""
    runs: dict[tuple[str, str], dict[int, Fit]] = {}
    for fit in records:
        runs.setdefault((fit["table"], fit["contender"]), {})[fit["split"]] = fit
    values, tables, splits = [], [], []
    for table in TABLES:
        own = [runs.get((table, name), {}) for name in contenders]
        done = [all(fit["status"] == "done" for fit in some.values()) for some in own]
        finished = [set(some) for some, whole in zip(own, done, strict=True) if whole]
        common = sorted(set.intersection(*finished)) if finished and all(own) else []
        if common:
            row = [
                np.mean([value_of(some[split], measure) for split in common]) if whole else np.inf
                for some, whole in zip(own, done, strict=True)
            ]
            values.append(row)
            tables.append(table)
            splits.append(tuple(common))
    array = np.array(values, np.float64).reshape(len(values), len(contenders))
    return Ranking(tuple(tables), tuple(contenders), array, tuple(splits))


def value_of(fit: Fit, measure: Measure) -> float:
    """The value of a measure in a record.

    An error rate has half a wrong row added, so that a ratio to a rate of 0 is finite.
    """
    if measure == "score":
        return float(fit["nll"] if "nll" in fit else fit["crps"])
    half_a_row = 0.5 / fit["test_rows"] if TABLES[fit["table"]].classes else 0.0
    return float(fit["error"] + half_a_row)


def compare_ranked(records: Iterable[Fit], measure: Measure) -> Ranking:
    """Compare those that are run on all tables, and have run at least half of the splits."""
    own = list(records)
    counts = Counter(fit["contender"] for fit in own)
    most = max(counts.values())
    ranked = [
        name
        for name, contender in CONTENDERS.items()
        if contender.most_rows == np.inf and counts[name] >= most / 2
    ]
    return compare(own, measure, ranked)


def per_table(records: Iterable[Fit], key: str) -> dict[tuple[str, str], float]:
    """The mean of a value over the splits of each (contender, table) that has it."""
    values: dict[tuple[str, str], list[float]] = {}
    for fit in records:
        if key in fit:
            values.setdefault((fit["contender"], fit["table"]), []).append(fit[key])
    return {pair: float(np.mean(own)) for pair, own in values.items()}


def contenders_of(records: Iterable[Fit], without: str = OURS) -> list[str]:
    """The contenders with records, in their order, without one."""
    there = {fit["contender"] for fit in records}
    return [name for name in CONTENDERS if name in there and name != without]
