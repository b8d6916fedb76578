"""The sweep command: options, the plan that they ask for, and its run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs import Settings, resolve, use_threads
from dissensus.runs.settings import Sections
from dissensus.sweeps.engines import EngineOptions
from dissensus.sweeps.grid import Grid, parse_grid
from dissensus.tools.verbs import collect, option

if TYPE_CHECKING:
    from dissensus.sweeps.plan import Plan
    from dissensus.sweeps.run import Watcher
    from dissensus.sweeps.summary import Summary


@dataclass(frozen=True)
class Sweep(EngineOptions, Settings):
    """Options of :func:`sweep`: a grid over the settings of a run, and where to train."""

    grid: tuple[str, ...] | dict[str, Any] = option(
        (),
        "Values with commas, or start:stop:step; may be repeated for a product.",
        metavar="KEY=VALUES",
        panel="Sweep",
    )
    repeats: int | None = option(
        None,
        "How often each point is trained; several tell a better point from a lucky one.",
        panel="Sweep",
        default_text="1",
    )
    search: tuple[str, ...] | dict[str, Any] = option(
        (),
        "What each repeat searches before its grid; may be repeated.",
        metavar="KEY=VALUES",
        panel="Sweep",
    )
    trials: int | None = option(
        None, "Trials of the search in each repeat.", panel="Sweep", default_text="20"
    )
    batch: int | None = option(
        None, "Trials that are proposed at once.", panel="Sweep", default_text="5"
    )
    storage: str | None = option(
        None,
        "Where others can follow the search: a file of optuna's, or sqlite:///….",
        panel="Sweep",
    )
    out: str | None = option(
        None, "The folder of the sweep; sweeps/DATA-OBJECTIVE if not given.", panel="Run"
    )
    resume: bool | None = option(
        None, "Continue the sweep in --out; it knows its settings.", panel="Run"
    )


def sweep(
    options: Sweep | None = None, *, watcher: Watcher | None = None, **settings: Any
) -> Summary:
    """Train an ensemble for every point of a grid; ``settings`` are the fields of :class:`Sweep`.

    ``watcher`` hears of every record; without one, a table on the terminal shows the progress
    unless ``quiet`` is set.

    ::

        summary = ds.sweeps.sweep(
            data="abalone", objective="augmented", grid={"beta": [0.0, 0.5, 1.0]}, repeats=5
        )
        summary.best, summary.to_frame()
    """
    from dissensus.sweeps.run import SweepProgress, run_sweep

    options = collect(Sweep, options, settings)
    if options.objective is not None and ".py:" in options.objective:
        raise ValueError(
            f"a sweep knows objectives by name, got {options.objective}; train your own with "
            "`dissensus train`, or many at once with ds.fit_fleet"
        )
    out, plan = _plan(options)
    quiet = bool(plan.sections.get("run", {}).get("quiet"))
    engine = options.make_engine()
    threads = plan.sections.get("machine", {}).get("threads")
    if threads is not None:
        use_threads(threads)
    trust = options.trust or options.model is not None
    with SweepProgress(show=not quiet and watcher is None) as progress:
        summary = run_sweep(
            plan,
            out,
            engine=engine,
            trust=trust,
            storage=options.storage,
            watcher=watcher or progress,
        )
    summary.quiet = quiet
    return summary


def resume_command(options: Sweep) -> str | None:
    """The command that resumes the sweep after Ctrl-C; None if nothing was written."""
    from dissensus.sweeps.plan import Plan

    out = _folder(resolve(options))
    plan = Plan.read(out)
    if plan is None:
        return None
    words = ["dissensus", "sweep", "--resume", "--out", str(out)]
    words += ["--trust"] if ":" in str(plan.sections["model"]["name"]) else []
    words += [] if options.engine == "local" else ["--engine", options.engine]
    words += [] if options.jobs is None else ["--jobs", str(options.jobs)]
    return shlex.join(words)


def _folder(sections: Sections) -> Path:
    """``--out``; else ``sweeps/digits-adp``: the data and the objective."""
    if "out" in sections["run"]:
        return Path(sections["run"]["out"])
    name = Path(str(sections["data"].get("name", "sweep"))).stem
    objective = str(sections["training"]["objective"]).partition(":")[0].replace("/", "-")
    return Path("sweeps") / f"{name}-{objective}"


def _plan(options: Sweep) -> tuple[Path, Plan]:
    """The folder of the sweep and its plan: what is asked, over what a resumed one was."""
    from dissensus.sweeps.plan import Plan

    asked = resolve(options)
    out = _folder(asked)
    stored = Plan.read(out) if asked["run"]["resume"] else None
    settings = {
        "grid": _grid(options.grid, "--grid"),
        "space": _grid(options.search, "--search"),
        "repeats": options.repeats,
        "trials": options.trials,
        "batch": options.batch,
    }
    before = {} if stored is None else {name: getattr(stored, name) for name in settings}
    now: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    sections = asked if stored is None else resolve(options, stored.sections)
    return out, Plan(sections, **before | now)


def _grid(axes: tuple[str, ...] | dict[str, Any], option: str) -> Grid | None:
    """The axes of a grid; None if there are none."""
    if isinstance(axes, dict):
        return {key: list(values) for key, values in axes.items()} or None
    return parse_grid(axes, option) if axes else None
