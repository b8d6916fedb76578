"""Page of the comparison on tables, built from the records alone."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.records import Record
from dissensus.show import Panel, Plot, Series, save
from dissensus.tools.files import write_text
from reproductions.page import markdown_table
from reproductions.statistics import bootstrap_interval
from reproductions.tables.cells import Cell, cell_of, read_records
from reproductions.tables.contenders import CONTENDERS, OURS
from reproductions.tables.goals import (
    ANCHOR,
    LOSS,
    MEASURES,
    OUR_NAME,
    check_goals,
    compare_all,
    ranked_contenders,
    run_tables,
    time_ratios,
)
from reproductions.tables.ranking import Comparison, Measure, compare, per_table, value_of
from reproductions.tables.sources import PARTS, TABLES

LABELS = {
    "hgb": "HistGradientBoosting",
    "forest": "random forest",
    "extra_trees": "extra trees",
    "lightgbm": "LightGBM",
    "xgboost": "XGBoost",
    "mlp": "one MLP",
    "bagged_mlps": "10 bagged MLPs",
    "catboost": "CatBoost",
    "tabm": "TabM",
}
_FIGURE = "tables/figures/ranks.svg"
_FEW_ROWS = 1000


def write_page(results: Path) -> Path:
    """Write ``tables.md`` and its figure below ``results``, from the records in ``tables``."""
    records = read_records(results / "tables")
    if not records:
        raise ValueError(f"there are no records in {results / 'tables'}; run reproductions.tables")
    save(ranks_plot(records), results / _FIGURE)
    path = results / "tables.md"
    write_text(path, page_text(records))
    return path


def page_text(records: list[Record]) -> str:
    """The page in Markdown."""
    lines = [*_head(records), *_goals(records), *_ranks(records)]
    for measure in MEASURES:
        lines += _ratios(records, measure)
    lines += [*_ours(records), *_diversity(records), *_partial(records), *_coverage(records)]
    lines += _costs(records)
    return "\n".join([*lines, *_unfinished(records), *_method(records)]) + "\n"


def ranks_plot(records: list[Record]) -> Plot:
    """Mean ranks with their intervals: error on the left, NLL or CRPS on the right."""
    panels = []
    for measure, words in MEASURES.items():
        found = compare_all(records, measure)
        ranks = sorted(
            ((found.mean_rank(name), name) for name in found.contenders), key=lambda r: r[0].mean
        )
        names, means = [_label(name) for _, name in ranks], [rank.mean for rank, _ in ranks]
        low, high = [rank.low for rank, _ in ranks], [rank.high for rank, _ in ranks]
        series = Series("", names, means, "ink", "points", low=low, high=high, legend=False)
        title = f"{words}, {len(found.tables)} tables"
        panels.append(Panel("", "mean rank", [series], title, horizontal=True))
    return Plot(panels)


# ---- parts of the page --------------------------------------------------------------------------


def _label(name: str) -> str:
    return LABELS.get(name, name)


def _head(records: list[Record]) -> list[str]:
    tables = run_tables(records)
    kinds = [TABLES[name].task for name in tables]
    return [
        "# Table estimators, compared",
        "",
        f"{len(tables)} real tables ({kinds.count('regression')} of regression, "
        f"{kinds.count('classification')} of classification), "
        f"{len({r['contender'] for r in records})} contenders with their defaults, "
        f"{len(records)} fits that were judged on rows held out.",
        "",
        "Built from the records in `tables/*.jsonl` by `python -m benchmarks --only tables`;",
        "no measurement is typed by hand. The last section says how it was measured.",
        "",
    ]


def _goals(records: list[Record]) -> list[str]:
    checks = check_goals(records)
    lines = ["## Goals", ""]
    if not checks:
        done = {r["table"] for r in records if r["contender"] == OUR_NAME}
        return [*lines, f"`{OUR_NAME}` has records on {len(done)} tables: not judged yet.", ""]
    median = float(np.median(list(time_ratios(records, "fit_cpu")[OUR_NAME].values())))
    rows = [[c.name, f"{c.value:.3g}", f"{c.limit:g}", _yes(c.met)] for c in checks]
    name = "median fit time / that of a random forest of 200 trees"
    rows.append([name, f"{median:.3g}", "3", _yes(median <= 3)])
    return [*lines, *markdown_table(["goal", "measured", "at most", "met"], rows), ""]


def _yes(met: bool) -> str:
    return "yes" if met else "**no**"


def _ranks(records: list[Record]) -> list[str]:
    lines = [
        "## Mean ranks",
        "",
        f"![Mean ranks with their intervals]({_FIGURE})",
        "",
        "1 is best. Brackets are 95% bootstrap intervals over the tables. *First* counts the",
        "tables on which a contender is the best or equals it. Defaults of ours are settled on",
        "the *settling* tables alone; the others confirm them. One thing was not: the form of the",
        "model of error sizes, behind CRPS and intervals, was chosen on tables of all parts. And",
        "what tables of more than 10,000 rows get, wider networks and a falling learning rate, was",
        "settled on cps1988 and letters after letters and, of the confirming tables, diamonds and",
        "shuttle had been lost.",
        *_unranked(records),
    ]
    for measure, words in MEASURES.items():
        found = compare_all(records, measure)
        lines += ["", f"**{words}**", "", *_rank_table(found)]
    return [*lines, ""]


def _unranked(records: list[Record]) -> list[str]:
    """The tables that some ranked contender lacks, and the contenders without any record."""
    missing = [n for n in run_tables(records) if n not in compare_all(records, "error").tables]
    there = {record["contender"] for record in records}
    absent = [_label(name) for name in CONTENDERS if name not in there and name not in OURS]
    lines = []
    if missing:
        lines.append(f"Not ranked, because not every contender has them yet: {', '.join(missing)}.")
    if absent:
        lines.append(f"Not run yet: {', '.join(absent)}.")
    return ["", *lines] if lines else []


def _rank_table(found: Comparison) -> list[str]:
    parts = {"all": found}
    parts |= {
        part: found.select(name for name in found.tables if TABLES[name].part == part)
        for part in PARTS
    }
    parts = {name: part for name, part in parts.items() if part.tables}
    header = ["contender", "first", *(f"{n}, {len(part.tables)}" for n, part in parts.items())]
    first = (found.values == found.values.min(1, keepdims=True)).sum(0)
    rows = []
    for place in np.argsort(found.ranks.mean(0), kind="stable"):
        name = found.contenders[place]
        ranks = [part.mean_rank(name).text("{:.2f}") for part in parts.values()]
        rows.append([_label(name), str(first[place]), *ranks])
    return markdown_table(header, rows)


def _ratios(records: list[Record], measure: Measure) -> list[str]:
    found = compare_all(records, measure)
    lines = [f"## {MEASURES[measure][0].upper()}{MEASURES[measure][1:]}, relative to the best", ""]
    header = ["table", "part", "best", *map(_label, found.contenders)]
    rows = []
    for table, values, ratios in zip(found.tables, found.values, found.ratios(), strict=True):
        cells = [_ratio(ratio) for ratio in ratios]
        rows.append([table, TABLES[table].part, f"{values.min():.4g}", *cells])
    finite = np.where(np.isfinite(found.ratios()), found.ratios(), np.nan)
    geometric = np.exp(np.nanmean(np.log(finite), axis=0))
    rows.append(["geometric mean", "", "", *(f"{value:.3f}" for value in geometric)])
    return [*lines, *markdown_table(header, rows), ""]


def _ratio(ratio: float) -> str:
    if not np.isfinite(ratio):
        return "not finished"
    return "**1**" if ratio == 1 else f"{ratio:.3f}"


def _ours(records: list[Record]) -> list[str]:
    lines = ["## Wins and losses, table by table", ""]
    if OUR_NAME not in ranked_contenders(records):
        return [*lines, f"`{OUR_NAME}` has too few records yet.", ""]
    columns, counts, kinds = [], [], []
    for measure, words in MEASURES.items():
        found = compare_all(records, measure)
        against = found.against_others(OUR_NAME)
        won = sum(ratio <= 1 for *_, ratio in against)
        lost = [f"{table} ({ratio - 1:+.0%})" for table, _, ratio in against if ratio > LOSS]
        kinds.append(_kinds_of_losses(records, words, against))
        counts.append(
            f"- {words}: best or equal on {won} of {len(against)} tables; more than 5% behind the "
            f"best of the others on {len(lost)}" + (f": {', '.join(lost)}." if lost else ".")
        )
        columns.append(
            [
                [
                    _label(other),
                    _signed(ratio),
                    _wins_by_split(records, measure, table, other, own)
                    if np.isfinite(ratio)
                    else "–",
                ]
                for (table, other, ratio), own in zip(against, found.splits, strict=True)
            ]
        )
    tables = compare_all(records, "error").tables
    header = ["table", "part", *("best other", "error", "splits won")]
    header += ["best other", "NLL or CRPS", "splits won"]
    rows = [
        [table, TABLES[table].part, *left, *right]
        for table, left, right in zip(tables, *columns, strict=True)
    ]
    pairs = _pairwise(records)
    return [*lines, *counts, *kinds, "", *markdown_table(header, rows), "", *pairs]


def _kinds_of_losses(
    records: list[Record], words: str, against: Sequence[tuple[str, str, float]]
) -> str:
    """How many tables of each kind are lost by more than 5%."""
    facts = {record["table"]: record for record in records}
    kinds: dict[str, Callable[[Record], bool]] = {
        "regression": lambda r: bool(r["task"] == "regression"),
        "classification": lambda r: bool(r["task"] == "classification"),
        f"fewer than {_FEW_ROWS:,} rows": lambda r: bool(r["rows"] < _FEW_ROWS),
        f"{_FEW_ROWS:,} rows or more": lambda r: bool(r["rows"] >= _FEW_ROWS),
    }
    parts = []
    for name, belongs in kinds.items():
        ratios = [ratio for table, _, ratio in against if belongs(facts[table])]
        parts.append(f"{sum(ratio > LOSS for ratio in ratios)} of {len(ratios)} ({name})")
    return f"- {words}, losses by kind of table: {', '.join(parts)}."


def _signed(ratio: float) -> str:
    text = f"{ratio - 1:+.1%}" if np.isfinite(ratio) else "not finished"
    return f"**{text}**" if ratio > LOSS else text


def _wins_by_split(
    records: list[Record], measure: Measure, table: str, other: str, splits: Sequence[int]
) -> str:
    found = {cell_of(record): record for record in records}
    ours, theirs = (
        [value_of(found[Cell(table, name, split)], measure) for split in splits]
        for name in (OUR_NAME, other)
    )
    won = sum(own < their for own, their in zip(ours, theirs, strict=True))
    return f"{won} of {len(splits)}"


def _pairwise(records: list[Record]) -> list[str]:
    """Ours against each other alone, variants of ours included, on the tables that both have."""
    rows = []
    for name in dict.fromkeys(record["contender"] for record in records):
        if name == OUR_NAME:
            continue
        pairs = [compare(records, m, [OUR_NAME, name], run_tables(records)) for m in MEASURES]
        row = [_label(name), str(len(pairs[0].tables))]
        for pair in pairs:
            ratios = pair.values[:, 0] / pair.values[:, 1]
            won, lost = (ratios < 1).sum(), (ratios > 1).sum()
            row += [f"{won} / {lost}", f"{(ratios < 1 / LOSS).sum()} / {(ratios > LOSS).sum()}"]
        rows.append(row)
    header = ["against", "tables", "error: won / lost", "by more than 5%"]
    header += ["NLL or CRPS: won / lost", "by more than 5%"]
    return [*markdown_table(header, rows), ""]


#: Members that all hold out the same rows, as those that learn together must.
_BASE = "dissensus-common"
#: What holds out folds, as the default does.
_OF_FOLDS = (_BASE, "dissensus-adapters")


def _diversity(records: list[Record]) -> list[str]:
    """Our variants against members that are like them but learn independently."""
    rows = []
    found: dict[str, list[str]] = {"lower": [], "higher": []}
    for name, parameters in OURS.items():
        if name == OUR_NAME:
            continue
        base = OUR_NAME if name in _OF_FOLDS else _BASE
        done = [record for record in records if record["status"] == "done"]
        pairs = {m: compare(done, m, [base, name], run_tables(done)) for m in MEASURES}
        tables = pairs["error"].tables
        if len(tables) < 5:
            continue
        cells = []
        for measure, pair in pairs.items():
            logs = np.log(pair.values[:, 1] / pair.values[:, 0])
            mean = bootstrap_interval(logs)
            low, middle, high = (100 * np.expm1(v) for v in (mean.low, mean.mean, mean.high))
            cells.append(f"{middle:+.1f}% [{low:+.1f}, {high:+.1f}]")
            if low > 0 or high < 0:
                found["higher" if low > 0 else "lower"].append(f"`{name}` ({MEASURES[measure]})")
        settings = ", ".join(f"`{key}={value!r}`" for key, value in parameters.items())
        rows.append([_label(name), settings, base, str(len(tables)), *cells])
    if not rows:
        return []
    header = ["variant", "parameters", "against", "tables", "error", "NLL or CRPS"]
    clear = [f"{way} with {', '.join(names)}" for way, names in found.items() if names]
    return [
        "## Does diversity help here?",
        "",
        "Each variant against members that are like them, but plain and independent. Those that",
        f"learn together hold out the same rows, as `{_BASE}` does. The change of the geometric",
        "mean over tables, with its 95% interval; below 0 is better. Objectives that disagree on",
        "strangers are not among the estimators' and were not run.",
        "",
        *markdown_table(header, rows),
        "",
        f"Clearly, by intervals without 0: {'; '.join(clear) if clear else 'none'}.",
        "",
    ]


def _partial(records: list[Record]) -> list[str]:
    """Contenders with few records, against everyone on the tables and splits that they have."""
    ranked, lines = ranked_contenders(records), []
    everyone = dict.fromkeys(record["contender"] for record in records)
    for name in everyone:
        if name in ranked or name in OURS:
            continue
        own = [record for record in records if record["contender"] == name]
        tables, rows_most = run_tables(own), max(record["rows"] for record in own)
        found = {m: compare(records, m, [*ranked, name], tables) for m in MEASURES}
        splits = sorted({record["split"] for record in own})
        lines += [
            f"## {_label(name)}, on a part of the tables or splits",
            "",
            f"It was run on {len(tables)} tables of up to {rows_most:,} rows; ranks are on "
            f"{len(found['error'].tables)} of them, splits {', '.join(map(str, splits))}.",
        ]
        for measure, words in MEASURES.items():
            lines += ["", f"**{words}**", "", *_rank_table(found[measure])]
        rows = [
            [table, _label(other), _signed(ratio), _label(other2), _signed(ratio2)]
            for (table, other, ratio), (_, other2, ratio2) in zip(
                found["error"].against_others(name),
                found["score"].against_others(name),
                strict=True,
            )
        ]
        header = ["table", "best other", f"{_label(name)}, error", "best other", "NLL or CRPS"]
        lines += ["", *markdown_table(header, rows), ""]
    return lines


def _coverage(records: list[Record]) -> list[str]:
    coverages, widths = per_table(records, "coverage"), per_table(records, "width")
    rows = []
    for name in dict.fromkeys(contender for contender, _ in coverages):
        own = {table: value for (who, table), value in coverages.items() if who == name}
        relative = [
            widths[name, table] / widths[ANCHOR, table]
            for table in own
            if (ANCHOR, table) in widths
        ]
        sources = {r["distribution"] for r in records if r["contender"] == name and r.get("width")}
        rows.append(
            [
                _label(name),
                f"{np.mean(list(own.values())):.1%}",
                f"{min(own.values()):.1%} to {max(own.values()):.1%}",
                f"{np.exp(np.mean(np.log(relative))):.2f}" if relative else "–",
                ", ".join(sorted(sources)),
                str(len(own)),
            ]
        )
    header = ["contender", "mean coverage", "tables from, to", "width / random forest's"]
    return [
        "## Coverage of 90% intervals",
        "",
        "Regression; the width is the geometric mean over the tables.",
        "",
        *markdown_table([*header, "distribution", "tables"], rows),
        "",
    ]


def _costs(records: list[Record]) -> list[str]:
    fit, predict = time_ratios(records, "fit_cpu"), time_ratios(records, "predict_cpu")
    rows = []
    for name, own in fit.items():
        values = list(own.values())
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        mine = [r for r in records if r["contender"] == name and r["status"] == "done"]
        longest = max(mine, key=lambda record: float(record["fit_cpu"]))
        memory = [record["peak_mb"] / record["table_mb"] for record in mine]
        rows.append(
            [
                _label(name),
                f"{median:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{max(values):.1f}",
                f"{longest['fit_cpu']:.0f} s ({longest['table']})",
                f"{np.median(list(predict[name].values())):.2f}",
                f"{np.median([record['peak_mb'] for record in mine]):.0f} MB",
                f"{np.median(memory):.0f}, {max(memory):.0f}",
            ]
        )
    header = ["contender", "fit, median", "quartiles", "most", "longest fit", "predict, median"]
    return [
        "## Time and memory",
        "",
        "CPU time relative to that of the random forest of 200 trees on the same table, and the",
        "memory that a fit adds at its peak.",
        "",
        *markdown_table([*header, "peak memory, median", "× the table: median, most"], rows),
        "",
        *_fixed_memory(records),
    ]


def _fixed_memory(records: list[Record]) -> list[str]:
    """The part of our peak that is there on the smallest table, and what the others add to it."""
    own = [r for r in records if r["contender"] == OUR_NAME and "peak_mb" in r]
    large = [record for record in own if record["table_mb"] >= 1]
    if not large:
        return []
    smallest = min(own, key=lambda record: float(record["table_mb"]))
    times = [(r["peak_mb"] - smallest["peak_mb"]) / r["table_mb"] for r in large]
    kilobytes = f"{1024 * smallest['table_mb']:.0f} KB"
    return [
        f"Of the peak of `{OUR_NAME}`, {smallest['peak_mb']:.0f} MB are there on the smallest",
        f"table too ({smallest['table']}, {kilobytes}). On tables of 1 MB or more the rest is",
        f"{min(times):.0f} to {max(times):.0f} times the table: the members with their gradients",
        "and moments, which grow with the columns and not with the rows, then the rows themselves,",
        "and memory that the allocator does not return.",
        *_library_pages(own),
        "",
    ]


def _library_pages(own: list[Record]) -> list[str]:
    """The part of our peak that is code of libraries, where all records tell it."""
    if not all("files_mb" in record for record in own):
        return []
    files = [record["files_mb"] for record in own]
    large = [record for record in own if record["table_mb"] >= 1]
    times = [(record["peak_mb"] - record["files_mb"]) / record["table_mb"] for record in large]
    return [
        f"{min(files):.0f} to {max(files):.0f} MB of each peak are pages of libraries, which a",
        "process maps when it first uses them and shares with others; without them the peak is",
        f"{max(times):.0f} times the table at most.",
    ]


def _unfinished(records: list[Record]) -> list[str]:
    lines = []
    for record in records:
        if record["status"] != "done":
            where = f"{_label(record['contender'])} on {record['table']}, split {record['split']}"
            lines.append(f"- {where}: {record['message']}.")
    capped = [f"{r['table']} ({r['split']})" for r in records if r.get("capped")]
    if capped:
        lines.append(f"- TabM's training was ended by its cap of 180 s on {', '.join(capped)}.")
    return ["## Not finished", "", *lines, ""] if lines else []


def _method(records: list[Record]) -> list[str]:
    facts = dict.fromkeys((_label(r["contender"]), r["version"]) for r in records)
    versions = ", ".join(f"{name} ({version})" for name, version in facts)
    processors = ", ".join(dict.fromkeys(r["processor"] for r in records))
    return [
        "## How it was measured",
        "",
        *_splits(records),
        "- **Contenders** have their defaults, one thread and the seed of the split: "
        + versions
        + ".",
        "  Forests have 200 trees; TabM is its authors' example (32 members, piecewise-linear",
        "  embeddings, AdamW, patience 16 on 20% of the training rows) with a cap of 180 s of CPU",
        "  time. Columns are handled as `reproductions/tables/contenders.py` says.",
        "- **Error** is the RMSE or the error rate, to which half a wrong row is added in ranks",
        "  and ratios, so that nothing is divided by 0. **NLL** clips probabilities at 1e-7 and",
        "  normalises them. **CRPS** is twice the mean pinball loss of the quantiles 0.01, 0.02,",
        "  …, 0.99.",
        "- **Distributions** of contenders that predict a number alone are their prediction plus",
        "  the residuals of rows they did not see: *out of bag* for the random forest and the",
        "  bagged MLPs, otherwise those of a *second fit* to 80% of the training rows, which is",
        "  not part of the fit time.",
        "- **Times** are CPU times of a process of its own for each fit, preparation of columns",
        "  included. A fit that needs more than 180 s is ended, comes last on its table, and is",
        "  not tried on other splits. **Memory** is what the process holds at its peak, above what",
        "  it held before the fit.",
        f"- **Processor**: {processors}.",
    ]


def _splits(records: list[Record]) -> Iterator[str]:
    """The sentence on splits: how many tables have which number of them."""
    tables: dict[tuple[int, ...], list[str]] = {}
    found = compare_all(records, "error")
    for table, splits in zip(found.tables, found.splits, strict=True):
        tables.setdefault(splits, []).append(table)
    yield "- **Splits** are random, 80% of the rows to learn from, 20% to judge, with equal shares"
    counts = [
        f"{len(splits)} for {len(names)} tables"
        + (f" ({', '.join(names)})" if len(names) <= 5 and len(tables) > 1 else "")
        for splits, names in sorted(tables.items(), key=lambda item: -len(item[0]))
    ]
    yield "  of the classes; ranks and ratios use those that all ranked contenders have:"
    yield f"  {', '.join(counts)}."
