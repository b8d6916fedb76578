"""Run folders: their own files, and the records that other commands left there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from dissensus.calibration import reliability
from dissensus.diagnostics import diagnose
from dissensus.diagnostics.split import Split
from dissensus.objectives import parse
from dissensus.objectives.interpolation import Augmented, Independent, Joint
from dissensus.outputs import Predictions, combine
from dissensus.runs import DataSummary, Run, describe
from dissensus.scores import ensemble_diversity
from dissensus.show.contents import (
    AttackImages,
    Detection,
    Floats,
    HeldOut,
    Images,
    Method,
    Number,
    Record,
    Reference,
)
from dissensus.show.metrics import METRICS
from dissensus.tools.files import read_npz
from dissensus.tools.records import METRICS as METRICS_FILE
from dissensus.tools.records import RECORD, read_metrics, read_record

OOD, ATTACK = "dissensus.ood/1", "dissensus.robustness/1"

#: How many test rows figures of single predictions show.
HELD_OUT_ROWS = 40

T = TypeVar("T")
P = ParamSpec("P")


class Log:
    """The records that were used, and notes on what was left out."""

    def __init__(self) -> None:
        self.records: dict[Path, Record] = {}
        self.notes: list[str] = []

    def add(self, record: Record) -> Record:
        """Remember that ``record`` was used."""
        self.records[record.file.resolve()] = record
        return record

    def attempt(
        self, file: Path, read: Callable[P, T], *args: P.args, **settings: P.kwargs
    ) -> T | None:
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
    folder = _RunFolder(path, record, log)
    split, numbers = _numbers(run, record)
    summary = DataSummary.read(path)
    classes = tuple(summary.classes) if summary is not None else ()
    predictions = folder.predictions()
    if split == "test" and predictions is not None:
        numbers = folder.with_parts(numbers, predictions)
    attacks, attack_images = folder.attacks(classes)
    objective = str(run.asked("training", "objective"))
    return Method(
        name=path.resolve().name,
        path=path,
        objective=objective,
        members=int(run.asked("ensemble", "members") or record.at("members") or 0),
        data=summary.name if summary is not None else str(run.asked("data", "name") or "own data"),
        task=summary.task if summary is not None else "",
        status=run.standing(),
        split=split,
        numbers=numbers,
        beta=beta_of(objective),
        epochs=tuple(Record(path / METRICS_FILE, epoch) for epoch in read_metrics(path)),
        diagnosis=folder.diagnosis(predictions),
        detection=folder.detection(),
        attacks=attacks,
        attack_images=attack_images,
        held_out=None if predictions is None else folder.held_out(predictions, classes),
        log_diversity=None if predictions is None else _log_diversity(predictions),
    )


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


def _numbers(run: Run, record: Record) -> tuple[str, dict[str, Number]]:
    """The metrics of the test split if they belong to these weights, else those of validation."""
    split, prefix = "test", "test"
    if not run.test:
        epoch = f"epoch {run.best_epoch}"
        split, prefix = "val", f"{epoch}.val"
        record = Record(run.path / METRICS_FILE, {epoch: {"val": run.val}})
    numbers = {name: record.number(f"{prefix}.{name}") for name in METRICS}
    return split, {name: number for name, number in numbers.items() if number is not None}


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


class _RunFolder:
    """The predictions of a run, and the records that other commands left in its folder."""

    def __init__(self, path: Path, record: Record, log: Log) -> None:
        self.path, self.record, self.log = path, record, log
        self.test_file = path / "predictions" / "test.safetensors"

    def predictions(self) -> Predictions | None:
        if not self.test_file.is_file():
            return None
        predictions = self.log.attempt(self.test_file, Predictions.load, self.test_file)
        return None if predictions is None or predictions.targets is None else predictions

    def held_out(self, predictions: Predictions, classes: tuple[str, ...]) -> HeldOut:
        assert predictions.targets is not None
        return HeldOut(
            predictions.outputs[:, :HELD_OUT_ROWS].double().numpy(),
            predictions.targets[:HELD_OUT_ROWS].double().numpy(),
            classes,
            Reference(self.test_file, f"outputs, the first {HELD_OUT_ROWS} rows"),
        )

    def with_parts(
        self, numbers: Mapping[str, Number], predictions: Predictions
    ) -> dict[str, Number]:
        """``numbers`` with the values of single test rows, where their mean is the number."""
        parts = self.log.attempt(self.test_file, _row_values, predictions) or {}
        return {
            name: replace(number, parts=parts[name])
            if name in parts and math.isclose(parts[name].mean(), number.value, rel_tol=1e-3)
            else number
            for name, number in numbers.items()
        }

    def diagnosis(self, predictions: Predictions | None) -> Record | None:
        """``diagnosis.json``; without it, a diagnosis of the test predictions alone."""
        record = self._current(self.path / "diagnosis.json", "dissensus.diagnosis/1", "diagnose")
        if record is not None or predictions is None:
            return record
        kind = str(predictions.meta.get("combine") or "") or None
        diagnosis = self.log.attempt(self.test_file, diagnose, None, predictions, combine=kind)
        return None if diagnosis is None else Record(self.test_file, diagnosis.to_dict())

    def detection(self) -> Detection | None:
        record = self._current(self.path / "ood" / "ood.json", OOD, "ood")
        names = None if record is None else record.at("id")
        if record is None or not isinstance(names, dict) or not names:
            return None
        name = self.path.resolve().name
        name = name if name in names else str(next(iter(names)))
        return self.log.attempt(record.file, read_detection, record, name)

    def attacks(self, classes: tuple[str, ...]) -> tuple[Record | None, AttackImages | None]:
        record = self._current(self.path / "robustness" / "record.json", ATTACK, "attack")
        if record is None:
            return None, None
        return self.log.attempt(record.file, read_attacks, record, classes) or (None, None)

    def _current(self, file: Path, kind: str, command: str) -> Record | None:
        """The record that ``command`` left, unless the run has been trained since."""
        if not file.is_file():
            return None
        values = self.log.attempt(file, read_record, file)
        if values is None:
            return None
        record = Record(file, values)
        if record.text("format") != kind:
            self.log.notes.append(f"{file} is not a record of `dissensus {command}`")
            return None
        written = record.text("environment.written")
        trained = self.record.text("environment.written")
        if written and trained and written < trained:
            self.log.notes.append(
                f"{file} is left out: it is older than the run's last training; run "
                f"`dissensus {command} {self.path}` again"
            )
            return None
        return self.log.add(record)


# ---- results of `dissensus ood` and `dissensus attack` ------------------------------------------


def read_detection(record: Record, name: str) -> Detection:
    """The results of the run that an ``ood.json`` calls ``name``."""
    detection = Detection(record, name)
    for row in record.rows("curves"):
        _check_lengths(row, "fpr", "tpr")
    for row in record.rows("histograms"):
        bins, share = len(row.array("edges")) - 1, row.arrays("share")
        if any(len(values) != bins for values in share.values()):
            raise ValueError(
                f"{row.file}: {row.prefix}.share must have one value for each bin of .edges"
            )
    if any(detection.id_name not in row.at("share") for row in detection.rows("histograms")):
        raise ValueError(f"{record.file}: histograms need the share of {detection.id_name}")
    examples = [item for item in _images(detection, "examples") if item[0].number("value")]
    strangers = _images(detection, "strangers")
    return replace(detection, images=tuple(examples), strangers=tuple(strangers))


def _check_lengths(row: Record, first: str, second: str) -> None:
    shapes = [row.array(key).shape for key in (first, second)]
    if shapes[0] != shapes[1] or len(shapes[0]) != 1:
        raise ValueError(
            f"{row.file}: {row.prefix}.{first} and .{second} must be lists of one length"
        )


def _images(detection: Detection, key: str) -> list[tuple[Record, Images]]:
    """The rows at ``key`` with their pixels, as far as these are there."""
    files: dict[str, Any] = {}
    images = []
    for row in detection.rows(key):
        name = Path(row.text("file")).name  # beside the record, wherever it points
        if name not in files:
            file = row.file.with_name(name)
            files[name] = read_npz(file).get("images") if file.is_file() else None
        index, pixels = row.number("image"), files[name]
        if index is None or pixels is None or pixels.ndim != 4:
            continue
        images.append((row, pixels[int(index.value)]))
    return images


def read_attacks(record: Record, classes: Sequence[str] = ()) -> tuple[Record, AttackImages | None]:
    """A ``robustness/record.json``, checked, and the images beside it.

    ``classes`` are names for their labels.
    """
    for row in record.rows("curves"):
        _check_lengths(row, "values", "accuracy")
    if record.at("transfer") is not None and record.array("transfer.accuracy").ndim != 2:
        raise ValueError(f"{record.file}: transfer.accuracy must be a matrix")
    return record, _attack_images(record, classes)


def _attack_images(record: Record, classes: Sequence[str]) -> AttackImages | None:
    file = record.file.with_name("examples.npz")
    names = ("original", "adversarial", "labels", "predictions")
    arrays = read_npz(file) if file.is_file() else {}
    if not arrays.keys() >= set(names):
        return None
    original, adversarial, labels, predictions = (arrays[name] for name in names)
    attacks = [row.text("attack") for row in record.rows("attacks")]
    shape = (len(predictions), *original.shape)
    if adversarial.shape != shape or original.ndim != 4 or len(attacks) < len(predictions):
        raise ValueError(f"{file} does not belong to {record.file.name} beside it")

    def names_of(numbers: Any) -> tuple[str, ...]:
        known = range(len(classes))
        return tuple(classes[n] if n in known else str(n) for n in map(int, numbers))

    return AttackImages(
        tuple(attacks[: len(predictions)]),
        original,
        adversarial,
        names_of(labels),
        tuple(names_of(row) for row in predictions),
        Reference(file, "original, adversarial, predictions"),
    )
