"""``dissensus figure``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HELP", "figure"]

HELP = """
Draw one figure for a paper, as SVG or PNG.

NAME is a figure of `dissensus report`, which is drawn of the runs, sweeps and records at PATHS, or
a figure of a paper (collusion/beta-sweep), which is drawn of the records in --results. --list names
all. Needs matplotlib: pip install 'dissensus\\[plots]'.

[bold]Examples[/bold]

  [cyan]dissensus figure --list[/cyan]

  [cyan]dissensus figure codependence runs/independent runs/joint --out codependence.svg[/cyan]

  [cyan]dissensus figure roc runs --view bma --out roc.svg[/cyan]   another score

  [cyan]dissensus figure adp/transfer --out transfer.png[/cyan]
"""


def figure(
    name: Annotated[
        str | None, typer.Argument(help="The figure; --list names all.", show_default=False)
    ] = None,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs, sweeps, records; runs/ if none.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="fig.svg or fig.png.", show_default="NAME.svg"),
    ] = None,
    view: Annotated[
        str | None,
        typer.Option("--view", help="A part of the name of a view.", show_default="the first"),
    ] = None,
    results: Annotated[
        Path, typer.Option("--results", help="Where records of experiments are.")
    ] = Path("results"),
    listing: Annotated[bool, typer.Option("--list", help="List the figures there are.")] = False,
) -> None:
    """Draw a figure; the help text is ``HELP``."""
    from dissensus.cli.shown import say
    from dissensus.plots.render_matplotlib import save

    if listing:
        _list()
        return
    if name is None:
        raise ValueError("say which figure: `dissensus figure --list` names them")
    target = Path(name.replace("/", "-") + ".svg") if out is None else out
    if target.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"--out must end in .svg or .png, got {target.name}")
    if "/" in name:
        if paths or view:
            raise ValueError(f"{name} is drawn of the records in --results; leave PATHS and --view")
        drawn = _of_experiment(name, results)
    else:
        drawn = _of_report(name, paths or [Path("runs")], view)
    say(f"Written to {save(drawn, target)}")


def _of_report(name: str, paths: list[Path], view: str | None) -> Figure:
    from dissensus.plots.render_matplotlib import draw
    from dissensus.report import FIGURES, read
    from dissensus.specs import check_name

    check_name(name, FIGURES, "figure")
    plot = FIGURES[name].make(read(paths))
    if plot is None:
        needs = FIGURES[name].needs.replace("`", "")
        raise ValueError(f"the files have nothing for {name}; what fills it: {needs}")
    return draw(plot, view)


def _of_experiment(name: str, results: Path) -> Figure:
    from dissensus.papers import EXPERIMENTS
    from dissensus.papers.base import select
    from dissensus.papers.studies import read_study, study_path

    (experiment,) = select([name], EXPERIMENTS)
    if experiment.draw is None:
        raise ValueError(f"{name} has no figure; its table is on the page of the paper")
    path = study_path(results, experiment.paper, experiment.study.name)
    if not path.is_file():
        raise ValueError(f"there is no record {path}; `dissensus reproduce {name}` makes it")
    return experiment.draw(read_study(path).records)


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from dissensus.papers import EXPERIMENTS
    from dissensus.report import FIGURES

    table = Table(title="Figures", title_justify="left", title_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("what it shows")
    table.add_column("drawn of")
    for name, entry in FIGURES.items():
        table.add_row(name, entry.what, "runs, sweeps")
    for name, experiment in EXPERIMENTS.items():
        if experiment.draw is not None:
            table.add_row(name, experiment.title, f"{experiment.shows}, --results")
    Console().print(table)
