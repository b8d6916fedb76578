"""Metrics of an ensemble's predictions: their values, and the tables that show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dissensus.runs.data_summary import DataSummary

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from dissensus.decomposition import Decomposition
    from dissensus.outputs import Predictions

__all__ = ["Metrics", "compute_metrics", "members_table", "metrics_table"]

Metrics = Mapping[str, Any]


# ---- values -------------------------------------------------------------------------------------


def compute_metrics(
    predictions: Predictions,
    combine: str,
    weights: Tensor | None = None,
    summary: DataSummary | None = None,
) -> dict[str, Any]:
    """Accuracy, calibration and diversity of ``predictions``, which must have targets.

    The names are those of an epoch's record in ``metrics.jsonl``. ``combine`` and ``weights`` are
    the ensemble's; ``summary`` know the units of a regression's targets.

    >>> import torch
    >>> from dissensus.outputs import Predictions
    >>> predictions = Predictions(torch.zeros(3, 4, 2), torch.tensor([0, 0, 0, 1]))
    >>> metrics = compute_metrics(predictions, "probability")
    >>> metrics["accuracy"], round(metrics["nll"], 4), metrics["diversity"]
    (0.75, 0.6931, 0.0)
    """
    from dissensus.calibration import calibration
    from dissensus.decomposition import decompose

    if predictions.targets is None:
        raise ValueError("metrics need targets, got predictions without any")
    outputs = predictions.outputs.double()
    if combine == "mean":
        return _regression_metrics(outputs, predictions.targets.double(), weights, summary)
    labels = predictions.targets
    zero_one = decompose(outputs, labels, "zero_one", combine, weights)
    quality = calibration(outputs, labels, combine, weights)
    return {
        "examples": len(predictions),
        "accuracy": quality.accuracy,
        "nll": quality.nll,
        "brier": quality.brier,
        "ece_width": quality.ece_width,
        "ece_mass": quality.ece_mass,
        **_errors(decompose(outputs, labels, "cross_entropy", combine, weights)),
        "per_member_accuracy": [1 - error for error in zero_one.per_member.tolist()],
        "zero_one": _errors(zero_one),
    }


def _regression_metrics(
    outputs: Tensor, targets: Tensor, weights: Tensor | None, summary: DataSummary | None
) -> dict[str, Any]:
    from dissensus.decomposition import decompose
    from dissensus.outputs import combine

    errors = _errors(decompose(outputs, targets, "mse", "mean", weights))
    prediction = combine(outputs, "mean", weights)
    if summary is not None:
        prediction, targets = summary.original(prediction), summary.original(targets)
    rmse = (prediction - targets).square().mean().sqrt()
    return {"examples": outputs.shape[1], "rmse": float(rmse), **errors}


def _errors(terms: Decomposition) -> dict[str, Any]:
    return {
        "ensemble_error": float(terms.ensemble_error),
        "member_error": float(terms.member_error),
        "diversity": float(terms.diversity),
        "per_member_error": terms.per_member.tolist(),
    }


# ---- tables -------------------------------------------------------------------------------------

#: Rows of the table: key, name, and the format of the number.
_ROWS = {
    "accuracy": ("accuracy", "{:.2%}"),
    "per_member_accuracy": ("members", "{:.2%}"),
    "rmse": ("RMSE (units of the target)", "{:.4g}"),
    "ensemble_error": ("ERR", "{:.4f}"),
    "member_error": ("mean ERR", "{:.4f}"),
    "diversity": ("DIV = mean ERR − ERR", "{:.4f}"),
    "nll": ("NLL", "{:.4f}"),
    "brier": ("Brier", "{:.4f}"),
    "ece_width": ("ECE, bins of equal width", "{:.4f}"),
    "ece_mass": ("ECE, bins of equal mass", "{:.4f}"),
}

#: Rows of the decomposition of the 0-1 loss.
_ZERO_ONE_ROWS = {"ensemble_error": "ERR", "member_error": "mean ERR", "diversity": "DIV"}

#: Rows that a short table leaves out.
_DETAILS = frozenset({"brier", "ece_mass"})


def metrics_table(columns: Mapping[str, Metrics], *, short: bool = False) -> Table:
    """Metrics of one or more splits side by side; ``short`` leaves out the less usual ones."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    every = list(columns.values())
    for key, (name, form) in _ROWS.items():
        if any(key in metrics for metrics in every) and not (short and key in _DETAILS):
            table.add_row(name, *(_format(metrics.get(key), form) for metrics in every))
    if not short and any("zero_one" in metrics for metrics in every):
        for key, name in _ZERO_ONE_ROWS.items():
            values = (metrics.get("zero_one", {}).get(key) for metrics in every)
            table.add_row(f"{name}, 0-1 loss", *(_format(value, "{:.4f}") for value in values))
    return table


def members_table(metrics: Metrics) -> Table:
    """For each member one line: its accuracy, where it has one, and its error."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    accuracies = metrics.get("per_member_accuracy")
    table.add_column("member", justify="right")
    if accuracies is not None:
        table.add_column("accuracy", justify="right")
    table.add_column("ERR", justify="right")
    for number, error in enumerate(metrics["per_member_error"]):
        accuracy = [] if accuracies is None else [f"{accuracies[number]:.2%}"]
        table.add_row(str(number), *accuracy, f"{error:.4f}")
    return table


def _format(value: Any, form: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        low, high = form.format(min(value)), form.format(max(value))
        return low if low == high else f"{low} to {high}"
    return form.format(value)
