"""Parquet files as shards: row groups are read whole and kept while they are in use.

The input is a column of images (bytes, or a struct with ``bytes``), a column of lists of numbers,
or several columns of numbers.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dissensus.data.folder import decode_image
from dissensus.data.shards.decoding import finite
from dissensus.data.shards.index import Index
from dissensus.data.shards.labels import Labels
from dissensus.data.shards.parquet_index import column_kind, numbers_of, opened
from dissensus.data.shards.permuting import Numbers
from dissensus.data.shards.sources import Found, one_by_one

__all__ = ["ParquetSource"]


class _Group(NamedTuple):
    """A row group in memory: an array of numbers or a column of images, and stored targets."""

    x: Any
    y: NDArray[Any] | None


class ParquetSource:
    """The rows of shards by number; the row groups that were used last stay in memory."""

    def __init__(
        self, shards: Sequence[Path], index: Index, labels: Labels | None, size: int, window: int
    ) -> None:
        facts = index.facts
        self.shards, self.labels, self.size = [str(path) for path in shards], labels, size
        self.digest, self.row_bytes = index.digest, max(1, int(facts["bytes"]))
        self.columns, self.target = list(facts["input"]), facts["target"]
        groups = [(i, k) for i, own in enumerate(facts["groups"]) for k in range(len(own))]
        rows = np.array([rows for own in facts["groups"] for rows in own], dtype=np.int64)
        self.groups = [group for group, own in zip(groups, rows.tolist(), strict=True) if own]
        self.group_ends: Numbers = np.cumsum(rows[rows > 0])
        self.ends: Numbers | None = self.group_ends
        self.count = int(self.group_ends[-1])
        self.most = window + int(rows.max())  # of rows in memory: as many as a window may have
        self.held: OrderedDict[int, _Group] = OrderedDict()
        first = self._group(0).x
        self.images = not isinstance(first, np.ndarray)
        self.shape: tuple[int, ...] = (3, size, size) if self.images else first.shape[1:]

    def read(self, numbers: Numbers) -> Found:
        """The examples of these numbers, in their order."""
        own, inside = self._places(numbers)
        held = self._held(own)

        if self.images:
            return self._images(own, inside, held)
        x = torch.empty((len(numbers), *self.shape))
        for group, found in held.items():
            x.numpy()[own == group] = found.x[inside[own == group]]
        known = None if self.labels is None else torch.from_numpy(self._y(own, inside, held))
        return Found(x, known)

    def targets(self, numbers: Numbers) -> NDArray[Any]:
        """The targets alone."""
        own, inside = self._places(numbers)
        return self._y(own, inside, self._held(own))

    def _places(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """The row group of each number, and its place in it."""
        own = np.searchsorted(self.group_ends, numbers, side="right")
        return own, numbers - np.where(own > 0, self.group_ends[own - 1], 0)

    def _held(self, own: Numbers) -> dict[int, _Group]:
        # By when they are first needed: those of the window before, then those of the next.
        first = np.sort(np.unique(own, return_index=True)[1])
        return {group: self._group(group) for group in own[first].tolist()}

    def _y(self, own: Numbers, inside: Numbers, held: Mapping[int, _Group]) -> NDArray[Any]:
        assert self.labels is not None
        stored = np.empty((len(own), self.labels.outputs), self.labels.stored)
        for group, found in held.items():
            stored[own == group] = found.y[inside[own == group]]  # type: ignore[index]
        return self.labels(stored)

    def _images(self, own: Numbers, inside: Numbers, held: Mapping[int, _Group]) -> Found:
        def load(place: int) -> NDArray[Any]:
            raw = held[int(own[place])].x[int(inside[place])].as_py()
            if raw is None:
                raise ValueError(f"{where(place)} has no image")
            return decode_image(io.BytesIO(raw), self.size, where(place)).transpose(2, 0, 1)

        def where(place: int) -> str:
            shard, group = self.groups[int(own[place])]
            return f"{self.shards[shard]}: row {int(inside[place])} of row group {group}"

        def targets(kept: list[int]) -> NDArray[Any]:
            return self._y(own[kept], inside[kept], held)

        return one_by_one(
            len(own),
            self.shape,
            pixels=True,
            load=load,
            where=where,
            targets=None if self.labels is None else targets,
        )

    def _group(self, number: int) -> _Group:
        if number in self.held:
            self.held.move_to_end(number)
            return self.held[number]
        found = self._read(number)
        rows = len(found.x) + sum(len(group.x) for group in self.held.values())
        while self.held and rows > self.most:
            rows -= len(self.held.popitem(last=False)[1].x)
        self.held[number] = found
        return found

    def _read(self, number: int) -> _Group:
        shard, group = self.groups[number]
        where = f"{self.shards[shard]}: row group {group}"
        file = opened(self.shards[shard])
        wanted = [*self.columns, *([] if self.labels is None else [self.target])]
        try:
            table = file.read_row_group(group, columns=wanted, use_threads=False)
        except (OSError, ValueError, IndexError) as error:
            raise ValueError(f"{where} cannot be read ({error})") from error
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
            found = known[coded.indices.to_numpy()]
        else:
            found = numbers_of(column, f"{where}, column {self.target!r}")
        stored: NDArray[Any] = found.reshape(len(column), -1).astype(self.labels.stored)
        return stored

    def __getstate__(self) -> dict[str, Any]:
        """For a worker process: it reads its own row groups."""
        return {**vars(self), "held": OrderedDict()}
