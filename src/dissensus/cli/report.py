"""``dissensus report`` and ``dissensus figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from dissensus.cli.options import say, with_options
from dissensus.show.report import DrawFigure, Report, build, draw_figure
from dissensus.tools.console import InertConsole


@with_options
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Runs, sweeps, records, or folders of them.", show_default=False),
    ],
    options: Report,
) -> None:
    """
    Make one web page of runs, sweeps and records: tables, interactive figures, pictures.

    PATHS are run folders, sweep folders, records (ood.json, robustness/record.json), or folders of
    them. The page is one file that needs no network and no server.
    Nothing is trained or attacked for it: every number comes from a file, and says from which.
    Where content is missing, the page names the command that would produce it.

    Examples

      dissensus report runs/independent runs/joint runs/adp --out report

      dissensus report runs sweeps --title "Digits"   all runs and sweeps below a folder
    """
    page = build(paths, options)
    say(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
    say(f"Open it in a browser: {page.resolve().as_uri()}")


@with_options
def figure(
    options: DrawFigure,
    name: Annotated[
        str | None, typer.Argument(help="The figure; --list names all.", show_default=False)
    ] = None,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs, sweeps, records; runs/ if none.", show_default=False),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List all figures and stop.")] = False,
) -> None:
    """
    Draw one figure of the report for a paper, as SVG or PNG.

    NAME is a figure of `dissensus report`; it is drawn from the runs, sweeps and records at PATHS.
    Needs matplotlib: pip install 'dissensus[plots]'.

    Examples

      dissensus figure --list

      dissensus figure codependence runs/independent runs/joint --out codependence.svg

      dissensus figure roc runs --view bma --out roc.svg   another score
    """
    if listing:
        from dissensus.show.report import FIGURES

        table = Table(title="Figures of runs and sweeps", title_justify="left", title_style="bold")
        table.add_column("name", style="cyan", no_wrap=True)
        table.add_column("what it shows")
        for known, entry in FIGURES.items():
            table.add_row(known, entry.what)
        InertConsole().print(table)
        return
    if name is None:
        raise ValueError("say which figure: `dissensus figure --list` names them")
    say(f"Written to {draw_figure(name, paths or ['runs'], options)}")
