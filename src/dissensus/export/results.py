"""Results of a run, read from its files for the model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from dissensus.runs import describe
from dissensus.tools.files import check_types
from dissensus.tools.records import read_record

_ACCURACY = {"accuracy": float, "low": float, "high": float}
_OOD: dict[str, Any] = {
    "detection": [{"method": str, "set": str, "score": str, "auroc": float, "fpr95": float}],
}
_ATTACK: dict[str, Any] = {
    "evaluated_on": str,
    "examples": int,
    "clean_accuracy": _ACCURACY,
    "worst_case": _ACCURACY,
    "attacks": [{"attack": str, "accuracy": float, "interval": [float]}],
}


@dataclass(frozen=True)
class RunResults:
    """Metrics of a run by split, and records of ``diagnose``, ``ood`` and ``attack``.

    What was not measured is empty. ``notes`` say what was left out and why.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    diagnosis: Mapping[str, Any] = field(default_factory=dict)
    ood: Mapping[str, Any] = field(default_factory=dict)
    attacks: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_results(run: str | Path, *, diagnosis: Mapping[str, Any] | None = None) -> RunResults:
    """Metrics of ``record.json``, and the records ``ood/ood.json`` and ``robustness/record.json``.

    A record of ``ood`` or ``attack`` that is older than the run's own belongs to other weights, and
    is left out.
    """
    path, description = Path(run), describe(run)
    record = read_record(path / "record.json") if (path / "record.json").is_file() else {}
    metrics = {"test": description.test, "validation": record.get("val") or {}}
    if not description.test:  # the record is of other weights
        metrics = {"validation": description.val}
    notes: list[str] = []
    return RunResults(
        training={"epochs": description.epochs, "best_epoch": description.best_epoch},
        metrics={split: values for split, values in metrics.items() if values},
        diagnosis=dict(diagnosis or {}),
        ood=_read_newer(path / "ood" / "ood.json", record, notes, _OOD),
        attacks=_read_newer(path / "robustness" / "record.json", record, notes, _ATTACK),
        notes=tuple(notes),
    )


def _read_newer(
    file: Path, record: Mapping[str, Any], notes: list[str], schema: dict[str, Any]
) -> dict[str, Any]:
    """A record that was written after the run's own; empty for an older one, with a note."""
    if not file.is_file():
        return {}
    try:
        newer = read_record(file)
        check_types(newer, schema, file)
    except ValueError as error:
        notes.append(f"{file.parent.name}/{file.name} is left out: {error}")
        return {}
    written, trained = _time_written(newer), _time_written(record)
    if written is None or trained is None or written < trained:
        notes.append(f"{file.parent.name}/{file.name} is older than the weights and is left out")
        return {}
    return newer


def _time_written(record: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(record["environment"]["written"])
    except (KeyError, TypeError, ValueError):
        return None
