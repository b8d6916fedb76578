"""Parquet files as shards: row groups are read whole and kept while they are in use.

The input is a column of images (bytes, or a struct with ``bytes``), a column of lists of numbers,
or several columns of numbers.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dissensus.data.formats import decode_image, list_names, open_parquet
from dissensus.data.on_disk.examples import Batch, Reading, read_each
from dissensus.data.on_disk.fields import Labels, LabelScan, finite
from dissensus.data.on_disk.index import Index, indexed
from dissensus.data.on_disk.order import Numbers
from dissensus.tools.files import check_size
from dissensus.tools.progress import ProgressBar

_LABELS = ("label", "labels", "target", "targets", "class", "cls", "y")
_NUMBER_BYTES = 16  # of a number while a row group is read: as stored, and in an array
_IMAGES = ("image", "img", "jpg", "png", "picture")


def index_parquet(
    shards: Sequence[Path],
    columns: str | Sequence[str] | None,
    target: str | None,
    task: str | None,
) -> Index:
    """The index of shards: the rows of each row group, and the kind of the targets."""
    asked = [columns] if isinstance(columns, str) else None if columns is None else list(columns)
    settings = {"parquet": [str(path) for path in shards], "input": asked, "target": target}
    return indexed({**settings, "task": task}, partial(_build, shards, asked, target, task))


def _build(
    shards: Sequence[Path],
    columns: list[str] | None,
    target: str | None,
    task: str | None,
    folder: Path,
) -> tuple[dict[str, Any], Sequence[Path]]:
    labels = LabelScan(values=task == "regression")
    groups: list[list[int]] = []
    types: list[list[str]] = []
    size = 0
    with ProgressBar("looking at shards", len(shards)) as bar:
        for shard in shards:
            file = open_parquet(shard)
            if not groups:
                columns, target = _choose(file.schema_arrow, columns, target, shard)
            types.append(_column_types(file.schema_arrow, columns or [], target, shard))
            if types[-1] != types[0]:
                raise ValueError(f"{shard} has columns of other kinds than {shards[0]}")
            metadata = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
            groups.append([group.num_rows for group in metadata])
            largest, count = max(groups[-1], default=0), len(types[-1])
            what = f"{shard}: a row group of {largest} rows and {count} columns"
            check_size(largest * count * _NUMBER_BYTES, what, "write smaller row groups")
            size += sum(group.total_byte_size for group in metadata)
            if target is not None:
                for number in range(len(metadata)):
                    where = f"{shard}: row group {number}"
                    _see(labels, _read_group(file, number, [target], where).column(0), shard)
            bar.advance()
    rows = sum(map(sum, groups))
    if not rows:
        raise ValueError(f"{shards[0]} and the other shards hold no rows")
    facts = {"input": columns, "target": target, "groups": groups, "bytes": size // rows}
    return {**facts, "labels": None if target is None else labels.facts()}, shards


def _read_group(file: Any, number: int, columns: Sequence[str], where: str) -> Any:
    try:
        return file.read_row_group(number, columns=columns, use_threads=False)
    except Exception as error:  # Arrow raises all kinds for damaged files
        raise ValueError(f"{where} cannot be read ({error})") from error


# ---- columns ------------------------------------------------------------------------------------


def _choose(
    schema: Any, columns: list[str] | None, target: str | None, shard: Path
) -> tuple[list[str], str | None]:
    """The columns of input and target, found by their names and kinds where they are not given."""
    names = list(schema.names)
    if target is None:
        labels = [name for name in names if name.lower() in _LABELS and name not in (columns or [])]
        target = labels[0] if len(labels) == 1 else None
    if columns is not None:
        return columns, target
    kinds: dict[str, list[str]] = {"image": [], "list": [], "number": [], "": []}
    for name in names:
        if name != target:
            kinds[column_kind(schema.field(name).type)].append(name)
    images = [name for name in kinds["image"] if name.lower() in _IMAGES] or kinds["image"]
    inputs = images or kinds["list"]
    if len(inputs) != 1 and (inputs or not kinds["number"]):
        raise ValueError(
            f"{shard} has the columns {list_names(names)}: name the input with input= and the "
            "label with target="
        )
    return inputs or kinds["number"], target


def _column_types(
    schema: Any, columns: Sequence[str], target: str | None, shard: Path
) -> list[str]:
    """The types of the chosen columns, to compare shards by; raise for those that cannot be."""
    names = [*columns, *([] if target is None else [target])]
    for name in names:
        if name not in schema.names:
            raise ValueError(f"{shard} has no column {name!r}; it has {list_names(schema.names)}")
    for name in columns:
        kind = column_kind(schema.field(name).type)
        if not kind or (len(columns) > 1 and kind != "number"):
            raise ValueError(
                f"{shard}: column {name!r} is {schema.field(name).type}; an input is one column of "
                "images or lists of numbers, or several of numbers"
            )
    return [str(schema.field(name).type) for name in names]


def column_kind(kind: Any) -> str:
    from pyarrow import types

    if types.is_struct(kind):
        return "image" if kind.get_field_index("bytes") >= 0 else ""
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "image"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "list"
    plain = types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)
    return "number" if plain else ""


def _see(labels: LabelScan, column: Any, shard: Path) -> None:
    """Learn from the targets of a row group."""
    where = f"{shard}: column of targets"
    if column.null_count:
        raise ValueError(f"{where} lacks {column.null_count} values")
    if not len(column):
        return
    kind = column_kind(column.type)
    if labels.values or kind == "list" or str(column.type) in ("float", "double"):
        labels.add(numbers_of(column, where)[0].reshape(-1), where)
    elif kind == "number":
        labels.see(column.to_numpy().astype(np.int64), where)
    else:
        for name in column.unique().to_pylist():
            labels.add(str(name), where)


def numbers_of(column: Any, where: str) -> NDArray[Any]:
    """A column of numbers, or of lists that are all of one length, as an array."""
    from pyarrow.compute import list_value_length

    if column.null_count:
        raise ValueError(f"{where} lacks {column.null_count} values")
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if column_kind(column.type) == "number":
        plain: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return plain
    inner = numbers_of(column.flatten(), where)
    if len(column) and len(inner) % len(column) == 0:
        lengths = list_value_length(column).to_numpy(zero_copy_only=False)
        if (lengths == lengths[0]).all():
            return inner.reshape(len(column), int(lengths[0]), *inner.shape[1:])
    raise ValueError(f"{where} holds lists of different lengths")


# ---- rows ---------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """A row group in memory: an array of numbers or a column of images, and stored targets."""

    x: Any
    y: NDArray[Any] | None


class ParquetSource:
    """The rows of shards by number; the row groups that were used last stay in memory."""

    def __init__(
        self, shards: Sequence[Path], index: Index, labels: Labels | None, reading: Reading
    ) -> None:
        facts = index.facts
        self.shards, self.labels = [str(path) for path in shards], labels
        self.size, self.max_pixels = reading.size, reading.max_pixels
        self.digest, self.row_bytes = index.digest, max(1, int(facts["bytes"]))
        self.columns, self.target = list(facts["input"]), facts["target"]
        sizes = {
            (shard, group): rows
            for shard, groups in enumerate(facts["groups"])
            for group, rows in enumerate(groups)
            if rows
        }
        self.groups = list(sizes)
        self.group_ends: Numbers = np.cumsum(list(sizes.values()), dtype=np.int64)
        self.ends: Numbers | None = self.group_ends
        self.count = int(self.group_ends[-1])
        window = reading.window_of(self.row_bytes)
        self.most = window + max(sizes.values())  # of rows in memory: as many as a window may have
        self.recent: OrderedDict[int, _Group] = OrderedDict()
        first = self._group(0).x
        self.images = not isinstance(first, np.ndarray)
        self.shape: tuple[int, ...] = (3, self.size, self.size) if self.images else first.shape[1:]

    def read(self, numbers: Numbers) -> Batch:
        groups, places = self._places(numbers)
        in_memory = self._read_groups(groups)
        if self.images:
            return self._images(groups, places, in_memory)
        x = torch.empty((len(numbers), *self.shape))
        for group, rows in in_memory.items():
            x.numpy()[groups == group] = rows.x[places[groups == group]]
        y = None if self.labels is None else torch.from_numpy(self._y(groups, places, in_memory))
        return Batch(x, y)

    def targets(self, numbers: Numbers) -> NDArray[Any]:
        groups, places = self._places(numbers)
        return self._y(groups, places, self._read_groups(groups))

    def _places(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """The row group of each number, and its place in it."""
        groups = np.searchsorted(self.group_ends, numbers, side="right")
        return groups, numbers - np.where(groups > 0, self.group_ends[groups - 1], 0)

    def _read_groups(self, groups: Numbers) -> dict[int, _Group]:
        # By when they are first needed: those of the window before, then those of the next.
        first = np.sort(np.unique(groups, return_index=True)[1])
        return {group: self._group(group) for group in groups[first].tolist()}

    def _y(self, groups: Numbers, places: Numbers, in_memory: dict[int, _Group]) -> NDArray[Any]:
        assert self.labels is not None
        stored = np.empty((len(groups), self.labels.outputs), self.labels.stored)
        for group, rows in in_memory.items():
            stored[groups == group] = rows.y[places[groups == group]]  # type: ignore[index]
        return self.labels(stored)

    def _images(self, groups: Numbers, places: Numbers, in_memory: dict[int, _Group]) -> Batch:
        def load(place: int) -> NDArray[Any]:
            shard, group = self.groups[int(groups[place])]
            where = f"{self.shards[shard]}: row {int(places[place])} of row group {group}"
            raw = in_memory[int(groups[place])].x[int(places[place])].as_py()
            if raw is None:
                raise ValueError(f"{where} has no image")
            return decode_image(io.BytesIO(raw), self.size, where, self.max_pixels)

        def targets(loaded: list[int]) -> NDArray[Any]:
            return self._y(groups[loaded], places[loaded], in_memory)

        with_targets = None if self.labels is None else targets
        return read_each(len(groups), self.shape, load, with_targets, pixels=True)

    def _group(self, number: int) -> _Group:
        if number in self.recent:
            self.recent.move_to_end(number)
            return self.recent[number]
        group = self._read(number)
        rows = len(group.x) + sum(len(other.x) for other in self.recent.values())
        while self.recent and rows > self.most:
            rows -= len(self.recent.popitem(last=False)[1].x)
        self.recent[number] = group
        return group

    def _read(self, number: int) -> _Group:
        shard, group = self.groups[number]
        where = f"{self.shards[shard]}: row group {group}"
        file = open_parquet(self.shards[shard])
        wanted = [*self.columns, *([] if self.labels is None else [self.target])]
        table = _read_group(file, group, wanted, where)
        start = int(self.group_ends[number - 1]) if number else 0
        if len(table) != int(self.group_ends[number]) - start:
            raise ValueError(f"{where} has changed since it was indexed")
        y = None if self.labels is None else self._stored(table.column(self.target), where)
        if len(self.columns) > 1:
            parts = [numbers_of(table.column(name), where) for name in self.columns]
            return _Group(finite(np.stack(parts, 1), where), y)
        column = table.column(self.columns[0])
        kind = column_kind(column.type)
        if kind == "image":
            column = column.combine_chunks()
            return _Group(column.field("bytes") if str(column.type)[:6] == "struct" else column, y)
        x = finite(numbers_of(column, where), where)
        return _Group(x[:, None] if x.ndim == 1 else x, y)

    def _stored(self, column: Any, where: str) -> NDArray[Any]:
        assert self.labels is not None
        if self.labels.kind == "name":
            index = {name: number for number, name in enumerate(self.labels.names)}
            coded = column.combine_chunks().dictionary_encode()
            known = np.array([index[str(name)] for name in coded.dictionary.to_pylist()])
            values = known[coded.indices.to_numpy()]
        else:
            values = numbers_of(column, f"{where}, column {self.target!r}")
        stored: NDArray[Any] = values.reshape(len(column), -1).astype(self.labels.stored)
        return stored

    def __getstate__(self) -> dict[str, Any]:
        """For a worker process: it reads its own row groups."""
        return {**vars(self), "recent": OrderedDict()}
