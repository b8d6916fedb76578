"""Run folders: their own files, and the records that other commands left there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from dissensus.calibration import reliability
from dissensus.diagnostics import diagnose
from dissensus.diagnostics.split import Split
from dissensus.objectives import parse
from dissensus.objectives.interpolation import Augmented, Independent, Joint
from dissensus.outputs import Predictions, combine
from dissensus.runs import RESULTS, DataSummary, RunDescription, describe, read_result
from dissensus.scores import ensemble_diversity
from dissensus.show.contents import (
    Floats,
    HeldOutRows,
    Images,
    Method,
    Number,
    Record,
    Reference,
    UnknownInputs,
)
from dissensus.show.metrics import METRICS
from dissensus.tools.files import read_npz
from dissensus.tools.records import METRICS as METRICS_FILE
from dissensus.tools.records import RECORD, read_metrics, read_record

OOD, ATTACK = RESULTS["ood"][1], RESULTS["attack"][1]

#: How many test rows figures of single predictions show.
HELD_OUT_ROWS = 40

T = TypeVar("T")


class Log:
    """The records that were used, and notes on what was left out."""

    def __init__(self) -> None:
        self.records: dict[Path, Record] = {}
        self.notes: list[str] = []

    def add(self, record: Record) -> Record:
        """Remember that ``record`` was used."""
        self.records[record.file.resolve()] = record
        return record

    def attempt(self, file: Path, read: Callable[..., T], *args: Any, **settings: Any) -> T | None:
        """The result of ``read(*args)``; None if ``file`` is damaged, with a note that says how."""
        try:
            return read(*args, **settings)
        except Exception as error:  # one damaged file must not take the others with it
            reason = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{file} is left out: {reason}")
            return None


def read_method(path: Path, log: Log) -> Method:
    """The run in ``path``."""
    run = describe(path)
    if run.state == "begun":
        raise ValueError("it has no checkpoint yet; continue it with `dissensus train --resume`")
    record = Record(path / RECORD, read_record(path / RECORD) if (path / RECORD).is_file() else {})
    if record.values:
        log.add(record)
    summary, objective = DataSummary.read(path), str(run.asked("training", "objective"))
    method = Method(
        name=path.resolve().name,
        path=path,
        objective=objective,
        members=int(run.asked("ensemble", "members") or record.at("members") or 0),
        data=summary.name if summary is not None else str(run.asked("data", "name") or "own data"),
        task=summary.task if summary is not None else "",
        status=run.standing(),
        split="test" if run.test else "val",
        numbers=_numbers(run, record),
        beta=beta_of(objective),
        classes=summary.classes if summary is not None else (),
        epochs=[Record(path / METRICS_FILE, epoch) for epoch in read_metrics(path)],
    )
    for command, add in _ADD.items():
        file = path / RESULTS[command][0]
        if values := log.attempt(file, read_result, path, command):
            found = log.add(Record(file, values))
            method = log.attempt(file, add, method, found) or method
    return _with_predictions(method, log)


def beta_of(objective: str) -> float | None:
    """β of the family from independent to joint training; None for other objectives.

    >>> beta_of("independent"), beta_of("joint:combine=score"), beta_of("augmented:beta=0.3")
    (0.0, 1.0, 0.3)
    >>> beta_of("adp") is None
    True
    """
    try:
        parsed = parse(objective)
    except ValueError:
        return None
    if isinstance(parsed, Augmented):
        return parsed.beta
    if isinstance(parsed, Joint):
        return 1.0
    return 0.0 if isinstance(parsed, Independent) else None


def _numbers(run: RunDescription, record: Record) -> dict[str, Number]:
    """The metrics of the test split if they belong to these weights, else those of validation."""
    prefix = "test"
    if not run.test:
        epoch = f"epoch {run.best_epoch}"
        prefix = f"{epoch}.val"
        record = Record(run.path / METRICS_FILE, {epoch: {"val": run.val}})
    numbers = {name: record.number(f"{prefix}.{name}") for name in METRICS}
    return {name: number for name, number in numbers.items() if number is not None}


# ---- test predictions ---------------------------------------------------------------------------


def _with_predictions(method: Method, log: Log) -> Method:
    """``method`` with what follows from its test predictions, if it has any."""
    file = method.path / "predictions" / "test.safetensors"
    predictions = log.attempt(file, Predictions.load, file) if file.is_file() else None
    if predictions is None or predictions.targets is None:
        return method
    parts = {}
    if method.split == "test":
        parts = log.attempt(file, _row_values, predictions) or {}
    numbers = {
        name: replace(number, parts=parts[name])
        if name in parts and math.isclose(parts[name].mean(), number.value, rel_tol=1e-3)
        else number
        for name, number in method.numbers.items()
    }
    diagnosis = method.diagnosis
    if diagnosis is None:  # less sharp, as training predictions are not kept
        kind = str(predictions.meta.get("combine") or "") or None
        own = log.attempt(file, diagnose, None, predictions, combine=kind)
        diagnosis = None if own is None else Record(file, own.to_dict())
    return replace(
        method,
        numbers=numbers,
        diagnosis=diagnosis,
        held_out=HeldOutRows(
            predictions.outputs[:, :HELD_OUT_ROWS].double().numpy(),
            predictions.targets[:HELD_OUT_ROWS].double().numpy(),
            method.classes,
            Reference(file, f"outputs, the first {HELD_OUT_ROWS} rows"),
        ),
        log_diversity=_log_diversity(predictions),
    )


def _log_diversity(predictions: Predictions) -> Floats | None:
    """The log ensemble diversity of each test row (adp, Eq. 3), with the predicted label."""
    members, _, outputs = predictions.outputs.shape
    if predictions.meta.get("combine") == "mean" or not 2 <= members <= outputs - 1:
        return None
    diversity: Floats = -ensemble_diversity(predictions.outputs.double()).numpy()
    return diversity


def _row_values(predictions: Predictions) -> dict[str, Floats]:
    """The part of each test row in the metrics: their means are the metrics themselves.

    The ECE is linear in the rows as long as no bin's gap changes its sign, the RMSE to first order.
    """
    split = Split.of(predictions)
    terms = split.decompose().examples
    values = {"ensemble_error": terms.ensemble_error, "member_error": terms.member_error}
    if split.regression:
        rmse = terms.ensemble_error.mean().sqrt()
        values["rmse"] = (rmse + terms.ensemble_error / rmse) / 2
    elif not split.targets.is_floating_point():
        probs = combine(split.outputs, split.combine)
        confidence, predicted = probs.max(-1)
        values["accuracy"] = (predicted == split.targets).double()
        values["nll"] = terms.ensemble_error
        gaps, table = confidence - values["accuracy"], reliability(probs, split.targets)
        signs = (table.confidence - table.accuracy).sign()
        values["ece_width"] = gaps * signs[torch.bucketize(confidence, table.edges[1:-1])]
    return {name: value.numpy() for name, value in values.items()}


# ---- results of `dissensus diagnose`, `ood` and `attack` ----------------------------------------


def add_diagnosis(method: Method, record: Record) -> Method:
    """``method`` with a ``diagnosis.json``."""
    return replace(method, diagnosis=record)


def add_detection(method: Method, record: Record, name: str | None = None) -> Method:
    """``method`` with the results of an ``ood.json``, which calls the run ``name``."""
    names = record.at("id") or {}
    name = name or (method.name if method.name in names else next(iter(names)))
    detection = UnknownInputs(record, name)
    for row in record.rows("curves"):
        _check_lengths(row, row.array("fpr"), row.array("tpr"))
    for row in record.rows("histograms"):
        _check_lengths(row, row.array("edges")[1:], *row.arrays("share").values())
    if any(detection.id_name not in row.at("share") for row in detection.rows("histograms")):
        raise ValueError(f"histograms need the share of {detection.id_name}")
    examples = [item for item in _images(detection, "examples") if item[0].number("value")]
    strangers = _images(detection, "strangers")
    return replace(method, detection=replace(detection, images=examples, strangers=strangers))


def _check_lengths(row: Record, *arrays: Floats) -> None:
    if len({len(array) for array in arrays}) > 1:
        raise ValueError(f"{row.file}: the lists of {row.prefix} must have one length")


def _images(detection: UnknownInputs, key: str) -> list[tuple[Record, Images]]:
    """The rows at ``key`` with their pixels, as far as these are there."""
    files: dict[str, Any] = {}
    images = []
    for row in detection.rows(key):
        name = Path(row.text("file")).name  # beside the record, wherever it points
        if name not in files:
            file = row.file.with_name(name)
            files[name] = read_npz(file).get("images") if file.is_file() else None
        index, pixels = row.number("image"), files[name]
        if index is not None and pixels is not None and pixels.ndim == 4:
            images.append((row, pixels[int(index.value)]))
    return images


def add_attacks(method: Method, record: Record) -> Method:
    """``method`` with a ``robustness/record.json`` and the images beside it."""
    for row in record.rows("curves"):
        _check_lengths(row, row.array("values"), row.array("accuracy"))
    if record.at("transfer") is not None:
        record.array("transfer.accuracy", ndim=2)
    return replace(method, attacks=record, attack_images=_attack_images(method, record))


def _attack_images(method: Method, record: Record) -> list[tuple[str, Images, Sequence[str]]]:
    file = record.file.with_name("examples.npz")
    arrays = read_npz(file) if file.is_file() else {}
    if not arrays.keys() >= {"original", "adversarial", "labels", "predictions"}:
        return []
    attacks = [row.text("attack") for row in record.rows("attacks")]
    images = [arrays["original"], *arrays["adversarial"]]
    predictions = [arrays["labels"], *arrays["predictions"]]
    if {a.ndim for a in images} != {4} or len(images) != len(predictions) > len(attacks) + 1:
        raise ValueError(f"{file.name} does not belong to the record beside it")
    known = dict(enumerate(method.classes))
    words = [[known.get(int(n), str(n)) for n in numbers] for numbers in predictions]
    names = ["original", *attacks][: len(images)]
    return list(zip(names, images, words, strict=True))


#: How a run takes in what a command left in it.
_ADD: dict[str, Callable[[Method, Record], Method]] = {
    "diagnose": add_diagnosis,
    "ood": add_detection,
    "attack": add_attacks,
}
