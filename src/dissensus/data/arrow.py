"""Examples in memory-mapped Arrow tables, as Hugging Face ``datasets`` makes and reads them.

The input is a column of images (bytes, or a struct with ``bytes`` and ``path``), a column of lists
of numbers, or several columns of numbers. The target is a column of labels or of numbers.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.column_values import list_names
from dissensus.data.dataset import OnDisk, Rows, check_classes, missing_extra
from dissensus.data.images import MAX_PIXELS
from dissensus.data.tar import decode_input, field_kind, finite_numbers
from dissensus.tools.files import max_bytes
from dissensus.tools.files.access import read_regular
from dissensus.tools.specs import check_choice, check_integer

#: The most processes that read, and the most classes.
MAX_WORKERS, MAX_CLASSES = 256, 1_000_000

_LABELS = ("label", "labels", "target", "targets", "class", "cls", "y")
_IMAGES = ("image", "img", "jpg", "png", "picture")
_GAP = 1 << 16  # bytes between two rows that are read at once
_TRIED = 100  # examples, to learn their shape


@dataclass(frozen=True)
class Reading:
    """Settings for reading examples: the side of images, processes, and what errors do."""

    size: int = 64
    workers: int = 0
    on_error: str = "raise"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        check_integer("size", self.size)
        check_integer("workers", self.workers, 0, MAX_WORKERS)
        check_integer("max_pixels", self.max_pixels)
        check_choice("data", "on_error", self.on_error, ["raise", "skip"])


def require_datasets(what: str) -> Any:
    """The package ``datasets``, or an error that says what to install."""
    try:
        import datasets
    except ImportError as error:
        raise missing_extra(what, "datasets", '"dissensus[disk]"') from error
    return datasets


def is_dataset(value: object, *names: str) -> bool:
    """Whether ``value`` is of these classes of ``datasets``, which stays unimported without one."""
    package = sys.modules.get("datasets")
    kinds = [getattr(package, name) for name in names or ("Dataset",)] if package else []
    return isinstance(value, tuple(kinds))


class Examples(OnDisk):
    """The inputs ``[rows, *shape]`` in columns of a ``datasets.Dataset``, which stay on disk.

    Pixels are in [0, 1], other numbers float32. ``workers`` processes read and decode ahead; the
    examples and their order do not depend on them. ``on_error="skip"`` leaves out examples that
    cannot be read and says how many.
    """

    def __init__(
        self,
        dataset: Any,
        columns: Sequence[str],
        reading: Reading | None = None,
        *,
        field: str = "",
        name: str = "",
        digest: str = "",
    ) -> None:
        self.table = dataset.select_columns(list(columns)).with_format("arrow")
        self.columns, self.reading = list(columns), reading or Reading()
        self.name, self.source = name or "the dataset", digest or dataset._fingerprint
        self.rows: Rows | None = None  # of the part; None: all
        self.workers, self.on_error = self.reading.workers, self.reading.on_error
        kind = column_kind(self.table.features.arrow_schema.field(columns[0]).type)
        self.kind = field_kind(field, self.name) if field else kind
        self.windowed = self.kind != "image"
        size = self.reading.size
        own = (3, size, size) if self.kind == "image" else self._first_shape()
        self.shape = torch.Size((len(dataset), *own))
        # Of an image this is the size in memory, of numbers as stored.
        self.row_bytes = self.shape[1:].numel() * (1 if self.kind == "image" else 4)

    @property
    def digest(self) -> str:
        """A digest of the source, and of the rows that are used of it."""
        rows = b"" if self.rows is None else self.rows.tobytes()
        return hashlib.sha256(self.source.encode() + rows).hexdigest()

    def part(self, rows: Rows) -> Examples:
        """Some of the rows, in their order on disk."""
        own = object.__new__(Examples)
        own.__dict__ |= {**vars(self), "rows": rows if self.rows is None else self.rows[rows]}
        own.shape = torch.Size((len(rows), *self.shape[1:]))
        return own

    def __repr__(self) -> str:
        workers = f", {self.workers} workers" if self.workers else ""
        return f"Examples({tuple(self.shape)} on disk{workers})"

    def read(self, places: Rows) -> Tensor:
        rows = places if self.rows is None else self.rows[places]
        if self.kind == "image":
            return self._decoded(rows, torch.uint8)
        x = torch.empty((len(rows), *self.shape[1:]))
        order = np.argsort(rows, kind="stable")
        gaps = np.flatnonzero(np.diff(rows[order]) > max(1, _GAP // self.row_bytes))
        for near in np.split(order, gaps + 1) if len(rows) else []:
            first, last = int(rows[near[0]]), int(rows[near[-1]])
            read = self._numbers(range(first, last + 1))
            if read.shape[1:] != (own := tuple(self.shape[1:])):
                raise ValueError(f"{self.name} has rows of shapes {read.shape[1:]} and {own}")
            x.numpy()[near] = read[rows[near] - first]
        return x

    def _first_shape(self) -> tuple[int, ...]:
        """The shape of the first example that can be read."""
        problem: ValueError | None = None
        for row in range(min(len(self.table), _TRIED)):
            try:
                return self._numbers(range(row, row + 1)).shape[1:]
            except ValueError as error:
                problem = problem or error
        raise ValueError(f"none of the first {_TRIED} examples can be read: {problem}")

    def _numbers(self, rows: range) -> NDArray[np.float32]:
        """Consecutive rows of numbers ``[rows, …]``."""
        if self.kind in ("npy", "json"):
            decoded = [self._decode(value) for value in self._values(rows)]
            if len({array.shape for array in decoded}) > 1:
                raise ValueError(f"rows from {rows.start} of {self.name} have different shapes")
            return np.stack(decoded)
        table, where = self.table[rows.start : rows.stop], f"{self.name}, row {rows.start} and on"
        columns = [numbers_of(table.column(name), where) for name in self.columns]
        x = np.stack(columns, 1) if columns[0].ndim == 1 else columns[0]
        return finite_numbers(x, where)

    def _decoded(self, rows: Rows, dtype: torch.dtype) -> Tensor:
        # Memory of torch's own, which is aligned: where a batch lies decides about last bits.
        x = torch.empty((len(rows), *self.shape[1:]), dtype=dtype)
        for place, value in enumerate(self._values(rows)):
            x.numpy()[place] = self._decode(value)
        return x

    def _values(self, rows: Rows | range) -> list[tuple[Any, str]]:
        """The content and the name of each file in the column of inputs."""
        one = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        values = self.table[one].column(self.columns[0]).to_pylist()
        named = []
        for row, value in zip(rows, values, strict=True):
            path = value.get("path") if isinstance(value, dict) else None
            raw = value.get("bytes") if isinstance(value, dict) else value
            where = path or f"row {int(row)} of {self.name}"
            if raw is None and path:
                raw = read_regular(path, max_bytes())
            if raw is None:
                raise ValueError(f"{where} has no {self.kind}")
            named.append((raw, where))
        return named

    def _decode(self, value: tuple[bytes, str]) -> NDArray[Any]:
        raw, where = value
        return decode_input(raw, self.kind, self.reading.size, where, self.reading.max_pixels)


# ---- columns ------------------------------------------------------------------------------------


def choose_columns(
    schema: Any, columns: str | Sequence[str] | None, target: str | None, where: str
) -> tuple[list[str], str | None]:
    """The columns of input and target, found by their names and kinds where they are not given."""
    names = list(schema.names)
    inputs = [columns] if isinstance(columns, str) else list(columns or [])
    if target is None:
        labels = [name for name in names if name.lower() in _LABELS and name not in inputs]
        target = labels[0] if len(labels) == 1 else None
    kinds = {name: column_kind(schema.field(name).type) for name in names}
    by_kind = {
        kind: [name for name in names if kinds[name] == kind and name != target]
        for kind in ("image", "list", "number")
    }
    if not inputs:
        images = [name for name in by_kind["image"] if name.lower() in _IMAGES]
        inputs = images or by_kind["image"] or by_kind["list"]
        if len(inputs) != 1 and (inputs or not by_kind["number"]):
            raise ValueError(f"{where} has the columns {list_names(names)}: set input= and target=")
        inputs = inputs or by_kind["number"]
    for name in [*inputs, *([] if target is None else [target])]:
        if name not in names:
            raise ValueError(f"{where} has no column {name!r}; it has {list_names(names)}")
    for name in inputs:
        if not kinds[name] or (len(inputs) > 1 and kinds[name] != "number"):
            wanted = "an input is one column of images or lists, or several of numbers"
            raise ValueError(f"{where}: column {name!r} is {schema.field(name).type}; {wanted}")
    return inputs, target


def column_kind(kind: Any) -> str:
    """Image, list or number by a column's type in Arrow; empty for any other."""
    from pyarrow import types

    if types.is_struct(kind):
        return "image" if kind.get_field_index("bytes") >= 0 else ""
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "image"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "list"
    plain = types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)
    return "number" if plain else ""


