"""The records of ``dissensus ood`` and ``dissensus attack``, as values that figures can take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dissensus.report.found import (
    AttackCurve,
    Attacked,
    AttackPictures,
    Budget,
    Detected,
    DetectionRow,
    Floats,
    Histogram,
    Images,
    Picture,
    Record,
    RocLine,
    Source,
)

__all__ = ["ATTACKED", "OOD", "Note", "floats", "read_attacked", "read_detected", "tried"]

OOD, ATTACKED = "dissensus.ood/1", "dissensus.robustness/1"

Note = Callable[[str], object]
T = TypeVar("T")

#: No figure shows more points of a curve, or bins, than this.
_POINTS = 200


def tried(action: Callable[[], T], file: Path, note: Note) -> T | None:
    """What ``action`` makes of ``file``; None for one that is damaged, and ``note`` is told why."""
    try:
        return action()
    except (ValueError, OSError, KeyError, TypeError, IndexError, AttributeError) as error:
        note(f"{file} is left out: {' '.join(str(error).split()) or type(error).__name__}")
        return None


def floats(values: Any, source: Source, *, most: int | None = None) -> Floats:
    """Finite numbers as an array; anything else is an error that names the file and key."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source.file}: {source.key} must be numbers ({error})") from error
    if not np.isfinite(found).all():
        raise ValueError(f"{source.file}: {source.key} must be finite numbers")
    if most is not None and len(found) > most:
        found = found[np.linspace(0, len(found) - 1, most).round().astype(int)]
    return found


# ---- ood.json -----------------------------------------------------------------------------------


def read_detected(record: Record, method: str) -> Detected:
    """What ``ood.json`` says of ``method``."""
    return Detected(
        record,
        str((record.at("id") or {}).get(method, "test")),
        tuple(_detection_rows(record, method)),
        tuple(_curves(record, method)),
        tuple(_histograms(record, method)),
        tuple(_pictures(record, method)),
    )


def _own(record: Record, key: str, method: str) -> list[tuple[str, dict[str, Any]]]:
    """The rows of one method, each with its key."""
    rows = enumerate(record.rows(key))
    return [(f"{key}[{place}]", row) for place, row in rows if row.get("method") == method]


def _detection_rows(record: Record, method: str) -> list[DetectionRow]:
    found = []
    for key, row in _own(record, "detection", method):
        auroc = record.number(f"{key}.auroc", f"{key}.auroc_low", f"{key}.auroc_high")
        fpr95 = record.number(f"{key}.fpr95", f"{key}.fpr95_low", f"{key}.fpr95_high")
        if auroc is not None:
            found.append(DetectionRow(str(row["score"]), str(row["set"]), auroc, fpr95))
    return found


def _curves(record: Record, method: str) -> list[RocLine]:
    found = []
    for key, row in _own(record, "curves", method):
        source = Source(record.file, key)
        fpr, tpr = (floats(row[name], source, most=_POINTS) for name in ("fpr", "tpr"))
        if fpr.shape != tpr.shape or fpr.ndim != 1:
            raise ValueError(f"{record.file}: {key}.fpr and .tpr must be lists of one length")
        found.append(RocLine(str(row["score"]), str(row["set"]), fpr, tpr, source))
    return found


def _histograms(record: Record, method: str) -> list[Histogram]:
    found = []
    for key, row in _own(record, "histograms", method):
        source = Source(record.file, key)
        edges = floats(row["edges"], source)
        share = {str(name): floats(values, source) for name, values in row["share"].items()}
        if any(len(values) != len(edges) - 1 for values in share.values()):
            raise ValueError(f"{record.file}: {key}.share must have one value a bin of .edges")
        limit = record.number(f"{key}.threshold")
        score = str(row["score"])
        found.append(Histogram(score, edges, share, source, None if limit is None else limit.value))
    return found


