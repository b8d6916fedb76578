"""Trainer of cells: as fleets where possible, else one after another, with a record of each."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from dissensus.data import Data, OnDisk, Strangers
from dissensus.diagnostics import Split, debiased_share, explosion, judge
from dissensus.diagnostics.split import plain
from dissensus.ensemble import Ensemble
from dissensus.losses import errors
from dissensus.objectives import Objective, parse
from dissensus.outputs import Predictions
from dissensus.runs import (
    DataSummary,
    batch_augmentation,
    check_augmentation,
    compute_metrics,
    device_named,
    disagreement_inputs,
    load_data,
    make_ensemble,
)
from dissensus.sweeps.cells import Cell, Record, execute
from dissensus.sweeps.pool import Room
from dissensus.sweeps.summary import METRICS
from dissensus.training import History, NonFiniteLoss, Recipe, Training, fit, fit_fleet, predict
from dissensus.training.fit_fleet import kind

OnRecord = Callable[[Record], object]

#: Settings in ``[data]`` that the data themselves do not depend on.
_NOT_OF_DATA = ("data_dir", "augment", "adversarial", "disagreement")

_HELD_OUT_ROWS, _HELD_OUT_NUMBERS = 40, 20_000  # of the outputs that a record keeps

_BLOCKS = 20  # of validation rows, whose mean errors a record keeps

_KEPT_DATA = 1 << 30  # bytes of data sets that are kept between batches

#: Bytes that the ensembles and data of all batches under way on one machine may take.
_MEMORY = 2 << 30


@dataclass
class CellTraining:
    """A cell ready to train: its data, its ensemble and its recipe."""

    cell: Cell
    data: Data
    ens: Ensemble
    objective: Objective
    recipe: Recipe
    unlabelled: Tensor | Strangers | None

    @property
    def val(self) -> tuple[Tensor, Tensor] | None:
        """Validation data, if there are any."""
        return self.data.val if len(self.data.val[0]) else None

    def for_fleet(self) -> Training | None:
        """The training as a fleet takes it; None for what only ``fit`` can do."""
        asked, device = self.cell["config"]["data"], self.ens.device
        streamed = isinstance(self.data.train[0], OnDisk)
        if streamed or asked.get("augment") or asked.get("adversarial"):
            return None
        x, y = self.data.train
        val = None if self.val is None else (self.val[0].to(device), self.val[1].to(device))
        return Training(
            self.ens,
            (x.to(device), y.to(device)),
            self.objective,
            val,
            self.recipe,
            disagreement=self.unlabelled,
        )

    def fit(self) -> History:
        """Train with ``fit``."""
        return fit(
            self.ens,
            self.data.train,
            self.objective,
            val=self.val,
            disagreement=self.unlabelled,
            augment=batch_augmentation(self.cell["config"]["data"], self.ens),
            progress=False,
            recipe=self.recipe,
        )

    def result(self, history: History, fleet_size: int) -> dict[str, Any]:
        """The result that a record keeps of a finished training."""
        if history.ended.startswith("failed"):
            raise NonFiniteLoss(history.ended.removeprefix("failed: "))
        result: dict[str, Any] = {
            "best_epoch": history.best_epoch,
            "epochs": len(history.epochs),
            "ended": history.ended,
            "execution": history.execution,
            "together": fleet_size,
        }
        outputs = {}
        for part in ("val",) if self.cell.get("only") == "val" else ("val", "test"):
            split = self.data.splits()[part]
            if len(split[0]):
                outputs[part] = predict(self.ens, split)
                metrics = compute_metrics(outputs[part], self.ens.combine)
                names = ("examples", *METRICS)  # named as in an epoch's record
                result[part] = {name: metrics[name] for name in names if name in metrics}
        train = predict(self.ens, self.data.train)
        if "val" in outputs:
            result["selection"] = _selection(train, outputs["val"], self.ens.combine)
        if "test" in outputs:
            result["diagnosis"] = _diagnosis(train, outputs["test"], self.ens.combine)
            if self.cell["repeat"] == 0:
                result["held_out"] = held_out(outputs["test"])
        return result


def _selection(train: Predictions, val: Predictions, combine: str) -> dict[str, Any]:
    """The part of a record that settings are compared by: errors and verdict on validation data.

    ``errors`` are the ensemble's, as means of every 20th row from each of the first 20 on: cells of
    one repeat have the same rows there, so that two of them can be compared in pairs.
    """
    split = Split.of(val, combine=combine)
    each = errors(split.outputs, split.targets, split.loss, combine).ensemble
    blocks = [each[first::_BLOCKS] for first in range(min(_BLOCKS, len(each)))]
    return {
        "train_examples": len(train),
        "errors": [float(f"{block.mean():.7g}") for block in blocks],
        "verdict": judge(split, Split.of(train, combine=combine)).word,
    }


def held_out(predictions: Predictions) -> dict[str, Any]:
    """Outputs ``[members][rows][outputs]`` and targets of the first test rows, a few of them.

    They show the members on the same inputs at each point of a grid: enough for a figure.

    >>> held_out(Predictions(torch.zeros(1, 4, 2), torch.tensor([0, 0, 0, 1])))["targets"]
    [0, 0, 0, 1]
    """
    outputs, targets = predictions.outputs, predictions.targets
    assert targets is not None
    rows = max(1, min(_HELD_OUT_ROWS, _HELD_OUT_NUMBERS // (outputs.shape[0] * outputs.shape[2])))
    first = outputs[:, :rows].double()
    return {"outputs": _digits(first.tolist()), "targets": _digits(targets[:rows].tolist())}


def _digits(values: Any) -> Any:
    """Numbers with as many digits as a figure can show."""
    if isinstance(values, list):
        return [_digits(value) for value in values]
    return float(f"{values:.5g}") if isinstance(values, float) else values


def _diagnosis(train: Predictions, test: Predictions, combine: str) -> dict[str, Any]:
    """The short form of ``dissensus diagnose``, on test data."""
    before, after = (Split.of(part, combine=combine) for part in (train, test))
    share, verdict = debiased_share(after), judge(after, before)
    diagnosis: dict[str, Any] = plain(
        {
            "div_to_err": explosion(after).ratio,
            "debiased_share": share.share,
            "space": share.space,
            "verdict": verdict.word,
            "reasons": verdict.reasons,
        }
    )
    return diagnosis


@dataclass
class CellTrainer:
    """Trains cells; a copy in another process has the same settings and loads the data itself.

    ``sha256`` is that of the data's file, where it is one file: another machine may have another.
    ``resumed`` says that a part of the sweep was trained before.
    """

    device: str = "auto"
    data_dir: str | None = None
    trust: bool = False
    sha256: str = ""
    resumed: bool = False
    _data: dict[str, tuple[Data, DataSummary]] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Callable[..., CellTrainer], tuple[Any, ...]]:
        return _copy, (self.device, self.data_dir, self.trust, self.sha256, self.resumed)

    def data(self, config: dict[str, Any]) -> tuple[Data, DataSummary]:
        """The data of a cell; those of a repeat are loaded once for all its cells."""
        normalize = bool(config["model"].get("normalize"))
        settings = {k: v for k, v in config["data"].items() if k not in _NOT_OF_DATA}
        options = config.get("data_options") or {}
        key = json.dumps([settings, options, normalize], sort_keys=True)
        if key not in self._data:
            asked = {**config, "data": dict(config["data"])}
            if self.data_dir is not None:
                asked["data"]["data_dir"] = self.data_dir
            data = load_data(asked)
            summary = DataSummary.of(data, channels=normalize)
            if self.sha256 and summary.sha256 != self.sha256:
                raise ValueError(
                    f"{data.source} on {platform.node()} is not the file that the sweep began with"
                )
            size = nbytes(data)
            while self._data and size + sum(nbytes(d) for d, _ in self._data.values()) > _KEPT_DATA:
                del self._data[next(iter(self._data))]
            self._data[key] = data, summary
        return self._data[key]

    def prepare(self, cell: Cell) -> CellTraining:
        """Make a cell ready to train; raises for mistakes in its settings or data."""
        config = cell["config"]
        data, summary = self.data(config)
        settings = {k: v for k, v in config["training"].items() if k != "objective"}
        recipe, objective = Recipe.of(settings), parse(config["training"]["objective"])
        ens = make_ensemble(config, summary, trust=self.trust).to(device_named(self.device))
        asked = {**config["data"], "data_dir": self.data_dir}
        return CellTraining(cell, data, ens, objective, recipe, disagreement_inputs(asked, data))

    def check(self, cell: Cell) -> None:
        """Raise what would fail at the first step."""
        job = self.prepare(cell)
        if job.objective.needs_disagreement and job.unlabelled is None:
            raise ValueError(
                f"{type(job.objective).__name__} needs unlabelled data: --disagreement"
            )
        check_augmentation(cell["config"]["data"], job.data.train[0])
        drawn = job.objective.sample_members(job.ens.members, torch.Generator())
        x, y = (part[:1] for part in job.data.train)
        with job.ens.evaluating(), torch.no_grad():
            outputs = job.ens(x.to(job.ens.device)).cpu()
        job.objective.check(outputs if drawn is None else outputs[list(drawn)], y)

    def run(self, cells: Sequence[Cell], on_record: OnRecord) -> None:
        """Train ``cells``, together if they are several; hand over each record as its cell ends."""
        left = {cell["name"]: cell for cell in cells}

        def keep(record: Record) -> None:
            del left[record["name"]]
            on_record({**record, "resumed": True} if self.resumed else record)

        if len(cells) > 1:
            self._train_fleet(cells, keep)
        for cell in list(left.values()):  # what could not train in the fleet
            keep(execute(cell, self._train))

    def _train(self, cell: Cell) -> dict[str, Any]:
        job = self.prepare(cell)
        return job.result(job.fit(), fleet_size=1)

    def _train_fleet(self, cells: Sequence[Cell], keep: OnRecord) -> None:
        """Train as a fleet; an error that is not one cell's own leaves the rest untrained."""
        jobs: list[tuple[CellTraining, Training]] = []
        for cell in cells:
            with suppress(Exception):  # its own training will record the error
                job = self.prepare(cell)
                training = job.for_fleet()
                if training is not None:
                    jobs.append((job, training))

        def end(index: int, history: History) -> None:
            job, _ = jobs[index]
            record = execute(job.cell, lambda _: job.result(history, len(jobs)))
            record["seconds"] = round(record["seconds"] + history.seconds, 3)
            keep(record)

        trainings = [training for _, training in jobs]
        try:
            fit_fleet(trainings, on_end=end, progress=False, keep_failed=True)
        except OSError:
            raise  # the folder cannot be written to
        except Exception:
            return


