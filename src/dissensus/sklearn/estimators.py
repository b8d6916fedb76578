"""Classifier and regressor: ensembles of perceptrons behind scikit-learn's interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from dissensus.outputs import combined_log_probs
from dissensus.sklearn.base import DiverseEstimator
from dissensus.sklearn.rows import Floats

__all__ = ["DiverseClassifier", "DiverseRegressor"]


class DiverseClassifier(ClassifierMixin, DiverseEstimator):  # type: ignore[misc]
    """An ensemble of perceptrons for classification, of two classes or more.

    Inputs are standardised inside. Missing values, and text, categories and dates of a DataFrame
    are welcome (:mod:`dissensus.data.preparation`). For the parameters see ``__init__``, for what
    there is after ``fit`` :class:`DiverseEstimator`, and ``classes_``.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DiverseClassifier(n_estimators=3, random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape, bool(model.score(X, y) > 0.95)
    ((150, 3), True)
    >>> known, strange = model.ood_score([X[0], [5.0, 3.5, 5.0, 0.2]])  # petals unlike any iris
    >>> bool(strange > known)
    True
    >>> print(model.decompose(X, y).summary())
    Combining 3 members by probability takes ... off their mean cross_entropy of ...
    """

    _loss = "cross_entropy"
    _stops_early = False

    classes_: NDArray[Any]

    def _checks_of_targets(self) -> dict[str, Any]:
        return {}

    def _learn_targets(self, y: NDArray[Any], kept: NDArray[np.bool_]) -> tuple[NDArray[Any], int]:
        check_classification_targets(y)
        self.classes_ = np.unique(y[kept])
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_[0]}; a classifier needs rows of at least "
                "two classes, of a weight above zero"
            )
        labels = np.searchsorted(self.classes_, y)
        # Rows of weight 0 are left out and may be of any class.
        return np.minimum(labels, len(self.classes_) - 1), len(self.classes_)

    def _known_targets(self, y: Any) -> Tensor:
        labels = column_or_1d(y)
        unknown = ~np.isin(labels, self.classes_)
        if unknown.any():
            raise ValueError(
                f"y holds {labels[unknown][0]}, which was not among the classes in training: "
                f"{', '.join(map(str, self.classes_))}"
            )
        return torch.from_numpy(np.searchsorted(self.classes_, labels))

    def predict_log_proba(self, X: Any) -> Floats:
        """Logarithms of the class probabilities, ``[rows, classes]``, exact where they are tiny."""
        outputs = self.member_outputs(X)
        log_probs: Floats = combined_log_probs(outputs, self.ensemble_.combine).numpy()
        return log_probs

    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities ``[rows, classes]``, in the order of ``classes_``."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        best = self.predict_log_proba(X).argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        return labels


class DiverseRegressor(RegressorMixin, DiverseEstimator):  # type: ignore[misc]
    """An ensemble of perceptrons for regression, of one target or several.

    Inputs and targets are standardised inside. Missing values, and text, categories and dates of a
    DataFrame are welcome (:mod:`dissensus.data.preparation`). For the parameters see ``__init__``,
    for what there is after ``fit`` :class:`DiverseEstimator`.

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
