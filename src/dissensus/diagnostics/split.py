"""Splits to diagnose: checked outputs and targets in double precision, with their loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dissensus.decomposition import Decomposition, decompose
from dissensus.losses import LossLike, check_loss
from dissensus.outputs import (
    COMBINATIONS,
    Predictions,
    check_outputs,
    check_regression_targets,
    check_targets,
    check_tensor,
    check_weights,
    combine,
    looks_like_probs,
    to_logits,
)
from dissensus.tools.guards import check_finite

__all__ = ["PredictionsLike", "Split", "looks_like_probs", "plain", "ratio"]

PredictionsLike = Predictions | tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Split:
    """Member outputs and targets of one split of the data, ready to be diagnosed.

    Build it with :meth:`of`, which checks everything. Members of weight 0 are left out, as nothing
    depends on them; the other weights stay. ``loss`` and ``combine`` are settled.
    """

    outputs: Tensor
    targets: Tensor
    loss: LossLike
    combine: str
    weights: Tensor | None = None
    names: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        predictions: PredictionsLike,
        *,
        loss: LossLike | None = None,
        combine: str | None = None,
        weights: Tensor | None = None,
        space: str | None = None,
    ) -> Split:
        """Check ``predictions``; where no ``loss`` is given, the targets say what is meant.

        Integer targets are labels (cross-entropy), floating ones a regression (mse), unless the
        predictions say that they are combined as probabilities or scores, or are such: then soft
        labels. ``space`` says what the outputs are; None means what ``predictions`` say.
        """
        outputs, targets, meta = _unpack(predictions)
        check_outputs(outputs, finite=False)
        check_weights(weights, outputs.shape[0])
        stored, space = meta.get("combine"), space or meta.get("space") or "logits"
        combine = combine or (stored if stored in COMBINATIONS else None)
        loss = loss or _natural_loss(targets, combine, space)
        combine = check_loss(loss, combine)
        if combine != "mean":
            outputs = to_logits(outputs, space)
        elif space != "logits":
            raise ValueError(f"space={space!r} (--probs) is for classes, and this is a regression")
        check_finite(outputs, name="outputs")
        targets = _convert_targets(outputs, targets, loss, combine)
        count = len(outputs)
        members = torch.arange(count) if weights is None else torch.nonzero(weights).squeeze(1)
        outputs = outputs.detach().double()[members.to(outputs.device)]
        if weights is not None:
            weights = weights.detach().to(outputs)[members.to(weights.device)]
        return cls(outputs, targets, loss, combine, weights, tuple(members.tolist()))

    @property
    def members(self) -> int:
        return self.outputs.shape[0]

    @property
    def examples(self) -> int:
        return self.outputs.shape[1]

    @property
    def regression(self) -> bool:
        """Whether outputs are numbers to be averaged, not classes."""
        return self.combine == "mean"

    @property
    def shares(self) -> Tensor:
        """The weights, equal ones too, ``[members]``."""
        if self.weights is not None:
            return self.weights
        return self.outputs.new_full((self.members,), 1 / self.members)

    def decompose(self) -> Decomposition:
        """ERR, mean ERR and DIV of this split."""
        return decompose(self.outputs, self.targets, self.loss, self.combine, self.weights)

    def labels(self) -> Tensor:
        """The true class of each example; of a soft label the most probable one."""
        return self.targets.argmax(-1) if self.targets.is_floating_point() else self.targets

    def residuals(self) -> tuple[Tensor, Tensor]:
        """``f_j − y`` of the members and of the ensemble; for classes ``p_j − y``, y one-hot."""
        way = "probability" if self.combine == "vote" else self.combine
        prediction = combine(self.outputs, way, self.weights)
        if self.regression:
            return self.outputs - self.targets, prediction - self.targets
        soft = self.targets.is_floating_point()
        truth = self.targets if soft else one_hot(self.targets.long(), self.outputs.shape[2])
        return self.outputs.softmax(-1) - truth, prediction - truth


def ratio(part: float, whole: float) -> float:
    """``part / whole``; 0 where both are 0, infinite where only ``whole`` is.

    >>> ratio(1.0, 4.0), ratio(0.0, 0.0), ratio(1.0, 0.0)
    (0.25, 0.0, inf)
    """
    if whole != 0:
        return part / whole
    return 0.0 if part == 0 else math.copysign(math.inf, part)


def plain(value: Any) -> Any:
    """``value`` for JSON: tensors as lists, dataclasses as dicts, None for NaN and infinities."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return value


def _unpack(predictions: PredictionsLike) -> tuple[Tensor, Tensor, Mapping[str, Any]]:
    meta: Mapping[str, Any] = {}
    if isinstance(predictions, Predictions):
        outputs, targets, meta = predictions.outputs, predictions.targets, predictions.meta
    elif isinstance(predictions, tuple) and len(predictions) == 2:
        outputs, targets = predictions
    else:
        raise ValueError(
            "predictions must be ds.Predictions or a pair (outputs, targets), got "
            f"{type(predictions).__name__}"
        )
    if targets is None:
        raise ValueError("a diagnosis needs the targets, got None")
    check_tensor(targets)
    return outputs, targets, meta


def _natural_loss(targets: Tensor, combine: str | None, space: str) -> str:
    if combine is not None:
        return "mse" if combine == "mean" else "zero_one" if combine == "vote" else "cross_entropy"
    return "mse" if targets.is_floating_point() and space == "logits" else "cross_entropy"


def _convert_targets(outputs: Tensor, targets: Tensor, loss: LossLike, combine: str) -> Tensor:
    """Targets in double precision and of the right shape, or an error that says what to do."""
    if combine == "mean":
        targets = targets.detach().double()
        if targets.ndim == 1 and outputs.shape[2] == 1:
            targets = targets[:, None]
        if targets.ndim == 1:
            raise ValueError("class labels must be integers; pass targets.long()")
        check_regression_targets(targets, outputs)
        return targets
    if targets.is_floating_point() and targets.ndim == 1:
        got = targets.dtype
        raise ValueError(f"class labels must be integers, got {got}; for a regression loss='mse'")
    if outputs.shape[2] == 1:
        raise ValueError(
            f"outputs {tuple(outputs.shape)} have one value an example; for a regression pass "
            "loss='mse' (--regression), for a single logit z torch.cat([zeros_like(z), z], -1)"
        )
    check_targets(targets, outputs.shape[1], outputs.shape[2])
    return targets.detach().double() if targets.is_floating_point() else targets.detach()
