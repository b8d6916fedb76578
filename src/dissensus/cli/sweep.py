"""``dissensus sweep``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dissensus.cli.options import CpusPerRun, EngineName, GpusPerRun, RayAddress
from dissensus.cli.resolving import resolve
from dissensus.cli.settings import Sections, with_settings

if TYPE_CHECKING:
    from dissensus.sweeps import Plan, Summary
    from dissensus.sweeps.engines import Engine

__all__ = ["HELP", "sweep"]

HELP = """
Train an ensemble for every point of a grid, several times each, and compare them.

Repeat r adds r to every seed: it has its own split of the data, its own initial weights and its own
order. Ensembles that are alike train together, as one fleet; others one after another. Each has a
record of its own in --out/cells as soon as it ends; the same command again, or --resume, trains
only what is missing or failed, and more --repeats may be asked for. The best point is the one of
lowest validation error, never chosen by test data.

[bold]Examples[/bold]

  [cyan]dissensus sweep --data abalone --objective augmented --grid beta=0:1:0.1 --repeats 10[/cyan]

  [cyan]dissensus sweep --data digits --grid objective=independent,joint --grid lr=0.001,0.01[/cyan]

  [cyan]dissensus sweep --data wine --grid model.hidden=30/30,20 --grid members=5,20 --jobs 2[/cyan]

  [cyan]dissensus sweep --data abalone --objective augmented:beta=0.5 --grid beta=0:1:0.1
  --search lr=0.001,0.005,0.01 --search batch_size=16,32,64 --trials 20 --batch 5[/cyan]

  [cyan]dissensus sweep --resume --out sweeps/abalone-augmented[/cyan]

  [cyan]dissensus sweep --data cifar10 --model resnet20 --objective adp --grid alpha=0,1,2
  --repeats 5 --engine ray --gpus-per-run 1[/cyan]

A grid may vary any setting of the objective (beta, alpha, strength, …), lr, weight_decay, momentum,
options of the command (members, epochs, batch_size, patience, objective, …) and model.OPTION.

With --search each repeat first looks for its best setting by Bayesian optimisation (optuna): as
many trials as --trials says, --batch of them proposed and trained at once. They are trained with
the settings given outside of --grid (in the example beta=0.5) and compared by validation error.
The whole grid is then run with the setting that was found. All proposals come from this program,
whoever trains them; with --storage each repeat's search is a study that optuna's own tools show.

