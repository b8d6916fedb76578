"""Results of a run, read from its files for the model card; only intervals are computed anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from dissensus.losses import errors
from dissensus.measures import Estimate, proportion
from dissensus.outputs import Predictions, combine
from dissensus.runs import DataSummary, describe
from dissensus.tools.files import check_types
from dissensus.tools.records import read_record

_ACCURACY = {"accuracy": float, "low": float, "high": float}
_OOD: dict[str, Any] = {
    "detection": [{"method": str, "set": str, "score": str, "auroc": float, "fpr95": float}],
    "id": {str: str},
}
_ATTACK: dict[str, Any] = {
    "evaluated_on": str,
    "examples": int,
    "clean_accuracy": _ACCURACY,
    "worst_case": _ACCURACY,
    "attacks": [{"attack": str, "accuracy": float, "interval": [float]}],
}

#: The 97.5% quantile of the normal distribution.
_Z = 1.959963984540054


@dataclass(frozen=True)
class RunResults:
    """Metrics of a run by split, and records of ``diagnose``, ``ood`` and ``attack``.

    ``metrics`` are those of ``record.json``, as :class:`Estimate` where saved predictions give an
    interval. What was not measured is empty. ``notes`` say what was left out and why.
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
    path = Path(run)
    description = describe(path)
    record = read_record(path / "record.json") if (path / "record.json").is_file() else {}
    notes: list[str] = []
    metrics: dict[str, Mapping[str, Any]] = {}
    best_epoch = description.best_epoch
    if description.test:
        metrics["test"] = _with_intervals(path, "test", description.test, best_epoch)
        if isinstance(record.get("val"), dict):
            metrics["val"] = _with_intervals(path, "val", record["val"], best_epoch)
    elif description.val:
        metrics["val"] = description.val
    return RunResults(
        training={
            "epochs": description.epochs,
            "best_epoch": best_epoch,
            "seconds": record.get("seconds"),
            "environment": _environment(record),
        },
        metrics=metrics,
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
        notes.append(
            f"{file.parent.name}/{file.name} is older than the run's weights and is left out; "
            "make it anew to have it in the card"
        )
        return {}
    return newer


def _environment(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says about versions; empty if it is not of the form that it should have."""
    try:
        check_types(record, {"environment": {"packages": {str: str}}}, "record")
    except ValueError:
        return {}
    return dict(record["environment"])


def _time_written(record: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(record["environment"]["written"])
    except (KeyError, TypeError, ValueError):
        return None


# ---- intervals ----------------------------------------------------------------------------------


def _with_intervals(
    run: Path, part: str, metrics: Mapping[str, Any], best_epoch: int
) -> dict[str, Any]:
    """``metrics`` with 95% intervals over examples, where the predictions behind them are there."""
    file = run / "predictions" / f"{part}.safetensors"
    values = dict(metrics)
    if not file.is_file():
        return values
    predictions = Predictions.load(file)
    current = predictions.meta.get("best_epoch") == best_epoch
    if not current or predictions.targets is None or len(predictions) != metrics.get("examples"):
        return values
    how = str(predictions.meta.get("combine", "probability"))
    outputs, targets = predictions.outputs.double(), predictions.targets
    for key, per_example in _per_example(outputs, targets, how).items():
        estimate = _mean(per_example)
        if key in values and abs(estimate.value - values[key]) < 1e-6:
            values[key] = estimate
    if how == "mean" and "rmse" in values:
        values["rmse"] = _rmse(outputs, targets.double(), values["rmse"], DataSummary.read(run))
    elif "accuracy" in values:
        correct = combine(outputs, how).argmax(-1) == targets
        accuracy = proportion(int(correct.sum()), len(predictions))
        if abs(accuracy.value - values["accuracy"]) < 1e-6:
            values["accuracy"] = accuracy
    return values


def _per_example(outputs: Tensor, targets: Tensor, how: str) -> dict[str, Tensor]:
    """For metrics that are means over examples, the value of each example."""
    if how == "mean":
        terms, more = errors(outputs, targets.double(), "mse", how), {}
    else:
        terms = errors(outputs, targets, "cross_entropy", how)
        more = {"nll": terms.ensemble, "brier": errors(outputs, targets, "brier", how).ensemble}
    error, member_error = terms.ensemble, terms.member.mean(0)
    parts = {"ensemble_error": error, "member_error": member_error}
    return {**parts, "diversity": member_error - error, **more}


def _mean(values: Tensor) -> Estimate:
    mean, half = float(values.mean()), _Z * float(values.std()) / len(values) ** 0.5
    return Estimate(mean, low=mean - half, high=mean + half)


def _rmse(outputs: Tensor, targets: Tensor, rmse: float, summary: DataSummary | None) -> float:
    """The root of the mean squared error's interval."""
    prediction = combine(outputs, "mean")
    if summary is not None:
        prediction, targets = summary.original(prediction), summary.original(targets)
    squared = _mean((prediction - targets).square().mean(-1))
    if abs(squared.value**0.5 - rmse) > 1e-6 * max(1.0, rmse):
        return rmse
    return Estimate(rmse, low=max(0.0, squared.low) ** 0.5, high=squared.high**0.5)
