"""Greedy forward selection of members on held-out rows, also while candidates train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.losses import cross_entropy, mse

#: Epochs between two choices, and how many must pass over a candidate in a row to end it.
EVERY, MISSED = 5, 2


def greedy_selection(
    outputs: Tensor, targets: Tensor, weights: Tensor, count: int, combine: str
) -> list[int]:
    """Forward selection (Caruana et al. 2004), without replacement: ``count`` different candidates.

    Each is the one that makes the error of the combination least, the first of equal ones::

        c_k = argmin_{c ∉ {c_1 … c_{k−1}}} Σ_i w_i ℓ(mean of c_1 … c_{k−1}, c at row i, y_i)

    ``outputs`` ``[candidates, rows, outputs]`` are predictions (``combine="mean"``, ℓ the squared
    error), or logits whose softmax (``"probability"``) or which themselves (``"score"``) are
    averaged, ℓ the cross-entropy. ``targets`` are ``[rows, outputs]`` or labels ``[rows]``.

    >>> outputs = torch.tensor([[[0.5]], [[0.8]], [[-1.0]]])
    >>> greedy_selection(outputs, torch.zeros(1, 1), torch.ones(1), 2, "mean")  # 0.5 and −1
    [0, 2]
    """
    if not 1 <= count <= len(outputs):
        raise ValueError(f"count must be from 1 to {len(outputs)} candidates, got {count}")
    values, loss = _values_and_loss(outputs.double(), targets, combine)
    total, left = torch.zeros_like(values[0]), list(range(len(values)))
    chosen: list[int] = []
    for number in range(1, count + 1):
        errors = loss((total + values[left]) / number) @ weights.double()
        chosen.append(left.pop(int(errors.argmin())))
        total = total + values[chosen[-1]]
    return chosen


def _values_and_loss(
    outputs: Tensor, targets: Tensor, combine: str
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """What is averaged, ``[candidates, rows, …]``, and its loss, ``[candidates, rows]``."""
    if combine == "mean":
        return outputs, lambda predictions: mse(predictions, targets)
    if combine == "score":
        return outputs, lambda scores: cross_entropy(log_softmax(scores, -1), targets)
    # The cross-entropy of averaged probabilities needs those of the true classes alone.
    known = (-cross_entropy(log_softmax(outputs, -1), targets)).exp()
    return known, lambda probs: -probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


class GreedyChoice:
    """The choice of ``members`` candidates on held-out rows, also while they train."""

    def __init__(self, val: tuple[Tensor, ...], members: int, combine: str) -> None:
        self.members, self.combine = members, combine
        self.targets = val[1].double() if combine == "mean" else val[1]
        self.weights = (val[2] if len(val) > 2 else torch.ones(len(val[1]))).double()
        self.epoch = 0
        self.best: dict[int, Tensor] = {}  # predictions of each one's best epoch
        self.missed: Counter[int] = Counter()  # choices in a row that passed it over

    def among(self, outputs: Tensor) -> list[int]:
        """The chosen ones of ``[candidates, rows, outputs]``."""
        return greedy_selection(outputs, self.targets, self.weights, self.members, self.combine)

    def end(self, outputs: dict[int, Tensor]) -> list[int]:
        """Candidates to end: passed over twice in a row, and worse than every chosen one."""
        self.best |= {number: own[0].to("cpu", copy=True) for number, own in outputs.items()}
        self.epoch += 1
        if self.epoch % EVERY or len(self.best) <= self.members:
            return []
        numbers = sorted(self.best)
        every = torch.stack([self.best[number] for number in numbers]).double()
        chosen = self.among(every)
        values, loss = _values_and_loss(every, self.targets, self.combine)
        errors = loss(values) @ self.weights
        for place, number in enumerate(numbers):
            self.missed[number] = 0 if place in chosen else self.missed[number] + 1
        worse = (errors > errors[chosen].max()).tolist()
        return [
            n for n, bad in zip(numbers, worse, strict=True) if bad and self.missed[n] >= MISSED
        ]
