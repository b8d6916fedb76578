"""Calibration: measures of an ensemble's probabilities, and temperatures that correct them.

:func:`nll` and :func:`brier_score` are functions of the members' logits; :func:`reliability` and
:func:`ece` of the combined probabilities ``[batch, classes]``, as ``dissensus.combine`` gives them;
:func:`calibration` is all of them at once. :func:`fit_temperature` and
:func:`fit_member_temperatures` find temperatures, :func:`apply_temperature` applies them. Members'
probabilities in place of logits are refused unless ``space="probs"`` says that they are such.

Fit a temperature on **validation** data, which did not train the members, and report calibration
on **test** data, which did neither: an ECE on the data a temperature was fitted on is too good.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dissensus.losses import check_loss, check_loss_inputs, errors, zero_one
from dissensus.outputs import (
    check_finite,
    check_targets,
    check_weights,
    combined_log_probs,
    to_logits,
)
from dissensus.tabular import Tabular

__all__ = [
    "BINNINGS",
    "Calibration",
    "Reliability",
    "TemperatureAtBound",
    "apply_temperature",
    "brier_score",
    "calibration",
    "ece",
    "fit_member_temperatures",
    "fit_temperature",
    "nll",
    "reliability",
]


def nll(
    logits: Tensor,
    targets: Tensor,
    combine: str = "probability",
    weights: Tensor | None = None,
    space: str = "logits",
) -> Tensor:
    """The ensemble's mean negative log-likelihood ``−mean_n log p̄(y_n | x_n)``, a scalar.

    ``logits`` is ``[members, batch, classes]``; ``targets`` are labels ``[batch]`` or
    probabilities ``[batch, classes]``. Computed in log space: finite at logits of ±1e4.

    >>> nll(torch.zeros(3, 4, 10), torch.arange(4)).exp()
    tensor(10.)
    """
    logits = _check_inputs(logits, targets, combine, weights, space)
    return errors(logits, targets, "cross_entropy", combine, weights).ensemble.mean()


def brier_score(
    logits: Tensor,
    targets: Tensor,
    combine: str = "probability",
    weights: Tensor | None = None,
    space: str = "logits",
) -> Tensor:
    """The ensemble's mean Brier score ``mean_n ‖p̄(x_n) − y_n‖²``, a scalar in [0, 2].

    It sums over classes (Brier's own form), so for two classes it is twice the square of the error
    in one of them.

    >>> brier_score(torch.zeros(3, 4, 2), torch.zeros(4, dtype=torch.long))
    tensor(0.5000)
    """
    logits = _check_inputs(logits, targets, combine, weights, space)
    return errors(logits, targets, "brier", combine, weights).ensemble.mean()


@dataclass(frozen=True, repr=False)
class Reliability(Tabular):
    """Confidence and accuracy by bin: what a reliability diagram shows.

    Bin k holds the examples with a confidence in ``(edges[k], edges[k + 1]]``; ``count``,
    ``confidence`` and ``accuracy`` are ``[bins]``, the last two means that are NaN for empty bins.
    All but the counts are float64, whatever the probabilities were.
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def ece(self) -> Tensor:
        """``Σ_k (count_k / batch) |accuracy_k − confidence_k|``."""
        gaps = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return (gaps * self.count).sum() / self.count.sum()

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each bin."""
        columns = {"above": self.edges[:-1], "up_to": self.edges[1:], "count": self.count}
        columns |= {"confidence": self.confidence, "accuracy": self.accuracy}
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]

    def headline(self) -> str:
        """ECE, and over how many bins and examples."""
        return f"ECE {self.ece:.4f}, {len(self.count)} bins, {int(self.count.sum())} examples"


def reliability(
    probs: Tensor, targets: Tensor, bins: int = 15, scheme: str = "width"
) -> Reliability:
    """Group examples by confidence (the largest probability) and compare it with accuracy.

    ``probs`` is ``[batch, classes]``. ``scheme="width"``: bins ``((k−1)/bins, k/bins]``, the edges
    rounded to the type of ``probs``, so that a confidence of 0.2 in float32 lies on the edge 3/15.
    ``scheme="mass"``: the same half-open bins with edges at the order statistics number
    ``⌈k·batch/bins⌉`` of the confidences. Equal confidences then always share a bin, whatever the
    order of the examples; ties can leave bins empty, and without ties counts differ by at most 1.

    >>> table = reliability(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), bins=2)
    >>> table.count, table.accuracy
    (tensor([0, 2]), tensor([   nan, 0.5000], dtype=torch.float64))
    """
    _check_probs(probs)
    check_targets(targets, *probs.shape)
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be a whole number above 0, got {bins!r}")
    if scheme not in BINNINGS:
        known = " or ".join(repr(name) for name in BINNINGS)
        raise ValueError(f"scheme must be {known}, got {scheme!r}")
    confidence = probs.amax(-1).double()
    correct = 1 - zero_one(probs.argmax(-1), targets).double()
    inner = BINNINGS[scheme](confidence, bins, probs.dtype)
    index = torch.bucketize(confidence, inner)
    count = torch.bincount(index, minlength=bins)
    sums = inner.new_zeros(2, bins).index_add(1, index, torch.stack([confidence, correct]))
    edges = torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)])
    return Reliability(edges, count, *(sums / count))


def ece(probs: Tensor, targets: Tensor, bins: int = 15, scheme: str = "width") -> Tensor:
    """Expected calibration error of the predicted class: the mean gap over bins, a scalar.

    ``Σ_k (n_k / n) |accuracy_k − confidence_k|`` with the bins of :func:`reliability`. Its value
    depends on the bins and is biased upwards on little data: compare only like with like.

    >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    >>> ece(probs, torch.tensor([0, 1, 0, 1]))      # ½·|½ − 0.9| + ½·|1 − 0.6|
    tensor(0.4000, dtype=torch.float64)
    """
    return reliability(probs, targets, bins, scheme).ece


@dataclass(frozen=True, repr=False)
class Calibration(Tabular):
    """What :func:`calibration` measured: five numbers, and the tables behind the two ECEs."""

    accuracy: float
    nll: float
    brier: float
    ece_width: float
    ece_mass: float
    width: Reliability
    mass: Reliability

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each measure."""
        names = ("accuracy", "nll", "brier", "ece_width", "ece_mass")
        return [{"measure": name, "value": getattr(self, name)} for name in names]

    def headline(self) -> str:
        """The :meth:`summary`."""
        return self.summary()

    def summary(self) -> str:
        """One line to read."""
        return (
            f"accuracy {self.accuracy:.4f}, NLL {self.nll:.4f}, Brier {self.brier:.4f}, "
            f"ECE {self.ece_width:.4f} (equal width) and {self.ece_mass:.4f} (equal mass)"
        )


