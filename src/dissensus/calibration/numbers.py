"""Predicted numbers: conformal quantiles, distributions of residuals, coverage, CRPS, NLL.

Rows may have weights. They count relative to each other: doubling all of them changes nothing, and
a row of weight 0 is as good as absent. Rows of unlike weights say less than their number, and
Kish's effective size ``(Σ w)² / Σ w²`` takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dissensus.losses import gaussian_nll
from dissensus.tools.guards import check_finite, check_row_weights, check_shape, guarded
from dissensus.tools.specs import check_number

__all__ = [
    "conformal_quantile",
    "crps_quantiles",
    "gaussian_nll",
    "interval_coverage",
    "sample_quantiles",
]


@guarded
def conformal_quantile(scores: Tensor, coverage: float, weights: Tensor | None = None) -> Tensor:
    """The bound that a new row's score keeps with a probability of at least ``coverage``.

    The ``⌈(n + 1) · coverage⌉``-th smallest of the n ``scores`` ``[rows]`` (Vovk et al., 2005).
    With ``weights``, the smallest score s with ``Σ_{s_i ≤ s} w_i ≥ coverage · (Σ_i w_i + w)``
    (Tibshirani et al., 2019), where the new row weighs ``w = Σ w_i² / Σ w_i``, what a row drawn by
    these weights does on average. It needs n ≥ coverage / (1 − coverage) rows, and raises below.

    >>> scores = torch.arange(1.0, 20.0)                             # 1 to 19
    >>> float(conformal_quantile(scores, 0.9)), float(conformal_quantile(scores, 0.95))
    (18.0, 19.0)
    """
    check_number("coverage", coverage, above=0, below=1)
    scores, weights = _ordered(scores, weights, "scores")
    total, new = weights.sum(), weights.square().sum() / weights.sum()
    needed = coverage * (total + new) * (1 - 1e-12)  # (n + 1) · 0.9 must not round upwards
    if float(total) < float(needed):
        rows = math.ceil(coverage / (1 - coverage) * (1 - 1e-12))
        got = f"{float(total / new):.4g}"
        raise ValueError(f"a coverage of {coverage:g} needs {rows} held-out rows, got {got}")
    return scores[torch.searchsorted(weights.cumsum(0), needed).clamp(max=len(scores) - 1)]


@guarded
def sample_quantiles(
    values: Tensor, levels: Tensor | Sequence[float], weights: Tensor | None = None
) -> Tensor:
    """Quantiles ``[levels]`` of the distribution that ``values`` ``[rows]`` were drawn from.

    The i-th smallest of n values stands at the level ``i / (n + 1)``, its expectation; with weights
    at ``(w_1 + … + w_i − w_i / 2 + w / 2) / (Σ w + w)``, w as in :func:`conformal_quantile`.
    Between them quantiles are linear. Beyond the outermost value they follow an exponential tail:
    ``x_n + s · log((1 − p_n) / (1 − p))``, with s the mean excess of the largest tenth of the
    values (one at least) over the next smaller one. So they are finite at every level between 0
    and 1.

    >>> sample_quantiles(torch.tensor([3.0, 1.0, 2.0]), [0.25, 0.5, 0.625]).tolist()
    [1.0, 2.0, 2.5]
    """
    levels = torch.as_tensor(levels, dtype=torch.float64).reshape(-1)
    if not bool(((levels > 0) & (levels < 1)).all()):
        raise ValueError(f"quantiles must lie between 0 and 1, got {levels.tolist()}")
    values, weights = _ordered(values, weights, "values")
    total, new = weights.sum(), weights.square().sum() / weights.sum()
    places = (weights.cumsum(0) - weights / 2 + new / 2) / (total + new)
    upper = torch.searchsorted(places, levels).clamp(1, max(len(values) - 1, 1))
    lower = upper - 1
    upper = upper.clamp(max=len(values) - 1)
    width = torch.where(upper > lower, places[upper] - places[lower], 1.0)
    share = ((levels - places[lower]) / width).clamp(0, 1)
    inner = values[lower] + share * (values[upper] - values[lower])
    above = _tail(values, weights) * ((1 - places[-1]) / (1 - levels)).log().clamp(min=0)
    below = _tail(-values.flip(0), weights.flip(0)) * (places[0] / levels).log().clamp(min=0)
    return inner + above - below


def _tail(values: Tensor, weights: Tensor) -> Tensor:
    """The mean excess of the largest tenth of sorted ``values`` over the next smaller one."""
    if len(values) < 2:
        return values.new_zeros(())
    count = max(len(values) // 10, 1)
    excess = values[-count:] - values[-count - 1]
    return (excess * weights[-count:]).sum() / weights[-count:].sum()


@guarded
def interval_coverage(intervals: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The share of ``targets`` ``[rows, …]`` that lie in their interval ``[rows, 2, …]``, a scalar.

    >>> interval_coverage(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([1.0, 2.0]))
    tensor(0.5000, dtype=torch.float64)
    """
    rows, *more = targets.shape
    if tuple(intervals.shape) != (rows, 2, *more):
        got = tuple(intervals.shape)
        raise ValueError(f"intervals must be [rows, 2, …] = {(rows, 2, *more)}, got {got}")
    lower, upper = intervals.unbind(1)
    inside = ((lower <= targets) & (targets <= upper)).double().reshape(len(targets), -1).mean(1)
    return inside.mean() if weights is None else (inside * weights).sum() / weights.sum()


@guarded
def crps_quantiles(quantiles: Tensor, levels: Tensor | Sequence[float], targets: Tensor) -> Tensor:
    """The continuous ranked probability score of predicted quantiles, of each row, ``[rows]``.

    ``CRPS = 2 ∫₀¹ ρ_p(y − q_p) dp`` with the pinball loss ``ρ_p(r) = max(p r, (p − 1) r)``
    (Gneiting and Ranjan, 2011), as a sum over ``levels``, each of which stands for the levels that
    are nearest to it. ``quantiles`` is ``[rows, levels]``, ``targets`` ``[rows]``.

    >>> crps_quantiles(torch.tensor([[1.0]]), [0.5], torch.tensor([3.0]))   # |y − median|
    tensor([2.], dtype=torch.float64)
    """
    levels = torch.as_tensor(levels, dtype=torch.float64)
    check_shape(quantiles, name="quantiles", rows=len(targets), levels=len(levels))
    inner = (levels[1:] + levels[:-1]) / 2
    edges = torch.cat([levels.new_zeros(1), inner, levels.new_ones(1)])
    if not bool((edges.diff() > 0).all() and (levels.diff() > 0).all()):
        raise ValueError(f"levels must increase and lie between 0 and 1, got {levels.tolist()}")
    away = targets.double()[:, None] - quantiles.double()
    pinball = torch.maximum(levels * away, (levels - 1) * away)
    return 2 * (pinball * edges.diff()).sum(1)


def _ordered(values: Tensor, weights: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
    """Values from small to large in float64, and their weights, without rows of weight 0."""
    check_shape(values, name=name, rows=None)
    check_finite(values, name=name)
    weights = torch.ones_like(values) if weights is None else weights
    check_row_weights(weights, len(values))
    order = values.argsort(stable=True)
    order = order[weights[order] > 0]
    return values[order].double(), weights[order].double()
