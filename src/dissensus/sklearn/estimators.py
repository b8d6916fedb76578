"""Classifier and regressor: ensembles of perceptrons behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from dissensus.objectives import Objective
from dissensus.outputs import combined_log_probs
from dissensus.sklearn.base import BETAS, DiverseEstimator, takes_pieces
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

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        objective: str | Objective = "independent",
        beta: float | str | None = None,
        betas: Sequence[float] = BETAS,
        cv: Any = 5,
        learning_rate_init: float = 1e-2,
        schedule: str = "cosine",
        max_iter: int = 50,
        batch_size: int | str = "auto",
        alpha: float = 0.1,
        shuffle: str = "shared",
        bootstrap: bool = False,
        early_stopping: bool | None = None,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        class_weight: Mapping[Any, float] | str | None = None,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        """As :class:`DiverseEstimator`, and ``class_weight``.

        It multiplies ``sample_weight`` by a number for each class: a dict such as
        ``{"rare": 10, "common": 1}``, or ``"balanced"``, which gives every class the same weight in
        total, n_rows / (n_classes · rows of the class).
        """
        super().__init__(
            n_estimators,
            hidden_layer_sizes=hidden_layer_sizes,
            objective=objective,
            beta=beta,
            betas=betas,
            cv=cv,
            learning_rate_init=learning_rate_init,
            schedule=schedule,
            max_iter=max_iter,
            batch_size=batch_size,
            alpha=alpha,
            shuffle=shuffle,
            bootstrap=bootstrap,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            warm_start=warm_start,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def _checks_of_targets(self) -> dict[str, Any]:
        return {}

    def _learn_targets(self, y: NDArray[Any], kept: NDArray[np.bool_]) -> tuple[NDArray[Any], int]:
        check_classification_targets(y)
        if hasattr(self, "classes_"):
            self._known_targets(y[kept])  # raises for another class
        else:
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

    def _class_weights(self, labels: NDArray[Any], weights: Floats) -> Floats | float:
        asked = self.class_weight
        if asked is None:
            return 1.0
        if isinstance(asked, str) and asked == "balanced":
            totals = np.bincount(labels, weights, len(self.classes_))
            share = weights.sum() / np.count_nonzero(totals)
            each = np.divide(share, totals, out=np.zeros_like(totals), where=totals > 0)
        elif isinstance(asked, Mapping):
            present = self.classes_[labels[weights > 0]]
            each = compute_class_weight(dict(asked), classes=self.classes_, y=present)
        else:
            raise ValueError(f"class_weight must be a dict, 'balanced' or None, got {asked!r}")
        if not np.isfinite(each).all() or (each < 0).any() or not each[labels].any():
            raise ValueError(
                f"class_weight must be finite, at least 0 and above 0 for some class, got {asked!r}"
            )
        chosen: Floats = each[labels]
        return chosen

    @available_if(takes_pieces)  # type: ignore[untyped-decorator]
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> DiverseClassifier:
        """Train one pass over ``(X, y)``, from where the last call ended.

        The first call must name all ``classes``. Its rows also say how columns are standardised, so
        they should be typical. The learning rate is constant, and nothing is held out.
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all rows, and partial_fit sees some of them; pass "
                "the weights as a dict"
            )
        _check_partial_fit_first_call(self, classes)
        return self._partial_fit(X, y, sample_weight)

    def _member_predictions(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def _output_names(self) -> list[str]:
        return [f"_{label}" for label in self.classes_]

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
        known = self.n_outputs_ if hasattr(self, "ensemble_") else targets.shape[1]
        if targets.shape[1] != known:
            raise ValueError(
                f"y must have {known} columns as before, got {targets.shape[1]}; train anew with "
                "fit and warm_start=False"
            )
        return targets, known

    def _known_targets(self, y: Any) -> Tensor:
        return torch.from_numpy(np.array(y, dtype=np.float64).reshape(len(y), -1))

    @available_if(takes_pieces)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> DiverseRegressor:
        """Train one pass over ``(X, y)``, from where the last call ended.

        The rows of the first call say how columns and targets are standardised, so they should be
        typical. The learning rate is constant, and nothing is held out.
        """
        return self._partial_fit(X, y, sample_weight)

    def _output_names(self) -> list[str]:
        several = range(self.n_outputs_) if self.n_outputs_ > 1 else ()
        return [f"_target{number}" for number in several] or [""]

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
