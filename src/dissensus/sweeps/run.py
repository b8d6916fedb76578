"""Run of a sweep: check everything, search, train what is missing, summarise."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dissensus.runs import DataSummary, check_same_data
from dissensus.sweeps.engines import Cell, CellFolder, Crew, Engine, LocalEngine, RayEngine, Record
from dissensus.sweeps.engines.cell_folder import check_cells, find_missing
from dissensus.sweeps.engines.queue import exclusive
from dissensus.sweeps.grid import Point, label, points
from dissensus.sweeps.plan import CELLS, SEARCH, SUMMARY, Plan
from dissensus.sweeps.search import SharedStudy, Trial, best_trial, propose
from dissensus.sweeps.summary import Summary, summarize
from dissensus.sweeps.trainer import CellTrainer, nbytes

__all__ = ["Watcher", "run_sweep"]

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

    def waiting(self, count: int) -> None:
        """So many cells are left, and another program is at all of them."""


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
    place, seen = Path(out), watcher or Watcher()
    here, there = _trainers(plan, engine, trust=trust)
    data = _check_plan(plan, place, here)
    task, there.sha256 = data.task, data.sha256
    with engine.crew(there.run) as crew:
        scheduler = _Scheduler(plan, here, crew, seen)
        chosen = _search(plan, task, place, scheduler, seen, storage) if plan.space else {}
        cells = plan.cells(task, chosen)
        check_cells(cells)
        folder = CellFolder(place / CELLS)
        records, missing = find_missing(cells, folder, again=False)
        seen.begin(cells, list(records.values()))
        try:
            scheduler.run(missing, folder, seen.record)
        finally:
            summary = summarize(cells, folder.records().values())
            summary.path, summary.searched = place, bool(plan.space)
            summary.save(place / SUMMARY)
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
    for option, grid in (("--grid", points(plan.grid)), ("--search", _one_by_one(plan.space))):
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


def _one_by_one(space: dict[str, list[Any]]) -> list[Point]:
    """Each value of each key on its own: all combinations may be too many to build."""
    return [{key: value} for key, values in space.items() for value in values]


# ---- batches ----------------------------------------------------------------------------------


@dataclass
class _Scheduler:
    """Divides cells into batches and lets the crew run them."""

    plan: Plan
    trainer: CellTrainer
    crew: Crew
    seen: Watcher

    def run(
        self, cells: Sequence[Cell], folder: CellFolder, on_record: Callable[[Record], object]
    ) -> None:
        """Train ``cells``; their records come in no fixed order."""
        if not cells:
            return
        folder.folder.mkdir(parents=True, exist_ok=True)
        batches: list[list[Cell]] = []
        for group in _group_alike(cells):
            if len(group) == 1 or self.trainer.check(group[0]) is None:
                batches += [[cell] for cell in group]
            else:
                batches += self._fleets(group)
        self.crew.run(batches, folder, on_record, self.seen.waiting)

    def _fleets(self, cells: list[Cell]) -> list[list[Cell]]:
        """Even parts: one for each process, more if memory requires it."""
        job = self.trainer.prepare(cells[0])
        weights = sum(p.numel() * p.element_size() for p in job.ens.parameters())
        repeats = len({cell["repeat"] for cell in cells})
        # Weights, gradients, the best ones, moments, and a share of each repeat's data.
        each = 8 * weights + nbytes(job.data) * repeats / len(cells)
        most = max(1, int(_MEMORY * self.crew.machines / self.crew.jobs / each))
        count = max(min(self.crew.jobs, len(cells)), -(-len(cells) // most))
        size = -(-len(cells) // count)
        return [cells[begin : begin + size] for begin in range(0, len(cells), size)]


def _group_alike(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that may train together: those that differ in seeds and numbers alone."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        config = {name: dict(values) for name, values in cell["config"].items()}
        for section in ("data", "ensemble", "training"):
            config[section].pop("seed", None)
        for key in ("objective", "optimizer"):
            config["training"][key] = _layer_names(config["training"][key])
        for key in ("epochs", "patience", "select_by"):
            config["training"].pop(key, None)
        groups.setdefault(json.dumps(config, sort_keys=True), []).append(cell)
    return list(groups.values())


def _layer_names(text: str) -> list[str]:
    return [layer.partition(":")[0] for layer in text.split("/")]


# ---- the search ---------------------------------------------------------------------------------


def _search(
    plan: Plan, task: str, out: Path, scheduler: _Scheduler, seen: Watcher, storage: str | None
) -> dict[int, Point]:
    """The best choice of each repeat; all repeats search side by side, so that fleets are large.

    Trials have records as cells have. The search itself is not stored: from the same seed and the
    same results it proposes the same again, and finds the records of what was tried.
    """
    folder = CellFolder(out / SEARCH)
    seed = int(plan.sections["training"].get("seed", 0))
    turn: Callable[[], AbstractContextManager[None]]
    turn = partial(_turn, folder) if storage else nullcontext
    with turn():
        searches = {
            repeat: propose(
                plan.space,
                trials=plan.trials,
                batch=plan.batch,
                seed=seed + repeat,
                shared=SharedStudy(storage, plan.study_name(out, repeat)) if storage else None,
            )
            for repeat in range(plan.repeats)
        }
        proposals = {repeat: next(search) for repeat, search in searches.items()}
    trials: dict[int, list[Trial]] = {}
    tried, total = 0, plan.trials * plan.repeats
    while proposals:
        seen.searching(tried, total)
        values = _values(plan, task, proposals, folder, scheduler)
        with turn():
            for repeat, search in searches.items():
                if repeat in proposals:
                    _send_values(search, values[repeat], proposals, trials, repeat)
        tried = min(total, tried + plan.batch * plan.repeats)
    seen.searching(total, total)
    return {repeat: best_trial(every).choice for repeat, every in sorted(trials.items())}


@contextmanager
def _turn(folder: CellFolder) -> Iterator[None]:
    """While entered, no other program on this sweep writes to optuna's storage."""
    folder.folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.folder):
        yield


def _send_values(
    search: Generator[list[Point], Sequence[float], list[Trial]],
    values: list[float],
    proposals: dict[int, list[Point]],
    trials: dict[int, list[Trial]],
    repeat: int,
) -> None:
    try:
        proposals[repeat] = search.send(values)
    except StopIteration as over:
        trials[repeat] = over.value
        del proposals[repeat]


def _values(
    plan: Plan,
    task: str,
    proposals: dict[int, list[Point]],
    folder: CellFolder,
    scheduler: _Scheduler,
) -> dict[int, list[float]]:
    """Validation ERR of every choice, by repeat; NaN for one that failed."""
    cells = {
        repeat: [plan.trial(task, choice, repeat) for choice in choices]
        for repeat, choices in proposals.items()
    }
    every = [cell for group in cells.values() for cell in group]
    check_cells(every)
    records, missing = find_missing(every, folder, again=False)
    scheduler.run(missing, folder, lambda record: records.update({record["name"]: record}))
    return {
        repeat: [_value(records[cell["name"]]) for cell in group] for repeat, group in cells.items()
    }


def _value(record: Record) -> float:
    metrics = record.get("result", {}).get("val", {})
    return float(metrics.get("ensemble_error", math.nan))
