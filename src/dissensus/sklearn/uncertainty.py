"""Uncertainty of predicted numbers: how large errors are where, intervals, quantiles, deviations.

Errors are rarely of one size: they grow with the prediction (prices, counts) and where members
disagree. :class:`ErrorModel` learns from held-out rows how large they are at each row, σ(x), and
keeps the errors in units of it, one target at a time. Everything else adds these errors, times the
σ(x) of a new row, to the prediction. ``outputs`` are the members' predictions
``[members, rows, outputs]``, ``noise`` the variances that Gaussian members predict, shaped alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import digamma
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import GammaRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler
from torch import Tensor

from dissensus.calibration import conformal_quantile, sample_quantiles
from dissensus.sklearn.rows import Floats
from dissensus.tools.specs import check_number

if TYPE_CHECKING:
    from dissensus.sklearn.held_out import HeldOut

#: Fewer rows than this have errors of one size.
_FEWEST = 50
_FOLDS = 5


class ErrorModel:
    """σ(x) of one target, and the held-out errors in units of it.

    Gaussian members know their noise: σ² is the mean of their variances and the variance between
    them. Else, with s the standard deviation of m members and s̄ its root mean square::

        log σ(x) = a + g(f̄(x)) + b log(s(x) / c_m + 0.05 s̄)

    where g is piecewise linear with four knots at quantiles and constant beyond the outer ones; one
    member has no s, and no last term. The s of two members is often far too small, and its log by
    0.6 in the mean: c_m = exp E log(s / √V) (see :func:`spread_bias`) makes the k members of a
    held-out row comparable with the M of a new one. The model is fitted to the held-out |y − f̄| by
    gamma regression with a small penalty. Cross-validation tells whether that is worth it; where it
    is no better than a constant, or there are fewer than 50 rows, σ is one for all. Errors over
    such a σ are the locally weighted scores of Lei et al. (2018, Section 5.2).

    ``scores`` ``[rows]`` are the errors, each over the σ of a model that did not see its row: what
    a model has learnt by heart would make intervals too narrow.
    """

    def __init__(
        self,
        residuals: Tensor,
        weights: Tensor,
        prediction: Tensor,
        variance: Tensor | None = None,
        noise: Tensor | None = None,
        members: int = 1,
    ) -> None:
        """Learn from held-out rows, all ``[rows]``; ``variance`` is that between ``members``."""
        self.weights = weights
        self._scale = _mean(residuals.abs(), weights)
        self._model: Any = None
        self._least = 0.0 if variance is None else 0.05 * _mean(variance, weights) ** 0.5
        self._gaussian = noise is not None
        if noise is not None or not self._scale > 0 or len(residuals) < _FEWEST:
            self.scores = residuals / self.size(prediction, variance, noise, members)
            return
        inputs = self._inputs(prediction, variance, members)
        shares = (weights / weights.mean()).numpy()
        targets = np.maximum(residuals.abs().numpy() / self._scale, 1e-9)
        sizes = _crossed_sizes(inputs, targets, shares)
        # Half the gamma deviance, mean of log σ + t/σ up to a constant: 1 for σ = 1, as t̄ = 1.
        if np.average(np.log(sizes) + targets / sizes, weights=shares) < 1:
            self._model = _fit(inputs, targets, shares)
            self.scores = residuals / torch.from_numpy(sizes * self._scale)
        else:
            self.scores = residuals / self._scale

    def size(
        self,
        prediction: Tensor,
        variance: Tensor | None = None,
        noise: Tensor | None = None,
        members: int = 1,
    ) -> Tensor:
        """σ(x) ``[rows]``, above 0; ``members`` are those that the variance is of."""
        if self._gaussian:
            assert noise is not None
            return (noise if variance is None else noise + variance).sqrt()
        if self._model is None:
            return torch.full_like(prediction, self._scale if self._scale > 0 else 1.0)
        sizes = self._model.predict(self._inputs(prediction, variance, members))
        return torch.from_numpy(sizes * self._scale)

    def _inputs(self, prediction: Tensor, variance: Tensor | None, members: int) -> Floats:
        columns = [prediction.numpy()]
        if self._least > 0 and variance is not None:
            spread = variance.numpy() ** 0.5 / spread_bias(members)
            columns.append(np.log(spread + self._least))
        return np.stack(columns, 1)


def spread_bias(members: int) -> float:
    """``exp E log(s / √V)`` of m members, whose predictions are normal with variance V.

    ``(m − 1) s² / V`` is chi-squared with n = m − 1 degrees of freedom, whose log has the mean
    ψ(n / 2) + log 2: so it is ``exp ½ (ψ(n / 2) − log(n / 2))``.

    >>> [round(spread_bias(members), 3) for members in (2, 3, 16)]
    [0.53, 0.749, 0.967]
    """
    half = (members - 1) / 2
    return float(np.exp((digamma(half) - np.log(half)) / 2))


def _mean(values: Tensor, weights: Tensor) -> float:
    return float((values * weights).sum() / weights.sum())


def _fit(inputs: Floats, targets: Floats, weights: Floats) -> Any:
    spline = SplineTransformer(
        4, degree=1, knots="quantile", extrapolation="constant", include_bias=False
    )
    spread = list(range(1, inputs.shape[1]))
    columns = ColumnTransformer([("prediction", spline, [0]), ("spread", StandardScaler(), spread)])
    model = GammaRegressor(alpha=3 / len(targets), solver="newton-cholesky")
    return make_pipeline(columns, model).fit(inputs, targets, gammaregressor__sample_weight=weights)


def _crossed_sizes(inputs: Floats, targets: Floats, weights: Floats) -> Floats:
    """The size at each row by a model of the rows outside of its fold."""
    folds = np.random.default_rng(0).permutation(len(targets)) % _FOLDS
    sizes = np.empty(len(targets))
    for fold in range(_FOLDS):
        others = folds != fold
        model = _fit(inputs[others], targets[others], weights[others])
        sizes[~others] = model.predict(inputs[~others])
    return sizes


# ---- intervals, quantiles and deviations --------------------------------------------------------


def intervals(
    held_out: HeldOut, outputs: Tensor, coverage: float, noise: Tensor | None = None
) -> Tensor:
    """Conformal intervals ``[rows, 2, outputs]`` that hold a new target with ``coverage``.

    ``f̄ + σ(x) [q⁻, q⁺]``, with q⁻ and q⁺ the conformal quantiles of the held-out errors in units of
    σ, (1 − coverage) / 2 on each side: they need not be of one length. As each row was held out by
    other members, this is cross-conformal prediction (Vovk, 2015), whose coverage holds nearly, not
    exactly.
    """
    check_number("coverage", coverage, above=0, below=1)
    level, rows = (1 + coverage) / 2, held_out.effective_rows
    if rows < (needed := math.ceil(level / (1 - level) * (1 - 1e-12))) * (1 - 1e-9):
        raise ValueError(f"coverage={coverage:g} needs {needed} held-out rows, got {rows:.4g}")
    found = []
    for model in held_out.error_models:
        upper = conformal_quantile(model.scores, level, model.weights)
        lower = -conformal_quantile(-model.scores, level, model.weights)
        found.append(torch.stack([lower, upper]))
    return _around(held_out, outputs, noise, torch.stack(found, -1))


def quantiles(
    held_out: HeldOut, outputs: Tensor, levels: Sequence[float], noise: Tensor | None = None
) -> Tensor:
    """Quantiles ``[rows, levels, outputs]`` of a new target; they rise with the level.

    ``f̄ + σ(x) Q(level)``, with Q of :func:`dissensus.calibration.sample_quantiles`: beyond the
    outermost of the held-out errors it follows an exponential tail.
    """
    found = [
        sample_quantiles(model.scores, levels, model.weights) for model in held_out.error_models
    ]
    return _around(held_out, outputs, noise, torch.stack(found, -1))


def _around(held_out: HeldOut, outputs: Tensor, noise: Tensor | None, scores: Tensor) -> Tensor:
    """``f̄ + σ(x) · scores``, ``[rows, scores, outputs]``, for scores ``[scores, outputs]``."""
    return outputs.mean(0)[:, None] + _sizes(held_out, outputs, noise)[:, None] * scores


def _sizes(held_out: HeldOut, outputs: Tensor, noise: Tensor | None) -> Tensor:
    """σ(x) ``[rows, outputs]``."""
    prediction = outputs.mean(0)
    # What held-out rows did not tell for want of a second member, new rows must not bring in.
    variance = None if held_out.variance is None else outputs.var(0)
    mean_noise = None if noise is None else noise.mean(0)
    sizes = []
    for place, model in enumerate(held_out.error_models):
        spread, own = (None if all_ is None else all_[:, place] for all_ in (variance, mean_noise))
        sizes.append(model.size(prediction[:, place], spread, own, len(outputs)))
    return torch.stack(sizes, -1)


def member_std(outputs: Tensor) -> Tensor:
    """How far members disagree, ``[rows, outputs]``."""
    return outputs.std(0, correction=0)


def total_std(held_out: HeldOut, outputs: Tensor, noise: Tensor | None = None) -> Tensor:
    """The error to expect of the ensemble, ``σ(x) · √(mean of the squared held-out scores)``."""
    squares = [
        (model.scores.square() * model.weights).sum() / model.weights.sum()
        for model in held_out.error_models
    ]
    return _sizes(held_out, outputs, noise) * torch.stack(squares).sqrt()


def noise_std(held_out: HeldOut | None, outputs: Tensor, noise: Tensor | None = None) -> Tensor:
    """What would be left of the error with any number of members: noise, and bias if there is.

    Of Gaussian members the root of their mean variance. Else ``√(total² − V(x) / M)``, never below
    0, as the variance V between M members leaves V / M in their mean.
    """
    if noise is not None:
        return noise.mean(0).sqrt()
    assert held_out is not None
    total = total_std(held_out, outputs)
    if len(outputs) == 1:
        return total
    return (total.square() - outputs.var(0) / len(outputs)).clamp(min=0).sqrt()