def _pictures(record: Record, method: str) -> list[Picture]:
    kept: dict[str, Images | None] = {}
    found = []
    for key, row in _own(record, "examples", method):
        name = Path(str(row["file"])).name  # beside the record, wherever it points
        if name not in kept:
            kept[name] = _arrays(record.file.with_name(name), "images").get("images")
        images = kept[name]
        place, value = record.number(f"{key}.image"), record.number(f"{key}.value")
        if images is None or images.ndim != 4 or place is None or value is None:
            continue
        found.append(
            Picture(
                *(images[int(place.value)], str(row["set"]), str(row["kind"]), str(row["score"])),
                *(value.value, str(row["predicted"]), tuple(map(str, row["others"]))),
                None if row.get("truth") is None else str(row["truth"]),
                Source(record.file, key),
            )
        )
    return found


def _arrays(file: Path, *names: str) -> dict[str, Any]:
    """Arrays of an ``.npz`` by name; none where there is no file."""
    if not file.is_file():
        return {}
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as kept:
            return {name: kept[name] for name in names if name in kept.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise ValueError(f"{file} cannot be read as .npz: {error}") from error


# ---- robustness/record.json -------------------------------------------------------------------


def read_attacked(record: Record, classes: Sequence[str] = ()) -> Attacked:
    """What ``robustness/record.json`` says; ``classes`` name what pictures show."""
    transfer = record.at("transfer.accuracy")
    matrix = None
    if transfer is not None:
        matrix = floats(transfer, Source(record.file, "transfer.accuracy"))
        if matrix.ndim != 2:
            raise ValueError(f"{record.file}: transfer.accuracy must be a matrix")
    return Attacked(
        record,
        record.number("clean_accuracy.accuracy", "clean_accuracy.low", "clean_accuracy.high"),
        record.number("worst_case.accuracy", "worst_case.low", "worst_case.high"),
        tuple(_budgets(record)),
        tuple(_attack_curves(record)),
        matrix,
        record.text("transfer.attack"),
        _attack_pictures(record, classes),
    )


def _budgets(record: Record) -> list[Budget]:
    found = []
    for place, row in enumerate(record.rows("budgets")):
        key = f"budgets[{place}]"
        accuracy = record.number(f"{key}.accuracy", f"{key}.low", f"{key}.high")
        eps = record.number(f"{key}.eps")
        if accuracy is not None and eps is not None:
            found.append(Budget(str(row.get("norm")), eps.value, accuracy))
    return found


def _attack_curves(record: Record) -> list[AttackCurve]:
    found = []
    for place, row in enumerate(record.rows("curves")):
        source = Source(record.file, f"curves[{place}]")
        values, accuracy = (floats(row[name], source) for name in ("values", "accuracy"))
        if values.shape != accuracy.shape or values.ndim != 1:
            raise ValueError(f"{record.file}: {source.key} must have an accuracy for each value")
        order = values.argsort(kind="stable")
        words = (str(row["attack"]), str(row["norm"]), str(row["over"]))
        found.append(AttackCurve(*words, values[order], accuracy[order], source))
    return found


def _attack_pictures(record: Record, classes: Sequence[str]) -> AttackPictures | None:
    file = record.file.with_name("examples.npz")
    names = ("original", "adversarial", "labels", "predictions")
    arrays = _arrays(file, *names)
    if len(arrays) < len(names):
        return None
    original, adversarial, labels, predictions = (arrays[name] for name in names)
    attacks = [str(row.get("attack")) for row in record.rows("attacks")]
    shapes = (len(predictions), *original.shape)
    if adversarial.shape != shapes or original.ndim != 4 or len(attacks) < len(predictions):
        raise ValueError(f"{file} does not belong to {record.file.name} beside it")

    def name(label: int) -> str:
        return classes[label] if 0 <= label < len(classes) else str(label)

    return AttackPictures(
        tuple(attacks[: len(predictions)]),
        original,
        adversarial,
        tuple(name(int(label)) for label in labels),
        tuple(tuple(name(int(label)) for label in row) for row in predictions),
        Source(file, "original, adversarial, predictions"),
    )
