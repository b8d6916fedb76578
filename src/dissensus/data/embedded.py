"""Data sets that come with scikit-learn: no network, no files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dissensus.data.base import Data, Request, tensors
from dissensus.data.table import Table

__all__ = ["EMBEDDED_TABLES", "load_digits_images", "load_embedded"]

_SOURCE = "embedded in scikit-learn: "


def load_digits_images(request: Request) -> Data:
    """1,797 handwritten digits of 8 × 8 pixels in [0, 1], ten classes.

    >>> load_digits_images(Request(seed=0))
    Data('digits': classification, (1, 8, 8), 10 classes; train 1150, val 288, test 359)
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = (bunch.images / 16.0)[:, None]
    parts = request.split(len(x))
    made = [tensors(x, bunch.target, rows, "classification") for rows in parts]
    names = ("train", "val", "test")
    return Data(
        "digits",
        "classification",
        *(made[0], made[1], made[2]),
        classes=tuple(str(name) for name in bunch.target_names),
        rows={name: torch.from_numpy(rows) for name, rows in zip(names, parts, strict=True)},
        preprocessing={"split_seed": request.seed, "notes": ["pixels divided by 16"]},
        source=_SOURCE + "sklearn.datasets.load_digits",
    )


def load_embedded(name: str, request: Request, *, standardize: bool = True) -> Data:
    """One of :data:`EMBEDDED_TABLES`, split for the request's seed."""
    table = EMBEDDED_TABLES[name]()
    return table.split(
        request.seed, val=request.val, test=request.test_share, standardize=standardize
    )


def _breast_cancer() -> Table:
    """569 tumours, 30 measurements, malignant or benign."""
    from sklearn.datasets import load_breast_cancer

    return _table("breast_cancer", load_breast_cancer(), "classification")


def _wine() -> Table:
    """178 wines, 13 measurements, three growers."""
    from sklearn.datasets import load_wine

    return _table("wine", load_wine(), "classification")


def _diabetes() -> Table:
    """442 patients, 10 measurements; the target is the progression of the disease in a year."""
    from sklearn.datasets import load_diabetes

    # Raw units: scikit-learn's own scaling uses the statistics of all rows.
    return _table("diabetes", load_diabetes(scaled=False), "regression")


def _table(name: str, bunch: Any, task: str) -> Table:
    x: NDArray[np.float64] = np.asarray(bunch.data, dtype=np.float64)
    classes = tuple(str(c) for c in bunch.target_names) if task == "classification" else ()
    return Table(
        name,
        task,
        x,
        np.asarray(bunch.target),
        tuple(str(feature) for feature in bunch.feature_names),
        np.ones(x.shape[1], dtype=bool),
        np.arange(len(x), dtype=np.int64),
        classes=classes,
        source=f"{_SOURCE}sklearn.datasets.load_{name}",
    )


#: Tables in raw units by name.
EMBEDDED_TABLES: dict[str, Callable[[], Table]] = {
    "breast_cancer": _breast_cancer,
    "wine": _wine,
    "diabetes": _diabetes,
}
