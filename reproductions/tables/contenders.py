"""Contenders of the comparison, each with its defaults.

All get the same DataFrame. Ours takes it as it is. For the others dates become four numbers (day,
month, weekday, day of the year), and text becomes what each is at home with: a category where they
are native (HistGradientBoosting, LightGBM, XGBoost, CatBoost, TabM), codes for the forests, 0 and 1
for the perceptrons. Missing values stay where they are native; the perceptrons get the median and
an indicator, standardised columns and, in regression, a standardised target.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import (
    TransformedTargetRegressor,
    make_column_selector,
    make_column_transformer,
)
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)

_TEXT = make_column_selector(dtype_exclude=np.number)
_NUMBERS = make_column_selector(dtype_include=np.number)
_TASKS = ("regression", "classification")


@dataclass(frozen=True)
class Contender:
    """How to make a model for a task and a seed, and on what it is run.

    ``residuals(model, X, y)`` returns those of training rows that the model did not see; where it
    is None, they come from a second fit. ``package`` is what it imports. It is run on tables of up
    to ``most_rows`` and of the ``tasks`` that it is for, with ``least_classes``.
    """

    title: str
    make: Callable[[str, int], Any]
    package: str = "sklearn"
    residuals: Callable[[Any, Any, Any], NDArray[np.float64]] | None = None
    splits: int = 5
    most_rows: float = np.inf
    tasks: tuple[str, ...] = _TASKS
    least_classes: int = 2


# ---- columns ------------------------------------------------------------------------------------


def spread_dates(X: Any) -> Any:
    """Replace columns of dates, written 2024-02-29, by four numbers each."""
    import pandas as pd

    columns = {}
    for name in X:
        values = X[name]
        if name in _TEXT(X) and values.str.fullmatch(r"\d{4}-\d\d-\d\d").all():
            dates = pd.to_datetime(values)
            columns[f"{name}.day"] = (dates - pd.Timestamp("1970-01-01")).dt.days
            columns[f"{name}.month"] = dates.dt.month
            columns[f"{name}.weekday"] = dates.dt.day_of_week
            columns[f"{name}.dayofyear"] = dates.dt.day_of_year
        else:
            columns[name] = values
    return pd.DataFrame(columns)


class Categories(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Text as pandas categories, those of the training rows; others become missing values."""

    def fit(self, X: Any, y: Any = None) -> "Categories":
        """Learn the levels of each column of text."""
        self.levels_ = {name: sorted(X[name].dropna().unique()) for name in _TEXT(X)}
        return self

    def transform(self, X: Any) -> Any:
        """Columns of text as categories."""
        import pandas as pd

        found = {
            name: pd.Categorical(X[name].where(X[name].isin(levels)), categories=levels)
            for name, levels in self.levels_.items()
        }
        return X.assign(**found)


def _codes() -> Any:
    coder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return make_column_transformer((coder, _TEXT), remainder="passthrough")


def _dense() -> Any:
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    zeros = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_column_transformer((numbers, _NUMBERS), (zeros, _TEXT))


# ---- models -------------------------------------------------------------------------------------

_SUFFIX = {"classification": "Classifier", "regression": "Regressor"}


