"""Run of a sweep: check everything, search, train the missing cells, and summarise."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from dissensus.runs import DataSummary, check_same_data, resolve, use_threads
from dissensus.runs.settings import Sections
from dissensus.sweeps.cells import Cell, CellFolder, Record, find_missing
from dissensus.sweeps.grid import Grid, label, parse_grid, points
from dissensus.sweeps.options import Sweep
from dissensus.sweeps.plan import CELLS, SEARCH, SUMMARY, Plan
from dissensus.sweeps.pool import LocalEngine, run_batches, termination_as_interrupt
from dissensus.sweeps.ray import RayEngine
from dissensus.sweeps.search import search_repeats
from dissensus.sweeps.summary import Summary, summarize
from dissensus.sweeps.trainer import CellTrainer, make_batches
from dissensus.tools.files import lock_folder, remove_parts
from dissensus.tools.progress import ProgressBar
from dissensus.tools.verbs import collect


class Watcher:
    """Follows the events of a sweep and ignores them; subclasses show progress."""

    def searching(self, trials: int, total: int) -> None:
        """``trials`` of all ``total`` trials are done."""

    def begin(self, cells: Sequence[Cell], records: Sequence[Record]) -> None:
        """The sweep consists of ``cells``, of which some have ``records`` already."""

    def record(self, record: Record) -> None:
        """A cell has ended."""


# ---- the verb -----------------------------------------------------------------------------------


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
    out = _folder(resolve(options))
    plan = Plan.read(out)
    if plan is None:
        return None
    words = ["dissensus", "sweep", "--resume", "--out", str(out)]
    words += ["--trust"] if ":" in str(plan.sections["model"]["name"]) else []
    words += [] if options.engine == "local" else ["--engine", options.engine]
    words += [] if options.jobs is None else ["--jobs", str(options.jobs)]
    return shlex.join(words)


def load(folder: str | Path) -> Summary:
    """The table of the sweep in ``folder``, as far as it is done; nothing is trained.

    ::

        ds.sweeps.load("sweeps/beta").to_frame()
    """
    place = Path(folder)
    plan, data = Plan.read(place), DataSummary.read(place)
    if plan is None or data is None:
        raise ValueError(
            f"no sweep at {place}: name the folder that `dissensus sweep` or ds.sweeps.sweep wrote"
        )
    return _summarize(plan, plan.cells(data.task), place)


def _folder(sections: Sections) -> Path:
    """``--out``; else ``sweeps/digits-adp``: the data and the objective."""
    if "out" in sections["run"]:
        return Path(sections["run"]["out"])
    name = Path(str(sections["data"].get("name", "sweep"))).stem
    objective = str(sections["training"]["objective"]).partition(":")[0].replace("/", "-")
    return Path("sweeps") / f"{name}-{objective}"


def _plan(options: Sweep) -> tuple[Path, Plan]:
    """The folder of the sweep and its plan; options that are given replace those stored."""
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


# ---- the run ------------------------------------------------------------------------------------


def run_sweep(
    plan: Plan,
    out: str | Path,
    *,
    jobs: int = 1,
    engine: LocalEngine | RayEngine | None = None,
    trust: bool = False,
    storage: str | None = None,
    watcher: Watcher | None = None,
) -> Summary:
    """Train every cell of ``plan`` without a result in ``out``; return the table of all.

    ``out`` holds ``sweep.toml``, a record for each cell in ``cells/``, those of the search in
    ``search/``, and ``summary.json``. A mistake at any point of the grid is raised before anything
    is trained; a training that fails is a record, and is tried again at the next start. A resumed
    sweep trains the missing cells as fleets of their own: the last digits of their numbers may
    differ from those of a sweep in one go, and their records say ``resumed``.

    ``trust`` runs a model that is named by an import path. ``engine`` says where to train, such as
    ``RayEngine(gpus=1)``; ``LocalEngine(jobs)`` if it is not given. ``storage`` is optuna's, where
    other programs can follow the search (:class:`SharedStudy`).
    """
    engine = LocalEngine(jobs) if engine is None else engine
    place, watcher = Path(out), watcher or Watcher()
    folder, trials = CellFolder(place / CELLS), CellFolder(place / SEARCH)
    with lock_folder(out), termination_as_interrupt(), ExitStack() as stack:
        remove_parts(folder.folder)
        remove_parts(trials.folder)
        here, device = _trainer(plan, engine, trust=trust)
        data = _check_plan(plan, place, here)
        there = replace(here, device=device, sha256=data.sha256)
        connect = cache(lambda: stack.enter_context(engine.session()))

        def train(cells: Sequence[Cell], to: CellFolder, events: Watcher) -> dict[str, Record]:
            """The record of every cell by name; those without one in ``to`` are trained."""
            records, missing = find_missing(cells, to)
            events.begin(cells, list(records.values()))

            def keep(record: Record) -> None:
                records[record["name"]] = record
                events.record(record)

            if missing:
                connect()
                there.resumed = len(missing) < len(cells)
                batches = make_batches(missing, here, engine.room())
                run_batches(batches, there.run, to, engine, keep)
            return records

        choices = {}
        if plan.space:
            try_out = partial(train, to=trials, events=Watcher())
            choices = search_repeats(plan, data.task, place, try_out, watcher.searching, storage)
        cells = plan.cells(data.task, choices)
        try:
            train(cells, folder, watcher)
        finally:
            stack.close()  # workers end first: the summary has every record that they wrote
            summary = _summarize(plan, cells, place)
            summary.save(place / SUMMARY)
        return summary


def _summarize(plan: Plan, cells: Sequence[Cell], place: Path) -> Summary:
    summary = summarize(cells, CellFolder(place / CELLS).records().values())
    summary.path, summary.searched = place, bool(plan.space)
    return summary


def _trainer(
    plan: Plan, engine: LocalEngine | RayEngine, *, trust: bool
) -> tuple[CellTrainer, str]:
    """The trainer that checks cells, and the device to train on, which only Ray may have."""
    device = plan.sections.get("machine", {}).get("device", "auto")
    if isinstance(engine, RayEngine) and device.startswith("cuda") and not engine.gpus:
        raise ValueError(f"--device {device} on Ray needs a GPU for each run: --gpus-per-run 1")
    checked = "cpu" if isinstance(engine, RayEngine) else device
    data_dir = plan.sections["data"].get("data_dir")
    return CellTrainer(checked, data_dir, trust), device


def _check_plan(plan: Plan, out: Path, trainer: CellTrainer) -> DataSummary:
    """Raise for mistakes before any training; else keep the plan."""
    before = Plan.read(out)
    if before is not None:
        plan.keep(out)  # refuses other settings at once
    data, data_summary = trainer.data(plan.asked())
    stored = DataSummary.read(out)
    if stored is not None:
        check_same_data(stored, data_summary, out)
    if plan.space and not len(data.val[0]):
        raise ValueError("--search chooses by validation error: it needs --val above 0")
    # Of the search each value on its own: all combinations may be too many to build.
    choices = [{key: value} for key, values in plan.space.items() for value in values]
    for option, grid in (("--grid", points(plan.grid)), ("--search", choices)):
        for point in grid:
            try:
                trainer.check(plan.cell(data.task, point, 0, {}))
            except ValueError as error:
                where = f"{option} {label(point)}: " if point else ""
                raise ValueError(f"{where}{error}") from error
    plan.keep(out)
    if stored is None:
        data_summary.write(out)
    return data_summary


class SweepProgress(Watcher):
    """A bar above the table as it fills; without a terminal, a line now and then."""

    def __init__(self, *, show: bool) -> None:
        self.bar = ProgressBar("checking", show=show)
        self.cells: Sequence[Cell] = ()
        self.records: dict[str, Record] = {}

    def __enter__(self) -> Self:
        self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)

    def searching(self, trials: int, total: int) -> None:
        self.bar.update(trials, title="search", total=total)
        write = self.bar.say if trials == total else self.bar.log
        write(f"search: {trials}/{total} trials")

    def begin(self, cells: Sequence[Cell], records: Sequence[Record]) -> None:
        self.cells = cells
        self.records = {record["name"]: record for record in records}
        if records:
            self.bar.say(f"sweep: {len(records)} of {len(cells)} cells are done already")
        self._update()

    def record(self, record: Record) -> None:
        self.records[record["name"]] = record
        self._update()
        cell, error = record["cell"], record.get("error")
        name = f"{label(cell['point'])}, repeat {cell['repeat']}"
        if error is not None:
            self.bar.say(f"sweep: {name} failed: {error.splitlines()[0]}")
            return
        metrics = record["result"].get("val", record["result"].get("test"))
        text = name if metrics is None else f"{name}, ERR {metrics['ensemble_error']:.4f}"
        self.bar.log(f"sweep: {len(self.records)}/{len(self.cells)} cells, {text}")

    def _update(self) -> None:
        self.bar.update(len(self.records), title="sweep", total=len(self.cells))
        if self.bar.visible:
            self.bar.show_below(summarize(self.cells, self.records.values()).table())
