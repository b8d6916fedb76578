"""Tables and lines for people; nothing here computes."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dissensus.runs.folder import Run

__all__ = ["age", "command", "figures_table", "members_table", "note", "runs_table", "say"]

Figures = Mapping[str, Any]

#: Rows of the table of figures: key, name, and how the number is written.
_ROWS = {
    "accuracy": ("accuracy", "{:.2%}"),
    "per_member_accuracy": ("members", "{:.2%}"),
    "rmse": ("RMSE (units of the target)", "{:.4g}"),
    "ensemble_error": ("ERR", "{:.4f}"),
    "member_error": ("mean ERR", "{:.4f}"),
    "diversity": ("DIV = mean ERR − ERR", "{:.4f}"),
    "nll": ("NLL", "{:.4f}"),
    "brier": ("Brier", "{:.4f}"),
    "ece_width": ("ECE, bins of equal width", "{:.4f}"),
    "ece_mass": ("ECE, bins of equal mass", "{:.4f}"),
}

#: What a short table leaves out.
_DETAILS = frozenset({"brier", "ece_mass"})


def say(text: str) -> None:
    """One line on standard output, as it is: no markup, no wrapping, so that it can be copied."""
    Console().print(Text(text), soft_wrap=True)


def note(text: str) -> None:
    """One line on standard error."""
    Console(stderr=True).print(Text(text), soft_wrap=True)


def command(*words: object) -> str:
    """A command to copy, quoted where the shell needs it.

    >>> command("dissensus", "evaluate", Path("my runs/a"))
    "dissensus evaluate 'my runs/a'"
    """
    return shlex.join(str(word) for word in words)


def figures_table(columns: Mapping[str, Figures], *, short: bool = False) -> Table:
    """Figures of one or more splits side by side; ``short`` leaves out the less usual ones."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for key, (name, form) in _ROWS.items():
        if (short and key in _DETAILS) or not any(key in found for found in columns.values()):
            continue
        table.add_row(name, *(_written(found.get(key), form) for found in columns.values()))
    if not short:
        _add_zero_one(table, columns)
    return table


def members_table(figures: Figures) -> Table:
    """One line a member: its accuracy, where it has one, and its error."""
    table = Table(box=None, pad_edge=False)
    accuracies = figures.get("per_member_accuracy")
    table.add_column("member", justify="right")
    if accuracies is not None:
        table.add_column("accuracy", justify="right")
    table.add_column("ERR", justify="right")
    for number, error in enumerate(figures["per_member_error"]):
        accuracy = [] if accuracies is None else [f"{accuracies[number]:.2%}"]
        table.add_row(str(number), *accuracy, f"{error:.4f}")
    return table


def runs_table(runs: Iterable[Run], top: Path) -> Table:
    """One line a run; what cannot be read says why."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", style="cyan")
    for heading in ("objective", "data"):
        table.add_column(heading, overflow="fold")
    for heading in ("members", "epochs", "state", "val", "test", "age"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        name = Text(_name(run.path, top))
        if run.state == "unreadable":
            table.add_row(name, Text(run.problem, style="yellow"), *[""] * 6, age(run.written))
            continue
        table.add_row(
            name,
            Text(str(run.asked("training", "objective") or "")),
            Text(Path(str(run.asked("data", "name") or "–")).name),
            str(run.asked("ensemble", "members") or ""),
            f"{run.epochs}/{run.asked('training', 'epochs') or '?'}",
            run.state,
            _headline(run.val),
            _headline(run.test),
            age(run.written),
        )
    return table


def age(written: float, now: float | None = None) -> str:
    """How long ago, in one unit.

    >>> age(0.0, now=7300.0)
    '2 h'
    """
    seconds = max(0.0, (time.time() if now is None else now) - written)
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def _name(path: Path, top: Path) -> str:
    if path == top:
        return path.resolve().name
    return str(path.relative_to(top)) if path.is_relative_to(top) else str(path)


def _headline(figures: Figures) -> str:
    """The one number of a run: accuracy, or the error in regression."""
    for key, form in (("accuracy", "{:.2%}"), ("ensemble_error", "ERR {:.4f}")):
        if isinstance(figures.get(key), int | float):
            return form.format(figures[key])
    return "–"


def _written(value: Any, form: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        low, high = form.format(min(value)), form.format(max(value))
        return low if low == high else f"{low} to {high}"
    return form.format(value)


def _add_zero_one(table: Table, columns: Mapping[str, Figures]) -> None:
    if not any("zero_one" in found for found in columns.values()):
        return
    names = {"ensemble_error": "ERR", "member_error": "mean ERR", "diversity": "DIV"}
    for key, name in names.items():
        values = (found.get("zero_one", {}).get(key) for found in columns.values())
        table.add_row(f"{name}, 0-1 loss", *(_written(value, "{:.4f}") for value in values))