def numbers_of(column: Any, where: str) -> NDArray[Any]:
    """A column of numbers, or of lists that are all of one length, as an array."""
    from pyarrow.compute import list_value_length

    if column.null_count:
        raise ValueError(f"{where} lacks {column.null_count} values")
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if column_kind(column.type) == "number":
        plain: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return plain
    if column_kind(column.type) != "list":
        raise ValueError(f"{where} must hold numbers, got {column.type}")
    inner = numbers_of(column.flatten(), where)
    if len(column) and len(inner) % len(column) == 0:
        lengths = list_value_length(column).to_numpy(zero_copy_only=False)
        if (lengths == lengths[0]).all():
            return inner.reshape(len(column), int(lengths[0]), *inner.shape[1:])
    raise ValueError(f"{where} holds lists of different lengths")


# ---- targets ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TargetColumn:
    """A column of targets: names or numbers of classes, or ``values`` to be predicted."""

    numbers: NDArray[Any]  # int64 [rows], or float32 [rows, outputs] of values
    names: tuple[str, ...] = ()  # of the classes that ``numbers`` count; none if they count all
    values: bool = False

    @classmethod
    def read(cls, dataset: Any, column: str, task: str | None, where: str) -> TargetColumn:
        """The targets of all rows; whole numbers and text are labels unless ``task`` differs."""
        import pyarrow

        values = dataset.select_columns([column]).with_format("arrow")[:].column(0)
        where = f"{where}: column {column!r} of targets"
        if values.null_count:
            raise ValueError(f"{where} lacks {values.null_count} values")
        kind = column_kind(values.type)
        floats = pyarrow.types.is_floating(values.type)
        if kind == "list" or (kind == "number" and (floats or task == "regression")):
            targets = finite_numbers(numbers_of(values, where), where)
            return cls(targets.reshape(len(values), -1), values=True)
        if kind == "number":
            labels = numbers_of(values, where).astype(np.int64)
            names = getattr(dataset.features[column], "names", None)  # of a ClassLabel
            return cls(_checked_labels(labels, where), tuple(names or ()))
        coded = values.combine_chunks().dictionary_encode()
        names = np.array([str(name) for name in coded.dictionary.to_pylist()])
        known, numbers = np.unique(names, return_inverse=True)
        return cls(numbers[coded.indices.to_numpy()], tuple(known.tolist()))

    def classes(self) -> tuple[str, ...]:
        """The classes of a training part: its names, or all numbers up to the highest."""
        return self.names or tuple(str(number) for number in range(int(self.numbers.max()) + 1))

    def tensor(self, task: str, classes: Sequence[str], where: str) -> Tensor:
        """The targets as training wants them, given the task and the classes of train."""
        if (task == "regression") != self.values:
            raise ValueError(f"the targets of {where} do not fit a {task}; set task=")
        if self.values:
            return torch.from_numpy(np.ascontiguousarray(self.numbers, dtype=np.float32))
        if not self.names:
            highest = int(self.numbers.max())
            check_classes([str(highest)] if highest >= len(classes) else [], (), where)
            return torch.from_numpy(self.numbers)
        check_classes(self.names, classes, where)
        index = {name: number for number, name in enumerate(classes)}
        return torch.from_numpy(np.array([index[name] for name in self.names])[self.numbers])


def _checked_labels(labels: NDArray[np.int64], where: str) -> NDArray[np.int64]:
    outside = labels[(labels < 0) | (labels >= MAX_CLASSES)]
    if len(outside):
        known = f"labels are numbers from 0 to below {MAX_CLASSES}, or names"
        raise ValueError(f"{where} has the label {int(outside[0])}; {known}")
    return labels


def inputs_and_targets(dataset: Any) -> tuple[Examples, Tensor | None]:
    """A ``datasets.Dataset`` as training takes it: inputs on disk, and its targets if it has some.

    The columns are found by their names and kinds; select or rename them where that fails.
    """
    columns, target = choose_columns(dataset.features.arrow_schema, None, None, "the dataset")
    x = Examples(dataset, columns)
    if target is None:
        return x, None
    found = TargetColumn.read(dataset, target, None, "the dataset")
    task = "regression" if found.values else "classification"
    classes = () if found.values else found.classes()
    return x, found.tensor(task, classes, "the dataset")
