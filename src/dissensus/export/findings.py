"""What was measured of a run, as its files say; nothing is measured anew but intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from dissensus.detection import Estimate, proportion
from dissensus.losses import errors
from dissensus.outputs import Predictions, combine
from dissensus.records import read_record
from dissensus.runs import Facts, describe

__all__ = ["Findings", "found_in"]

#: The 97.5% quantile of the normal distribution.
_Z = 1.959963984540054


@dataclass(frozen=True)
class Findings:
    """Figures of a run by split, and records of ``diagnose``, ``ood`` and ``attack``.

    ``figures`` are those of ``record.json``, as :class:`Estimate` where saved predictions give an
    interval. What was not measured is empty. ``notes`` say what was left out and why.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    diagnosis: Mapping[str, Any] = field(default_factory=dict)
    ood: Mapping[str, Any] = field(default_factory=dict)
    attacks: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def found_in(run: str | Path, *, diagnosis: Mapping[str, Any] | None = None) -> Findings:
    """What the files in ``run`` say: figures, ``ood/ood.json``, ``robustness/record.json``.

    A record of ``ood`` or ``attack`` that is older than the run's own is of other weights, and is
    left out.
    """
    path = Path(run)
    told = describe(path)
    record = read_record(path / "record.json") if (path / "record.json").is_file() else {}
    notes: list[str] = []
    figures: dict[str, Mapping[str, Any]] = {}
    if told.test:
        figures["test"] = _with_intervals(path, "test", told.test, told.best_epoch)
        if isinstance(record.get("val"), dict):
            figures["val"] = _with_intervals(path, "val", record["val"], told.best_epoch)
    elif told.val:
        figures["val"] = told.val
    return Findings(
        training={
            "epochs": told.epochs,
            "best_epoch": told.best_epoch,
            "ended": told.ended or "not yet",
            "seconds": record.get("seconds"),
            "environment": record.get("environment", {}),
        },
        figures=figures,
        diagnosis=dict(diagnosis or {}),
        ood=_later(path / "ood" / "ood.json", record, notes),
        attacks=_later(path / "robustness" / "record.json", record, notes),
        notes=tuple(notes),
    )


def _later(file: Path, record: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """A record that was written after the run's own."""
    if not file.is_file():
        return {}
    found = read_record(file)
    times = [_written(found), _written(record)]
    if times[0] is None or times[1] is None or times[0] < times[1]:
        notes.append(
            f"{file.parent.name}/{file.name} is older than the run's weights and is left out; "
            "make it anew to have it in the card"
        )
        return {}
    return found


def _written(record: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(record["environment"]["written"])
    except (KeyError, TypeError, ValueError):
        return None


# ---- intervals ----------------------------------------------------------------------------------


def _with_intervals(
    run: Path, part: str, figures: Mapping[str, Any], best_epoch: int
) -> dict[str, Any]:
    """``figures`` with 95% intervals over examples, where the predictions behind them are there."""
    file = run / "predictions" / f"{part}.safetensors"
    found = dict(figures)
    if not file.is_file():
        return found
    predictions = Predictions.load(file)
    current = predictions.meta.get("best_epoch") == best_epoch
    if not current or predictions.targets is None or len(predictions) != figures.get("examples"):
        return found
    how = str(predictions.meta.get("combine", "probability"))
    outputs, targets = predictions.outputs.double(), predictions.targets
    for key, values in _per_example(outputs, targets, how).items():
        if key in found and abs(float(values.mean()) - found[key]) < 1e-6:
            found[key] = _mean(values)
    if how == "mean" and "rmse" in found:
        found["rmse"] = _rmse(outputs, targets.double(), found["rmse"], Facts.read(run))
    elif "accuracy" in found:
        right = combine(outputs, how).argmax(-1) == targets
        counted = proportion(int(right.sum()), len(predictions))
        if abs(counted.value - found["accuracy"]) < 1e-6:
            found["accuracy"] = counted
    return found


def _per_example(outputs: Tensor, targets: Tensor, how: str) -> dict[str, Tensor]:
    """One value an example of figures that are means over them."""
    if how == "mean":
        found = errors(outputs, targets.double(), "mse", how)
        brier = {}
    else:
        found = errors(outputs, targets, "cross_entropy", how)
        brier = {"nll": found.ensemble, "brier": errors(outputs, targets, "brier", how).ensemble}
    each = found.member.mean(0)
    return {
        "ensemble_error": found.ensemble,
        "member_error": each,
        "diversity": each - found.ensemble,
        **brier,
    }


def _mean(values: Tensor) -> Estimate:
    mean, half = float(values.mean()), _Z * float(values.std()) / len(values) ** 0.5
    return Estimate(mean, low=mean - half, high=mean + half)


def _rmse(outputs: Tensor, targets: Tensor, told: float, facts: Facts | None) -> float:
    """The root of the mean squared error's interval."""
    prediction = combine(outputs, "mean")
    if facts is not None:
        prediction, targets = facts.original(prediction), facts.original(targets)
    squared = _mean((prediction - targets).square().mean(-1))
    if abs(squared.value**0.5 - told) > 1e-6 * max(1.0, told):
        return told
    low = max(0.0, squared.low) ** 0.5
    return Estimate(told, low=low, high=squared.high**0.5)
