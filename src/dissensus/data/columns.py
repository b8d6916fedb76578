"""Columns of text from table files (CSV, TSV, Parquet), and the gaps in them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from dissensus.data.base import missing_extra

__all__ = ["MISSING", "is_missing", "missing_counts", "parse_separated", "read_columns"]

#: What a table may say where it has no value; compared without case and surrounding spaces.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})

_SEPARATORS = ",;\t|"


def is_missing(value: str) -> bool:
    """Whether a cell says that there is no value."""
    return value.strip().lower() in MISSING


def missing_counts(columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many values each column lacks; columns without gaps are left out.

    >>> missing_counts({"a": ["1", "?"], "b": ["2", "3"]})
    {'a': 1}
    """
    counts = {name: sum(map(is_missing, values)) for name, values in columns.items()}
    return {name: count for name, count in counts.items() if count}


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
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row]
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
            raise ValueError(
                f"{where}: data row {number + 1} has {len(row)} values, the header "
                f"{len(names)}; the separator was taken to be {separator!r}"
            )
    if not rows:
        raise ValueError(f"{where} has a header and no rows")
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}


def read_columns(path: Path, *, header: bool = True) -> dict[str, list[str]]:
    """The columns of a .csv, .tsv or .parquet file by name, as text; gaps are empty."""
    if not path.is_file():
        raise ValueError(f"there is no table {path}")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    return parse_separated(text, str(path), header=header)


def _read_parquet(path: Path) -> dict[str, list[str]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("a .parquet table", "pyarrow", '"dissensus[tables]"') from error
    try:
        read = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} cannot be read as Parquet ({error})") from error
    return {
        str(name): ["" if value is None else str(value) for value in read.column(name).to_pylist()]
        for name in read.column_names
    }
