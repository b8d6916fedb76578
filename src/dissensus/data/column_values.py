"""Columns of tables: read from files as text, and their values as numbers, booleans, dates or text.

A raw column, of a frame, a dict or a file, is an array of numbers (NaN for gaps), booleans, dates,
or text (None for gaps). Each of :data:`READERS` turns any of them into what a column of its kind
computes with, or raises.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.dataset import missing_extra
from dissensus.tools.files import check_regular, check_size

Array = NDArray[Any]
Floats = NDArray[np.float64]

_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?")


def find_gaps(values: Array) -> NDArray[np.bool_]:
    """Where values are missing: NaN among numbers, None among text."""
    gaps = [value is None for value in values] if values.dtype == object else np.isnan(values)
    return np.asarray(gaps, dtype=bool)


def find_kind(values: Array, *, parse: bool = False) -> str:
    """Number, boolean, date or category; with ``parse`` text of numbers alone is numbers.

    >>> columns = (["1", "?"], ["true"], ["2024-02-29"])
    >>> [find_kind(text_column(column), parse=True) for column in columns]
    ['number', 'boolean', 'date']
    """
    by_type = {"f": "number", "i": "number", "u": "number", "b": "boolean", "M": "date"}
    if values.dtype.kind in by_type:
        return by_type[values.dtype.kind]
    if all(value is None for value in values):
        return "number"
    for kind in ("number", "boolean", "date")[0 if parse else 1 :]:
        try:
            READERS[kind](values)
        except ValueError:
            continue
        return kind
    return "category"


# ---- reading ------------------------------------------------------------------------------------


def _to_numbers(values: Array) -> Floats:
    if values.dtype.kind == "M":
        raise ValueError(f"there are dates, such as {values[0]}")
    if values.dtype != object:
        numbers = values.astype(np.float64)
        return np.where(np.isnan(numbers), np.nan, numbers)  # one NaN for all: bytes are compared
    return np.array([np.nan if value is None else float(value) for value in values])


def _to_booleans(values: Array) -> Floats:
    if values.dtype == object:
        words = {"true": 1.0, "false": 0.0}
        numbers = np.array([np.nan if v is None else words.get(v.lower(), -1.0) for v in values])
    else:
        numbers = _to_numbers(values)
    strange = ~np.isnan(numbers) & (numbers != 0) & (numbers != 1)
    if strange.any():
        raise ValueError(f"there is {values[strange][0]!r}, neither true nor false")
    return numbers


def _to_days(values: Array) -> Floats:
    """Days since 1970, with the time of day as a fraction."""
    if values.dtype == object:
        for value in values:
            if value is not None and not _ISO_DATE.fullmatch(value):
                raise ValueError(f"{value!r} is no date such as 2024-02-29 or 2024-02-29 12:30")
        times = [None if value is None else datetime.fromisoformat(value) for value in values]
        values = np.array([_naive(time) for time in times], dtype="datetime64[us]")
    elif values.dtype.kind != "M":
        raise ValueError(f"there are numbers, such as {values[0]}")
    days = values.astype("datetime64[us]").astype(np.int64) / 86_400e6
    return np.where(np.isnat(values), np.nan, days)


def _to_text(values: Array) -> Array:
    return values if values.dtype == object else text_column(values.tolist())


def _level(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


#: The reader of each kind; ``dropped`` columns are read by none.
READERS: dict[str, Callable[[Array], Array]] = {
    "number": _to_numbers,
    "boolean": _to_booleans,
    "date": _to_days,
    "category": _to_text,
}


# ---- raw columns --------------------------------------------------------------------------------


def is_frame(X: Any) -> bool:
    """Whether ``X`` is a pandas DataFrame, or becomes one with ``to_pandas``."""
    return hasattr(X, "to_pandas") or (hasattr(X, "iloc") and hasattr(X, "columns"))


def raw_columns(X: Any) -> dict[str, Array]:
    """The columns of a DataFrame (pandas, also of Arrow types; polars), or of a dict of columns."""
    if hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if isinstance(X, Mapping):
        return {
            str(name): values if _is_typed(values) else _from_values(list(values))
            for name, values in X.items()
        }
    names = [str(name) for name in X.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two columns are called {twice!r}; rename one")
    return {name: _from_series(X.iloc[:, place]) for place, name in enumerate(names)}


def _is_typed(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "fiubM"


def _from_series(column: Any) -> Array:
    kind = getattr(column.dtype, "kind", "O")
    if kind == "c":
        raise ValueError("Complex data not supported")
    if kind == "m":
        column, kind = column.dt.total_seconds() / 86_400, "f"
    if kind in "iuf":
        numbers: Array = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    if kind == "b" and not column.isna().any():
        return np.asarray(column, dtype=bool)
    if kind == "M":
        zone = getattr(getattr(column.dtype, "pyarrow_dtype", None), "tz", None)
        if zone:  # pandas 2.2 takes the time in UTC for that of Arrow on the clock
            column = column.astype(f"datetime64[us, {zone}]")
        naive = column.dt.tz_localize(None)  # the time on the clock
        dates: Array = naive.to_numpy(dtype="datetime64[us]", na_value=np.datetime64("NaT"))
        return dates
    objects = column.astype(object)
    values = objects.where(objects.notna(), None).tolist()
    if hasattr(column, "cat"):
        return text_column(values)
    return _from_values(values)


def _from_values(values: list[Any]) -> Array:
    """Python values as an array of numbers, of dates, or of text."""
    if _is_text(values):
        return text_column(values)
    known = [value for value in values if not _is_gap(value)]
    if known and all(isinstance(v, Real) and not isinstance(v, bool | np.bool_) for v in known):
        return np.array([np.nan if _is_gap(v) else float(v) for v in values])
    if known and all(isinstance(value, date) for value in known):
        return np.array([_naive(value) for value in values], dtype="datetime64[us]")
    return text_column(values)


def text_column(values: Iterable[Any]) -> Array:
    """Values as text, None where one is missing."""
    values = list(values)
    if _is_text(values):
        gaps = {value for value in set(values) if _is_gap(value)}
        texts = [None if value in gaps else value for value in values]
    else:
        texts = [None if _is_gap(value) else _level(value) for value in values]
    return np.array(texts, dtype=object)


def _is_text(values: list[Any]) -> bool:
    return set(map(type, values)) <= {str, type(None)}


def _is_gap(value: Any) -> bool:
    if isinstance(value, str):
        return is_missing(value)
    return value is None or bool(value != value)


def _naive(value: Any) -> datetime | None:
    """A date or time on the clock."""
    if _is_gap(value):
        return None
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return datetime(value.year, value.month, value.day)


def array_columns(x: Any, names: Sequence[str] | None) -> dict[str, Array]:
    """The columns of an array, sparse or not, by their ``names`` where these are all different."""
    dense = x.toarray() if hasattr(x, "toarray") else x
    if names is None or len(set(names)) < len(names):
        names = [f"x{place}" for place in range(dense.shape[1])]
    return dict(zip(names, dense.T, strict=True))


def frame_columns(X: Any) -> dict[str, Array] | None:
    """The raw columns of a DataFrame with text or dates in it; None for numbers alone."""
    if not is_frame(X):
        return None
    raw = raw_columns(X)
    durations = any(getattr(kind, "kind", "") == "m" for kind in getattr(X, "dtypes", ()))
    return raw if durations or any(values.dtype.kind in "OM" for values in raw.values()) else None


# ---- files --------------------------------------------------------------------------------------

#: The suffixes of tables.
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")

#: Cells that stand for a missing value; compared without case and surrounding spaces.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_SEPARATORS = ",;\t|"

#: What a cell takes in memory as text, and how much more memory than its size a CSV file needs.
_CELL_BYTES, _CSV_EXPANSION = 64, 8
#: Parquet is read in pieces of so many rows, as a few long texts can stand in many of them.
_BATCH_ROWS = 4096


def is_missing(value: str) -> bool:
    """Whether a cell says that there is no value."""
    return value.strip().lower() in MISSING


def missing_counts(columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The number of missing values of each column that has some.

    >>> missing_counts({"a": ["1", "?"], "b": ["2", "3"]})
    {'a': 1}
    """
    counts = {name: sum(map(is_missing, values)) for name, values in columns.items()}
    return {name: count for name, count in counts.items() if count}