@lru_cache(maxsize=1)
def _copy(*settings: Any) -> CellTrainer:
    """The trainer of a worker, the same for all its batches, so that it keeps its data."""
    return CellTrainer(*settings)


def nbytes(data: Data) -> int:
    """The memory that the data take, in bytes."""
    return sum(t.numel() * t.element_size() for part in data.splits().values() for t in part)


# ---- batches ------------------------------------------------------------------------------------


def make_batches(cells: Sequence[Cell], trainer: CellTrainer, room: Room) -> list[list[Cell]]:
    """Cells that train together as one fleet, in even parts; others each on its own."""
    batches: list[list[Cell]] = []
    for group in _group_alike(cells):
        size, job = 1, trainer.prepare(group[0])
        training = job.for_fleet() if len(group) > 1 else None
        if training is not None and kind(training) is not None:
            weights = sum(p.numel() * p.element_size() for p in job.ens.parameters())
            repeats = len({cell["repeat"] for cell in group})
            # Weights, gradients, the best ones, moments, and a share of each repeat's data.
            each = 8 * weights + nbytes(job.data) * repeats / len(group)
            most = max(1, int(_MEMORY * room.machines / room.jobs / each))
            # One part for each process, more if memory requires it.
            count = max(min(room.jobs, len(group)), -(-len(group) // most))
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
