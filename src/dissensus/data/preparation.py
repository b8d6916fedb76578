"""Preparation of tables: every column's kind, and the numbers that its values become.

A :class:`Preparation` is learnt once from raw columns and kept with the model, so that new rows
become the same inputs. It is plain data: ``to_dict`` and ``from_dict`` go through JSON exactly.

==========  ======================================  ============================================
kind        raw values                              inputs
==========  ======================================  ============================================
number      numbers, durations (in days)            the number, to be standardised
boolean     true and false                          1 and 0, to be standardised
date        dates and times; text such as           days since 1970, to be standardised; sine and
            2024-02-29 or 2024-02-29 12:30          cosine of the time of year, and of the day where
                                                    there are times of day; 0 or 1 for each day of
                                                    the week; where dates go over two years or more,
                                                    for each week of the year and, if there are four
                                                    rows or more for each (and 100,000 at most), for
                                                    each day of the year
category    other text, categories                  0 or 1 for each level
dropped     one value only; text that is different  none
            in most rows, such as names
==========  ======================================  ============================================

Missing values of a category are the level ``missing``. Those of the other kinds are filled with the
training mean, and ``NAME=missing`` is 1 there if the table that was learnt from had gaps. Rare
levels, those in fewer than 1 of 200 rows and in fewer than 10, and those beyond ``max_levels``
share the level ``other``. A level that is seen later for the first time is ``other`` too; where
there is no such level, it is 0 in all inputs of its column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.column_values import READERS, find_gaps, find_kind, list_names, raw_columns

Array = NDArray[Any]
Floats = NDArray[np.float64]

#: The most levels of a category; the rarest of more share ``other``.
MAX_LEVELS = 100
#: Text with more different values than this, and in more than half of the rows, names the rows.
_MANY_NAMES = 20
_OTHER, _MISSING = "other", "missing"
_YEAR = 365.2425
_CYCLES = {"year": _YEAR, "week": 7.0, "day": 1.0}  # in days
#: How many levels the parts of a calendar have.
_CALENDAR = {"weekday": 7, "yearweek": 53, "yearday": 366}
#: Rows for each day of the year, from which on it says something: a holiday that comes again.
_EACH_DAY = 4
#: With more rows, inputs for each day of the year would take gigabytes.
_MOST_ROWS = 100_000
#: Days before each month of a leap year.
_BEFORE_MONTH = np.cumsum([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30])


@dataclass(frozen=True)
class Column:
    """One column: its kind, and what else its inputs depend on.

    ``levels`` are those of a category with an input of their own, or the cycles and parts of the
    calendar of a date; ``gaps``
    says that an input marks missing values; ``reason`` is why a column was dropped.
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    gaps: bool = False
    reason: str = ""

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its inputs."""
        marks = (f"{self.name}={_MISSING}",) if self.gaps else ()
        if self.kind == "category":
            return tuple(f"{self.name}={level}" for level in self.levels)
        if self.kind == "date":
            parts = (
                f"{self.name}.{level}_{part}"
                for level in self.levels
                for part in (_WAVES if level in _CYCLES else range(_CALENDAR[level]))
            )
            return (f"{self.name}.days", *parts, *marks)
        return () if self.kind == "dropped" else (self.name, *marks)

    def read(self, values: Array) -> Array:
        """Values as numbers with NaN, or as text with None; raise for those of another kind."""
        try:
            read = READERS[self.kind](values)
        except (TypeError, ValueError) as error:
            kinds = _plural(self.kind, 2)
            raise ValueError(f"column {self.name!r} must hold {kinds}: {error}") from error
        if read.dtype != object:
            _check_range(read, self.name)
        return read

    def encode(self, read: Array) -> Floats:
        """What :meth:`read` gave as inputs ``[rows, features]``, gaps as NaN."""
        if self.kind == "category":
            return _one_hot(read, self.levels)
        parts = [read[:, None]]
        for level in self.levels:
            if level in _CYCLES:
                angle = 2 * np.pi * (read % _CYCLES[level]) / _CYCLES[level]
                parts += [wave(angle)[:, None] for wave in _WAVES.values()]
            else:
                known = np.flatnonzero(~np.isnan(read))
                hot = np.full((len(read), _CALENDAR[level]), np.nan)
                hot[known] = 0.0
                hot[known, _calendar_place(read[known], level).astype(np.int64)] = 1.0
                parts.append(hot)
        if self.gaps:
            parts.append(find_gaps(read)[:, None])
        block: Floats = np.concatenate(parts, 1, dtype=np.float64)
        return block

    def __str__(self) -> str:
        """One line about it."""
        if self.kind == "dropped":
            return f"{self.name}: dropped, {self.reason}"
        inputs = f" as {len(self.features)} inputs" if len(self.features) > 1 else ""
        levels = ""
        if self.kind == "category":
            more = ", …" if len(self.levels) > 5 else ""
            levels = f" ({', '.join(self.levels[:5])}{more})"
        filled = "; missing values are filled with the mean and marked" if self.gaps else ""
        return f"{self.name}: {self.kind}{inputs}{levels}{filled}"


@dataclass(frozen=True)
class Preparation:
    """The columns of a table, and what happens to ``missing`` values: ``"fill"`` or ``"error"``.

    >>> table = {"size": [3, None, 4], "town": ["Bonn", "Ulm", "Bonn"], "of": [1, 1, 1]}
    >>> preparation = Preparation.fit(table)
    >>> print(preparation)
    size: number as 2 inputs; missing values are filled with the mean and marked
    town: category as 2 inputs (Bonn, Ulm)
    of: dropped, it has one value only
    >>> preparation.encode({"size": [5], "town": ["Rome"]})
    array([[5., 0., 0., 0.]])
    """

    columns: tuple[Column, ...]
    missing: str = "fill"

    @classmethod
    def fit(
        cls,
        table: Any,
        *,
        categorical: Collection[str] = (),
        kinds: Mapping[str, str] | None = None,
        weights: Floats | None = None,
        max_levels: int = MAX_LEVELS,
        missing: str = "fill",
    ) -> Preparation:
        """Learn it from a DataFrame or a dict of columns; ``weights`` ``[rows]`` count the rows.

        ``categorical`` names columns whose numbers are labels, ``kinds`` the kind of columns for
        which it is known, as that of a whole file.
        """
        raw = raw_columns(table)
        if not any(len(values) for values in raw.values()):
            raise ValueError("the table has no rows to learn from")
        learnt = []
        for name, values in raw.items():
            kind = (kinds or {}).get(name) or find_kind(values)
            learnt.append(_learn(name, kind, values, name in categorical, weights, max_levels))
        # A table of constants predicts a constant; of names alone there is nothing to learn.
        constants = all(reason for _, reason in learnt)
        columns = [
            Column(column.name, "dropped", reason=reason)
            if reason and not (constants and reason == _CONSTANT)
            else column
            for column, reason in learnt
        ]
        if not any(column.features for column in columns):
            raise ValueError(f"no column is left to learn from: {'; '.join(map(str, columns))}")
        return cls(tuple(columns), missing)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of all inputs."""
        return tuple(feature for column in self.columns for feature in column.features)

    @property
    def scaled(self) -> NDArray[np.bool_]:
        """Which inputs are to be standardised: the first of each column that is no category."""
        return np.array(
            [
                place == 0 and column.kind != "category"
                for column in self.columns
                for place in range(len(column.features))
            ]
        )

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of the column that each input belongs to."""
        return tuple(number for number, column in enumerate(self.columns) for _ in column.features)

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns that are not dropped."""
        return tuple(column for column in self.columns if column.kind != "dropped")

    def encode(self, table: Any, where: object = "the table") -> Floats:
        """Inputs ``[rows, features]`` in raw units, NaN where a value is to be filled.

        ``table`` is a DataFrame, or a dict of columns. Raise for a column that is not there or
        holds other things than in training.
        """
        raw = raw_columns(table)
        for column in self.used:
            if column.name not in raw:
                lacks = f"{where} lacks the column {column.name!r} of training"
                raise ValueError(f"{lacks}; it has {list_names(raw)}")
        read = {column: column.read(raw[column.name]) for column in self.used}
        if self.missing == "error":
            for column, values in read.items():
                if count := int(find_gaps(values).sum()):
                    lacks = f"column {column.name!r} lacks {count} of {len(values)} values"
                    raise ValueError(f"{where}: {lacks}; fill them, or train with missing='fill'")
        rows = len(next(iter(read.values())))
        out, begin = np.empty((rows, len(self.features))), 0
        for column, values in read.items():
            out[:, begin : begin + len(column.features)] = column.encode(values)
            begin += len(column.features)
        return out

    def remarks(self, table: Any) -> tuple[str, ...]:
        """One sentence for each column with levels or gaps that the training table did not have."""
        raw, remarks = raw_columns(table), []
        for column in self.used:
            values = column.read(raw[column.name])
            if column.kind == "category":
                known = {*column.levels, *([None] if _MISSING in column.levels else [])}
                new = [] if _OTHER in known else [v for v in values.tolist() if v not in known]
                if new:
                    remarks.append(
                        f"{column.name}: {len(new)} of {len(values)} rows hold none of its levels, "
                        f"such as {new[0] or 'a missing value'}; their inputs are all 0"
                    )
            elif not column.gaps and (gaps := int(find_gaps(values).sum())):
                remarks.append(
                    f"{column.name}: {gaps} of {len(values)} values are missing, unlike in "
                    "training; they are filled with the training mean"
                )
        return tuple(remarks)

    def summary(self) -> str:
        """One sentence about all columns; :meth:`__str__` has a line for each.

        >>> Preparation((Column("a", "number", gaps=True), Column("b", "dropped", reason="why")))
        Preparation('2 columns: 1 number; filled 1 (a); dropped 1: b (why)')
        """
        kinds = Counter(column.kind for column in self.used)
        words = [f"{n} {_plural(kind, n)}" for kind, n in kinds.items()]
        filled = [c.name for c in self.used if c.gaps]
        levels = [c.name for c in self.used if _MISSING in c.levels]
        dropped = [c for c in self.columns if c.kind == "dropped"]
        total = len(self.columns)
        text = f"{total} {_plural('column', total)}: {', '.join(words)}"
        if filled:
            text += f"; filled {len(filled)} ({list_names(filled)})"
        if levels:
            text += f"; missing is a level of {len(levels)} ({list_names(levels)})"
        if dropped:
            reasons = ", ".join(f"{c.name} ({c.reason})" for c in dropped[:5])
            more = f" and {len(dropped) - 5} more" if len(dropped) > 5 else ""
            text += f"; dropped {len(dropped)}: {reasons}{more}"
        return text

    def __str__(self) -> str:
        """One line for each column."""
        return "\n".join(map(str, self.columns))

    def __repr__(self) -> str:
        """The summary."""
        return f"Preparation({self.summary()!r})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        columns = [asdict(column) for column in self.columns]
        plain = [column | {"levels": list(column["levels"])} for column in columns]
        return {"columns": plain, "missing": self.missing}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preparation:
        """What :meth:`to_dict` gave."""
        columns = [Column(**c | {"levels": tuple(c["levels"])}) for c in values["columns"]]
        return cls(tuple(columns), values["missing"])


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


