"""Run of a sweep: check everything, search, train what is missing, summarise, and show it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from dissensus.files import lock_folder
from dissensus.progress import ProgressBar
from dissensus.runs import DataSummary, check_same_data
from dissensus.sweeps.engines import Cell, CellFolder, Crew, Engine, LocalEngine, RayEngine, Record
from dissensus.sweeps.engines.cell_folder import check_cells, find_missing
from dissensus.sweeps.grid import label, points
from dissensus.sweeps.plan import CELLS, SEARCH, SUMMARY, Plan, cell_label
from dissensus.sweeps.search import search_repeats
from dissensus.sweeps.summary import Summary, summarize
from dissensus.sweeps.trainer import CellTrainer, nbytes

__all__ = ["SweepProgress", "Watcher", "load", "run_sweep"]

OnRecord = Callable[[Record], object]

#: Bytes that the ensembles and data of all batches under way on one machine may take.
_MEMORY = 2 << 30


class Watcher:
    """Hears of every event of a sweep and ignores it; subclasses show progress."""

    def searching(self, trials: int, total: int) -> None:
        """So many of all trials are done."""

    def begin(self, cells: Sequence[Cell], records: Sequence[Record]) -> None:
        """These cells make up the sweep, and these records are there already."""

    def record(self, record: Record) -> None:
        """A cell has ended."""


def run_sweep(
    plan: Plan,
    out: str | Path,
    *,
    jobs: int = 1,
    engine: Engine | None = None,
    trust: bool = False,
    storage: str | None = None,
    watcher: Watcher | None = None,
) -> Summary:
    """Train every cell of ``plan`` that ``out`` has no result of; return the table of all.

    ``out`` holds ``sweep.toml``, a record for each cell in ``cells/``, those of the search in
    ``search/``, and ``summary.json``. A mistake at any point of the grid is raised before
    anything is trained; a training that fails is a record, and is tried again at the next start.
    ``trust`` runs a model that is named by an import path. ``engine`` says where to train, such as
    ``RayEngine(gpus=1)``; ``LocalEngine(jobs)`` if it is not given. ``storage`` is optuna's, where
    other programs can follow the search (:class:`SharedStudy`).
    """
    engine = LocalEngine(jobs) if engine is None else engine
    with lock_folder(out):
        return _run(plan, Path(out), engine, watcher or Watcher(), storage, trust=trust)


def _run(
    plan: Plan, place: Path, engine: Engine, seen: Watcher, storage: str | None, *, trust: bool
) -> Summary:
    here, there = _trainers(plan, engine, trust=trust)
    data = _check_plan(plan, place, here)
    task, there.sha256 = data.task, data.sha256
    with engine.crew(there.run) as crew:

        def train(cells: Sequence[Cell], folder: CellFolder, on_record: OnRecord) -> None:
            """Train ``cells``; their records come in no fixed order."""
            if cells:
                folder.folder.mkdir(parents=True, exist_ok=True)
                crew.run(_batches(cells, here, crew), folder, on_record)

        chosen = {}
        if plan.space:
            trials = CellFolder(place / SEARCH)
            chosen = search_repeats(plan, task, trials, train, seen.searching, storage)
        cells = plan.cells(task, chosen)
        check_cells(cells)
        folder = CellFolder(place / CELLS)
        records, missing = find_missing(cells, folder, again=False)
        seen.begin(cells, list(records.values()))
        try:
            train(missing, folder, seen.record)
        finally:
            summary = summarize(cells, folder.records().values())
            summary.path, summary.searched = place, bool(plan.space)
            summary.save(place / SUMMARY)
    return summary


def load(folder: str | Path) -> Summary:
    """The table of the sweep in ``folder``, as far as it has come; nothing is trained.

    ::

        ds.sweeps.load("sweeps/beta").to_frame()
    """
    place = Path(folder)
    plan, data = Plan.read(place), DataSummary.read(place)
    if plan is None or data is None:
        raise ValueError(
            f"no sweep at {place}: name the folder that `dissensus sweep` or ds.sweeps.sweep wrote"
        )
    summary = summarize(plan.cells(data.task), CellFolder(place / CELLS).records().values())
    summary.path, summary.searched = place, bool(plan.space)
    return summary


def _trainers(plan: Plan, engine: Engine, *, trust: bool) -> tuple[CellTrainer, CellTrainer]:
    """The trainer that checks cells here, and the one that trains them, perhaps on Ray."""
    device = plan.sections.get("machine", {}).get("device", "auto")
    data_dir = plan.sections["data"].get("data_dir")
    there = CellTrainer(device, data_dir, trust)
    if not isinstance(engine, RayEngine):
        return there, there
    if device.startswith("cuda") and not engine.gpus:
        raise ValueError(f"--device {device} on Ray needs a GPU for each run: --gpus-per-run 1")
    return CellTrainer("cpu", data_dir, trust), there


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


# ---- progress -----------------------------------------------------------------------------------


class SweepProgress(Watcher):
    """A bar above the table as it fills; without a terminal a line now and then."""

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
        name, error = cell_label(record["cell"]), record.get("error")
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


# ---- batches ----------------------------------------------------------------------------------


def _batches(cells: Sequence[Cell], trainer: CellTrainer, crew: Crew) -> list[list[Cell]]:
    """Cells that train together as one fleet, in even parts; others each on its own."""
    batches: list[list[Cell]] = []
    for group in _group_alike(cells):
        size = 1
        if len(group) > 1 and trainer.check(group[0]) is not None:
            job = trainer.prepare(group[0])
            weights = sum(p.numel() * p.element_size() for p in job.ens.parameters())
            repeats = len({cell["repeat"] for cell in group})
            # Weights, gradients, the best ones, moments, and a share of each repeat's data.
            each = 8 * weights + nbytes(job.data) * repeats / len(group)
            most = max(1, int(_MEMORY * crew.machines / crew.jobs / each))
            # One part for each process, more if memory requires it.
            count = max(min(crew.jobs, len(group)), -(-len(group) // most))
            size = -(-len(group) // count)
        batches += [group[begin : begin + size] for begin in range(0, len(group), size)]
    return batches


def _group_alike(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that may train together: those that differ in seeds and numbers alone."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        config = {name: dict(values) for name, values in cell["config"].items()}
        for section in ("data", "ensemble", "training"):
            config[section].pop("seed", None)
        for key in ("objective", "optimizer"):
            layers = config["training"][key].split("/")
            config["training"][key] = [layer.partition(":")[0] for layer in layers]
        for key in ("epochs", "patience", "select_by"):
            config["training"].pop(key, None)
        groups.setdefault(json.dumps(config, sort_keys=True), []).append(cell)
    return list(groups.values())
