"""Held-out rows: predictions for rows that members never saw, and estimates made from them.

Where each member holds out a fold of its own, every row of the training table has k members that
did not learn it. They give an honest error, diversity and verdict on collusion, residuals for
intervals and a temperature for probabilities, without another split.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dissensus.calibration import TemperatureAtBound, fit_temperature
from dissensus.decomposition import decomposition_terms
from dissensus.diagnostics import Split, judge
from dissensus.outputs import combined_log_probs
from dissensus.sklearn.uncertainty import ErrorModel
from dissensus.sweeps.selection import overall_verdict

#: Draws the temperature of few rows towards 1: as a prior on log T of standard deviation ½ does.
_SHRINKAGE = 2.0
#: Between which temperatures to search: those of networks that have learnt anything.
_BOUNDS = (0.05, 20.0)


@dataclass(frozen=True, eq=False, repr=False)
class HeldOut:
    """Predictions for the training rows by members that did not learn them.

    ``outputs`` ``[k, rows, outputs]``
        Of row i's own k members: logits, or in regression predictions in the units of the target.
    ``targets`` ``[rows]`` or ``[rows, outputs]``, ``weights`` ``[rows]``
        Labels or numbers, and how much each row counts.
    ``members`` ``[k, rows]``
        Which members of the ensemble these are.
    ``total``
        The number of members of the whole ensemble, M.
    ``noise`` ``[k, rows, outputs]``
        Of Gaussian members, the variances that they predict.
    """

    outputs: Tensor
    targets: Tensor
    weights: Tensor
    members: Tensor
    total: int
    noise: Tensor | None = None
    _temperatures: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)

    @classmethod
    def of_all(
        cls,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> HeldOut:
        """Rows that all members have held out; without ``weights`` they count alike."""
        total, rows, _ = outputs.shape
        members = torch.arange(total)[:, None].expand(-1, rows)
        if weights is None:
            weights = torch.ones(rows, dtype=torch.float64)
        return cls(outputs, targets, weights, members, total, noise)

    def __post_init__(self) -> None:
        if self.regression and self.targets.ndim == 1:
            object.__setattr__(self, "targets", self.targets[:, None])

    def __repr__(self) -> str:
        own, rows, _ = self.outputs.shape
        return f"<HeldOut: {rows} rows, each by {own} of {self.total} members>"

    def __len__(self) -> int:
        return self.outputs.shape[1]

    @property
    def regression(self) -> bool:
        """Whether targets are numbers, not labels."""
        return self.targets.is_floating_point()

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean over rows, the first axis of ``values``."""
        shares = (self.weights / self.weights.sum()).to(values)
        return (values.transpose(0, -1) * shares).sum(-1)

    # ---- regression -----------------------------------------------------------------------------

    @cached_property
    def prediction(self) -> Tensor:
        """The mean of each row's own members, ``[rows, outputs]``."""
        return self.outputs.mean(0)

    @cached_property
    def residuals(self) -> Tensor:
        """``y − f̄_k``, ``[rows, outputs]``, made as small as those of all members: `shrink`."""
        return (self.targets - self.prediction) * self.shrink

    @property
    def variance(self) -> Tensor | None:
        """The unbiased variance between each row's own members, ``[rows, outputs]``."""
        return self.outputs.var(0) if len(self.outputs) > 1 else None

    @cached_property
    def errors(self) -> tuple[Tensor, Tensor]:
        """The squared errors of an average of k members and of all M, ``[outputs]`` each.

        With V the unbiased variance between members, ``E_m = E_1 − V (1 − 1/m)`` is the mean
        squared error of an average of m of them: the ambiguity decomposition ERR = mean ERR − DIV
        (Krogh and Vedelsby, 1995), whose DIV for m members drawn at random has the expectation
        V (1 − 1/m). Therefore
        ``E_M = E_k − V (1/k − 1/M)``, never below 0. One member (k = 1) does not tell V, and E_M
        is then taken to be E_1, which is too large.
        """
        error = self.mean((self.targets - self.prediction).square())
        if self.variance is None:
            return error, error
        gain = self.mean(self.variance) * (1 / len(self.outputs) - 1 / self.total)
        return error, (error - gain).clamp(min=0.0)

    @property
    def shrink(self) -> Tensor:
        """``√(E_M / E_k)``, from residuals of k members to those of all, ``[outputs]``."""
        own, whole = self.errors
        return (whole / torch.where(own > 0, own, 1.0)).sqrt()

    @cached_property
    def error_models(self) -> list[ErrorModel]:
        """For each target, how large errors are where."""
        noise = None if self.noise is None else self.noise.mean(0)
        return [
            ErrorModel(
                self.residuals[:, place],
                self.weights,
                self.prediction[:, place],
                None if self.variance is None else self.variance[:, place],
                None if noise is None else noise[:, place],
                len(self.outputs),
            )
            for place in range(self.outputs.shape[2])
        ]

    @property
    def effective_rows(self) -> float:
        """Kish's effective number of rows, ``(Σ w)² / Σ w²``."""
        return float(self.weights.sum().square() / self.weights.square().sum())

    # ---- both -----------------------------------------------------------------------------------

    def decompose(self, combine: str) -> tuple[float, float, float]:
        """ERR, mean ERR and DIV of the row's own k members; of all M in regression.

        Squared errors are summed over targets, as everywhere. For classes the loss is the
        cross-entropy of calibrated members, and an average of more than k has a smaller ERR.
        """
        if self.regression:
            member = float(self.mean((self.outputs - self.targets).square().sum(-1).mean(0)))
            whole = float(self.errors[1].sum())
            return whole, member, member - whole
        scaled = self.outputs / self._fitted_temperatures(combine)[0]
        terms = decomposition_terms(scaled, self.targets, "cross_entropy", combine)
        error, member = float(self.mean(terms.ensemble_error)), float(self.mean(terms.member_error))
        return error, member, member - error

    def verdict(self, combine: str) -> str:
        """Whether members collude, judged fold by fold: ``"not judged"`` where k is 1."""
        if len(self.outputs) < 2:
            return "not judged"
        loss = "mse" if self.regression else "cross_entropy"
        words = []
        for rows in self._folds():
            outputs, targets = self.outputs[:, rows], self.targets[rows]
            words.append(judge(Split.of((outputs, targets), loss=loss, combine=combine)).word)
        return overall_verdict(words)

    def _folds(self) -> Iterator[Tensor]:
        """The rows that the same members have held out."""
        _, fold = torch.unique(self.members, dim=1, return_inverse=True)
        for number in range(int(fold.max()) + 1):
            yield torch.nonzero(fold == number).squeeze(1)

    # ---- classification -------------------------------------------------------------------------

    def temperature(self, combine: str) -> float:
        """The best temperature for the whole ensemble; see :func:`held_out_temperature`."""
        return self._fitted_temperatures(combine)[1]

    def log_probs(self, combine: str) -> Tensor:
        """Calibrated, by each row's own members, ``[rows, classes]``."""
        return combined_log_probs(self.outputs / self._fitted_temperatures(combine)[0], combine)

    def _fitted_temperatures(self, combine: str) -> tuple[float, float]:
        if combine not in self._temperatures:
            self._temperatures[combine] = held_out_temperature(self, combine)
        return self._temperatures[combine]


