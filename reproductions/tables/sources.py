"""Tables of the comparison: 26 public ones, and scikit-learn's own.

The public ones are files ``$DISSENSUS_DATA/tables/NAME.csv.gz``, exported from data that R packages
ship. Everybody gets them as they are read: text is text, and codes of categories are numbers where
the file holds numbers. An empty cell is a missing value, and nothing else is.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split

from dissensus.data import data_places

Task = Literal["regression", "classification"]
#: Defaults are settled on one part of the tables and confirmed on another.
Part = Literal["settling", "confirmation", "scikit-learn"]
PARTS: tuple[Part, ...] = ("settling", "confirmation", "scikit-learn")


@dataclass(frozen=True)
class Table:
    """What is predicted in a table, and which part it belongs to."""

    task: Task
    target: str
    part: Part


TABLES = {
    "ames": Table("regression", "Sale_Price", "settling"),
    "diamonds": Table("regression", "price", "confirmation"),
    "sacramento": Table("regression", "price", "settling"),
    "car_prices": Table("regression", "Price", "confirmation"),
    "chicago": Table("regression", "ridership", "settling"),
    "biomass": Table("regression", "HHV", "confirmation"),
    "cps1988": Table("regression", "wage", "settling"),
    "houseprices": Table("regression", "price", "confirmation"),
    "servo": Table("regression", "Class", "settling"),
    "ozone": Table("regression", "V4", "confirmation"),
    "spam": Table("classification", "type", "settling"),
    "satellite": Table("classification", "classes", "confirmation"),
    "letters": Table("classification", "lettr", "settling"),
    "vehicle": Table("classification", "Class", "confirmation"),
    "vowel": Table("classification", "Class", "settling"),
    "shuttle": Table("classification", "Class", "confirmation"),
    "pima": Table("classification", "diabetes", "settling"),
    "soybean": Table("classification", "Class", "confirmation"),
    "votes": Table("classification", "Class", "settling"),
    "credit": Table("classification", "Status", "confirmation"),
    "churn": Table("classification", "churn", "settling"),
    "telco": Table("classification", "churn", "confirmation"),
    "attrition": Table("classification", "Attrition", "settling"),
    "cells": Table("classification", "class", "confirmation"),
    "hpc": Table("classification", "class", "settling"),
    "lending": Table("classification", "Class", "confirmation"),
    "diabetes": Table("regression", "target", "scikit-learn"),
    "breast_cancer": Table("classification", "target", "scikit-learn"),
    "digits": Table("classification", "target", "scikit-learn"),
    "wine": Table("classification", "target", "scikit-learn"),
}

_LOADERS = {
    "diabetes": datasets.load_diabetes,
    "breast_cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
    "wine": datasets.load_wine,
}


def find_table(name: str) -> Path | None:
    """The file of a table, or None where it is not there; scikit-learn's own have none."""
    paths = (place / "tables" / f"{name}.csv.gz" for place in data_places())
    return next((path for path in paths if path.is_file()), None)


def is_there(name: str) -> bool:
    """Whether a table can be loaded."""
    return name in _LOADERS or find_table(name) is not None


def load_table(name: str) -> tuple[Any, NDArray[Any]]:
    """The columns as a DataFrame, and the target: numbers, or the numbers of the classes."""
    import pandas as pd

    if name in _LOADERS:
        frame = _LOADERS[name](as_frame=True).frame
    else:
        path = find_table(name)
        if path is None:
            raise FileNotFoundError(f"there is no $DISSENSUS_DATA/tables/{name}.csv.gz")
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    y = frame.pop(TABLES[name].target).to_numpy()
    if TABLES[name].task == "classification":
        return frame, np.unique(y.astype(str), return_inverse=True)[1]
    return frame, y.astype(np.float64)


def split_rows(
    X: Any, y: NDArray[Any], task: Task, split: int
) -> tuple[Any, Any, NDArray[Any], NDArray[Any]]:
    """Training and test rows, 80 to 20, drawn by the split's number; classes keep their shares."""
    stratify = y if task == "classification" else None
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=0.2, random_state=split, stratify=stratify
    )
    return X.reset_index(drop=True), X_test.reset_index(drop=True), y, y_test
