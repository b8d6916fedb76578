"""Evaluation of an estimator: error, calibration and held-out measures in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sklearn.metrics import r2_score
from torch import Tensor

from dissensus.calibration import (
    apply_temperature,
    calibration,
    crps_quantiles,
    gaussian_nll,
    interval_coverage,
)
from dissensus.sklearn import uncertainty
from dissensus.sklearn.held_out import HeldOut
from dissensus.tools.tabular import Tabular

#: The levels at which CRPS is measured, each for a fortieth of all.
_LEVELS = [(2 * place + 1) / 80 for place in range(40)]


@dataclass(frozen=True, repr=False)
class Evaluation(Tabular):
    """Measures on the data that were given, and those on held-out rows of the training data.

    ``measures`` of numbers are ``rmse``, ``r2``, and, where rows were held out, ``crps``, ``nll``
    (of a normal law around the prediction), ``coverage`` and ``width`` of 90% intervals; of classes
    ``error``, ``nll``, ``brier`` and ``ece``. ``held_out`` has the out-of-fold ``rmse`` or
    ``error``, how many ``rows`` it is of, ``ensemble_error``, ``member_error`` and ``diversity``
    (:meth:`.HeldOut.decompose`), and the ``verdict`` on collusion; it is empty where nothing was
    held out.
    """

    rows: int
    measures: dict[str, float]
    held_out: dict[str, Any]

    def __getitem__(self, measure: str) -> float:
        return self.measures[measure]

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each measure."""
        parts = {"given": self.measures, "held out": self.held_out}
        return [
            {"data": part, "measure": name, "value": value}
            for part, values in parts.items()
            for name, value in values.items()
        ]

    def headline(self) -> str:
        """The measures on the given data."""
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.measures.items())
        return f"{values} on {self.rows} rows"


def evaluate_numbers(
    held_out: HeldOut | None, outputs: Tensor, targets: Tensor, noise: Tensor | None = None
) -> Evaluation:
    """Of a regression: outputs ``[members, rows, outputs]``, targets ``[rows, outputs]``."""
    prediction = outputs.mean(0)
    squares = (prediction - targets).square()
    measures = {"rmse": float(squares.mean().sqrt())}
    if len(targets) > 1:
        measures["r2"] = float(r2_score(targets.numpy(), prediction.numpy()))
    if held_out is not None:
        predicted = uncertainty.quantiles(held_out, outputs, _LEVELS, noise)
        crps = [
            crps_quantiles(predicted[..., place], _LEVELS, targets[:, place]).mean()
            for place in range(targets.shape[1])
        ]
        std = uncertainty.total_std(held_out, outputs, noise).clamp(min=1e-12)
        measures["crps"] = float(torch.stack(crps).mean())
        measures["nll"] = float(gaussian_nll(prediction, 2 * std.log(), targets).mean())
        if held_out.effective_rows >= 19:  # the least that intervals of 90% need
            found = uncertainty.intervals(held_out, outputs, 0.9, noise)
            measures["coverage"] = float(interval_coverage(found, targets))
            measures["width"] = float((found[:, 1] - found[:, 0]).mean())
    return Evaluation(len(targets), measures, _held_out_measures(held_out, "mean"))


def evaluate_classes(
    held_out: HeldOut | None, logits: Tensor, labels: Tensor, combine: str, temperature: float
) -> Evaluation:
    """Of a classification: logits ``[members, rows, classes]``, labels ``[rows]``."""
    found = calibration(apply_temperature(logits, temperature), labels, combine)
    measures = {"error": 1 - found.accuracy, "nll": found.nll, "brier": found.brier}
    measures["ece"] = found.ece_width
    return Evaluation(len(labels), measures, _held_out_measures(held_out, combine))


def _held_out_measures(held_out: HeldOut | None, combine: str) -> dict[str, Any]:
    if held_out is None:
        return {}
    found: dict[str, Any] = {"rows": len(held_out)}
    if held_out.regression:
        found["rmse"] = float(held_out.errors[1].mean().sqrt())
    else:
        wrong = held_out.log_probs(combine).argmax(1) != held_out.targets
        found["error"] = float(held_out.mean(wrong.double()))
    names = ("ensemble_error", "member_error", "diversity")
    found |= dict(zip(names, held_out.decompose(combine), strict=True))
    return {**found, "verdict": held_out.verdict(combine)}
