"""One run folder as a :class:`Method`: its record, its epochs, what other commands left there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dissensus.diagnostics import diagnose
from dissensus.objectives import parse
from dissensus.objectives.interpolation import Augmented, Independent, Joint
from dissensus.outputs import Predictions
from dissensus.records import read_record
from dissensus.report.found import (
    Attacked,
    Detected,
    Floats,
    HeldOut,
    Method,
    Number,
    Record,
    Source,
)
from dissensus.report.reading_records import (
    ATTACKED,
    OOD,
    Note,
    read_attacked,
    read_detected,
    tried,
)
from dissensus.runs import Facts, Run, describe
from dissensus.runs.folder import METRICS, RECORD
from dissensus.scores import ensemble_diversity

__all__ = ["HELD_OUT_ROWS", "beta_of", "read_method"]

Keep = Callable[[Record], Record]

#: How many test rows figures of single predictions show.
HELD_OUT_ROWS = 40

#: The overview's numbers: what they are called here and in a record.
_NUMBERS = {
    "accuracy": "accuracy",
    "rmse": "rmse",
    "nll": "nll",
    "ece": "ece_width",
    "err": "ensemble_error",
    "member_err": "member_error",
    "div": "diversity",
}


def read_method(path: Path, keep: Keep, note: Note) -> Method:
    """The run in ``path``; ``keep`` is told of every record used, ``note`` of what is left out."""
    told = describe(path)
    if told.state == "begun":
        raise ValueError("it has no checkpoint yet; go on with `dissensus train --resume`")
    record = Record(path / RECORD, read_record(path / RECORD) if (path / RECORD).is_file() else {})
    if record.values:
        keep(record)
    split, numbers = _numbers(told, record)
    facts = Facts.read(path)
    predictions = _predictions(path, note)
    objective = str(told.asked("training", "objective"))
    classes = tuple(facts.classes) if facts is not None else ()
    return Method(
        path.resolve().name,
        path,
        objective,
        int(told.asked("ensemble", "members") or record.at("members") or 0),
        facts.name if facts is not None else str(told.asked("data", "name") or "own data"),
        facts.task if facts is not None else "",
        told.standing(),
        split,
        numbers,
        beta_of(objective),
        tuple(_epochs(path / METRICS)),
        _diagnosis(path, record, predictions, keep, note),
        _detected(path, record, keep, note),
        _attacked(path, record, classes, keep, note),
        None if predictions is None else _held_out(predictions, classes, path),
        None if predictions is None else _log_diversity(predictions),
    )


def beta_of(objective: str) -> float | None:
    """β of the family that runs from independent to joint training; None for other objectives.

    >>> beta_of("independent"), beta_of("joint:combine=score"), beta_of("augmented:beta=0.3")
    (0.0, 1.0, 0.3)
    >>> beta_of("adp") is None
    True
    """
    try:
        found = parse(objective)
    except ValueError:
        return None
    if isinstance(found, Augmented):
        return found.beta
    if isinstance(found, Joint):
        return 1.0
    return 0.0 if isinstance(found, Independent) else None


# ---- the run's own files ------------------------------------------------------------------------


def _numbers(told: Run, record: Record) -> tuple[str, dict[str, Number]]:
    """Test figures where they belong to these weights, else those of validation."""
    if told.test:
        return "test", _named(record, "test")
    file, epoch = told.path / METRICS, f"epoch {told.best_epoch}"
    return "val", _named(Record(file, {epoch: {"val": told.val}}), f"{epoch}.val")


def _named(record: Record, prefix: str) -> dict[str, Number]:
    found = {name: record.number(f"{prefix}.{key}") for name, key in _NUMBERS.items()}
    return {name: number for name, number in found.items() if number is not None}


def _epochs(file: Path) -> list[Record]:
    """The lines of ``metrics.jsonl``, up to one that was cut short by a kill."""
    records: list[Record] = []
    if not file.is_file():
        return records
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            break
        if isinstance(values, dict) and isinstance(values.get("epoch"), int):
            records.append(Record(file, values))
    return records


def _predictions(path: Path, note: Note) -> Predictions | None:
    file = path / "predictions" / "test.safetensors"
    if not file.is_file():
        return None
    try:
        found = Predictions.load(file)
    except ValueError as error:
        note(str(error))
        return None
    return None if found.targets is None else found


def _held_out(predictions: Predictions, classes: tuple[str, ...], path: Path) -> HeldOut:
    assert predictions.targets is not None
    file = path / "predictions" / "test.safetensors"
    return HeldOut(
        predictions.outputs[:, :HELD_OUT_ROWS].double().numpy(),
        predictions.targets[:HELD_OUT_ROWS].double().numpy(),
        classes,
        Source(file, f"outputs, the first {HELD_OUT_ROWS} rows"),
    )


def _log_diversity(predictions: Predictions) -> Floats | None:
    """The log ensemble diversity of each test row (adp, Eq. 3), with the predicted label."""
    members, _, outputs = predictions.outputs.shape
    if predictions.meta.get("combine") == "mean" or not 2 <= members <= outputs - 1:
        return None
    found: Floats = -ensemble_diversity(predictions.outputs.double()).numpy()
    return found


# ---- what other commands left -------------------------------------------------------------------


def _diagnosis(
    path: Path, run: Record, predictions: Predictions | None, keep: Keep, note: Note
) -> Record | None:
    """``diagnosis.json``; where there is none, a diagnosis of the test predictions alone."""
    record = _left(path / "diagnosis.json", run, "dissensus.diagnosis/1", "diagnose", note)
    if record is not None:
        return keep(record)
    if predictions is None:
        return None
    file = path / "predictions" / "test.safetensors"
    how = predictions.meta.get("combine")
    try:
        found = diagnose(None, predictions, combine=str(how) if how else None)
    except ValueError as error:
        note(f"{file} cannot be diagnosed: {error}")
        return None
    return Record(file, found.to_dict())


def _detected(path: Path, run: Record, keep: Keep, note: Note) -> Detected | None:
    record = _left(path / "ood" / "ood.json", run, OOD, "ood", note)
    names: Any = None if record is None else record.at("id")
    if record is None or not isinstance(names, dict) or not names:
        return None
    own = path.resolve().name
    name = own if own in names else str(next(iter(names)))
    return tried(lambda: read_detected(keep(record), name), record.file, note)


def _attacked(
    path: Path, run: Record, classes: tuple[str, ...], keep: Keep, note: Note
) -> Attacked | None:
    record = _left(path / "robustness" / "record.json", run, ATTACKED, "attack", note)
    if record is None:
        return None
    return tried(lambda: read_attacked(keep(record), classes), record.file, note)


def _left(file: Path, run: Record, kind: str, command: str, note: Note) -> Record | None:
    """The record that ``command`` left, if it is of the weights that the run has now."""
    if not file.is_file():
        return None
    try:
        record = Record(file, read_record(file))
    except ValueError as error:
        note(str(error))
        return None
    if record.text("format") != kind:
        note(f"{file} is not a record of `dissensus {command}`")
        return None
    made, trained = (each.text("environment.written") for each in (record, run))
    if made and trained and made < trained:
        note(
            f"{file} is older than the run's last training and left out; run `dissensus {command} "
            f"{file.parent if command == 'diagnose' else file.parent.parent}` again"
        )
        return None
    return record
