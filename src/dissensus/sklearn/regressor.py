"""Regressor: an ensemble of perceptrons behind scikit-learn's interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from torch import Tensor

from dissensus.sklearn.base import DiverseEstimator
from dissensus.sklearn.rows import Floats

__all__ = ["DiverseRegressor"]


class DiverseRegressor(RegressorMixin, DiverseEstimator):  # type: ignore[misc]
    """An ensemble of perceptrons for regression, of one target or several.

    Inputs and targets are standardised inside; text and categories of a DataFrame become one-hot.
    For the parameters see ``__init__``, for what there is after ``fit`` :class:`DiverseEstimator`.

    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> y = np.sin(3 * X[:, 0])
    >>> model = DiverseRegressor(n_estimators=3, max_iter=60, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    >>> near, far = model.predict_std([[0.0], [5.0]])
    >>> bool(far > near)
    True
    >>> auto = DiverseRegressor(n_estimators=3, beta="auto", max_iter=5, random_state=0).fit(X, y)
    >>> auto.beta_ in auto.cv_results_["param_beta"]
    True
    """

    _loss = "mse"
    _score = "variance"
    _stops_early = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _checks_of_targets(self) -> dict[str, Any]:
        return {"multi_output": True, "y_numeric": True}

    def _learn_targets(self, y: NDArray[Any], kept: NDArray[np.bool_]) -> tuple[NDArray[Any], int]:
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        return targets, targets.shape[1]

    def _known_targets(self, y: Any) -> Tensor:
        return torch.from_numpy(np.array(y, dtype=np.float64).reshape(len(y), -1))

    def _scored_outputs(self, outputs: Tensor) -> Tensor:
        """In standardised units, in which targets of unlike size count the same."""
        assert self.standard_.y is not None
        return outputs / torch.from_numpy(self.standard_.y.scale)

    def predict(self, X: Any) -> Floats:
        """The members' mean: ``[rows]``, or ``[rows, outputs]`` for several targets."""
        return self._plain(self.member_outputs(X).mean(0))

    def predict_std(self, X: Any) -> Floats:
        """How far the members disagree about each row: their standard deviation, shaped alike.

        It grows away from the training data. It is not the noise of the target: add that of the
        residuals for an interval around a new observation.
        """
        return self._plain(self.member_outputs(X).std(0, correction=0))

    def _plain(self, values: Tensor) -> Floats:
        array: Floats = values.numpy()
        return array.ravel() if self.n_outputs_ == 1 else array
