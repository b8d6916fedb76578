"""The tables of ``dissensus ood``, and its progress; nothing here computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dissensus.cli.shown import say
from dissensus.progress import ProgressBar

__all__ = ["StudyProgress", "show"]

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


def show(record: dict[str, Any]) -> None:
    """All tables of a record."""
    console = Console()
    for measure, (title, more) in _MEASURES.items():
        console.print(_detection_table(record, measure, title, more, console.width))
    if any(row["flagged"] is not None for row in record["detection"]):
        console.print(_flagged_table(record))
    for name, heading in (("overall", "Accuracy"), ("worst_group", "Accuracy of the worst group")):
        table = _accuracy_table(record, name, heading)
        if table is not None:
            console.print(table)
    for method, temperature in record["temperatures"].items():
        if temperature is not None:
            say(f"{method}: temperature {temperature:.4g}, fitted to the validation split")


def _detection_table(
    record: dict[str, Any], measure: str, title: str, more: bool, width: int
) -> Table:
    """Method × score × set; the best of each column is marked, group means stand at the right."""
    rows, groups = record["detection"], list(record["groups"])
    sets = _unique(row["set"] for row in rows)
    cells = {(r["method"], r["score"], r["set"]): r for r in rows}
    means = {(r["method"], r["score"], r["group"]): r for r in record["group_means"]}
    keys = _unique((row["method"], row["score"]) for row in rows)
    names = max(len(method) + len(score) for method, score in keys) + 6
    intervals = names + len(sets) * 23 + len(groups) * 12 <= width
    table = _table(title + ("" if intervals else " (intervals: --csv, --json)"))
    for name in (*sets, *(f"mean {group}" for group in groups)):
        table.add_column(name, justify="right", overflow="fold")
    best = {
        name: (max if more else min)(_shown(cells[(*key, name)][measure]) for key in keys)
        for name in sets
    }
    top = {
        group: (max if more else min)(_shown(means[(*key, group)][measure]) for key in keys)
        for group in groups
    }
    last = None
    for key in keys:
        line: list[Text] = []
        for name in sets:
            row = cells[(*key, name)]
            line.append(_cell(row, measure, best[name], intervals=intervals))
        line += [_cell(means[(*key, g)], measure, top[g], intervals=False) for g in groups]
        table.add_row(Text(key[0] if key[0] != last else ""), Text(key[1]), *line)
        last = key[0]
    return table


def _flagged_table(record: dict[str, Any]) -> Table:
    """How much of each set lies above the threshold of the validation split."""
    tpr = record["question"]["tpr"]
    table = _table(f"Flagged at the threshold that accepts {tpr:.0%} of val")
    rows = record["detection"]
    sets = _unique(row["set"] for row in rows)
    table.add_column("known (ID)", justify="right")
    for name in sets:
        table.add_column(name, justify="right", overflow="fold")
    cells = {(row["method"], row["score"], row["set"]): row for row in rows}
    last = None
    for method, score in _unique((row["method"], row["score"]) for row in rows):
        first = cells[method, score, sets[0]]
        if first["flagged"] is None:
            continue
        shares = [f"{cells[method, score, name]['flagged']:.1%}" for name in sets]
        table.add_row(
            Text(method if method != last else ""),
            Text(score),
            f"{first['flagged_id']:.1%}",
            *shares,
        )
        last = method
    return table


def _accuracy_table(record: dict[str, Any], kind: str, heading: str) -> Table | None:
    """Method × way to decide × labelled set; None where no set has labels."""
    found = {name: parts for name, parts in record["accuracy"].items() if parts}
    sets = _unique(part for parts in found.values() for part, m in parts.items() if m[kind])
    if not sets:
        return None
    table = _table(heading)
    for name in sets:
        table.add_column(name, justify="right", overflow="fold")
    for method, parts in found.items():
        ways = [way for way in _WAYS if any(way in m[kind] for m in parts.values())]
        for number, way in enumerate(ways):
            cells = [
                _accuracy(parts[name][kind].get(way)) if name in parts else "" for name in sets
            ]
            table.add_row(Text(method if not number else ""), _WAYS[way], *cells)
    return table


def _accuracy(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    interval = "" if found["low"] is None else f" [{found['low']:.1%}, {found['high']:.1%}]"
    return f"{found['value']:.1%}{interval}"


def _cell(row: dict[str, Any], measure: str, best: float, *, intervals: bool) -> Text:
    value = row[measure]
    text = Text(f"{value:.3f}")
    if _shown(value) == best:
        text = Text(f"*{value:.3f}", style="bold green")
    if intervals and row.get(f"{measure}_low") is not None:
        text.append(f" [{row[f'{measure}_low']:.3f}, {row[f'{measure}_high']:.3f}]", style="dim")
    return text


def _shown(value: float) -> float:
    """As many digits as the table has, so that what looks equal is marked alike."""
    return round(value, 3)


def _table(title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", style="cyan", overflow="fold")
    table.add_column("score" if "Acc" not in title else "who decides", no_wrap=True)
    return table


def _unique(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))


class StudyProgress:
    """For each method, a bar over rows and one over intervals; a line elsewhere."""

    def __init__(self, methods: Sequence[str], *, show: bool) -> None:
        self.several, self.show = len(methods) > 1, show
        self.bars: dict[str, ProgressBar] = {}
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def stage(self, method: str, what: str) -> None:
        """Say what is done before there is anything to count."""
        self.stack.close()
        rows = self.stack.enter_context(ProgressBar(f"{method}: {what}", show=self.show))
        self.bars = {"rows": rows}
        if self.several:
            rows.log(rows.title)

    def start(self, method: str, rows: int, measures: int) -> None:
        """So many rows will be scanned and so many measures computed."""
        self.bars["rows"].update(title=f"{method}: rows", total=rows)
        intervals = ProgressBar(f"{method}: intervals", measures, show=self.show)
        self.bars["measures"] = self.stack.enter_context(intervals)

    def step(self, what: str, amount: int) -> None:
        """So much of it is done."""
        if what in self.bars:
            self.bars[what].advance(amount)
