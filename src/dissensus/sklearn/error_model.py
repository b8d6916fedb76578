"""Size of errors: how far a prediction is likely to be off, learnt from held-out rows.

One target at a time. Errors are rarely of one size: they grow with the prediction (prices, counts)
and where members disagree. :class:`ErrorModel` says how large they are at each row, σ(x), and what
the errors divided by it look like.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import GammaRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler
from torch import Tensor

Floats = NDArray[np.float64]

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
    if members < 2:
        raise ValueError(f"a spread between members is that of two or more, got members={members}")
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
