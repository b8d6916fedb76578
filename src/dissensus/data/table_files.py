"""Tables in ``.csv``, ``.tsv`` and ``.parquet`` files, with columns of any kind.

>>> import tempfile, pathlib
>>> file = pathlib.Path(tempfile.mkdtemp()) / "flats.csv"
>>> _ = file.write_text("rooms,town,price\\n" + "3,Bonn,250.5\\n4,Köln,310.0\\n2,Bonn,190.0\\n" * 5)
>>> read_table_file(file, target="price")
Table('flats.csv': regression, 15 rows, 3 columns)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dissensus.data.column_values import Array, find_kind, text_column
from dissensus.data.dataset import Request, check_task, guess_task
from dissensus.data.formats import complete_rows, list_names, missing_counts, read_columns
from dissensus.data.preparation import MAX_LEVELS, Column, Preparation, sort_levels
from dissensus.data.table import Table

#: An integer target with at most this many values is taken for class labels.
FEW_VALUES = 20


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
    log_skew: float | None = None,
    standardize: bool = True,
    header: bool = True,
) -> Table:
    """Read a table whose column ``target`` (a name, or a position: −1 is the last) is to be learnt.

    Columns are numbers, booleans, dates or categories, or dropped if they say nothing
    (:mod:`dissensus.data.preparation`); ``categorical`` names columns whose numbers are labels.
    Kinds and levels are those of the whole table, so that every split has the same columns. The
    task is classification if the target is text or yes/no, or whole numbers of at most 20 different
    values; ``task=`` decides otherwise. ``missing`` says what happens to gaps: ``"fill"`` takes the
    mean of the training rows for numbers and marks them, and a level of its own for text;
    ``"drop"`` leaves out their rows, ``"error"`` reports them, both also for new rows. ``log_skew``
    is that of :class:`~dissensus.data.table.Table`.
    """
    if isinstance(max_levels, bool) or not isinstance(max_levels, int) or max_levels < 2:
        raise ValueError(f"max_levels must be an integer of at least 2, got {max_levels!r}")
    path = Path(path)
    columns = read_columns(path, header=header)
    for name in drop:
        _check_column(name, columns, "drop")
    target = _target_name(target, columns, path)
    columns = {name: values for name, values in columns.items() if name not in set(drop)}
    if target not in columns:
        raise ValueError(f"target {target!r} is also in drop; it cannot be both")
    for name in categorical:
        _check_column(name, columns, "categorical")
    ids = _without_gaps(columns, target, missing, path)
    if len(ids) == 0:
        raise ValueError(f"{path}: every row lacks a value; try missing='fill', or drop columns")
    raw = {name: text_column(values[i] for i in ids) for name, values in columns.items()}
    values = raw.pop(target)
    if not raw:
        raise ValueError(f"{path} has no column besides the target {target!r}")
    task, guess = _task(values, target, task)
    y, classes = _labels(values) if task == "classification" else _numbers(values, target)
    preparation = Preparation.fit(
        raw,
        categorical=categorical,
        parse=True,
        max_levels=max_levels,
        missing="fill" if missing == "fill" else "error",
    )
    notes = (f"target {target}", *(f"dropped {name}" for name in drop), f"missing={missing}")
    return Table(
        path.name,
        task,
        preparation.encode(raw, path),
        y,
        preparation,
        ids,
        classes=classes,
        log_skew=log_skew,
        source=str(path),
        notes=notes,
        guess=guess,
        standardize=standardize,
    )


# ---- columns ------------------------------------------------------------------------------------


def _check_column(name: str, columns: dict[str, list[str]], what: str) -> None:
    if name not in columns:
        raise ValueError(f"{what}: there is no column {name!r}; there are {list_names(columns)}")


def _target_name(target: str | int | None, columns: dict[str, list[str]], path: Path) -> str:
    if target is None:
        raise ValueError(
            f"say which column of {path} is to be learnt with target=; there are "
            f"{list_names(columns)}"
        )
    if isinstance(target, str):
        _check_column(target, columns, "target")
        return target
    if not -len(columns) <= target < len(columns):
        raise ValueError(f"target={target} is no position among {len(columns)} columns")
    return list(columns)[target]


def _without_gaps(
    columns: dict[str, list[str]], target: str, missing: str, path: Path
) -> np.ndarray:
    """The rows to keep; raise if there are gaps and nothing was said about them."""
    if missing not in ("error", "drop", "fill"):
        raise ValueError(f"missing must be 'error', 'drop' or 'fill', got {missing!r}")
    count = len(columns[target])
    counts = missing_counts(columns)
    if counts and missing == "error":
        per_column = ", ".join(f"{name}: {number}" for name, number in counts.items())
        raise ValueError(
            f"{path} lacks values in {len(counts)} of {len(columns)} columns ({per_column}, of "
            f"{count} rows); pass missing='drop' to leave those rows out, missing='fill' to fill "
            "them (means of the training rows, and a mark; text gets a level of its own), or "
            "drop=[…] for whole columns"
        )
    if missing == "fill" and target in counts:
        raise ValueError(
            f"{path}: the target {target!r} is missing in {counts[target]} of {count} rows and "
            "cannot be filled; remove those rows, or pass missing='drop'"
        )
    return complete_rows(columns) if missing == "drop" else np.arange(count, dtype=np.int64)


# ---- the target ---------------------------------------------------------------------------------


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
        raise ValueError(
            f"the target {name!r} holds text such as {values[0]!r}; regression needs numbers: "
            "leave task out, or pass task='classification'"
        )
    return Column(name, "number").read(values), ()
