"""``dissensus reproduce``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dissensus.cli.options import CpusPerRun, DataDir, EngineName, GpusPerRun, RayAddress

if TYPE_CHECKING:
    from dissensus.papers.base import Experiment
    from dissensus.papers.page import Outcome
    from dissensus.sweeps.engines import Engine

__all__ = ["HELP", "reproduce"]

HELP = """
Run the papers' tables and figures, and say which of their claims hold.

NAME is an experiment (collusion/gat), several of them, or a paper (collusion) for all of it. Each
runs at three scales: smoke (seconds), cpu (two cores, real data) and paper (the paper's own sizes,
for a GPU). Every unit of work is kept as it is done: after Ctrl-C or a kill the same command goes
on. A page with every claim and its verdict, the figures and the records are written to --out.

[bold]Examples[/bold]

  [cyan]dissensus reproduce --list[/cyan]   what there is, and what it costs

  [cyan]dissensus reproduce collusion/gat collusion/gradients[/cyan]

  [cyan]dissensus reproduce collusion --scale smoke[/cyan]   all of a paper, to see that it works

  [cyan]dissensus reproduce collusion/gat --set draws=50 --out mine[/cyan]

  [cyan]dissensus reproduce collusion --engine ray --ray-address auto --gpus-per-run 1[/cyan]

  [cyan]dissensus reproduce --report --out results[/cyan]   pages and figures again, from records

  [cyan]dissensus reproduce adp/transfer --figure transfer.svg[/cyan]   one figure, from its record