def _kind(path: str, task: str) -> Any:
    """The class of a task: ``"sklearn.ensemble.RandomForest"`` with ``Classifier`` after it."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name + _SUFFIX[task])


def _model(path: str, columns: Callable[[], Any], **options: Any) -> Callable[[str, int], Any]:
    """A maker of pipelines: dates as numbers, then ``columns``, then the class of ``path``."""

    def make(task: str, seed: int) -> Any:
        last = _kind(path, task)(random_state=seed, **options)
        pipeline = make_pipeline(FunctionTransformer(spread_dates), columns(), last)
        if columns is _dense and task == "regression":
            return TransformedTargetRegressor(pipeline, transformer=StandardScaler())
        return pipeline

    return make


def _bagged_mlps(task: str, seed: int) -> Any:
    member = _kind("sklearn.neural_network.MLP", task)()
    return _model("sklearn.ensemble.Bagging", _dense, estimator=member, n_estimators=10)(task, seed)


class CatBoost:
    """CatBoost, which is told which columns are text."""

    def __init__(self, task: str, seed: int) -> None:
        quiet = {"thread_count": 1, "verbose": False, "allow_writing_files": False}
        self.model = _kind("catboost.CatBoost", task)(random_seed=seed, **quiet)

    def fit(self, X: Any, y: Any) -> "CatBoost":
        """Fit with the columns of text as categories."""
        prepared = self._prepare(X)
        self.model.fit(prepared, y, cat_features=_TEXT(prepared))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Its predictions."""
        found: NDArray[Any] = self.model.predict(self._prepare(X))
        return found

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Its probabilities."""
        found: NDArray[Any] = self.model.predict_proba(self._prepare(X))
        return found

    @staticmethod
    def _prepare(X: Any) -> Any:
        X = spread_dates(X)
        return X.assign(**{name: X[name].astype(object).fillna("missing") for name in _TEXT(X)})


def _tabm(task: str, seed: int) -> Any:
    from reproductions.tables.tabm_reference import TabMReference

    return TabMReference(task, seed)


def _ours(parameters: Mapping[str, Any]) -> Callable[[str, int], Any]:
    def make(task: str, seed: int) -> Any:
        return _kind("dissensus.sklearn.Diverse", task)(random_state=seed, **parameters)

    return make


# ---- residuals ----------------------------------------------------------------------------------


def out_of_bag(model: Any, X: Any, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Residuals of training rows, each predicted by the members that did not draw it."""
    pipeline = getattr(model, "regressor_", model)
    inputs, members = np.asarray(pipeline[:-1].transform(X)), pipeline[-1]
    total, count = np.zeros(len(y)), np.zeros(len(y))
    for member, drawn in zip(members.estimators_, members.estimators_samples_, strict=True):
        out = np.ones(len(y), bool)
        out[drawn] = False
        total[out] += member.predict(inputs[out])
        count += out
    seen = count > 0
    predictions = total[seen] / count[seen]
    if hasattr(model, "transformer_"):
        predictions = model.transformer_.inverse_transform(predictions[:, None])[:, 0]
    return y[seen] - predictions


# ---- everyone -----------------------------------------------------------------------------------


def _variant(
    tasks: tuple[str, ...] = _TASKS, least_classes: int = 2, **parameters: Any
) -> Contender:
    """Other settings of ours, run on one split of the tables that are not large."""
    return Contender(
        ", ".join(f"`{key}={value}`" for key, value in parameters.items()),
        _ours(parameters),
        "dissensus",
        splits=1,
        most_rows=10_000,
        tasks=tasks,
        least_classes=least_classes,
    )


CONTENDERS = {
    "hgb": Contender(
        "HistGradientBoosting",
        _model(
            "sklearn.ensemble.HistGradientBoosting", Categories, categorical_features="from_dtype"
        ),
    ),
    "forest": Contender(
        "random forest",
        _model("sklearn.ensemble.RandomForest", _codes, n_estimators=200),
        residuals=out_of_bag,
    ),
    "extra_trees": Contender(
        "extra trees", _model("sklearn.ensemble.ExtraTrees", _codes, n_estimators=200)
    ),
    "lightgbm": Contender(
        "LightGBM", _model("lightgbm.LGBM", Categories, n_jobs=1, verbosity=-1), "lightgbm"
    ),
    "xgboost": Contender(
        "XGBoost", _model("xgboost.XGB", Categories, n_jobs=1, enable_categorical=True), "xgboost"
    ),
    "mlp": Contender("one MLP", _model("sklearn.neural_network.MLP", _dense)),
    "bagged_mlps": Contender("10 bagged MLPs", _bagged_mlps, residuals=out_of_bag),
    "catboost": Contender("CatBoost", CatBoost, "catboost"),
    "dissensus": Contender("dissensus", _ours({}), "dissensus"),
    "dissensus-adapters": _variant(n_estimators=32, sharing="adapters"),
    # One validation split for all members, which those that learn together need,
    "dissensus-common": _variant(validation="common"),
    # and with it the objectives that make members differ, or learn together.
    "dissensus-half": _variant(beta=0.5),
    "dissensus-joint": _variant(beta=1.0),
    "dissensus-ncl": _variant(("regression",), objective="ncl:strength=0.5"),
    "dissensus-jsd": _variant(("classification",), objective="jsd:strength=0.5"),
    "dissensus-adp": _variant(("classification",), 3, objective="adp"),
    "dissensus-ldr": _variant(("classification",), objective="ldr"),
    "tabm": Contender("TabM", _tabm, "tabm", splits=1, most_rows=6000),
}
#: The contender whose goals are checked, and the one whose times are the unit.
OURS, ANCHOR = "dissensus", "forest"
