"""The command ``python -m reproductions``, which ``make reproduce`` calls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dissensus.cli.options import note, print_result, say, with_options
from dissensus.sweeps.engines import EngineOptions
from dissensus.tools.verbs import option
from reproductions.reproduce import catalogue, draw_figure, results_folder
from reproductions.reproduce import reproduce as run


@dataclass(frozen=True)
class Reproduce(EngineOptions):
    """Options of the command; those of the engine, and what to run."""

    jobs: int | None = option(
        None,
        "Processes at once.",
        panel="Engine",
        default_text="as suits the experiment; on Ray all that there is room for",
    )
    scale: str = option("cpu", "smoke, cpu or paper.")
    out: Path | None = option(
        None, "Folder of the results.", default_text="results, or results-SCALE if not cpu"
    )
    data_dir: Path | None = option(None, "Folder of the data sets.")
    settings: tuple[str, ...] = option(
        (),
        "An option of the experiment, as --list shows; may be repeated.",
        flag="--set",
        metavar="KEY=VALUE",
    )
    report: bool = option(False, "Run nothing; build pages and figures from records.")
    again: bool = option(False, "Run and replace what was made with other settings.")


@with_options
def reproduce(
    options: Reproduce,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Experiments or papers.", show_default=False),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Run nothing; draw the figure of NAME from its record, as .svg or .png.",
            show_default=False,
        ),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List all experiments, or those of NAME, and stop.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """
    Run the papers' tables and figures, and say which of their claims hold.

    NAME is an experiment (collusion/gat), several of them, or a paper (collusion) for all of it.
    Each runs at three scales: smoke (seconds), cpu (two cores, real data) and paper (the paper's
    own sizes, for a GPU). Every unit of work is saved when it is done: after Ctrl-C or a kill the
    same command goes on. A page with every claim and its verdict, the figures and the records are
    written to --out.

    Examples

      python -m reproductions --list   all experiments, and what they cost

      python -m reproductions ldr --list   those of one paper, and their options

      python -m reproductions collusion/gat collusion/gradients

      python -m reproductions collusion/gat --set draws=50 --out mine

      python -m reproductions --report --out results   pages and figures again, from records

      python -m reproductions collusion/gat --figure gat.svg   one figure, from its record

    Examples that need other data or packages

      python -m reproductions collusion --scale smoke   all of a paper, to see that it works

      python -m reproductions collusion --engine ray --ray-address auto --gpus-per-run 1

    With --engine ray every unit of work is a task of Ray, on this machine or on the cluster at
    --ray-address. Records come back through Ray; data sets are loaded where the task runs.
    """
    if listing:
        print_result(catalogue(names or ()))
        return
    if figure is not None:
        folder = results_folder(options.out, options.scale)
        say(f"Written to {draw_figure(names or (), figure, folder)}")
        return
    # Each study knows how many processes of this machine suit it.
    default = options.engine == "local" and options.jobs is None
    engine = None if default else options.make_engine()
    if options.engine == "ray" and not quiet:
        note("dissensus: connecting to Ray")
    try:
        result = run(
            names or (),
            scale=options.scale,
            out=options.out,
            data_dir=options.data_dir,
            settings=options.settings,
            report=options.report,
            again=options.again,
            engine=engine,
            progress=not quiet,
        )
    except KeyboardInterrupt as stop:
        note("dissensus: stopped; what was done is kept, and the same command goes on from there")
        raise typer.Exit(130) from stop
    if result.missing:
        note(f"dissensus: {result.missing}")
    if not quiet:
        print_result(result)
    if result.failed:
        note(f"dissensus: {len(result.failed)} cells failed; the same command tries them again")
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(reproduce)
    app()
