"""The command ``python -m reproductions``, which ``make reproduce`` calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dissensus.sweeps import EngineOptions
from reproductions.experiment import Experiment, select
from reproductions.figures import save
from reproductions.page import outcomes, write_figures, write_results
from reproductions.registry import EXPERIMENTS
from reproductions.statistics import CANNOT
from reproductions.study import (
    SCALES,
    check_options,
    option_values,
    read_study,
    run_study,
    study_path,
)

_COLORS = {"holds": "green", "contradicted": "red", "undecided": "yellow", CANNOT: "dim"}
console = Console()


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments.")] = None,
    scale: Annotated[str, typer.Option(help="smoke, cpu or paper.")] = "cpu",
    listing: Annotated[bool, typer.Option("--list", help="List experiments and stop.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the experiment."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results.")] = None,
    report: Annotated[bool, typer.Option(help="Run nothing; build pages from records.")] = False,
    again: Annotated[bool, typer.Option(help="Run the cells of --set once more.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes at once.")] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    ray_address: Annotated[str | None, typer.Option(help="A Ray cluster, host:6379.")] = None,
    gpus_per_run: Annotated[float | None, typer.Option(help="GPUs of each run on Ray.")] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the figure of NAME and stop.")
    ] = None,
) -> None:
    """
    Run the papers' tables and figures, and say which of their claims hold.

    NAME is an experiment (collusion/gat), several of them, or a paper (collusion) for all of it.
    After Ctrl-C or a kill the same command goes on. Records, verdicts, pages and figures are
    written to --out: by default results, or results-SCALE at another scale than cpu.
    """
    if not (names or report or listing):
        raise ValueError("say what to reproduce, such as collusion/gat; --list shows all there is")
    folder = out or Path("results" if scale == "cpu" else f"results-{scale}")
    chosen = select(names, EXPERIMENTS) if names else list(EXPERIMENTS.values())
    if listing:
        return _list(chosen)
    if figure is not None:
        return _draw(chosen, folder, figure)
    given = option_values(settings or ())
    studies = {(one.paper, one.study.name): one.study for one in chosen}
    check_options(given, list(studies.values()))
    failed: list[str] = []
    for (paper, _), study in {} if report else studies.items():
        local = study.jobs if engine == "local" else None  # on Ray, as many as there is room for
        options = EngineOptions(jobs or local, engine, None, gpus_per_run, ray_address)
        runner = options.make_engine()
        record = run_study(study, paper, scale, given, folder, engine=runner, again=again)
        failed += record.failed
    results = outcomes(EXPERIMENTS.values(), folder)
    shown = [one for one in results if one.experiment in chosen]
    paths = [*write_results(results, folder), *write_figures(shown, folder)]
    for one in (one for one in shown if one.findings):
        table = Table("verdict", "claim", title=one.experiment.full_name, title_justify="left")
        for claim, finding in one.findings:
            table.add_row(Text(finding.verdict, _COLORS[finding.verdict]), Text(claim.text))
        console.print(table)
    console.print(f"Written: {', '.join(map(str, paths))}", soft_wrap=True)
    if failed:
        console.print(f"{len(failed)} cells failed; the same command tries them again")
        raise typer.Exit(1)


def _list(chosen: list[Experiment]) -> None:
    """What each experiment shows and costs at each scale, and the options of its study."""
    for one in chosen:
        costs = ", ".join(f"{scale} {one.study.cost.get(scale, '–')}" for scale in SCALES)
        print(f"{one.full_name}  ({costs})\n    {one.shows}: {one.title}")
        for name, text in one.study.options.items():
            print(f"    --set {name}=: {text}")


def _draw(chosen: list[Experiment], folder: Path, file: Path) -> None:
    """The figure of one experiment from its record, as ``.svg`` or ``.png``."""
    one, draw = chosen[0], chosen[0].draw
    if len(chosen) > 1 or draw is None:
        raise ValueError(f"--figure draws one experiment that has a figure, got {len(chosen)}")
    record = read_study(study_path(folder, one.paper, one.study.name))
    print(f"Written: {save(draw(record.cells), file)}")


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command()(reproduce)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a mistake is one sentence."""
    try:
        app(arguments)
    except ValueError as error:
        raise SystemExit(f"reproductions: {error}") from None


if __name__ == "__main__":
    main()
