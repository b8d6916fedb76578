"""Temperature scaling: temperatures that correct an ensemble's probabilities."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from dissensus.calibration.probabilities import check_inputs
from dissensus.losses import errors
from dissensus.outputs import to_logits
from dissensus.tools.guards import check_finite, check_row_weights, check_shape, guarded

_Loss = Callable[[Sequence[float]], tuple[float, list[float]]]


class TemperatureAtBound(UserWarning):
    """No finite temperature is best on these data; the bound was returned."""


@guarded
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
    if temperature.ndim:
        check_shape(temperature, name="temperature", members=logits.shape[0])
    check_finite(temperature, name="temperature")
    if bool((temperature <= 0).any()):
        raise ValueError(f"temperature must be positive, got {float(temperature.min()):.4g}")
    return (logits / temperature.reshape(-1, 1, 1)).to(logits.dtype)


@guarded
def fit_temperature(
    logits: Tensor,
    targets: Tensor,
    combine: str = "probability",
    per_member: bool = False,
    weights: Tensor | None = None,
    *,
    example_weights: Tensor | None = None,
    shrinkage: float = 0.0,
    bounds: tuple[float, float] = (1e-2, 1e6),
    space: str = "logits",
) -> Tensor:
    """The temperature that minimises the *ensemble's* NLL on validation data, in float64.

    A scalar shared by all members, or with ``per_member`` one each, ``[members]``, fitted together.
    Members are scaled before they are combined: calibrated members still make an underconfident
    mixture where they disagree, which this corrects and scaling each on its own does not.

    The search is over log T, in float64, within ``bounds``: for one T a grid and then Brent's
    method between its best points (the NLL of a mixture can have several minima), for several
    L-BFGS from the shared solution. The NLL found is never above that of T = 1, nor the one for
    several T above the shared one. Where the NLL keeps falling up to a bound (validation data that
    are separated perfectly, a single example, members worse than chance) the bound is returned with
    a :class:`TemperatureAtBound` warning; where T makes no difference, 1.

    ``example_weights`` ``[batch]`` count an example as often as they say. ``shrinkage`` λ draws T
    towards 1 where examples are few: it adds ``λ (log T)² / batch`` to the mean NLL, as a prior on
    log T of standard deviation ``1 / √(2λ)`` does; with several T, to the shared one they start at.

    >>> logits = torch.tensor([[[0.0, 8.0]] * 4])        # certain of class 1, right 3 times of 4
    >>> T = fit_temperature(logits, torch.tensor([1, 1, 1, 0]))
    >>> torch.sigmoid(8.0 / T).round(decimals=4)
    tensor(0.7500, dtype=torch.float64)
    """
    logits = check_inputs(logits, targets, combine, weights, space)
    _check_bounds(bounds)
    shares = _shares(example_weights, logits)
    loss = partial(_scaled_nll, logits.detach(), targets, combine, weights, shares=shares)

    def shrunk(log_t: Sequence[float]) -> tuple[float, list[float]]:
        return loss(log_t)[0] + shrinkage * log_t[0] ** 2 / logits.shape[1], []

    best, value = _best_shared(shrunk if shrinkage else loss, bounds)
    if per_member:
        with_slope = partial(loss, gradient=True)
        best = _best_joint(with_slope, bounds, best, value, logits.shape[0])
    temperatures = _warn_at_bounds(best, bounds, logits.device)
    return temperatures if per_member else temperatures[0]


def _scaled_nll(
    logits: Tensor,
    targets: Tensor,
    combine: str,
    weights: Tensor | None,
    log_temperature: Sequence[float],
    gradient: bool = False,
    shares: Tensor | None = None,
) -> tuple[float, list[float]]:
    """The ensemble's NLL at ``[1]`` or ``[members]`` log-temperatures, and its slope if wanted.

    Summed in float64 over parts of the batch, so that a large tensor is never copied whole.
    """
    log_t = torch.tensor(log_temperature, dtype=torch.float64, device=logits.device)
    log_t.requires_grad_(gradient)
    members, batch, classes = logits.shape
    rows = max(1, 2**21 // (members * classes))
    total, slope = 0.0, torch.zeros_like(log_t, requires_grad=False)
    if shares is None:
        shares = torch.full((batch,), 1 / batch, dtype=torch.float64, device=logits.device)
    parts = logits.split(rows, 1), targets.split(rows), shares.split(rows)
    for part, labels, share in zip(*parts, strict=True):
        scaled = part.double() * (-log_t).exp().reshape(-1, 1, 1)
        loss = errors(scaled, labels, "cross_entropy", combine, weights).ensemble @ share
        if gradient:
            slope += torch.autograd.grad(loss, log_t)[0]
        total += float(loss.detach())
    return total, slope.tolist()


def _shares(example_weights: Tensor | None, logits: Tensor) -> Tensor | None:
    """Example weights as shares that sum to 1."""
    if example_weights is None:
        return None
    check_row_weights(example_weights, logits.shape[1], name="example_weights")
    return example_weights.to(logits.device).double() / example_weights.double().sum()


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
                stacklevel=5,
            )
    return temperatures
