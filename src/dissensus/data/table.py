"""Tables as numbers, and their standardised splits: many of them, one for each seed.

Experiments on tables split the same rows again and again; so a :class:`Table` is read once and
:meth:`Table.split` makes the data set of one seed. Whatever is estimated from data (means,
deviations, which columns are skewed, what fills a gap) is estimated on the training rows of that
split alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dissensus.data.dataset import PARTS, Data, check_task, split_rows, tensors
from dissensus.data.formats import name_gaps, parse_numbers

__all__ = [
    "Scaler",
    "Table",
    "check_finite",
    "encode_columns",
    "numeric_column",
    "one_hot",
    "sort_levels",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scaler:
    """``(t(x) − mean) / scale`` by column, with ``t`` a signed log where ``log`` says so.

    Columns that are not scaled (one-hot) keep mean 0 and scale 1; a column that is constant in the
    training rows gets scale 1, because dividing by a deviation near 0 turns the first other value
    into one of 1e5 and more. ``fill`` stands in for missing values.
    """

    log: NDArray[np.bool_]
    fill: Floats
    mean: Floats
    scale: Floats

    @classmethod
    def fit(
        cls,
        x: Floats,
        scaled: NDArray[np.bool_],
        log_skew: float | None = None,
        weights: Floats | None = None,
    ) -> Scaler:
        """Estimate everything on ``x``, the training rows ``[rows, columns]``.

        With ``weights`` ``[rows]`` the mean and the deviation are weighted.
        """
        fill = _column_means(x)
        x = np.where(np.isnan(x), fill, x)
        log = np.zeros(x.shape[1], dtype=bool)
        if log_skew is not None:
            log = scaled & (x.min(0) >= 0) & (_skewness(x) > log_skew)
        x = np.where(log, _signed_log(x), x)
        mean, scale = x.mean(0), x.std(0)
        if weights is not None:
            mean = np.average(x, 0, weights)
            scale = np.sqrt(np.average((x - mean) ** 2, 0, weights))
        constant = scale <= 1e-8 * np.maximum(1.0, np.abs(mean))
        return cls(
            log,
            fill,
            np.where(scaled, mean, 0.0),
            np.where(scaled & ~constant, scale, 1.0),
        )

    def __call__(self, x: Floats) -> Floats:
        """Transform rows ``[rows, columns]``; training rows or others."""
        x = np.where(np.isnan(x), self.fill, x)
        scaled: Floats = (np.where(self.log, _signed_log(x), x) - self.mean) / self.scale
        return scaled


def _column_means(x: Floats) -> Floats:
    known = ~np.isnan(x)
    total = np.where(known, x, 0.0).sum(0)
    means: Floats = total / np.maximum(known.sum(0), 1)
    return means


def _skewness(x: Floats) -> Floats:
    """Third standardised moment; 0 for a constant column."""
    centred = x - x.mean(0)
    variance = (centred**2).mean(0)
    cubed = (centred**3).mean(0)
    safe = np.where(variance > 0, variance, 1.0)
    skewness: Floats = np.where(variance > 0, cubed / safe**1.5, 0.0)
    return skewness


def _signed_log(x: Floats) -> Floats:
    """``sign(x) log(1 + |x|)``: log1p where it is meant, finite for a negative test value too."""
    logged: Floats = np.sign(x) * np.log1p(np.abs(x))
    return logged


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """A table in raw units: ``x`` ``[rows, columns]``, ``y`` labels or numbers.

    ``scaled`` marks the columns to standardise (the numeric ones; one-hot columns stay 0 and 1).
    ``ids`` are the row numbers in the source file. ``log_skew`` is the skewness above which a
    column that is not negative on the training rows is replaced by its log1p; None: never.
    """

    name: str
    task: str
    x: Floats
    y: NDArray[Any]
    features: tuple[str, ...]
    scaled: NDArray[np.bool_]
    ids: NDArray[np.int64]
    classes: tuple[str, ...] = ()
    log_skew: float | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    standardize: bool = True  # unless a split says otherwise

    def __post_init__(self) -> None:
        rows, columns = self.x.shape
        check_task(self.task)
        if not (len(self.y) == len(self.ids) == rows):
            raise ValueError(f"{self.name}: x, y and ids differ in their number of rows")
        if not (len(self.features) == len(self.scaled) == columns):
            raise ValueError(f"{self.name}: x, features and scaled differ in their columns")

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        """Return one line without the numbers."""
        return f"Table({self.name!r}: {self.task}, {len(self)} rows, {self.x.shape[1]} columns)"

    def split(
        self,
        seed: int = 0,
        *,
        val: float | int = 0.2,
        test: float | int = 0.2,
        standardize: bool | None = None,
    ) -> Data:
        """Standardised train, validation and test splits for one seed.

        >>> x = np.array([[1.0, 0], [2, 1], [3, 0], [4, 1], [5, 0]])
        >>> table = Table("toy", "regression", x, x[:, 0] * 10, ("size", "is=yes"),
        ...               np.array([True, False]), np.arange(5))
        >>> data = table.split(seed=1)
        >>> data.train[0][:, 0].mean().abs().item() < 1e-6, data.train[0][:, 1].unique().tolist()
        (True, [0.0, 1.0])
        """
        standardize = self.standardize if standardize is None else standardize
        parts = dict(zip(PARTS, split_rows(len(self), val=val, test=test, seed=seed), strict=True))
        train = parts["train"]
        notes: dict[str, Any] = {"split_seed": seed, "notes": list(self.notes)}
        x, y = self.x, self.y
        if standardize:
            scaler = Scaler.fit(x[train], self.scaled, self.log_skew)
            x = scaler(x)
            notes |= {
                "feature_mean": scaler.mean.tolist(),
                "feature_std": scaler.scale.tolist(),
                "log_features": [
                    f for f, log in zip(self.features, scaler.log, strict=True) if log
                ],
            }
        else:
            x = np.where(np.isnan(x), _column_means(x[train]), x)
        if self.task == "regression":
            y = y.astype(np.float64).reshape(len(y), -1)
            if standardize:
                mean, std = y[train].mean(0), y[train].std(0)
                std = np.where(std > 0, std, 1.0)
                y = (y - mean) / std
                notes |= {"target_mean": mean.tolist(), "target_std": std.tolist()}
        splits: dict[str, Any] = {n: tensors(x, y, rows, self.task) for n, rows in parts.items()}
        return Data(
            self.name,
            self.task,
            **splits,
            classes=self.classes,
            features=self.features,
            rows={part: torch.from_numpy(self.ids[rows]) for part, rows in parts.items()},
            preprocessing=notes,
            source=self.source,
        )


def one_hot(
    values: Sequence[str], name: str, *, drop_first: bool = False
) -> tuple[Floats, list[str]]:
    """0/1 columns for the levels of ``values``, in the order of :func:`sort_levels`.

    >>> one_hot(["b", "a", "b"], "kind")
    (array([[0., 1.],
            [1., 0.],
            [0., 1.]]), ['kind=a', 'kind=b'])
    """
    levels = sort_levels(values)
    kept = levels[1:] if drop_first else levels
    column = np.asarray(values, dtype=object)
    hot = np.stack([column == level for level in kept], 1) if kept else np.empty((len(column), 0))
    return hot.astype(np.float64), [f"{name}={level}" for level in kept]


def sort_levels(values: Iterable[str]) -> list[str]:
    """The different values, numbers first and in their order.

    >>> sort_levels(["10", "b", "9", "10"])
    ['9', '10', 'b']
    """

    def order(level: str) -> tuple[int, float, str]:
        try:
            return 0, float(level), level
        except ValueError:
            return 1, 0.0, level

    return sorted(set(values), key=order)


def numeric_column(values: Sequence[str]) -> Floats | None:
    """The column as floats with NaN for gaps, or None if it is text or wholly empty."""
    try:
        numbers = parse_numbers(values)
    except ValueError:
        return None
    return None if bool(np.isnan(numbers).all()) else numbers


def check_finite(numbers: Floats, name: str) -> None:
    """Raise for infinite values in a column."""
    bad = int(np.isinf(numbers).sum())
    if bad:
        raise ValueError(f"column {name!r} holds {bad} infinite values; remove or replace them")


def encode_columns(
    columns: Mapping[str, Sequence[str]],
    categorical: Collection[str] = (),
    *,
    max_levels: float = math.inf,
    drop_first: bool = False,
) -> tuple[Floats, tuple[str, ...], NDArray[np.bool_]]:
    """Numbers, their names, and which are to be scaled: numeric columns, and one-hot ones.

    Columns of text and those of ``categorical`` have a 0/1 column for each level (``drop_first``:
    except the first); every column stays in its place.
    """
    blocks: list[Floats] = []
    features: list[str] = []
    scaled: list[bool] = []
    for name, values in columns.items():
        numbers = None if name in categorical else numeric_column(values)
        if numbers is not None:
            check_finite(numbers, name)
            blocks.append(numbers[:, None])
            features.append(name)
            scaled.append(True)
            continue
        levels = name_gaps(values)
        distinct = len(set(levels))
        if distinct > max_levels:
            raise ValueError(
                f"column {name!r} is text with {distinct} different values, such as "
                f"{levels[0]!r}; leave it out with drop=[{name!r}], or raise max_levels "
                f"(now {max_levels:g})"
            )
        hot, names = one_hot(levels, name, drop_first=drop_first)
        blocks.append(hot)
        features += names
        scaled += [False] * len(names)
    return np.concatenate(blocks, 1), tuple(features), np.array(scaled)
