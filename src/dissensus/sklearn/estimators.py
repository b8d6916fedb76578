"""Classifier and regressor: ensembles of perceptrons behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from dissensus.calibration import conformal_quantile
from dissensus.objectives import Objective
from dissensus.outputs import combined_log_probs
from dissensus.sklearn import uncertainty
from dissensus.sklearn.base import DiverseEstimator, takes_pieces
from dissensus.sklearn.evaluation import Evaluation, evaluate_classes, evaluate_numbers
from dissensus.sklearn.rows import Floats


@dataclass(repr=False, eq=False, kw_only=True)
class DiverseClassifier(ClassifierMixin, DiverseEstimator):  # type: ignore[misc]
    """An ensemble of perceptrons for classification, of two classes or more.

    Columns are prepared inside: missing values, and text, categories and dates of a DataFrame are
    welcome (:mod:`dissensus.data.preparation`), and numbers are encoded for networks
    (:mod:`dissensus.data.encoder`). Probabilities are calibrated on held-out rows. For the
    parameters see :class:`.Parameters`, for fitted attributes :class:`DiverseEstimator`,
    and ``classes_``. ``class_weight`` multiplies ``sample_weight`` by a number for each class: a
    dict such as ``{"rare": 10, "common": 1}``, or ``"balanced"``, which gives every class the same
    weight in total, n_rows / (n_classes · rows of the class).

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

    objective: str | Objective = "independent:label_smoothing=0.1"
    class_weight: Mapping[Any, float] | str | None = None

    def _learn_targets(self, y: NDArray[Any], kept: NDArray[np.bool_]) -> tuple[NDArray[Any], int]:
        if y.dtype == object and any(label is None for label in y):
            raise ValueError("y holds None, a missing label; leave these rows out")
        check_classification_targets(y)
        if hasattr(self, "classes_"):
            self._known_targets(y[kept])  # raises for another class
        else:
            self.classes_ = np.unique(y[kept])
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_[0]}; give two or more")
        labels = np.searchsorted(self.classes_, y)
        # Rows of weight 0 are left out and may be of any class.
        return np.minimum(labels, len(self.classes_) - 1), len(self.classes_)

    def _known_targets(self, y: Any) -> Tensor:
        labels = column_or_1d(y)
        unknown = ~np.isin(labels, self.classes_)
        if unknown.any():
            known = ", ".join(map(str, self.classes_))
            raise ValueError(f"y holds {labels[unknown][0]}; the classes in training were {known}")
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
            raise ValueError(f"class_weight must be at least 0 and not all zero, got {asked!r}")
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
            raise ValueError("class_weight='balanced' needs all rows at once; pass a dict")
        _check_partial_fit_first_call(self, classes)
        return self._partial_fit(X, y, sample_weight)

    def _member_predictions(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def _output_names(self) -> list[str]:
        return [f"_{label}" for label in self.classes_]

    @property
    def temperature_(self) -> float:
        """The temperature that calibrates probabilities on held-out rows; 1 where there are none.

        See :func:`dissensus.sklearn.held_out.held_out_temperature`.
        """
        check_is_fitted(self, "ensemble_")
        held_out = self.held_out_
        return 1.0 if held_out is None else held_out.temperature(self.ensemble_.combine)

    def predict_log_proba(self, X: Any) -> Floats:
        """Logarithms of the class probabilities, ``[rows, classes]``, exact where they are tiny."""
        outputs = self.member_outputs(X) / self.temperature_
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

    def predict_set(self, X: Any, coverage: float = 0.9) -> NDArray[np.bool_]:
        """For each row the classes among which the true one is with a probability of ``coverage``.

        ``[rows, classes]`` of bool, in the order of ``classes_``: those whose −log p is at most the
        conformal quantile of that of the true classes of held-out rows (Sadinle et al., 2019), and
        the most probable one.
        """
        held_out, combine = self._need_held_out("predict_set"), self.ensemble_.combine
        known = held_out.log_probs(combine).gather(1, held_out.targets[:, None]).squeeze(1)
        least = -conformal_quantile(-known, coverage, held_out.weights)
        log_probs = self.predict_log_proba(X)
        chosen: NDArray[np.bool_] = log_probs >= np.minimum(float(least), log_probs.max(1))[:, None]
        return chosen

    def evaluate(self, X: Any, y: Any) -> Evaluation:
        """Error, NLL, Brier score and ECE on ``(X, y)`` and on held-out rows."""
        outputs, combine = self.member_outputs(X), self.ensemble_.combine
        labels = self._known_targets(y)
        return evaluate_classes(self.held_out_, outputs, labels, combine, self.temperature_)


@dataclass(repr=False, eq=False, kw_only=True)
class DiverseRegressor(RegressorMixin, DiverseEstimator):  # type: ignore[misc]
    """An ensemble of perceptrons for regression, of one target or several.

    Columns and targets are prepared inside: missing values, and text, categories and dates of a
    DataFrame are welcome (:mod:`dissensus.data.preparation`), numbers are encoded for networks
    (:mod:`dissensus.data.encoder`), and targets standardised. For the parameters see
    :class:`.Parameters`, for fitted attributes :class:`DiverseEstimator`.
    ``loss="gaussian"`` has members predict a variance of their own beside each target
    (``dissensus.objectives.Gaussian``).

    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> y = np.sin(3 * X[:, 0])
    >>> model = DiverseRegressor(n_estimators=3, max_iter=30, random_state=0).fit(X, y)
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

    loss: str = "mse"
    _target_checks: ClassVar[dict[str, Any]] = {"multi_output": True, "y_numeric": True}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _learn_targets(self, y: NDArray[Any], kept: NDArray[np.bool_]) -> tuple[NDArray[Any], int]:
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        known = self.n_outputs_ if hasattr(self, "ensemble_") else targets.shape[1]
        if targets.shape[1] != known:
            raise ValueError(f"y must have {known} columns as before, got {targets.shape[1]}")
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

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Floats:
        """Lower and upper bounds, ``[rows, 2]``, that hold a new target with ``coverage``.

        For several targets ``[rows, 2, outputs]``, each covered by itself. Conformal, from the
        rows that members held out: wider where held-out errors were larger, by the prediction and
        the members' disagreement; see :mod:`dissensus.sklearn.uncertainty`.
        """
        held_out = self._need_held_out("predict_interval")
        outputs, noise = self._outputs_and_noise(X)
        return self._plain(uncertainty.intervals(held_out, outputs, coverage, noise))

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Floats:
        """Quantiles of the target, ``[rows, quantiles]``, for several ``[…, outputs]``.

        From the errors of held-out rows, as intervals are. Levels that these rows do not reach
        follow an exponential tail; see :func:`dissensus.calibration.sample_quantiles`.
        """
        held_out = self._need_held_out("predict_quantiles")
        outputs, noise = self._outputs_and_noise(X)
        return self._plain(uncertainty.quantiles(held_out, outputs, quantiles, noise))

    def predict_std(self, X: Any, kind: str = "members") -> Floats:
        """A standard deviation for each row, shaped as predictions are.

        ``"members"``
            How far the members disagree. It grows away from the training data, and is not the
            error to expect.
        ``"total"``
            The error to expect of ``predict``, as held-out rows tell it.
        ``"noise"``
            What would be left of it with any number of members: total² less V(x) / M, V being the
            variance between the M members. Gaussian members predict it themselves.
        """
        outputs, noise = self._outputs_and_noise(X)
        if kind == "members":
            return self._plain(uncertainty.member_std(outputs))
        if kind == "noise" and noise is not None:
            return self._plain(uncertainty.noise_std(None, outputs, noise))
        if kind not in ("noise", "total"):
            raise ValueError(f"kind must be 'members', 'noise' or 'total', got {kind!r}")
        held_out = self._need_held_out(f"predict_std(kind={kind!r})")
        find = uncertainty.noise_std if kind == "noise" else uncertainty.total_std
        return self._plain(find(held_out, outputs, noise))

    def evaluate(self, X: Any, y: Any) -> Evaluation:
        """Error, CRPS, NLL and coverage of 90% intervals on ``(X, y)`` and on held-out rows."""
        outputs, noise = self._outputs_and_noise(X)
        return evaluate_numbers(self.held_out_, outputs, self._known_targets(y), noise)

    def _plain(self, values: Tensor) -> Floats:
        array: Floats = values.numpy()
        return array[..., 0] if self.n_outputs_ == 1 else array