With --engine ray every unit of work is a task of Ray, on this machine or on the cluster at
--ray-address. Records come back through Ray; data sets are loaded where the task runs.
"""


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Experiments or papers.", show_default=False),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List all experiments and stop.")] = False,
    scale: Annotated[str, typer.Option("--scale", help="smoke, cpu or paper.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Where results go; results, or results-SCALE at another scale than cpu.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            help="Processes at once; else what suits it, and on Ray all that there is room for.",
            show_default=False,
        ),
    ] = None,
    engine: EngineName = "local",
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    ray_address: RayAddress = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of the experiment, as --list shows; may be repeated.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        bool,
        typer.Option("--report", help="Run nothing; build pages and figures from records."),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Run and replace what was made with other settings."),
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Run nothing; draw the figure of NAME from its record, as .svg or .png.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Reproduce experiments of the papers; the help text is ``HELP``."""
    from dissensus.papers import EXPERIMENTS
    from dissensus.papers.base import SCALES, check_options, option_values, select
    from dissensus.sweeps.engines import engine_named

    if listed:
        _show_list()
        return
    if scale not in SCALES:
        raise ValueError(f"--scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if not names and not report:
        raise ValueError("say what to reproduce, such as collusion/gat; --list shows all there is")
    chosen = select(names, EXPERIMENTS) if names else list(EXPERIMENTS.values())
    place = out or Path("results" if scale == "cpu" else f"results-{scale}")
    if figure is not None:
        _draw_figure(chosen, figure, place)
        return
    given = option_values(options or ())
    check_options(given, [experiment.study for experiment in chosen])
    where = engine_named(
        engine, jobs=jobs, cpus=cpus_per_run, gpus=gpus_per_run, address=ray_address
    )
    chosen_by_study = engine == "local" and jobs is None
    if data_dir is not None:
        # By the environment, which new processes inherit, so that no path gets into a record.
        os.environ["DISSENSUS_DATA"] = str(data_dir.expanduser().resolve())
    failed: list[str] = []
    if not report:
        with _resumable():
            failed = _run(
                chosen,
                scale,
                given,
                place,
                engine=None if chosen_by_study else where,
                progress=not quiet,
                again=again,
            )
    _finish(chosen, place, quiet=quiet, report=report)
    if failed:
        from dissensus.cli.shown import note

        note(f"dissensus: {len(failed)} cells failed; the same command tries them again")
        raise typer.Exit(1)


def _run(
    chosen: Sequence[Experiment],
    scale: str,
    given: dict[str, object],
    out: Path,
    *,
    engine: Engine | None,
    progress: bool,
    again: bool,
) -> list[str]:
    """Run every study that ``chosen`` read, once; returns the names of cells that failed."""
    from dissensus.cli.shown import note
    from dissensus.papers.studies import run_study
    from dissensus.sweeps.engines import RayEngine

    if progress and isinstance(engine, RayEngine):
        note("dissensus: connecting to Ray")
    studies = {(one.paper, one.study.name): one.study for one in chosen}
    failed = []
    with nullcontext() if engine is None else engine.session():  # one Ray for all studies
        for (paper, _), study in studies.items():
            record = run_study(
                study, paper, scale, given, out, engine=engine, progress=progress, again=again
            )
            failed += list(record.failed)
    return failed


@contextmanager
def _resumable() -> Iterator[None]:
    """Let Ctrl-C end in how to go on, and exit status 130."""
    from dissensus.cli.shown import note

    try:
        yield
    except KeyboardInterrupt as stop:
        note("dissensus: stopped; what was done is kept, and the same command goes on from there")
        raise typer.Exit(130) from stop


def _finish(chosen: Sequence[Experiment], out: Path, *, quiet: bool, report: bool) -> None:
    """Build pages and figures from all records below ``out``; show the claims of ``chosen``."""
    from dissensus.cli.shown import note, say
    from dissensus.papers import EXPERIMENTS
    from dissensus.papers.page import outcomes, write_figures, write_page

    found = outcomes(EXPERIMENTS.values(), out)
    if not found:
        raise ValueError(f"there are no records of experiments in {out}; run some first")
    papers = dict.fromkeys(outcome.experiment.paper for outcome in found)
    pages = [write_page(paper, found, EXPERIMENTS, out) for paper in papers]
    names = {experiment.full_name for experiment in chosen}
    wanted = [outcome for outcome in found if outcome.experiment.full_name in names]
    try:
        figures = write_figures(found if report else wanted, out)
    except ValueError as error:  # matplotlib is not installed: the rest is still worth having
        note(f"dissensus: {error}")
        figures = []
    if quiet:
        return
    _show_claims(wanted)
    say(f"Page: {', '.join(str(page) for page in pages)}")
    if figures:
        say(f"Figures: {', '.join(sorted(str(path) for path in figures))}")


def _draw_figure(chosen: Sequence[Experiment], file: Path, results: Path) -> None:
    """Draw the figure of the one experiment in ``chosen`` from its record below ``results``."""
    from dissensus.cli.shown import say
    from dissensus.papers.studies import read_study, study_path
    from dissensus.plots import save

    if len(chosen) != 1:
        raise ValueError(f"--figure draws one experiment, got {len(chosen)}; --list names them")
    (experiment,) = chosen
    name = experiment.full_name
    if experiment.draw is None:
        raise ValueError(f"{name} has no figure; its table is on the page of the paper")
    path = study_path(results, experiment.paper, experiment.study.name)
    if not path.is_file():
        raise ValueError(f"there is no record {path}; `dissensus reproduce {name}` makes it")
    say(f"Written to {save(experiment.draw(read_study(path).records), file)}")


# ---- for people ---------------------------------------------------------------------------------

_COLORS = {"holds": "green", "does not hold": "red", "cannot be tested at this scale": "yellow"}


def _show_claims(found: Sequence[Outcome]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for outcome in found:
        experiment = outcome.experiment
        table = Table(
            box=SIMPLE_HEAD,
            title=f"{experiment.full_name}: {experiment.shows} ({outcome.record.scale})",
            title_justify="left",
            title_style="bold",
            pad_edge=False,
        )
        table.add_column("verdict", width=14)
        table.add_column("claim, and what was measured")
        for claim, finding in outcome.findings:
            published = f"; published: {finding.published}" if finding.published else ""
            words = Text(f"{claim.text} ({claim.where})\n")
            words.append(finding.measured + published + "\n", style="dim")
            table.add_row(Text(finding.verdict, style=_COLORS[finding.verdict]), words)
        console.print(table)


def _show_list() -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from dissensus.cli.shown import say
    from dissensus.papers import EXPERIMENTS
    from dissensus.papers.base import SCALES

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("shows")
    for scale in SCALES:
        table.add_column(scale, no_wrap=True, justify="right")
    for name, experiment in EXPERIMENTS.items():
        words = Text(experiment.shows).append(f"\n{experiment.title}", style="dim")
        costs = (experiment.study.cost.get(scale, "–") for scale in SCALES)
        table.add_row(name, words, *costs)
    Console().print(table)
    studies = {(one.paper, one.study.name): one.study for one in EXPERIMENTS.values()}
    if any(study.options for study in studies.values()):
        say("Options, with --set KEY=VALUE:")
    for (paper, name), study in studies.items():
        users = [one.name for one in EXPERIMENTS.values() if one.study is study]
        for key, text in study.options.items():
            say(f"  {key}: {text} ({paper}/{', '.join(users) or name})")
