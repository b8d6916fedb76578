"""``dissensus runs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["HELP", "runs"]

HELP = """
List the runs in a folder, the newest first.

val and test are accuracies, or ERR in regression, of the best epoch. A run that is stopped goes on
with `dissensus train --resume --out RUN`. What is not a run or is half written says so in its row.

[bold]Examples[/bold]

  [cyan]dissensus runs[/cyan]   those in ./runs

  [cyan]dissensus runs results/digits[/cyan]
"""


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
) -> None:
    """List runs; the help text is ``HELP``."""
    from rich.console import Console

    from dissensus.cli.shown import runs_table, say
    from dissensus.runs import find_runs

    found = find_runs(folder)
    if not found:
        say(f"There are no runs in {folder}; `dissensus train --help` says how to make one.")
        return
    Console().print(runs_table(found, folder))