def complete_rows(columns: Mapping[str, Sequence[str]]) -> NDArray[np.int64]:
    """The numbers of the rows that lack no value."""
    gaps = np.array([[is_missing(value) for value in values] for values in columns.values()])
    return np.flatnonzero(~gaps.any(0)).astype(np.int64)


def list_names(names: Iterable[str]) -> str:
    """Names of columns for a message: the first thirty."""
    every = list(names)
    more = f" and {len(every) - 30} more" if len(every) > 30 else ""
    return ", ".join(every[:30]) + more


def read_columns(path: Path, *, header: bool = True) -> dict[str, list[str]]:
    """The columns of a .csv, .tsv or .parquet file by name, as text; gaps are empty."""
    if not path.exists():
        raise ValueError(f"there is no table {path}")
    check_regular(path)
    if path.suffix == ".parquet":
        return _parquet_columns(path)
    check_size(path.stat().st_size * _CSV_EXPANSION, str(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    return parse_separated(text, str(path), header=header)


def _parquet_columns(path: Path) -> dict[str, list[str]]:
    """All columns as text; what the footer says about their number is checked first."""
    file = open_parquet(path)
    rows, columns = file.metadata.num_rows, file.metadata.num_columns
    check_size(
        rows * columns * _CELL_BYTES, f"{path}, a table of {rows} rows and {columns} columns"
    )
    texts: dict[str, list[str]] = {str(name): [] for name in file.schema_arrow.names}
    needed = 0
    for batch in _batches(file, path):
        needed += batch.nbytes
        check_size(needed, str(path))
        for name, column in zip(texts, batch.columns, strict=True):
            values = column.to_pylist()
            texts[name] += ["" if value is None else str(value) for value in values]
    return texts


def _batches(file: Any, path: Path) -> Iterator[Any]:
    try:
        yield from file.iter_batches(batch_size=_BATCH_ROWS)
    except Exception as error:  # Arrow raises all kinds for damaged files
        raise ValueError(f"{path} cannot be read as Parquet ({error})") from error


def parse_separated(
    text: str, where: str, *, header: bool | Sequence[str] = True
) -> dict[str, list[str]]:
    """Columns of a table separated by comma, semicolon, tab or bar, whichever its first line has.

    ``header=True`` takes names from the first line, ``False`` makes ``column_0``, …; a sequence
    gives them.

    >>> parse_separated("a;b\\r\\n1;2\\r\\n3;4\\r\\n", "toy.csv")
    {'a': ['1', '3'], 'b': ['2', '4']}
    """
    text = text.removeprefix("\ufeff")
    first = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=first.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        rows = [row for row in lines if row]
    except csv.Error as error:
        raise ValueError(f"{where} is no table: line {lines.line_num}: {error}") from error
    if not rows:
        raise ValueError(f"{where} is empty")
    if header is True:
        names = [name.strip() for name in rows.pop(0)]
    elif header is False:
        names = [f"column_{i}" for i in range(len(rows[0]))]
    else:
        names = list(header)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{where} names columns twice: {', '.join(twice)}; rename them")
    for number, row in enumerate(rows):
        if len(row) != len(names):
            counts = f"{len(row)} values between {separator!r}, the header {len(names)}"
            raise ValueError(f"{where}: data row {number + 1} has {counts}")
    if not rows:
        raise ValueError(f"{where} has a header and no rows")
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}


def open_parquet(path: Path | str) -> Any:
    """A Parquet file (``pyarrow.parquet.ParquetFile``), of which nothing has been read."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("a .parquet file", "pyarrow", '"dissensus[tables]"') from error
    check_regular(path)
    try:
        return pyarrow.parquet.ParquetFile(path)
    except Exception as error:  # Arrow raises all kinds for damaged files
        raise ValueError(f"{path} cannot be read as Parquet ({error})") from error
