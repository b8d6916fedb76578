"""Experiments on the fits: goals, ranks, wins and losses, diversity, intervals, time and memory."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from reproductions.comparisons import Finding, Within, exact
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot, estimates
from reproductions.statistics import Estimate, bootstrap_interval
from reproductions.study import Record
from reproductions.tables.contenders import ANCHOR, CONTENDERS, OURS
from reproductions.tables.fits import COVERAGE, FITS
from reproductions.tables.ranking import (
    Fit,
    Measure,
    Ranking,
    compare,
    compare_ranked,
    contenders_of,
    fits,
    per_table,
    value_of,
)
from reproductions.tables.sources import PARTS, TABLES

#: A value this much above the best of the others is a loss.
LOSS = 1.05
MEASURES: dict[Measure, str] = {"error": "error", "score": "NLL or CRPS"}
_PARTIAL = "tabm"  # run on some of the tables
_COMMON = "dissensus-common"  # members that all hold out the same rows, as those that collude must


def _title(name: str) -> str:
    return CONTENDERS[name].title


def _goal(text: str, value: Callable[[list[Fit]], float], most: float, form: str) -> Claim:
    """A goal of ours: a number of the records is at most so large."""

    def check(records: list[Record]) -> Finding:
        measured = value(fits(records))
        return exact(measured <= most, form.format(measured))

    return Claim(text, f"at most {most:g}", check, ours=True)


# ---- ranks --------------------------------------------------------------------------------------


def rank_behind(records: list[Fit], measure: Measure) -> float:
    """Our mean rank minus that of the best of the others."""
    found = compare_ranked(records, measure)
    means = dict(zip(found.contenders, found.ranks.mean(0).tolist(), strict=True))
    return float(means.pop(OURS) - min(means.values()))


def _by_rank(found: Ranking) -> list[str]:
    order = np.argsort(found.ranks.mean(0), kind="stable")
    return [found.contenders[place] for place in order]


def ranks_plot(records: list[Record]) -> Plot:
    """Mean ranks with their intervals: error on the left, NLL or CRPS on the right."""
    panels = []
    for measure, words in MEASURES.items():
        found = compare_ranked(fits(records), measure)
        names = _by_rank(found)
        ranks = [found.mean_rank(name) for name in names]
        series = estimates("", [_title(n) for n in names], ranks, "ink", "points", legend=False)
        title = f"{words}, {len(found.tables)} tables"
        panels.append(Panel("", "mean rank", [series], title, horizontal=True))
    return Plot(panels)


def rank_table(found: dict[Measure, Ranking], parts: Sequence[str | None]) -> Table:
    """Mean ranks by contender, for each part of the tables (None: all, and how often first)."""
    header, columns = ["contender"], []
    if not found["error"].tables:  # the partial contender was not run
        return Table(header, [])
    names = _by_rank(found["error"])
    for measure, words in MEASURES.items():
        for part in parts:
            own = found[measure]
            count = sum(part in (None, TABLES[name].part) for name in own.tables)
            if count:
                header.append(f"{words}, {part or 'rank'} ({count})")
                columns.append([own.mean_rank(name, part).text("{:.2f}") for name in names])
        if None in parts:
            header.append(f"{words}, first")
            columns.append([str(found[measure].firsts(name)) for name in names])
    rows = zip(map(_title, names), *columns, strict=True)
    return Table(header, [list(row) for row in rows])


def _ranked(records: list[Record]) -> dict[Measure, Ranking]:
    return {measure: compare_ranked(fits(records), measure) for measure in MEASURES}


def _with_partial(records: list[Record]) -> dict[Measure, Ranking]:
    """The ranking on the tables and splits that the partial contender has."""
    own = fits(records)
    names = [*compare_ranked(own, "error").contenders, _PARTIAL]
    return {measure: compare(own, measure, names) for measure in MEASURES}


# ---- table by table -----------------------------------------------------------------------------


def losses(records: list[Fit], measure: Measure) -> float:
    """On how many tables ours is more than 5% behind the best of the others."""
    against = compare_ranked(records, measure).against_others(OURS)
    return sum(ratio > LOSS for _, _, ratio in against)


def _signed(ratio: float) -> str:
    text = f"{ratio - 1:+.1%}" if np.isfinite(ratio) else "not finished"
    return f"**{text}**" if ratio > LOSS else text


def wins_table(records: list[Record]) -> Table:
    """Ours against the best of the others on each table, and on how many splits it wins."""
    own = fits(records)
    by_cell = {(fit["table"], fit["contender"], fit["split"]): fit for fit in own}
    header, columns = ["table", "part"], []
    for measure, words in MEASURES.items():
        found = compare_ranked(own, measure)
        cells = []
        for (table, other, ratio), splits in zip(
            found.against_others(OURS), found.splits, strict=True
        ):
            pairs = [
                [value_of(by_cell[table, name, split], measure) for name in (OURS, other)]
                for split in splits
            ]
            won = sum(ours < theirs for ours, theirs in pairs)
            cells.append([_title(other), _signed(ratio), f"{won} of {len(splits)}"])
        columns.append(cells)
        header += [f"{words}: best other", f"{words}: ours", f"{words}: splits won"]
    tables = compare_ranked(own, "error").tables
    rows = [
        [table, TABLES[table].part, *left, *right]
        for table, left, right in zip(tables, *columns, strict=True)
    ]
    return Table(header, rows)


def ratio_table(records: list[Record], measure: Measure) -> Table:
    """Every contender relative to the best of a table, and the geometric mean over tables."""
    found = compare_ranked(fits(records), measure)
    ratios = found.ratios()
    rows = [
        [table, f"{best:.4g}", *map(_ratio, own)]
        for table, best, own in zip(found.tables, found.values.min(1), ratios, strict=True)
    ]
    finite = np.where(np.isfinite(ratios), ratios, np.nan)
    means = np.exp(np.nanmean(np.log(finite), axis=0))
    rows.append(["geometric mean", "", *(f"{value:.3f}" for value in means)])
    return Table(["table", "best", *map(_title, found.contenders)], rows)


def _ratio(ratio: float) -> str:
    if not np.isfinite(ratio):
        return "not finished"
    return "**1**" if ratio == 1 else f"{ratio:.3f}"


def kinds_table(records: list[Record]) -> Table:
    """How many tables of each kind are lost by more than 5%."""
    kinds: dict[str, Callable[[str], bool]] = {
        "regression": lambda name: not TABLES[name].classes,
        "classification": lambda name: bool(TABLES[name].classes),
        "fewer than 1,000 rows": lambda name: TABLES[name].rows < 1000,
        "1,000 rows or more": lambda name: TABLES[name].rows >= 1000,
    }
    rows = []
    for kind, belongs in kinds.items():
        cells = []
        for measure in MEASURES:
            against = compare_ranked(fits(records), measure).against_others(OURS)
            ratios = [ratio for table, _, ratio in against if belongs(table)]
            cells.append(f"{sum(ratio > LOSS for ratio in ratios)} of {len(ratios)}")
        rows.append([kind, *cells])
    return Table(["tables", *MEASURES.values()], rows)


def pairs_table(records: list[Record]) -> Table:
    """Ours against each other contender alone, on the tables and splits that both have."""
    own = fits(records)
    rows = []
    for name in contenders_of(own):
        pairs = [compare(own, measure, [OURS, name]) for measure in MEASURES]
        row = [_title(name), str(len(pairs[0].tables))]
        for pair in pairs:
            ratios = pair.values[:, 0] / pair.values[:, 1]
            row.append(f"{(ratios < 1).sum()} / {(ratios > 1).sum()}")
            row.append(f"{(ratios < 1 / LOSS).sum()} / {(ratios > LOSS).sum()}")
        rows.append(row)
    header = ["against", "tables"]
    for words in MEASURES.values():
        header += [f"{words}: won / lost", f"{words}: by more than 5%"]
    return Table(header, rows)


# ---- diversity ----------------------------------------------------------------------------------


def changes(records: list[Record], measure: Measure) -> dict[str, Estimate]:
    """The change of the geometric mean over tables by a variant of ours, in %; below 0 is better.

    Members that learn together are compared with independent ones that hold out the same rows.
    """
    done = [fit for fit in fits(records) if fit["status"] == "done"]
    found = {}
    for name in contenders_of(done):
        if name.startswith(f"{OURS}-"):
            pair = compare(done, measure, [_base(name), name])
            if len(pair.tables) >= 5:
                log = bootstrap_interval(np.log(pair.values[:, 1] / pair.values[:, 0]))
                mean, low, high = 100 * np.expm1([log.mean, log.low, log.high])
                found[name] = Estimate(float(mean), float(low), float(high), log.runs)
    return found


def _base(name: str) -> str:
    return OURS if name in (_COMMON, "dissensus-adapters") else _COMMON


def _together(measure: Measure) -> Within:
    """A check that each way to learn together lowers a measure."""

    def numbers(records: list[Record]) -> dict[str, Estimate]:
        own = changes(records, measure)
        return {_title(name): one for name, one in own.items() if _base(name) == _COMMON}

    words = f"change of the geometric mean of {MEASURES[measure]}"
    return Within(words, numbers, high=0.0, form="{:+.1f}%")


def diversity_table(records: list[Record]) -> Table:
    """Variants of ours against members that are like them, but plain and independent."""
    error, score = changes(records, "error"), changes(records, "score")
    rows = [
        [_title(name), _title(_base(name)), str(error[name].runs)]
        + [one[name].text("{:+.1f}%") for one in (error, score)]
        for name in error
    ]
    return Table(["variant", "against", "tables", *MEASURES.values()], rows)


# ---- intervals, time and memory -----------------------------------------------------------------


def _own(records: list[Fit], key: str) -> list[Fit]:
    return [fit for fit in records if fit["contender"] == OURS and key in fit]


def coverage_off(records: list[Fit]) -> float:
    """How far the mean coverage of our intervals is from the one asked for."""
    covered = per_table(_own(records, "coverage"), "coverage").values()
    return abs(float(np.mean(list(covered))) - COVERAGE)


def coverage_table(records: list[Record]) -> Table:
    """Coverage of 90% intervals on regressions, and their widths, by contender."""
    own = fits(records)
    covered, widths = per_table(own, "coverage"), per_table(own, "width")
    rows = []
    for name in contenders_of(own, without=""):
        some = {table: value for (who, table), value in covered.items() if who == name}
        if some:
            logs = [np.log(widths[name, table] / widths[ANCHOR, table]) for table in some]
            sources = {f["distribution"] for f in own if f["contender"] == name and "width" in f}
            low, high = min(some.values()), max(some.values())
            rows.append(
                [
                    _title(name),
                    str(len(some)),
                    f"{np.mean(list(some.values())):.1%}",
                    f"{low:.1%} to {high:.1%}",
                    f"{np.exp(np.mean(logs)):.2f}",
                    ", ".join(sorted(sources)),
                ]
            )
    header = ["contender", "tables", "mean coverage", "from, to", "width", "distribution"]
    return Table(header, rows)


def time_ratios(records: list[Fit], key: str, contender: str) -> list[float]:
    """A contender's CPU time relative to the random forest's, on each table."""
    times = per_table(records, key)
    return [
        value / times[ANCHOR, table] for (name, table), value in times.items() if name == contender
    ]


def longest_fit(records: list[Fit]) -> float:
    """Our longest fit on tables of up to 10,000 rows, in CPU seconds."""
    small = [fit for fit in records if fit["contender"] == OURS and fit["rows"] <= 10_000]
    return max(float(fit.get("fit_cpu", np.inf)) for fit in small)


def memory_ratio(records: list[Fit]) -> float:
    """Our largest peak memory relative to the table, of tables of 1 MB or more.

    The fixed cost of a fit, some ten megabytes, is many times a table of a few kilobytes.
    """
    large = [fit for fit in _own(records, "peak_mb") if fit["table_mb"] >= 1]
    return max((fit["peak_mb"] / fit["table_mb"] for fit in large), default=0.0)


def costs_table(records: list[Record]) -> Table:
    """CPU time relative to the random forest, and the memory that a fit adds at its peak."""
    own = fits(records)
    rows = []
    for name in contenders_of(own, without=""):
        done = [fit for fit in own if fit["contender"] == name and fit["status"] == "done"]
        ratios = time_ratios(own, "fit_cpu", name)
        low, median, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        longest = max(done, key=lambda fit: float(fit["fit_cpu"]))
        rows.append(
            [
                _title(name),
                f"{median:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{longest['fit_cpu']:.0f} s ({longest['table']})",
                f"{np.median(time_ratios(own, 'predict_cpu', name)):.2f}",
                f"{np.median([fit['peak_mb'] for fit in done]):.0f} MB",
                f"{max(fit['peak_mb'] for fit in done):.0f} MB",
            ]
        )
    header = ["contender", "fit, median", "quartiles", "longest fit", "predict, median"]
    return Table([*header, "peak memory, median", "most"], rows)


# ---- experiments --------------------------------------------------------------------------------


def _experiment(
    name: str,
    title: str,
    claims: Sequence[Claim] = (),
    table: Callable[[list[Record]], Table] | None = None,
    **options: Any,
) -> Experiment:
    return Experiment(f"tables/{name}", "30 tables", title, FITS, tuple(claims), table, **options)


def _of_both(text: str, value: Callable[[list[Fit], Measure], float], most: float) -> list[Claim]:
    """A goal for the error, and for NLL or CRPS."""

    def goal(measure: Measure, words: str) -> Claim:
        return _goal(text.format(words), lambda own: value(own, measure), most, "{:.3g}")

    return [goal(measure, words) for measure, words in MEASURES.items()]


EXPERIMENTS = [
    _experiment(
        "ranks",
        "Mean ranks with their intervals",
        _of_both("The mean rank in {} is at most that of the best of the others", rank_behind, 0),
        lambda records: rank_table(_ranked(records), [None]),
        draw=ranks_plot,
    ),
    _experiment(
        "parts",
        "Mean ranks on the tables that defaults were settled on, and on the others",
        table=lambda records: rank_table(_ranked(records), PARTS),
    ),
    _experiment(
        "wins",
        "Ours against the best of the others, table by table",
        _of_both("At most 4 tables are lost by more than 5% in {}", losses, 4),
        wins_table,
    ),
    _experiment("kinds", "Losses by kind of table", table=kinds_table),
    _experiment("pairs", "Ours against each other contender alone", table=pairs_table),
    _experiment(
        "error",
        "Error relative to the best of a table",
        table=lambda records: ratio_table(records, "error"),
    ),
    _experiment(
        "score",
        "NLL or CRPS relative to the best of a table",
        table=lambda records: ratio_table(records, "score"),
    ),
    _experiment(
        "tabm",
        "Mean ranks on the tables that TabM was run on",
        table=lambda records: rank_table(_with_partial(records), [None]),
    ),
    _experiment(
        "diversity",
        "Variants of ours against independent members",
        [
            Claim(f"Learning together lowers the {words}", "below 0", _together(measure), ours=True)
            for measure, words in MEASURES.items()
        ],
        diversity_table,
    ),
    _experiment(
        "coverage",
        "Intervals of 90% on regressions",
        [_goal("The mean coverage is off by at most 2%", coverage_off, 0.02, "{:.3g}")],
        coverage_table,
    ),
    _experiment(
        "costs",
        "Time and memory of a fit",
        [
            _goal(
                "The median fit takes at most 3 times as long as a random forest's",
                lambda own: float(np.median(time_ratios(own, "fit_cpu", OURS))),
                3,
                "{:.3g}",
            ),
            _goal(
                "A fit of up to 10,000 rows takes at most 180 CPU seconds",
                longest_fit,
                180,
                "{:.3g}",
            ),
            _goal(
                "Peak memory is at most 10 times the table, from 1 MB on",
                memory_ratio,
                10,
                "{:.3g}",
            ),
        ],
        costs_table,
    ),
]