def calibration(
    logits: Tensor,
    targets: Tensor,
    combine: str = "probability",
    weights: Tensor | None = None,
    bins: int = 15,
    space: str = "logits",
) -> Calibration:
    """Accuracy, NLL, Brier score and both ECEs of the ensemble, with their reliability tables.

    >>> print(calibration(torch.zeros(2, 4, 2), torch.tensor([0, 0, 0, 1])).summary())
    accuracy 0.7500, NLL 0.6931, Brier 0.5000, ECE 0.2500 (equal width) and 0.2500 (equal mass)
    """
    logits = _check_inputs(logits, targets, combine, weights, space)
    logits = logits.detach()
    probs = combined_log_probs(logits, combine, weights).exp()
    width, mass = (reliability(probs, targets, bins, scheme) for scheme in ("width", "mass"))
    return Calibration(
        accuracy=float(1 - zero_one(probs.argmax(-1), targets).double().mean()),
        nll=float(nll(logits, targets, combine, weights)),
        brier=float(brier_score(logits, targets, combine, weights)),
        ece_width=float(width.ece),
        ece_mass=float(mass.ece),
        width=width,
        mass=mass,
    )


def _equal_width(confidence: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
    edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    return edges.to(dtype).double()


def _equal_mass(confidence: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
    ranks = [-(-k * len(confidence) // bins) for k in range(1, bins)]
    return confidence.sort().values[[rank - 1 for rank in ranks]]


#: How :func:`reliability` may choose its inner edges, ``[bins − 1]``, from the confidences.
BINNINGS: dict[str, Callable[[Tensor, int, torch.dtype], Tensor]] = {
    "width": _equal_width,
    "mass": _equal_mass,
}


def _check_inputs(
    logits: Tensor, targets: Tensor, combine: str, weights: Tensor | None, space: str
) -> Tensor:
    """The logits of outputs in ``space``; raises unless they, targets and weights fit together."""
    check_loss("cross_entropy", combine)
    logits = to_logits(logits, space)
    check_loss_inputs(logits, targets, "cross_entropy")
    check_weights(weights, logits.shape[0])
    return logits


def _check_probs(probs: Tensor) -> None:
    if not isinstance(probs, Tensor) or probs.ndim != 2 or 0 in probs.shape:
        got = tuple(probs.shape) if isinstance(probs, Tensor) else type(probs).__name__
        raise ValueError(
            f"probs must be the ensemble's probabilities [batch, classes], got {got}; from "
            "members' logits they are dissensus.combine(logits)"
        )
    check_finite(probs, name="probs")
    sums = probs.double().sum(-1)
    if bool((probs < 0).any()) or float((sums - 1).abs().max()) > 1e-2:
        raise ValueError(
            "probs must be probabilities: not negative, summing to 1 for each example; got a "
            f"smallest of {float(probs.min()):.4g} and sums from {float(sums.min()):.4g} to "
            f"{float(sums.max()):.4g}; from members' logits they are dissensus.combine(logits)"
        )


# ---- temperatures -------------------------------------------------------------------------------

_Loss = Callable[[Sequence[float]], tuple[float, list[float]]]


class TemperatureAtBound(UserWarning):
    """No finite temperature is best on these data; the bound was returned."""


def apply_temperature(logits: Tensor, temperature: Tensor | float, space: str = "logits") -> Tensor:
    """``logits_j / T_j``: one temperature for all members, or one each ``[members]``.

    Each member's own prediction stays what it was. So does the ensemble's for one shared T and
    score averaging; otherwise the combination, and with it the accuracy, may change.

    >>> apply_temperature(torch.tensor([[[2.0, 4.0]], [[3.0, 6.0]]]), torch.tensor([2.0, 3.0]))
    tensor([[[1., 2.]],
            [[1., 2.]]])
    """
    logits = to_logits(logits, space)
    kind = torch.promote_types(logits.dtype, torch.float32)  # a half cannot hold every temperature
    temperature = torch.as_tensor(temperature, dtype=kind, device=logits.device)
    if tuple(temperature.shape) not in ((), (logits.shape[0],)):
        raise ValueError(
            f"temperature must be a scalar or [members] = ({logits.shape[0]},), got "
            f"{tuple(temperature.shape)}"
        )
    check_finite(temperature, name="temperature")
    if bool((temperature <= 0).any()):
        raise ValueError(f"temperature must be positive, got {float(temperature.min()):.4g}")
    return (logits / temperature.reshape(-1, 1, 1)).to(logits.dtype)


def fit_temperature(
    logits: Tensor,
    targets: Tensor,
    combine: str = "probability",
    per_member: bool = False,
    weights: Tensor | None = None,
    *,
    bounds: tuple[float, float] = (1e-2, 1e6),
    space: str = "logits",
) -> Tensor:
    """The temperature that minimises the *ensemble's* NLL on validation data, in float64.

    A scalar shared by all members, or with ``per_member`` one each, ``[members]``, fitted together.
    Members are scaled before they are combined: calibrated members still make an underconfident
    mixture where they disagree, which this corrects and scaling each on its own
    (:func:`fit_member_temperatures`) does not.

    The search is over log T, in float64, within ``bounds``: for one T a grid and then Brent's
    method between its best points (the NLL of a mixture can have several minima), for several
    L-BFGS from the shared solution. The NLL found is never above that of T = 1, nor the one for
    several T above the shared one. Where the NLL keeps falling up to a bound (validation data that
    are separated perfectly, a single example, members worse than chance) the bound is returned with
    a :class:`TemperatureAtBound` warning; where T makes no difference, 1.

    >>> logits = torch.tensor([[[0.0, 8.0]] * 4])        # certain of class 1, right 3 times of 4
    >>> T = fit_temperature(logits, torch.tensor([1, 1, 1, 0]))
    >>> torch.sigmoid(8.0 / T).round(decimals=4)
    tensor(0.7500, dtype=torch.float64)
    """
    logits = _check_inputs(logits, targets, combine, weights, space)
    _check_bounds(bounds)
    loss = partial(_scaled_nll, logits.detach(), targets, combine, weights)
    best, value = _best_shared(loss, bounds)
    if per_member:
        with_slope = partial(loss, gradient=True)
        best = _best_joint(with_slope, bounds, best, value, logits.shape[0])
    temperatures = _warn_at_bounds(best, bounds, logits.device)
    return temperatures if per_member else temperatures[0]


def fit_member_temperatures(
    logits: Tensor,
    targets: Tensor,
    *,
    bounds: tuple[float, float] = (1e-2, 1e6),
    space: str = "logits",
) -> Tensor:
    """Temperatures ``[members]`` in float64, each minimising that member's *own* NLL.

    What one wants before members are used apart, and what temperature scaling of single models
    gives; for the ensemble's own probabilities see :func:`fit_temperature`.

    >>> logits = torch.tensor([[[0.0, 8.0]] * 4, [[0.0, 4.0]] * 4])
    >>> T = fit_member_temperatures(logits, torch.tensor([1, 1, 1, 0]))
    >>> (T[0] / T[1]).round(decimals=4)
    tensor(2., dtype=torch.float64)
    """
    logits = _check_inputs(logits, targets, "probability", None, space)
    _check_bounds(bounds)
    best = [
        _best_shared(partial(_scaled_nll, member[None], targets, "probability", None), bounds)[0][0]
        for member in logits.detach()
    ]
    return _warn_at_bounds(best, bounds, logits.device)


def _scaled_nll(
    logits: Tensor,
    targets: Tensor,
    combine: str,
    weights: Tensor | None,
    log_temperature: Sequence[float],
    gradient: bool = False,
) -> tuple[float, list[float]]:
    """The ensemble's NLL at ``[1]`` or ``[members]`` log-temperatures, and its slope if wanted.

    Summed in float64 over parts of the batch, so that a large tensor is never copied whole.
    """
    log_t = torch.tensor(log_temperature, dtype=torch.float64, device=logits.device)
    log_t.requires_grad_(gradient)
    members, batch, classes = logits.shape
    rows = max(1, 2**21 // (members * classes))
    total, slope = 0.0, torch.zeros_like(log_t, requires_grad=False)
    for part, labels in zip(logits.split(rows, 1), targets.split(rows), strict=True):
        scaled = part.double() * (-log_t).exp().reshape(-1, 1, 1)
        loss = errors(scaled, labels, "cross_entropy", combine, weights).ensemble.sum() / batch
        if gradient:
            slope += torch.autograd.grad(loss, log_t)[0]
        total += float(loss.detach())
    return total, slope.tolist()


def _best_shared(loss: _Loss, bounds: tuple[float, float]) -> tuple[list[float], float]:
    """The best single temperature, as ``[1]``, and its NLL."""
    from scipy.optimize import minimize_scalar

    low, high = math.log(bounds[0]), math.log(bounds[1])
    steps = math.ceil(high - low)  # neighbouring temperatures differ by less than a factor e
    grid = sorted({low, 0.0, high, *(low + (high - low) * k / steps for k in range(1, steps))})
    values = [loss([log_t])[0] for log_t in grid]
    if max(values) - min(values) <= 1e-12 * (1 + abs(min(values))):
        return [1.0], values[grid.index(0.0)]
    best = values.index(min(values))
    bracket = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    fine = minimize_scalar(
        lambda log_t: loss([float(log_t)])[0],
        bounds=bracket,
        method="bounded",
        options={"xatol": 1e-7},
    )
    if float(fine.fun) < values[best]:
        return [math.exp(float(fine.x))], float(fine.fun)
    return [math.exp(grid[best])], values[best]


def _best_joint(
    loss: _Loss, bounds: tuple[float, float], shared: list[float], value: float, members: int
) -> list[float]:
    """The best temperatures ``[members]`` that L-BFGS finds from the shared one."""
    from scipy.optimize import minimize

    fine = minimize(
        loss,
        [math.log(shared[0])] * members,
        jac=True,
        method="L-BFGS-B",
        bounds=[(math.log(bounds[0]), math.log(bounds[1]))] * members,
        options={"ftol": 1e-14, "gtol": 1e-9, "maxiter": 500},
    )
    if not float(fine.fun) < value:
        return shared * members
    return [math.exp(log_t) for log_t in fine.x]


def _check_bounds(bounds: tuple[float, float]) -> None:
    low, high = bounds
    if not 0 < low <= 1 <= high < math.inf or low == high:
        raise ValueError(f"bounds must be 0 < low ≤ 1 ≤ high < ∞ and apart, got {bounds!r}")


def _warn_at_bounds(best: list[float], bounds: tuple[float, float], device: torch.device) -> Tensor:
    """The temperatures as a tensor, with a warning (to the caller's caller) of those at a bound."""
    temperatures = torch.tensor(best, dtype=torch.float64, device=device)
    for bound, way in zip(bounds, ("sharper", "flatter"), strict=True):
        at_bound = (temperatures / bound - 1).abs() < 1e-9  # exp(log(bound)) need not be the bound
        temperatures = torch.where(at_bound, bound, temperatures)
        if bool(at_bound.any()):
            warnings.warn(
                f"{int(at_bound.sum())} of {len(best)} temperatures ran into their bound "
                f"(T = {bound:g}: {way} was always better); fit on more validation data, or set "
                "narrower bounds",
                TemperatureAtBound,
                stacklevel=3,
            )
    return temperatures
