"""``dissensus runs``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dissensus.cli.options import say
from dissensus.runs import RunDescription, find_runs
from dissensus.tools.console import InertConsole, printable


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
) -> None:
    """
    List the runs in a folder, the newest first.

    val and test are the accuracy, or ERR in regression, of the best epoch. A run that was stopped
    continues with `dissensus train --resume --out RUN`. The row of a folder that is not a run, or
    is half written, says so.

    Examples

      dissensus runs   those in ./runs

      dissensus runs runs/ldr   one run
    """
    entries = find_runs(folder)
    if entries:
        InertConsole().print(runs_table(entries, folder))
    else:
        say(f"There are no runs in {folder}; `dissensus train --help` says how to make one.")


def runs_table(runs: Iterable[RunDescription], top: Path) -> Table:
    """One line for each run; what cannot be read says why."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", style="cyan")
    for heading in ("objective", "data"):
        table.add_column(heading, overflow="fold")
    for heading in ("members", "epochs", "state", "val", "test", "age"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        name = _name(run.path, top)
        if run.state == "unreadable":
            table.add_row(
                name, Text(printable(run.problem), style="yellow"), *[""] * 6, age(run.written)
            )
            continue
        table.add_row(
            name,
            str(run.asked("training", "objective") or ""),
            Path(str(run.asked("data", "name") or "–")).name,
            str(run.asked("ensemble", "members") or ""),
            f"{run.epochs}/{run.asked('training', 'epochs') or '?'}",
            run.state,
            _headline(run.val),
            _headline(run.test),
            age(run.written),
        )
    return table


def age(written: float, now: float | None = None) -> str:
    """The time since then, in one unit.

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


def _headline(metrics: Mapping[str, Any]) -> str:
    """The one number of a run: accuracy, or the error in regression."""
    for key, form in (("accuracy", "{:.2%}"), ("ensemble_error", "ERR {:.4f}")):
        if isinstance(metrics.get(key), int | float):
            return form.format(metrics[key])
    return "–"
