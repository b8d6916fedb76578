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
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)

_TREES = 200
_MEMBERS = 10
_TASKS = ("regression", "classification")
_SPLITS = range(5)
_TEXT = make_column_selector(dtype_exclude=np.number)
_NUMBERS = make_column_selector(dtype_include=np.number)


@dataclass(frozen=True)
class Contender:
    """How to make a model for a task and a seed, and on what it is run.

    ``residuals(model, X, y)`` returns those of training rows that the model did not see; where it
    is None, they come from a second fit. ``package`` is what it imports, ``tasks`` are those that
    it is for, and ``classes`` is how many it needs at least.
    """

    make: Callable[[str, int], Any]
    package: str = "sklearn"
    residuals: Callable[[Any, Any, Any], NDArray[np.float64]] | None = None
    splits: range = _SPLITS
    max_rows: int | None = None
    tasks: tuple[str, ...] = _TASKS
    classes: int = 2

    @property
    def version(self) -> str | None:
        """The version of its package; None where it is not installed."""
        try:
            return str(getattr(import_module(self.package), "__version__", "?"))
        except ImportError:
            return None


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


def _dates() -> Any:
    return FunctionTransformer(spread_dates)


def _codes() -> Any:
    coder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return make_column_transformer((coder, _TEXT), remainder="passthrough")


def _dense() -> Any:
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    zeros = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_column_transformer((numbers, _NUMBERS), (zeros, _TEXT))


# ---- models -------------------------------------------------------------------------------------


def _hgb(task: str, seed: int) -> Any:
    kind = (
        HistGradientBoostingClassifier
        if task == "classification"
        else HistGradientBoostingRegressor
    )
    return make_pipeline(
        _dates(), Categories(), kind(categorical_features="from_dtype", random_state=seed)
    )


def _forest(task: str, seed: int) -> Any:
    kind = RandomForestClassifier if task == "classification" else RandomForestRegressor
    return make_pipeline(_dates(), _codes(), kind(_TREES, random_state=seed))


def _extra_trees(task: str, seed: int) -> Any:
    kind = ExtraTreesClassifier if task == "classification" else ExtraTreesRegressor
    return make_pipeline(_dates(), _codes(), kind(_TREES, random_state=seed))


def _perceptron(task: str, seed: int) -> Any:
    if task == "classification":
        return make_pipeline(_dates(), _dense(), MLPClassifier(random_state=seed))
    network = make_pipeline(_dates(), _dense(), MLPRegressor(random_state=seed))
    return TransformedTargetRegressor(network, transformer=StandardScaler())


def _bagging(task: str, seed: int) -> Any:
    if task == "classification":
        members = BaggingClassifier(MLPClassifier(), _MEMBERS, random_state=seed)
        return make_pipeline(_dates(), _dense(), members)
    bagging = BaggingRegressor(MLPRegressor(), _MEMBERS, random_state=seed)
    return TransformedTargetRegressor(
        make_pipeline(_dates(), _dense(), bagging), transformer=StandardScaler()
    )


def _lightgbm(task: str, seed: int) -> Any:
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMClassifier if task == "classification" else LGBMRegressor
    return make_pipeline(_dates(), Categories(), kind(random_state=seed, n_jobs=1, verbosity=-1))


def _xgboost(task: str, seed: int) -> Any:
    from xgboost import XGBClassifier, XGBRegressor

    kind = XGBClassifier if task == "classification" else XGBRegressor
    model = kind(random_state=seed, n_jobs=1, enable_categorical=True)
    return make_pipeline(_dates(), Categories(), model)


class CatBoost:
    """CatBoost, which is told which columns are text."""

    def __init__(self, task: str, seed: int) -> None:
        from catboost import CatBoostClassifier, CatBoostRegressor

        kind = CatBoostClassifier if task == "classification" else CatBoostRegressor
        self.model = kind(
            random_seed=seed, thread_count=1, verbose=False, allow_writing_files=False
        )

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


class TabM:
    """TabM's reference, with dates as numbers."""

    def __init__(self, task: str, seed: int) -> None:
        from reproductions.tables.tabm_reference import TabMReference

        self.model = TabMReference(task, seed)

    def fit(self, X: Any, y: Any) -> "TabM":
        """Train it."""
        self.capped_ = self.model.fit(spread_dates(X), y).capped_
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Its predictions."""
        return self.model.predict(spread_dates(X))

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Its probabilities."""
        return self.model.predict_proba(spread_dates(X))


def _ours(parameters: Mapping[str, Any]) -> Callable[[str, int], Any]:
    def make(task: str, seed: int) -> Any:
        from dissensus.sklearn import DiverseClassifier, DiverseRegressor

        kind: Any = DiverseClassifier if task == "classification" else DiverseRegressor
        return kind(random_state=seed, **parameters)

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

#: Ours, by name and parameters; the first has its defaults.
OURS: dict[str, dict[str, Any]] = {
    "dissensus": {},
    "dissensus-adapters": {"n_estimators": 32, "sharing": "adapters"},
    # One validation split for all members, which those that learn together need,
    "dissensus-common": {"validation": "common"},
    # and with it the objectives that make members differ, or learn together.
    "dissensus-half": {"beta": 0.5},
    "dissensus-joint": {"beta": 1.0},
    "dissensus-ncl": {"objective": "ncl:strength=0.5"},
    "dissensus-jsd": {"objective": "jsd:strength=0.5"},
    "dissensus-adp": {"objective": "adp"},
    "dissensus-ldr": {"objective": "ldr"},
}
#: Objectives that are for one task.
ONE_TASK = {
    "dissensus-ncl": ("regression",),
    "dissensus-jsd": ("classification",),
    "dissensus-adp": ("classification",),
    "dissensus-ldr": ("classification",),
}

CONTENDERS = {
    "hgb": Contender(_hgb),
    "forest": Contender(_forest, residuals=out_of_bag),
    "extra_trees": Contender(_extra_trees),
    "lightgbm": Contender(_lightgbm, "lightgbm"),
    "xgboost": Contender(_xgboost, "xgboost"),
    "mlp": Contender(_perceptron),
    "bagged_mlps": Contender(_bagging, residuals=out_of_bag),
    "catboost": Contender(CatBoost, "catboost"),
    **{
        name: Contender(
            _ours(parameters),
            "dissensus",
            tasks=ONE_TASK.get(name, _TASKS),
            classes=3 if name == "dissensus-adp" else 2,
        )
        for name, parameters in OURS.items()
    },
    "tabm": Contender(TabM, "tabm", splits=range(2), max_rows=6000),
}
