"""Tables: raw columns and a target, their splits, and ``.csv``, ``.tsv`` and ``.parquet`` files.

Experiments on tables split the same rows again and again; so a :class:`Table` is read once and
:meth:`Table.split` makes the data set of one seed. All that is estimated from data (levels of
columns, edges, means, deviations) is estimated on the training rows of that split alone, by the
classes that :mod:`dissensus.sklearn` uses too.

>>> import tempfile, pathlib
>>> file = pathlib.Path(tempfile.mkdtemp()) / "flats.csv"
>>> _ = file.write_text("rooms,town,price\\n" + "3,Bonn,250.5\\n4,Köln,310.0\\n2,Bonn,190.0\\n" * 5)
>>> table = read_table_file(file, target="price")
>>> table, table.split(seed=1).features
(Table('flats.csv': regression, 15 rows, 2 columns), ('rooms', 'town=Bonn', 'town=Köln'))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dissensus.data.column_values import (
    Array,
    complete_rows,
    find_kind,
    list_names,
    missing_counts,
    read_columns,
    text_column,
)
from dissensus.data.dataset import PARTS, Data, Request, check_task, guess_task, split_rows
from dissensus.data.encoder import Standard
from dissensus.data.preparation import MAX_LEVELS, Column, Preparation, sort_levels
from dissensus.tools.specs import check_choice, check_integer

#: An integer target with at most this many values is taken for class labels.
FEW_VALUES = 20


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """A table as it was read: raw ``columns``, and ``y``, labels or numbers.

    ``ids`` are the row numbers in the source file, ``settings`` those of :meth:`Preparation.fit`.
    """

    name: str
    task: str
    columns: Mapping[str, Array]
    y: NDArray[Any]
    ids: NDArray[np.int64]
    classes: tuple[str, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    guess: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Table({self.name!r}: {self.task}, {len(self)} rows, {len(self.columns)} columns)"

    def split(self, seed: int = 0, *, val: float | int = 0.2, test: float | int = 0.2) -> Data:
        """Encoded train, validation and test splits for one seed; targets standardised."""
        parts = dict(zip(PARTS, split_rows(len(self), val=val, test=test, seed=seed), strict=True))
        train = parts["train"]
        y = self.y
        if self.task == "regression":
            y = y.astype(np.float64).reshape(len(y), -1)
        learnt = {name: values[train] for name, values in self.columns.items()}
        preparation = Preparation.fit(learnt, **self.settings)
        x = preparation.encode(self.columns, self.source or self.name)
        standard = Standard.fit(x[train], y[train], preparation.scaled)
        notes: dict[str, Any] = {
            "split_seed": seed,
            "notes": list(self.notes),
            "preparation": preparation.to_dict(),
            "encoder": standard.x.to_dict(),
        }
        if self.guess:
            notes["guess"] = self.guess
        if standard.y is not None:
            notes["target_mean"] = standard.y.mean.tolist()
            notes["target_std"] = standard.y.scale.tolist()
        splits: dict[str, Any] = {
            part: (standard.inputs(x[rows]), standard.targets(y[rows]))
            for part, rows in parts.items()
        }
        return Data(
            self.name,
            self.task,
            **splits,
            classes=self.classes,
            features=preparation.features,
            rows={part: torch.from_numpy(self.ids[rows]) for part, rows in parts.items()},
            preprocessing=notes,
            source=self.source,
        )


# ---- files --------------------------------------------------------------------------------------


def read_table_file(
    path: str | Path,
    request: Request | None = None,  # of which nothing is needed
    *,
    target: str | int | None = None,
    task: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: str = "fill",
    max_levels: int = MAX_LEVELS,
    header: bool = True,
) -> Table:
    """Read a table whose column ``target`` (a name, or a position: −1 is the last) is to be learnt.

    Columns are numbers, booleans, dates or categories, or dropped if they say nothing
    (:mod:`dissensus.data.preparation`); ``categorical`` names columns whose numbers are labels.
    Kinds are those of the whole table; levels and numbers are learnt from training rows. The task
    is classification if the target is text or yes/no, or whole numbers of at most 20 different
    values; ``task=`` decides otherwise. ``missing`` says what happens to gaps: ``"fill"`` takes the
    mean of the training rows for numbers and marks them, and a level of its own for text;
    ``"drop"`` leaves out their rows, ``"error"`` reports them, both also for new rows.
    """
    check_integer("max_levels", max_levels, 2)
    check_choice("a table", "missing", missing, ("error", "drop", "fill"))
    path = Path(path)
    columns = read_columns(path, header=header)
    target = _target_name(target, columns, path)
    for what, names in {"target": [target], "drop": drop, "categorical": categorical}.items():
        for name in names:
            if name not in columns:
                known = list_names(columns)
                raise ValueError(f"{what}: there is no column {name!r}; there are {known}")
    if target in drop:
        raise ValueError(f"target {target!r} is also in drop; it cannot be both")
    columns = {name: values for name, values in columns.items() if name not in set(drop)}
    ids = _rows_to_keep(columns, target, missing, path)
    raw = {name: text_column(values[i] for i in ids) for name, values in columns.items()}
    values = raw.pop(target)
    if not raw:
        raise ValueError(f"{path} has no column besides the target {target!r}")
    task, guess = _task(values, target, task)
    y, classes = _labels(values) if task == "classification" else _numbers(values, target)
    kinds = {name: find_kind(values, parse=True) for name, values in raw.items()}
    settings = {"categorical": categorical, "kinds": kinds, "max_levels": max_levels}
    return Table(
        path.name,
        task,
        raw,
        y,
        ids,
        classes=classes,
        source=str(path),
        notes=(f"target {target}", *(f"dropped {name}" for name in drop), f"missing={missing}"),
        guess=guess,
        settings=settings | {"missing": "fill" if missing == "fill" else "error"},
    )


def _target_name(target: str | int | None, columns: dict[str, list[str]], path: Path) -> str:
    if isinstance(target, str):
        return target
    if target is None:
        raise ValueError(f"say with target= which column of {path} to learn: {list_names(columns)}")
    if not -len(columns) <= target < len(columns):
        raise ValueError(f"target={target} is no position among {len(columns)} columns")
    return list(columns)[target]


def _rows_to_keep(
    columns: dict[str, list[str]], target: str, missing: str, path: Path
) -> NDArray[np.int64]:
    """The numbers of the rows to learn from; raises for gaps that cannot be filled or dropped."""
    count, counts = len(columns[target]), missing_counts(columns)
    if counts and missing == "error":
        each = ", ".join(f"{name}: {number}" for name, number in counts.items())
        lacks = f"in {len(counts)} of {len(columns)} columns ({each}, of {count} rows)"
        raise ValueError(f"{path} lacks values {lacks}; pass missing='fill' or missing='drop'")
    if missing == "fill" and target in counts:
        missing_in = f"the target {target!r} is missing in {counts[target]} of {count} rows"
        raise ValueError(f"{path}: {missing_in}; remove them, or pass missing='drop'")
    ids = complete_rows(columns) if missing == "drop" else np.arange(count, dtype=np.int64)
    if len(ids) == 0:
        raise ValueError(f"{path}: every row lacks a value; try missing='fill', or drop columns")
    return ids


def _task(values: Array, name: str, task: str | None) -> tuple[str, str]:
    """The task, and a sentence about it where numbers leave it open."""
    if task is not None:
        check_task(task)
        return task, ""
    if find_kind(values, parse=True) != "number":
        return "classification", ""
    numbers = values.astype(np.float64)
    return guess_task(f"target {name!r}", numbers, most_classes=FEW_VALUES)


def _labels(values: Array) -> tuple[Array, tuple[str, ...]]:
    classes = sort_levels(values.tolist())
    if len(classes) < 2:
        raise ValueError(f"the target has one value only, {values[0]!r}: there is nothing to learn")
    index = {name: number for number, name in enumerate(classes)}
    return np.array([index[value] for value in values], dtype=np.int64), tuple(classes)


def _numbers(values: Array, name: str) -> tuple[Array, tuple[str, ...]]:
    if find_kind(values, parse=True) != "number":
        text = f"the target {name!r} holds text such as {values[0]!r}"
        raise ValueError(f"{text}; regression needs numbers: pass task='classification'")
    return Column(name, "number").read(values), ()
