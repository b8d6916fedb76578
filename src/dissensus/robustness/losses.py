"""Goals of attacks, and losses that rise as an attack gets closer to its goal.

All losses are functions of log-probabilities ``[…, batch, classes]`` and are invariant to adding
a constant to a row, so that logits serve as well. A class is left out of a maximum with −∞, never
by multiplying with 0: log-probabilities are at most 0, and a 0 would win every maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Goal:
    """Away from ``labels`` ``[batch]``, or towards ``targets`` ``[batch]`` if there are any."""

    labels: Tensor
    targets: Tensor | None = None

    @property
    def sign(self) -> float:
        """1 to climb the loss of :attr:`classes`, −1 to descend it."""
        return 1.0 if self.targets is None else -1.0

    @property
    def classes(self) -> Tensor:
        """The class that the attack is about: the label to leave, or the target to reach."""
        return self.labels if self.targets is None else self.targets

    def reached(self, log_probs: Tensor) -> Tensor:
        """Whether the prediction is what the attack wants, bool ``[batch]``."""
        predicted = log_probs.argmax(-1)
        return predicted != self.labels if self.targets is None else predicted == self.targets

    def take(self, index: Tensor) -> Goal:
        """The goal of some examples."""
        targets = None if self.targets is None else self.targets[index]
        return Goal(self.labels[index], targets)


def _at(log_probs: Tensor, classes: Tensor) -> Tensor:
    index = classes.expand(log_probs.shape[:-1])[..., None]
    return log_probs.gather(-1, index).squeeze(-1)


def _without(log_probs: Tensor, classes: Tensor) -> Tensor:
    index = classes.expand(log_probs.shape[:-1])[..., None]
    return log_probs.scatter(-1, index, -math.inf)


def rival(log_probs: Tensor, goal: Goal) -> Tensor:
    """The best class but the goal's own, ``[…, batch]``."""
    return _without(log_probs, goal.classes).argmax(-1)


def ce(log_probs: Tensor, goal: Goal) -> Tensor:
    """Cross-entropy: ``−log p_y``, or ``log p_t`` with a target."""
    return -goal.sign * _at(log_probs, goal.classes)


def margin(log_probs: Tensor, goal: Goal) -> Tensor:
    """``max_{k≠y} log p_k − log p_y``, or ``log p_t − max_{k≠t} log p_k`` (Carlini and Wagner).

    It is positive where the goal is reached, and does not saturate as cross-entropy does.

    >>> log_probs = torch.tensor([[0.7, 0.2, 0.1]]).log()
    >>> margin(log_probs, Goal(torch.tensor([0]))).exp()            # 0.2 / 0.7
    tensor([0.2857])
    """
    return goal.sign * (_without(log_probs, goal.classes).amax(-1) - _at(log_probs, goal.classes))


def dlr(log_probs: Tensor, goal: Goal) -> Tensor:
    """Difference of logits ratio, invariant to the scale of logits (Croce and Hein 2020, Eq. 6).

    ``−(z_y − max_{k≠y} z_k) / (z_π1 − z_π3)``, π the order of the scores; with a target
    ``−(z_y − z_t) / (z_π1 − (z_π3 + z_π4) / 2)`` (their Eq. 7).
    """
    needed = 3 if goal.targets is None else 4
    if log_probs.shape[-1] < needed:
        raise ValueError(f"loss=dlr needs {needed} classes, got {log_probs.shape[-1]}; use margin")
    top = log_probs.topk(needed, -1).values
    tiny = torch.finfo(log_probs.dtype).tiny
    if goal.targets is None:
        return margin(log_probs, goal) / (top[..., 0] - top[..., 2]).clamp_min(tiny)
    gap = _at(log_probs, goal.targets) - _at(log_probs, goal.labels)
    return gap / (top[..., 0] - (top[..., 2] + top[..., 3]) / 2).clamp_min(tiny)


#: Losses by name; an attack climbs them.
LOSSES: dict[str, Callable[[Tensor, Goal], Tensor]] = {"ce": ce, "margin": margin, "dlr": dlr}
