"""Random ensembles, and the paper's definitions as slow loops."""

import math
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from dissensus.losses import LOSSES

Array = NDArray[np.float64]


PAIRS = [(loss, way) for loss, entry in LOSSES.items() for way in entry.combinations]


LOGITS, LABELS = torch.zeros(2, 4, 3), torch.tensor([0, 1, 2, 0])


NAN_LOGITS = torch.zeros(2, 4, 3).index_fill(0, torch.tensor([1]), float("nan"))


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Case(NamedTuple):
    """An ensemble's outputs and targets; classification and regression read the same outputs."""

    outputs: Array  # [members, batch, outputs]
    labels: NDArray[np.int64]  # [batch]
    soft: Array  # [batch, outputs], probabilities
    values: Array  # [batch, outputs], regression targets
    weights: Array | None

    def targets(self, loss: str, soft: bool) -> Tensor:
        if loss == "mse":
            return torch.from_numpy(self.values)
        return torch.from_numpy(self.soft if soft else self.labels)

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None]:
        weights = None if self.weights is None else torch.from_numpy(self.weights)
        return torch.from_numpy(self.outputs), weights


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    members, batch = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    classes, scale = draw(st.integers(2, 5)), draw(st.sampled_from([1.0, 0.01, 10.0, 30.0]))
    weights = None
    if draw(st.booleans()):
        weights = rng.dirichlet(np.ones(members))
        if members > 2 and draw(st.booleans()):
            weights[0] = 0.0  # a member that does not count
            weights /= weights.sum()
    return Case(
        rng.normal(0, scale, (members, batch, classes)),
        rng.integers(0, classes, batch),
        rng.dirichlet(np.ones(classes), batch),
        rng.normal(0, scale, (batch, classes)),
        weights,
    )


def make_case(seed: int = 0, members: int = 3, batch: int = 4, classes: int = 3) -> Case:
    rng = np.random.default_rng(seed)
    return Case(
        rng.normal(0, 2, (members, batch, classes)),
        rng.integers(0, classes, batch),
        rng.dirichlet(np.ones(classes), batch),
        rng.normal(0, 2, (batch, classes)),
        rng.dirichlet(np.ones(members)),
    )


def slow_softmax(scores: Array) -> Array:
    shifted = [math.exp(score - max(scores)) for score in scores]
    return np.array([value / sum(shifted) for value in shifted])


def slow_loss(loss: str, prediction: Array, target: Array) -> float:
    """L(prediction, target) of one example, from outputs, probabilities, or a one-hot label."""
    total = 0.0
    for value, wanted in zip(prediction, target, strict=True):
        if loss == "cross_entropy":
            total -= wanted * math.log(value) if wanted else 0.0
        elif loss == "zero_one":
            total += wanted * (1 - value)
        else:
            total += (value - wanted) ** 2
    return total


def slow_combination(rows: Array, way: str, weights: Array) -> Array:
    """The ensemble's prediction for one example, from the members' rows of outputs."""
    if way == "vote":
        votes = np.zeros(rows.shape[1])
        for row, weight in zip(rows, weights, strict=True):
            votes[int(row.argmax())] += weight
        return votes
    if way == "probability":
        rows = np.array([slow_softmax(row) for row in rows])
    mean = np.zeros(rows.shape[1])
    for row, weight in zip(rows, weights, strict=True):
        mean += weight * row
    return slow_softmax(mean) if way == "score" else mean


def slow_errors(case: Case, loss: str, way: str, targets: Array) -> tuple[Array, Array, Array]:
    """Definition 4.1 with loops: per-member losses, ERR and mean ERR of every example."""
    members, batch, width = case.outputs.shape
    weights = np.full(members, 1 / members) if case.weights is None else case.weights
    per_member, ensemble, mean = np.zeros((members, batch)), np.zeros(batch), np.zeros(batch)
    for n in range(batch):
        target = targets[n] if targets.ndim == 2 else np.eye(width)[targets[n]]
        combined = slow_combination(case.outputs[:, n], way, weights)
        if loss == "zero_one":
            combined = np.eye(width)[int(combined.argmax())]
        ensemble[n] = slow_loss(loss, combined, target)
        for j in range(members):
            row = case.outputs[j, n]
            if loss == "zero_one":
                row = np.eye(width)[int(row.argmax())]
            elif loss != "mse":
                row = slow_softmax(row)
            per_member[j, n] = slow_loss(loss, row, target)
            mean[n] += weights[j] * per_member[j, n]
    return per_member, ensemble, mean


def softmax_loss(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(-1)).sum(-1)
