"""Pairs of members: disagreement, correlation of errors, the Q statistic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dissensus.diagnostics.split import Split

__all__ = ["Pairwise", "pairwise", "q_statistic"]


@dataclass(frozen=True, eq=False)
class Pairwise:
    """Matrices ``[members, members]``, NaN where a cell is undefined; see :func:`pairwise`."""

    disagreement: Tensor
    error_correlation: Tensor
    q_statistic: Tensor | None
    unique_predictions: float
    undefined: int

    @property
    def sentence(self) -> str:
        """The finding in plain words."""
        members = len(self.disagreement)
        if members == 1:
            return "With one member there are no pairs."
        off = ~torch.eye(members, dtype=torch.bool)
        parts = [
            f"On average two members disagree by {_mean(self.disagreement[off]):.3g}",
            f"their errors correlate by {_mean(self.error_correlation[off]):.2f}",
        ]
        if self.q_statistic is not None:
            parts.append(f"Q is {_mean(self.q_statistic[off]):.2f}")
        unique = f"an example gets {self.unique_predictions:.2f} different predictions"
        text = f"{', '.join(parts)}; {unique}."
        if self.undefined:
            text += (
                f" {self.undefined} of {members * (members - 1) // 2} pairs have an undefined "
                "correlation or Q (a member that is never or always wrong) and are left out."
            )
        return text


def pairwise(split: Split) -> Pairwise:
    """Every pair of members compared; each member counts the same, whatever its weight.

    - ``disagreement``: for classes the share of examples with different predictions, for a
      regression the mean squared distance of the outputs;
    - ``error_correlation``: Pearson's correlation of being wrong (0 or 1), for a regression of the
      errors f − y, all outputs together; undefined where a member's errors do not vary;
    - ``q_statistic`` (Yule's Q): :func:`q_statistic`, for classes only;
    - ``unique_predictions``: the mean number of different predictions an example gets.

    >>> logits = torch.eye(2)[torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])]   # predicted classes
    >>> pairs = pairwise(Split.of((logits, torch.tensor([0, 0, 0, 1]))))
    >>> float(pairs.disagreement[0, 1]), pairs.unique_predictions
    (0.25, 1.25)
    """
    if split.regression:
        flat = split.outputs.flatten(1)
        distance = torch.stack([(flat - row).square().sum(1) for row in flat]) / split.examples
        correlation = _correlation(split.residuals()[0].flatten(1))
        q = None
        unique = _distinct(split.outputs)
    else:
        labels = split.outputs.argmax(-1)
        distance = torch.stack([(labels != row).double().mean(1) for row in labels])
        wrong = labels != split.labels()
        correlation, q = _correlation(wrong.double()), q_statistic(wrong)
        unique = _distinct(labels[..., None])
    cells = correlation.isnan() if q is None else correlation.isnan() | q.isnan()
    undefined = int(cells.triu(1).sum())
    return Pairwise(distance, correlation, q, unique, undefined)


def q_statistic(wrong: Tensor) -> Tensor:
    """Yule's Q of every pair, ``[members, members]``, from who is wrong, ``[members, batch]``.

    ``(n₁₁ n₀₀ − n₀₁ n₁₀) / (n₁₁ n₀₀ + n₀₁ n₁₀)`` with n₁₀ the number of examples that the first
    member gets right and the second wrong. 1: wrong together; 0: unrelated; −1: never together.
    NaN where both products are 0, as when a member is never wrong.

    >>> q_statistic(torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]).bool())[0, 1]     # 1·2 − 1·0
    tensor(1., dtype=torch.float64)
    """
    no, yes = wrong.double(), (~wrong).double()
    same = (yes @ yes.T) * (no @ no.T)
    cross = (yes @ no.T) * (no @ yes.T)
    return (same - cross) / (same + cross)


def _correlation(values: Tensor) -> Tensor:
    """Pearson's correlation of the rows; NaN where a row is constant, to rounding."""
    centred = values - values.mean(1, keepdim=True)
    length = centred.square().sum(1).sqrt()
    scale = values.abs().amax(1) * math.sqrt(values.shape[1]) * 1e-14
    length = torch.where(length > scale, length, math.nan)
    return (centred @ centred.T / (length[:, None] * length)).clamp(-1, 1)


def _distinct(values: Tensor) -> float:
    """The mean number of different rows among the members, over ``[members, batch, outputs]``."""
    new = torch.ones(values.shape[:2], dtype=torch.double, device=values.device)
    for number in range(1, len(values)):
        seen = (values[:number] == values[number]).all(-1).any(0)
        new[number] = (~seen).double()
    return float(new.sum(0).mean())


def _mean(values: Tensor) -> float:
    """The mean of the defined cells."""
    return float(values[~values.isnan()].mean()) if not bool(values.isnan().all()) else math.nan
