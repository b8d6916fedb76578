"""Cells of the comparison: one contender in one seed of one setting, trained, scored, recorded.

The record of a cell is one line of ``records/SETTING.jsonl``, written as soon as it ends; a cell
with a record is not run again. Contenders of one seed share their trainings.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.records import Record, put_record, read_lines, rounded
from benchmarks.timing import processor
from dissensus._version import __version__
from dissensus.calibration import nll
from dissensus.data import Inputs
from dissensus.detection import Combined, Detector, evaluate, fit_together, score_together
from dissensus.ensemble import Ensemble
from dissensus.outputs import combined_log_probs
from dissensus.training import predict
from reproductions.strangers.contenders import CONTENDERS, Contender, Trainings
from reproductions.strangers.settings import SETTINGS, is_there

SEEDS = range(5)
#: The settling setting has seeds of its own.
SETTLING_SEEDS = (100,)

#: Scores of the members' outputs, and of their features.
OUTPUT_SCORES = ("mutual_information", "pds", "entropy", "max_softmax", "energy")
DISTANCES = ("mahalanobis", "relative_mahalanobis", "knn", "vim", "react")
COMBINED = (
    "combined",
    "combined:distance=mahalanobis",
    "combined:distance=knn",
    "combined:distance=vim",
)
#: What ``combined`` stands for; records with another one lack that score.
PARTS = Combined().distance

#: Training rows that scores of features are fitted to.
FITTED = 4000


class Cell(NamedTuple):
    """One contender in one seed of one setting."""

    setting: str
    contender: str
    seed: int


def cell_of(record: Record) -> Cell:
    """The cell that a record is of."""
    return Cell(record["setting"], record["contender"], record["seed"])


def read_records(folder: Path) -> list[Record]:
    """All records, in the order of settings, contenders and seeds."""
    places = {name: place for place, name in enumerate([*SETTINGS, *CONTENDERS])}
    return sorted(
        map(_without_old_scores, read_lines(folder)),
        key=lambda r: (places[r["setting"]], places[r["contender"]], r["seed"]),
    )


def _without_old_scores(record: Record) -> Record:
    """A record without ``combined``, if that has changed since."""
    if record.get("combined") == PARTS:
        return record
    for part in ("auroc", "val_auroc"):
        for scores in record[part].values():
            scores.pop("combined", None)
    return record


def score_names(contender: Contender) -> list[str]:
    """The scores that a contender is measured by."""
    if not contender.features:
        return list(OUTPUT_SCORES)
    return [*OUTPUT_SCORES, *(() if contender.copy else DISTANCES), *COMBINED]


def is_whole(record: Record) -> bool:
    """Whether a record has all scores of its contender."""
    found = next(iter(record["auroc"].values()))
    return all(name in found for name in score_names(CONTENDERS[record["contender"]]))


def add_record(folder: Path, record: Record) -> None:
    """Write a record as a line of its setting's file, instead of the cell's old one."""
    put_record(folder / f"{record['setting']}.jsonl", record, cell_of)


def planned(setting: str, seeds: Sequence[int] | None = None) -> list[Cell]:
    """The cells of a setting, seed by seed."""
    own, settling = SETTINGS[setting], setting == "settling"
    if not own.confirms and not settling:
        return []  # a table of the combination alone: see ``combination``
    chosen = SETTLING_SEEDS if settling else SEEDS if seeds is None else seeds
    return [
        Cell(setting, name, seed)
        for seed in chosen
        for name, contender in CONTENDERS.items()
        if (settling or not contender.settling)
        and (own.kind == "images" or not contender.images)
        and (own.contenders is None or name in own.contenders)
    ]


def run_cells(
    folder: Path,
    settings: Sequence[str] = tuple(SETTINGS),
    contenders: Sequence[str] = tuple(CONTENDERS),
    seeds: Sequence[int] | None = None,
    *,
    again: bool = False,
    changes: Mapping[str, Any] | None = None,
    work: Path | None = None,
    report: Callable[[str], object] = print,
) -> None:
    """Run the cells that have no record yet, or all with ``again``: seed by seed.

    A record that lacks a score of its contender counts as none; ``combined`` is such a score if its
    parts have changed since. Records of settling stay as they are. ``changes`` are those of the
    settings' sizes, for a quick run. ``work`` keeps trainings, so that an interrupted one goes on.
    """
    there = [name for name in settings if is_there(name)]
    if absent := [name for name in settings if name not in there]:
        report(f"skipped, data not in $DISSENSUS_DATA: {', '.join(absent)}")
    kept = [] if again else read_records(folder)
    done = {cell_of(r) for r in kept if is_whole(r) or r["setting"] == "settling"}
    wanted = [c for name in there for c in planned(name, seeds) if c.contender in contenders]
    left = [cell for cell in wanted if cell not in done]
    groups = dict.fromkeys((cell.seed, cell.setting) for cell in left)
    for seed, name in sorted(groups, key=lambda group: group[0] % 100):
        setting = replace(SETTINGS[name], **(changes or {}))
        rows = setting.load(setting, seed)
        trainings = Trainings(setting, rows, seed, work and work / name)
        for cell in left:
            if (cell.seed, cell.setting) == (seed, name):
                record = run_cell(cell, CONTENDERS[cell.contender], trainings)
                add_record(folder, record)
                report(_line(record))


def _line(record: Record) -> str:
    aurocs = [scores["mutual_information"] for scores in record["auroc"].values()]
    return (
        f"{record['setting']} {record['contender']} seed {record['seed']}: accuracy "
        f"{record['accuracy']:.3f}, mean AUROC {sum(aurocs) / len(aurocs):.3f}, "
        f"{record['train_cpu']:.0f} + {record['score_cpu']:.0f} s"
    )


def run_cell(cell: Cell, contender: Contender, trainings: Trainings) -> Record:
    """Train and measure a cell; return its record."""
    start = time.process_time()
    ens = contender.make(trainings)
    trained = time.process_time()
    found = measure(ens, trainings, contender, tested_foreign=cell.contender != "foreign")
    facts: Record = {
        "setting": cell.setting,
        "contender": cell.contender,
        "seed": cell.seed,
        "combined": PARTS,
        "train_cpu": trained - start,
        "score_cpu": time.process_time() - trained,
    }
    machine: Record = {
        "version": __version__,
        "processor": processor(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    record: Record = rounded({**facts, **found, **machine})
    return record


def measure(
    ens: Ensemble, trainings: Trainings, contender: Contender, *, tested_foreign: bool
) -> Record:
    """Accuracy on test rows, and the AUROC of each score on each unknown set and on strangers.

    Known rows are those of the test, or of validation where strangers are made from these. A set
    that an ensemble learnt to disagree on is not tested.
    """
    rows, seed = trainings.rows, trainings.seed
    scores = scorer_of(ens, trainings, contender)
    predictions = predict(ens, rows.test[0]).outputs
    log_probs = combined_log_probs(predictions, "probability")
    known, seen = scores(rows.test[0]), scores(rows.val[0])
    result: Record = {
        "accuracy": float((log_probs.argmax(-1) == rows.test[1]).double().mean()),
        "member_accuracy": float((predictions.argmax(-1) == rows.test[1]).double().mean()),
        "nll": float(nll(predictions, rows.test[1])),
        "auroc": {},
        "val_auroc": {},
    }
    for name, x in rows.unknown.items():
        if tested_foreign or name != rows.foreign_name:
            result["auroc"][name] = _aurocs(known, scores(x))
    for name, family in rows.families.items():
        strangers = family(rows.val[0], torch.Generator().manual_seed(seed))
        result["val_auroc"][name] = _aurocs(seen, scores(strangers))
    return result


def scorer_of(
    ens: Ensemble, trainings: Trainings, contender: Contender
) -> Callable[[Tensor], dict[str, Tensor]]:
    """A function from inputs to all scores of a contender, ``{name: [rows]}``."""
    rows, names = trainings.rows, score_names(contender)
    detectors = [
        Detector(trainings.plain, name, batch_size=512).use_tuned(ens, {})
        if contender.copy
        else Detector(ens, name, batch_size=512)
        for name in names
    ]
    train = Inputs("train", *rows.train).limited(FITTED, trainings.seed).batches(512)
    fit_together(detectors, rows.val, train=train)

    def scores(x: Tensor) -> dict[str, Tensor]:
        found = score_together(detectors, x)
        return {name: values.double().cpu() for name, values in zip(names, found, strict=True)}

    return scores


def _aurocs(known: Mapping[str, Tensor], unknown: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: evaluate(known[name], unknown[name], bootstrap=0).auroc.value for name in known}
