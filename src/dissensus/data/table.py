"""Tables as numbers, and their standardised splits: many of them, one for each seed.

Experiments on tables split the same rows again and again; so a :class:`Table` is read once and
:meth:`Table.split` makes the data set of one seed. Whatever is estimated from data (means,
deviations, which columns are skewed, what fills a gap) is estimated on the training rows of that
split alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dissensus.data.dataset import PARTS, Data, check_task, split_rows, tensors
from dissensus.data.preparation import Preparation

Floats = NDArray[np.float64]

#: Numbers of a table that are estimated from at once.
_AT_ONCE = 1 << 17


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

        With ``weights`` ``[rows]`` means and deviations are weighted.
        """
        if x.size > _AT_ONCE and x.shape[1] > 3:  # every line below copies x: half of it at a time
            middle = x.shape[1] // 2
            halves = [
                cls.fit(x[:, half], scaled[half], log_skew, weights)
                for half in (slice(middle), slice(middle, None))
            ]
            joined = (np.concatenate(each) for each in zip(*map(astuple, halves), strict=True))
            return cls(*joined)
        fill = _known_means(x, weights)
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
        mean, scale = np.where(scaled, mean, 0.0), np.where(scaled & ~constant, scale, 1.0)
        return cls(log, fill, mean, scale)

    def to_dict(self, features: Sequence[str]) -> dict[str, Any]:
        """Plain JSON values, for ``Data.preprocessing``; ``features`` are the columns' names."""
        return {
            "feature_mean": self.mean.tolist(),
            "feature_std": self.scale.tolist(),
            "log_features": [name for name, log in zip(features, self.log, strict=False) if log],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], features: Sequence[str]) -> Scaler:
        """What :meth:`to_dict` gave."""
        mean, scale = np.array(values["feature_mean"]), np.array(values["feature_std"])
        logged = set(values.get("log_features", ()))
        log = np.array([name in logged for name in features] or [False] * len(mean))
        return cls(log, np.array(values.get("feature_fill", mean)), mean, scale)

    def __call__(self, x: Floats) -> Floats:
        """Transform rows ``[rows, columns]``; training rows or others."""
        x = np.where(np.isnan(x), self.fill, x)
        scaled: Floats = (np.where(self.log, _signed_log(x), x) - self.mean) / self.scale
        return scaled


def _known_means(x: Floats, weights: Floats | None) -> Floats:
    """The mean of each column's known values; 0 where there are none."""
    counts = np.where(np.isnan(x), 0.0, 1.0 if weights is None else weights[:, None])
    means: Floats = (np.nan_to_num(x) * counts).sum(0) / np.maximum(counts.sum(0), 1e-300)
    return means


def _skewness(x: Floats) -> Floats:
    """Third standardised moment; 0 for a constant column."""
    centred = x - x.mean(0)
    variance = (centred**2).mean(0)
    safe = np.where(variance > 0, variance, 1.0)
    skewness: Floats = np.where(variance > 0, (centred**3).mean(0) / safe**1.5, 0.0)
    return skewness


def _signed_log(x: Floats) -> Floats:
    """``sign(x) log(1 + |x|)``: log1p where it is meant, finite for a negative test value too."""
    logged: Floats = np.sign(x) * np.log1p(np.abs(x))
    return logged


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """A table in raw units: ``x`` ``[rows, features]``, ``y`` labels or numbers.

    ``preparation`` says how columns became ``x``, ``ids`` are the row numbers in the source file.
    ``log_skew`` is the skewness above which a column that is not negative on the training rows is
    replaced by its log1p; None: never.
    """

    name: str
    task: str
    x: Floats
    y: NDArray[Any]
    preparation: Preparation
    ids: NDArray[np.int64]
    classes: tuple[str, ...] = ()
    log_skew: float | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    guess: str = ""
    standardize: bool = True  # unless a split says otherwise

    def __post_init__(self) -> None:
        rows, features = self.x.shape
        check_task(self.task)
        if not (len(self.y) == len(self.ids) == rows):
            raise ValueError(f"{self.name}: x, y and ids differ in their number of rows")
        if len(self.features) != features:
            raise ValueError(f"{self.name}: x and preparation differ in their number of features")

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of ``x``."""
        return self.preparation.features

    @property
    def scaled(self) -> NDArray[np.bool_]:
        """Which columns of ``x`` are standardised; those of categories stay 0 and 1."""
        return self.preparation.scaled

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
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

        >>> from dissensus.data.preparation import Column
        >>> x = np.array([[1.0, 0], [2, 1], [3, 0], [4, 1], [5, 0]])
        >>> columns = Column("size", "number"), Column("is", "category", ("yes",))
        >>> table = Table("toy", "regression", x, x[:, 0] * 10, Preparation(columns), np.arange(5))
        >>> data = table.split(seed=1)
        >>> data.train[0][:, 0].mean().abs().item() < 1e-6, data.train[0][:, 1].unique().tolist()
        (True, [0.0, 1.0])
        """
        standardize = self.standardize if standardize is None else standardize
        parts = dict(zip(PARTS, split_rows(len(self), val=val, test=test, seed=seed), strict=True))
        train, y = parts["train"], self.y
        scaler = Scaler.fit(self.x[train], self.scaled & standardize, self.log_skew)
        x = scaler(self.x)
        notes: dict[str, Any] = {
            "split_seed": seed,
            "notes": list(self.notes),
            "preparation": self.preparation.to_dict(),
            **scaler.to_dict(self.features),
        }
        if self.guess:
            notes["guess"] = self.guess
        if self.preparation.missing == "fill":
            notes["feature_fill"] = scaler.fill.tolist()
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