def held_out_temperature(held_out: HeldOut, combine: str) -> tuple[float, float]:
    """The best temperatures for the k held-out members of a row, and for all M members.

    A mixture is less sure than its members, the more so the more there are (Rahaman and Thiery,
    2021): a temperature that suits k members leaves the mixture of M underconfident. As the error
    does, log T is taken to be linear in 1/m. The line goes through T_1, best for the members by
    themselves, and T_k; this extrapolation is ours, and is tested on simulated members::

        log T_M = log T_k + (log T_k − log T_1) (1/k − 1/M) / (1 − 1/k)

    With k = 1 there is one point, and T_M = T_1.
    """
    logits, labels, weights = held_out.outputs, held_out.targets, held_out.weights
    own, rows, classes = logits.shape

    def best(logits: Tensor, copies: int) -> float:
        known: Any = {"example_weights": weights.repeat(copies), "shrinkage": _SHRINKAGE * copies}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperatureAtBound)
            found = fit_temperature(logits, labels.repeat(copies), combine, bounds=_BOUNDS, **known)
        return float(found.log())

    log_t_k = best(logits, 1)
    if own == 1:
        return math.exp(log_t_k), math.exp(log_t_k)
    log_t_1 = best(logits.reshape(1, own * rows, classes), own)
    log_t_m = log_t_k + (log_t_k - log_t_1) * (1 / own - 1 / held_out.total) / (1 - 1 / own)
    return math.exp(log_t_k), math.exp(log_t_m)
