"""``dissensus figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dissensus.cli.options import with_options
from dissensus.report import DrawFigure, draw_figure

__all__ = ["figure"]


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
    `dissensus reproduce NAME --figure FILE` draws the figures of the papers. Needs matplotlib:
    pip install 'dissensus[plots]'.

    Examples

      dissensus figure --list

      dissensus figure codependence runs/independent runs/joint --out codependence.svg

      dissensus figure roc runs --view bma --out roc.svg   another score
    """
    from dissensus.cli.console import say

    if listing:
        _list()
        return
    if name is None:
        raise ValueError("say which figure: `dissensus figure --list` names them")
    if "/" in name:
        command = f"dissensus reproduce {name} --figure FILE"
        raise ValueError(f"{name} is an experiment of a paper; its figure is drawn by `{command}`")
    say(f"Written to {draw_figure(name, paths or ['runs'], options)}")


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from dissensus.cli.console import say
    from dissensus.report import FIGURES

    table = Table(title="Figures of runs and sweeps", title_justify="left", title_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("what it shows")
    for name, entry in FIGURES.items():
        table.add_row(name, entry.what)
    Console().print(table)
    say("Figures of the papers: `dissensus reproduce --list` names the experiments,")
    say("`dissensus reproduce NAME --figure FILE` draws one.")
