"""Goals of the table estimators, checked on the records."""

from collections import Counter

import numpy as np

from benchmarks.records import Record
from benchmarks.timing import Check, Measurement, Result, Spread
from reproductions.tables.cells import COVERAGE
from reproductions.tables.contenders import CONTENDERS, OURS
from reproductions.tables.ranking import Comparison, Measure, compare, per_table
from reproductions.tables.sources import TABLES

OUR_NAME = next(iter(OURS))
ANCHOR = "forest"
#: A value this much above the best of the others is a loss.
LOSS = 1.05
MEASURES: dict[Measure, str] = {"error": "error", "score": "NLL or CRPS"}


def run_tables(records: list[Record]) -> list[str]:
    """The tables that have records."""
    there = {record["table"] for record in records}
    return [name for name in TABLES if name in there]


def ranked_contenders(records: list[Record]) -> list[str]:
    """Those that are meant for all tables and have at least half; of ours the default alone.

    A table counts by the share of its splits that a contender has, as ranks are over the splits
    that all have; whole, where a fit went beyond the limit and is not tried again.
    """
    counts = Counter((record["table"], record["contender"]) for record in records)
    most = dict.fromkeys(run_tables(records), 0)
    for (table, _), count in counts.items():
        most[table] = max(most[table], count)
    ended = {(r["table"], r["contender"]) for r in records if r["status"] == "limit"}
    shares: dict[str, float] = dict.fromkeys((record["contender"] for record in records), 0.0)
    for (table, name), count in counts.items():
        shares[name] += 1.0 if (table, name) in ended else count / most[table]
    return [
        name
        for name, share in shares.items()
        if name in CONTENDERS
        and CONTENDERS[name].max_rows is None
        and (name == OUR_NAME or name not in OURS)
        and share >= len(most) / 2
    ]


def compare_all(records: list[Record], measure: Measure) -> Comparison:
    """The ranked contenders on the tables that all of them have."""
    return compare(records, measure, ranked_contenders(records), run_tables(records))


def time_ratios(records: list[Record], key: str) -> dict[str, dict[str, float]]:
    """Each contender's CPU time relative to the random forest's, by table."""
    times = per_table(records, key)
    ratios: dict[str, dict[str, float]] = {}
    for (name, table), value in times.items():
        if (ANCHOR, table) in times:
            ratios.setdefault(name, {})[table] = value / times[ANCHOR, table]
    return ratios


def check_goals(records: list[Record]) -> tuple[Check, ...]:
    """The goals that ours is held to; none where it is not ranked yet."""
    if OUR_NAME not in ranked_contenders(records):
        return ()
    checks = []
    for measure, words in MEASURES.items():
        found = compare_all(records, measure)
        means = dict(zip(found.contenders, found.ranks.mean(0).tolist(), strict=True))
        behind = means.pop(OUR_NAME) - min(means.values())
        checks.append(Check(f"mean rank in {words} minus the best of the others", behind, 0.0))
    for measure, words in MEASURES.items():
        lost = [r for _, _, r in compare_all(records, measure).against_others(OUR_NAME) if r > LOSS]
        checks.append(Check(f"tables lost by more than 5% in {words}", float(len(lost)), 4.0))
    own = [record for record in records if record["contender"] == OUR_NAME]
    covered = float(np.mean(list(per_table(own, "coverage").values())))
    checks.append(
        Check("distance of the mean coverage of 90% intervals", abs(covered - COVERAGE), 0.02)
    )
    small = [record for record in own if record["rows"] <= 10_000]
    slowest = max(record.get("fit_cpu", np.inf) for record in small)
    checks.append(Check("longest fit up to 10,000 rows, CPU seconds", slowest, 180.0))
    # The fixed cost of a fit, some ten megabytes, is many times a table of a few kilobytes.
    memory = [r["peak_mb"] / r["table_mb"] for r in own if "peak_mb" in r and r["table_mb"] >= 1]
    if memory:
        name = "largest peak memory of a fit / table, tables of 1 MB or more"
        checks.append(Check(name, max(memory), 10.0))
    return tuple(checks)


def summarize(records: list[Record]) -> Result:
    """Fit times relative to the random forest over the tables, and the goals."""
    ratios = time_ratios(records, "fit_cpu")
    cpu, wall = per_table(records, "fit_cpu"), per_table(records, "fit_wall")
    names = [ANCHOR, *(name for name in ratios if name != ANCHOR)]
    measurements = tuple(
        Measurement(
            name,
            1,
            Spread.of([value for (own, _), value in cpu.items() if own == name]),
            Spread.of([value for (own, _), value in wall.items() if own == name]),
            Spread.of(list(ratios[name].values())),
            3.0 if name == OUR_NAME else None,
        )
        for name in names
    )
    title = "fit on real tables, ratio to a random forest of 200 trees"
    return Result(title, "cpu", len(ratios[ANCHOR]), measurements, check_goals(records))
