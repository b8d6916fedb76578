"""The numbers that commands show and records keep: pure functions of saved outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dissensus.calibration import calibration
from dissensus.decomposition import Decomposition, decompose
from dissensus.outputs import Predictions, combine
from dissensus.runs import Facts

__all__ = ["figures"]


def figures(
    predictions: Predictions,
    how: str,
    weights: Tensor | None = None,
    facts: Facts | None = None,
) -> dict[str, Any]:
    """Everything that is known about ``predictions``, which must have targets, as plain values.

    The names are those of an epoch's record in ``metrics.jsonl``. ``how`` is the ensemble's
    ``combine``; ``facts`` give a regression's units.

    >>> import torch
    >>> predictions = Predictions(torch.zeros(3, 4, 2), torch.tensor([0, 0, 0, 1]))
    >>> found = figures(predictions, "probability")
    >>> found["accuracy"], round(found["nll"], 4), found["diversity"]
    (0.75, 0.6931, 0.0)
    """
    if predictions.targets is None:
        raise ValueError("figures need targets, got predictions without any")
    outputs = predictions.outputs.double()
    if how == "mean":
        return _regression(outputs, predictions.targets.double(), weights, facts)
    labels = predictions.targets
    hits = decompose(outputs, labels, "zero_one", how, weights)
    found = calibration(outputs, labels, how, weights)
    return {
        "examples": len(predictions),
        "accuracy": found.accuracy,
        "nll": found.nll,
        "brier": found.brier,
        "ece_width": found.ece_width,
        "ece_mass": found.ece_mass,
        **_terms(decompose(outputs, labels, "cross_entropy", how, weights)),
        "per_member_accuracy": [1 - error for error in hits.per_member.tolist()],
        "zero_one": _terms(hits),
    }


def _regression(
    outputs: Tensor, targets: Tensor, weights: Tensor | None, facts: Facts | None
) -> dict[str, Any]:
    found = decompose(outputs, targets, "mse", "mean", weights)
    prediction = combine(outputs, "mean", weights)
    if facts is not None:
        prediction, targets = facts.original(prediction), facts.original(targets)
    rmse = (prediction - targets).square().mean().sqrt()
    return {"examples": outputs.shape[1], "rmse": float(rmse), **_terms(found)}


def _terms(found: Decomposition) -> dict[str, Any]:
    return {
        "ensemble_error": float(found.ensemble_error),
        "member_error": float(found.member_error),
        "diversity": float(found.diversity),
        "per_member_error": found.per_member.tolist(),
    }
