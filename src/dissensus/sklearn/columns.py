"""Columns of a DataFrame as numbers: text and categories are one-hot encoded, numbers stay."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import OneHotEncoder

__all__ = ["Columns", "has_categories"]

Floats = NDArray[np.float64]

#: The most levels of a column; beyond it is a name or a number of the row rather than a category.
MOST_LEVELS = 255


def _is_frame(X: Any) -> bool:
    return hasattr(X, "iloc") and hasattr(X, "columns") and hasattr(X, "dtypes")


def has_categories(X: Any) -> bool:
    """Whether ``X`` is a pandas DataFrame with a column that is not made of numbers."""
    return _is_frame(X) and any(_categorical(X.iloc[:, i]) for i in range(X.shape[1]))


def _categorical(column: Any) -> bool:
    kind = getattr(column.dtype, "kind", "O")
    if kind in "mM":
        raise ValueError(
            f"column {column.name!r} holds {column.dtype}; turn times into numbers that mean "
            "something to a model, such as days since a date, or the month"
        )
    if kind in "biufc":
        return False
    known = column.dropna()
    return column.dtype != object or not all(isinstance(value, Real) for value in known)


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of the training rows: which are categories, and their levels."""

    categorical: tuple[int, ...]
    numeric: tuple[int, ...]
    encoder: OneHotEncoder

    @classmethod
    def fit(cls, X: Any) -> Columns:
        """Learn the levels from the rows of a DataFrame; a missing value is a level of its own."""
        categorical = [i for i in range(X.shape[1]) if _categorical(X.iloc[:, i])]
        for i in categorical:
            levels = X.iloc[:, i].nunique(dropna=False)
            if levels > MOST_LEVELS:
                raise ValueError(
                    f"column {X.columns[i]!r} has {levels} different values, more than the "
                    f"{MOST_LEVELS} that are one-hot encoded; drop it, or encode it yourself"
                )
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        encoder.fit(_objects(X, categorical))
        numeric = [i for i in range(X.shape[1]) if i not in categorical]
        return cls(tuple(categorical), tuple(numeric), encoder)

    def __call__(self, X: Any) -> Floats:
        """Numeric columns, then the levels of the others; all 0 for a level not seen in training.

        ``[rows, columns]``
        """
        numbers = [_numbers(X.iloc[:, i]) for i in self.numeric]
        hot = self.encoder.transform(_objects(X, self.categorical))
        columns: Floats = np.column_stack([*numbers, hot])
        return columns

    def check(self, X: Any) -> None:
        """Raise unless ``X`` is a DataFrame."""
        if not _is_frame(X):
            raise ValueError(
                "this estimator was fitted on a DataFrame with text or categories, got "
                f"{type(X).__name__}; pass a DataFrame with the same columns"
            )

    @property
    def scaled(self) -> NDArray[np.bool_]:
        """Which of the resulting columns are numbers to standardise."""
        levels = sum(len(known) for known in self.encoder.categories_)
        return np.array([True] * len(self.numeric) + [False] * levels)


def _objects(X: Any, columns: list[int] | tuple[int, ...]) -> NDArray[np.object_]:
    """Columns as Python objects, with None for what is missing in any of pandas' ways."""
    chosen = X.iloc[:, list(columns)].astype(object)
    objects: NDArray[np.object_] = chosen.where(chosen.notna(), None).to_numpy()
    return objects


def _numbers(column: Any) -> Floats:
    try:
        numbers: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {column.name!r} was made of numbers in training; now {error}"
        ) from error
    return numbers