# ---- learning -----------------------------------------------------------------------------------

_CONSTANT = "it has one value only"


def _learn(
    name: str, kind: str, values: Array, labels: bool, weights: Floats | None, max_levels: int
) -> tuple[Column, str]:
    """The column of ``values``, and the reason to drop it, if there is one."""
    column = Column(name, "category" if labels else kind)
    read = column.read(values)
    gaps = find_gaps(read)
    known = read[~gaps]
    # A weight counts as repetitions; weights below 1, such as shares, leave the rows.
    rows = max(len(known), 0.0 if weights is None else float(weights[~gaps].sum()))
    if column.kind == "category":
        column = replace(column, levels=_levels(read, weights, max_levels))
        different = len(set(known))
        if not labels and different > max(_MANY_NAMES, rows / 2):
            return column, f"id-like: {different} different values in {rows:.0f} rows"
        return column, "" if different + bool(gaps.any()) > 1 else _CONSTANT
    if column.kind == "date":
        timed = bool((known != np.floor(known)).any())
        # A week of the year says something if it comes again, as those of holidays do.
        again = known.size > 0 and float(np.ptp(known)) >= 2 * _YEAR
        often = again and rows >= _EACH_DAY * _CALENDAR["yearday"] and len(read) <= _MOST_ROWS
        parts = {"year": True, "day": timed, "weekday": True, "yearweek": again, "yearday": often}
        column = replace(column, levels=tuple(part for part, there in parts.items() if there))
    constant = known.size == len(read) and bool((known == known[0]).all())
    column = replace(column, gaps=bool(gaps.any()))
    return column, "it is empty" if not known.size else _CONSTANT if constant else ""


