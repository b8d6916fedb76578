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
    """A table: its target, its part, and its numbers of rows and classes (0: a regression)."""

    target: str
    part: Part
    rows: int
    classes: int = 0

    @property
    def task(self) -> Task:
        """``"classification"`` where there are classes."""
        return "classification" if self.classes else "regression"


TABLES = {
    "ames": Table("Sale_Price", "settling", 2930),
    "diamonds": Table("price", "confirmation", 53940),
    "sacramento": Table("price", "settling", 932),
    "car_prices": Table("Price", "confirmation", 804),
    "chicago": Table("ridership", "settling", 5698),
    "biomass": Table("HHV", "confirmation", 536),
    "cps1988": Table("wage", "settling", 28155),
    "houseprices": Table("price", "confirmation", 546),
    "servo": Table("Class", "settling", 167),
    "ozone": Table("V4", "confirmation", 361),
    "spam": Table("type", "settling", 4601, 2),
    "satellite": Table("classes", "confirmation", 6435, 6),
    "letters": Table("lettr", "settling", 20000, 26),
    "vehicle": Table("Class", "confirmation", 846, 4),
    "vowel": Table("Class", "settling", 990, 11),
    "shuttle": Table("Class", "confirmation", 58000, 7),
    "pima": Table("diabetes", "settling", 768, 2),
    "soybean": Table("Class", "confirmation", 683, 19),
    "votes": Table("Class", "settling", 435, 2),
    "credit": Table("Status", "confirmation", 4454, 2),
    "churn": Table("churn", "settling", 5000, 2),
    "telco": Table("churn", "confirmation", 7043, 2),
    "attrition": Table("Attrition", "settling", 1470, 2),
    "cells": Table("class", "confirmation", 2019, 2),
    "hpc": Table("class", "settling", 4331, 4),
    "lending": Table("Class", "confirmation", 9857, 2),
    "diabetes": Table("target", "scikit-learn", 442),
    "breast_cancer": Table("target", "scikit-learn", 569, 2),
    "digits": Table("target", "scikit-learn", 1797, 10),
    "wine": Table("target", "scikit-learn", 178, 3),
}


def find_table(name: str) -> Path | None:
    """The file of a table, or None where it is not there; scikit-learn's own have none."""
    paths = (place / "tables" / f"{name}.csv.gz" for place in data_places())
    return next((path for path in paths if path.is_file()), None)


def load_table(name: str) -> tuple[Any, NDArray[Any]]:
    """The columns as a DataFrame, and the target: numbers, or the numbers of the classes."""
    import pandas as pd

    table = TABLES[name]
    if table.part == "scikit-learn":
        frame = getattr(datasets, f"load_{name}")(as_frame=True).frame
    else:
        path = find_table(name)
        if path is None:
            raise FileNotFoundError(f"there is no $DISSENSUS_DATA/tables/{name}.csv.gz")
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    y = frame.pop(table.target).to_numpy()
    if table.classes:
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
