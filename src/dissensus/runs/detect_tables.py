"""Tables of a detection record, as ``dissensus ood`` prints them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from dissensus.measures import Estimate, among_best

Record = Mapping[str, Any]
T = TypeVar("T")

#: Measures: key, title, and whether more is better.
_MEASURES = {
    "auroc": ("AUROC", True),
    "fpr95": ("FPR95 (lower is better)", False),
    "aupr_out": ("AUPR, OOD positive", True),
    "aupr_in": ("AUPR, ID positive", True),
}

#: Ways to decide, as tables call them.
_WAYS = {
    "ensemble": "prediction ensemble",
    "uniform_soup": "uniform soup",
    "greedy_soup": "greedy soup (chosen on val)",
    "mean_member": "single member, mean",
    "oracle": "oracle member (upper bound)",
}


def leading_table(record: Record) -> Iterator[RenderableType]:
    """AUROC of each method by its first score, or by those that were asked for."""
    keys = _keys(record["detection"])
    if not record["options"]["scores"]:
        plain = [key for key in keys if not key[1].endswith(" (tuned)")]
        first = dict(reversed(plain))
        keys = [key for key in keys if key not in plain or first[key[0]] == key[1]]
    yield DetectionTable(record, "auroc", tuple(keys))
    yield (
        "0.5 is chance, 1 is perfect; * is not distinguishable from the best of its column. Other "
        "scores, FPR95, AUPR and accuracy: --all"
    )
    for method, tuning in record["tuning"].items():
        if tuning:
            yield (
                f"{method}: (tuned) marks scores of a copy of the members, trained for "
                f"{tuning['epochs']} more epochs ({tuning['objective']}, {tuning['strangers']}); "
                "predictions are those of the run"
            )


def record_tables(record: Record) -> Iterator[RenderableType]:
    """Detection by measure, shares flagged, accuracy, and fitted temperatures."""
    for measure in _MEASURES:
        yield DetectionTable(record, measure)
    if any(row["flagged"] is not None for row in record["detection"]):
        yield _flagged_table(record)
    for kind, title in (("overall", "Accuracy"), ("worst_group", "Accuracy of the worst group")):
        if table := _accuracy_table(record, kind, title):
            yield table
    for method, temperature in record["temperatures"].items():
        if temperature is not None:
            yield f"{method}: temperature {temperature:.4g}, fitted to the validation split"


@dataclass(frozen=True)
class DetectionTable:
    """One measure by method, score and set, with the means of groups at the right.

    What is not distinguishable from the best of its column is marked (``among_best``); intervals
    are shown where the terminal is wide enough.
    ``keys`` are the methods and scores to show, all of them if there are none.
    """

    record: Record
    measure: str
    keys: tuple[tuple[str, str], ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        (title, more), measure = _MEASURES[self.measure], self.measure
        rows, groups = self.record["detection"], list(self.record["groups"])
        keys, sets = self.keys or _keys(rows), _unique(row["set"] for row in rows)
        cells = {(r["method"], r["score"], r["set"]): r for r in rows}
        means = {(r["method"], r["score"], r["group"]): r for r in self.record["group_means"]}
        names = max(len(method) + len(score) for method, score in keys) + 6
        intervals = names + len(sets) * 23 + len(groups) * 12 <= options.max_width
        note = "" if intervals else " (intervals: --csv, --json)"
        table = _new_table(title + note, "score", [*sets, *(f"mean {group}" for group in groups)])
        columns = [[cells[*key, name] for key in keys] for name in sets]
        columns += [[means[*key, group] for key in keys] for group in groups]
        marked_columns = []
        for column in columns:
            marks = among_best([_estimate(row, measure) for row in column], highest=more)
            marked = zip(column, marks, strict=True)
            marked_columns.append([_cell(row, measure, mark, intervals) for row, mark in marked])
        lines = [list(line) for line in zip(*marked_columns, strict=True)]
        _add_lines(table, keys, lines)
        yield table


def _estimate(row: Record, measure: str) -> Estimate:
    """A measure with its interval, unknown where none was computed."""
    low, high = (row.get(f"{measure}_{end}") for end in ("low", "high"))
    return Estimate(row[measure], *(math.nan if end is None else end for end in (low, high)))


def _cell(row: Record, measure: str, marked: bool, intervals: bool) -> Text:
    value = row[measure]
    text = Text(f"*{value:.3f}" if marked else f"{value:.3f}", "bold green" if marked else "")
    if intervals and row.get(f"{measure}_low") is not None:
        text.append(f" [{row[f'{measure}_low']:.3f}, {row[f'{measure}_high']:.3f}]", style="dim")
    return text


def _flagged_table(record: Record) -> Table:
    """The share of each set above the threshold of the validation split."""
    rows = [row for row in record["detection"] if row["flagged"] is not None]
    keys, sets = _keys(rows), _unique(row["set"] for row in rows)
    title = f"Flagged at the threshold that accepts {record['options']['accept']:.0%} of val"
    table = _new_table(title, "score", ["known (ID)", *sets])
    cells = {(row["method"], row["score"], row["set"]): row for row in rows}
    lines = []
    for key in keys:
        shares = [cells[*key, sets[0]]["flagged_id"]]
        shares += [cells[*key, name]["flagged"] for name in sets]
        lines.append([Text(f"{share:.1%}") for share in shares])
    _add_lines(table, keys, lines)
    return table


def _accuracy_table(record: Record, kind: str, title: str) -> Table | None:
    """Accuracy by method, way to decide and labelled set; None where no set has labels."""
    methods = record["accuracy"]
    sets = _unique(name for parts in methods.values() for name in parts if parts[name][kind])
    if not sets:
        return None
    keys, lines = [], []
    for method, parts in methods.items():
        for way in _WAYS:
            if any(way in part[kind] for part in parts.values()):
                keys.append((method, _WAYS[way]))
                cells = [parts.get(name, {}).get(kind, {}).get(way) for name in sets]
                lines.append([_accuracy(estimate) for estimate in cells])
    table = _new_table(title, "who decides", sets)
    _add_lines(table, keys, lines)
    return table


def _accuracy(estimate: Record | None) -> Text:
    if estimate is None:
        return Text()
    low, high = estimate["low"], estimate["high"]
    interval = "" if low is None else f" [{low:.1%}, {high:.1%}]"
    return Text(f"{estimate['value']:.1%}{interval}")


def _new_table(title: str, second: str, columns: Iterable[str]) -> Table:
    look: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
    table = Table(title=title, title_justify="left", title_style="bold", **look)
    table.add_column("method", style="cyan", overflow="fold")
    table.add_column(second, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _add_lines(table: Table, keys: Iterable[tuple[str, str]], lines: Iterable[list[Text]]) -> None:
    """Add rows whose first column names a method once."""
    last = None
    for (method, name), line in zip(keys, lines, strict=True):
        table.add_row(Text(method if method != last else ""), Text(name), *line)
        last = method


def _keys(rows: Iterable[Record]) -> list[tuple[str, str]]:
    return _unique((row["method"], row["score"]) for row in rows)


def _unique(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))