def _levels(values: Array, weights: Floats | None, max_levels: int) -> tuple[str, ...]:
    """The levels with an input of their own, and ``other`` for the rest."""
    counts: dict[str, float] = {}
    each = np.ones(len(values)) if weights is None else weights
    for value, weight in zip(values, each.tolist(), strict=True):
        level = _MISSING if value is None else value
        counts[level] = counts.get(level, 0.0) + weight
    rare = min(10.0, sum(counts.values()) / 200)
    common = sorted((-count, level) for level, count in counts.items() if count >= rare)
    if len(counts) - len(common) == 1 and len(counts) <= max_levels:
        common = [(0.0, level) for level in counts]  # one alone keeps its name
    if len(common) == len(counts) <= max_levels:
        return tuple(sort_levels(counts))
    kept = [level for _, level in common[: max_levels - 1] if level != _OTHER]
    return (*sort_levels(kept), _OTHER)


def _plural(word: str, count: int) -> str:
    if count == 1:
        return word
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


# ---- encoding -----------------------------------------------------------------------------------

_WAVES = {"sin": np.sin, "cos": np.cos}


def _calendar_place(days: Floats, part: str) -> Floats:
    """The day of the week, Monday being 0, the week or the day of the year, of days since 1970.

    A day of the year is the same in all years, as 29 February always has its place.

    >>> _calendar_place(np.array([19_782.5]), "weekday")  # 2024-02-29, a Thursday
    array([3.])
    >>> _calendar_place(np.array([19_782.5]), "yearweek")  # 59 days into the year
    array([8.])
    >>> _calendar_place(np.array([19_782.5, 19_783, 20_148]), "yearday")  # and 1 March, twice
    array([59., 60., 60.])
    """
    if part == "weekday":
        return np.floor(days + 3) % 7
    if part == "yearweek":
        return np.floor(days % _YEAR / 7)
    dates = np.floor(days).astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    place: Floats = _BEFORE_MONTH[months.astype(np.int64) % 12] + (dates - months).astype(float)
    return place


def _one_hot(values: Array, levels: Sequence[str]) -> Floats:
    place = {level: number for number, level in enumerate(levels)}
    other = place.get(_OTHER, -1)
    codes = np.array([place.get(_MISSING if v is None else v, other) for v in values], np.int64)
    hot = np.zeros((len(codes), len(levels)))
    known = np.flatnonzero(codes >= 0)
    hot[known, codes[known]] = 1.0
    return hot


def _check_range(numbers: Floats, name: str) -> None:
    """Raise for infinite numbers, and for those that float32, in which networks compute, lacks."""
    infinite = int(np.isinf(numbers).sum())
    if infinite:
        raise ValueError(f"column {name!r} holds {infinite} infinite values; replace them")
    beyond = np.abs(numbers) > np.finfo(np.float32).max
    if beyond.any():
        largest = f"{numbers[beyond][0]:g}"
        raise ValueError(f"column {name!r} holds {largest}, which is beyond float32; rescale it")