With --engine ray fleets and runs are tasks of Ray, on this machine or on the cluster at
--ray-address. Records come back through Ray, so workers need no shared folder; data are loaded
where a task runs, from the same path. A worker that dies is replaced, and its cells run again.
"""


@with_settings
def sweep(
    *,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="KEY=VALUES",
            help="Values with commas, or start:stop:step; may be repeated for a product.",
            rich_help_panel="Sweep",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            help="How often each point is trained. \\[default: 1]",
            rich_help_panel="Sweep",
            show_default=False,
        ),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="KEY=VALUES",
            help="What each repeat searches before its grid; may be repeated.",
            rich_help_panel="Sweep",
            show_default=False,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            help="Trials of the search in each repeat. \\[default: 20]",
            rich_help_panel="Sweep",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            help="Trials that are proposed at once. \\[default: 5]",
            rich_help_panel="Sweep",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            help="Where others can follow the search: a file of optuna's, or sqlite:///….",
            rich_help_panel="Sweep",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            help="Processes at once, of one thread each; on Ray runs at once. \\[default: 1; on "
            "Ray all that there is room for]",
            rich_help_panel="Engine",
            show_default=False,
        ),
    ] = None,
    engine: EngineName = "local",
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    ray_address: RayAddress = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The folder of the sweep; sweeps/DATA-OBJECTIVE if not given.",
            rich_help_panel="Run",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the sweep in --out; it knows its settings.",
            rich_help_panel="Run",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="A TOML file with settings.", rich_help_panel="Run"),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Run the code that a file or sweep names as its model.",
            rich_help_panel="Run",
        ),
    ] = False,
    **given: Any,
) -> None:
    """Train a grid of ensembles; the help text is ``HELP``."""
    from dissensus.sweeps.engines import engine_named

    with _resumable() as going:
        asked = {"repeats": repeats, "trials": trials, "batch": batch}
        place, plan = _plan(given, config, out, {"grid": grid, "search": search}, asked, resume)
        going.update(out=place, trust=":" in str(plan.sections["model"]["name"]), engine=engine)
        quiet = bool(plan.sections.get("run", {}).get("quiet"))
        where = engine_named(
            engine, jobs=jobs, cpus=cpus_per_run, gpus=gpus_per_run, address=ray_address
        )
        trusted = trust or given.get("model") is not None
        summary = _run(plan, place, where, storage, trust=trusted, quiet=quiet)
    if not quiet:
        _show(summary, plan, place)
    if summary.failures:
        from dissensus.cli.shown import note

        one = next(iter(summary.failures.items()))
        note(
            f"dissensus: {len(summary.failures)} of {summary.total} cells failed, such as "
            f"{one[0]}: {one[1].splitlines()[0]}; the same command tries them again"
        )
        raise typer.Exit(1)


def _plan(
    given: Mapping[str, Any],
    config: Path | None,
    out: Path | None,
    grids: Mapping[str, list[str] | None],
    asked: Mapping[str, int | None],
    resume: bool,
) -> tuple[Path, Plan]:
    """Where the sweep is, and what it does: what is asked over what a resumed one was."""
    from dissensus.sweeps import Plan, parse_grid

    place = out or _default_out(resolve(given, config))
    stored = Plan.read(place) if resume else None
    sections = resolve(given, config, None if stored is None else stored.sections)
    wanted: dict[str, Any] = {"grid": {}, "search": {}}
    if stored is not None:
        wanted = {"grid": stored.grid, "search": stored.space, "repeats": stored.repeats}
        wanted |= {"trials": stored.trials, "batch": stored.batch}
    wanted |= {n: parse_grid(texts, f"--{n}") for n, texts in grids.items() if texts}
    wanted |= {name: value for name, value in asked.items() if value is not None}
    return place, Plan(sections, space=wanted.pop("search"), **wanted)


def _default_out(sections: Sections) -> Path:
    name = Path(str(sections["data"].get("name", "sweep"))).stem
    objective = str(sections["training"]["objective"]).partition(":")[0].replace("/", "-")
    return Path("sweeps") / f"{name}-{objective}"


def _run(
    plan: Plan, out: Path, engine: Engine, storage: str | None, *, trust: bool, quiet: bool
) -> Summary:
    from dissensus.cli.job import use_threads
    from dissensus.cli.sweep_shown import ShownSweep
    from dissensus.sweeps import run_sweep

    threads = plan.sections.get("machine", {}).get("threads")
    if threads is not None:
        use_threads(threads)
    with ShownSweep(show=not quiet) as watcher:
        return run_sweep(plan, out, engine=engine, trust=trust, storage=storage, watcher=watcher)


@contextmanager
def _resumable() -> Iterator[dict[str, Any]]:
    """Let Ctrl-C end in how to go on, and exit status 130."""
    from dissensus.cli.shown import command, note

    going: dict[str, Any] = {}
    try:
        yield going
    except KeyboardInterrupt as stop:
        out = going.get("out")
        if out is not None and (out / "sweep.toml").exists():
            more = ["--trust"] if going["trust"] else []
            more += [] if going["engine"] == "local" else ["--engine", going["engine"]]
            again = command("dissensus", "sweep", "--resume", "--out", out, *more)
            note(f"dissensus: stopped; finished cells are kept, go on with: {again}")
        else:
            note("dissensus: stopped before training began; nothing was written")
        raise typer.Exit(130) from stop


def _show(summary: Summary, plan: Plan, out: Path) -> None:
    from rich.console import Console

    from dissensus.cli.shown import say
    from dissensus.cli.sweep_shown import sweep_table

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)  # a file has no edge to break lines at
    console.print(sweep_table(summary))
    best = summary.best
    if best is None:
        say("No point is best: there are no validation data to choose by (--val).")
    else:
        error = best.val["ensemble_error"]
        say(
            f"Best by validation (*): {best.label} (mean ERR {error.mean:.4f} over {best.done} of "
            f"{best.repeats} repeats)"
        )
    if plan.space:
        say(f"What each repeat chose by search stands in its records, as chosen: {out}/cells")
    say(f"Written to {out}: sweep.toml, summary.json, {summary.done} records in cells/")
