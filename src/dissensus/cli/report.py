"""``dissensus report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["HELP", "report"]

HELP = """
Make one web page of runs, sweeps and records: tables, interactive figures, pictures.

PATHS are run folders, sweep folders, records (ood.json, robustness/record.json, those of
reproduce), or folders of them. The page is one file: it needs no network and no server, and can be
sent to anybody. Nothing is trained or attacked for it: every number comes from a file, and says
from which. What is missing is named with the command that would fill it: diagnose, ood, attack and
sweep leave what the page shows in the run's folder.

[bold]Examples[/bold]

  [cyan]dissensus report runs/independent runs/joint runs/adp --out report[/cyan]

  [cyan]dissensus report runs sweeps/beta --title "Digits"[/cyan]   all runs below a folder

  [cyan]dissensus report results --out report[/cyan]   the records of experiments
"""


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Runs, sweeps, records, or folders of them.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="The folder of the page, or a name that ends in .html.")
    ] = Path("report"),
    title: Annotated[
        str | None, typer.Option("--title", help="The page's title.", show_default="by the data")
    ] = None,
) -> None:
    """Make the page; the help text is ``HELP``."""
    from dissensus.cli.shown import say
    from dissensus.report import build

    page = build(paths, out, title=title)
    say(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
    say(f"Open it in a browser: {page.resolve().as_uri()}")
