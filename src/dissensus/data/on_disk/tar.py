"""Shards in webdataset's form: tar files in which neighbours with one name are one sample.

``0001.jpg`` and ``0001.cls`` are the fields ``jpg`` and ``cls`` of sample ``0001``. Indexing
goes through a shard once and notes where each sample's input lies, and its target; after that an
example is one read at a known place. Nothing is ever extracted.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.on_disk.examples import Batch, Reading, read_each
from dissensus.data.on_disk.fields import Labels, LabelScan, decode_input, decode_target, kind_of
from dissensus.data.on_disk.index import Index, OpenFiles, TableFile, indexed
from dissensus.data.on_disk.order import Numbers
from dissensus.tools.files import check_regular
from dissensus.tools.progress import ProgressBar

# As webdataset divides a name: the folder and all before the first dot, then the field.
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")
_LABELS = ("cls", "label", "class", "target", "y")
_LARGEST = 1 << 30  # bytes of a field
_BLOCK = 1 << 20  # bytes of neighbours that stay together
_MOST_BLOCKS = 1 << 16
_TRIED = 100  # examples, to learn their shape

Fields = dict[str, tarfile.TarInfo]
_Place = tuple[str, int, int]  # shard, offset, size


def index_tar(
    shards: Sequence[Path], field: str | None, target: str | None, task: str | None
) -> Index:
    """The index of the samples of shards; ``field`` is their input, None to find it."""
    settings = {"tar": [str(path) for path in shards], "input": field, "target": target}
    return indexed({**settings, "task": task}, partial(_build, shards, field, target, task))


def _build(
    shards: Sequence[Path],
    field: str | None,
    target: str | None,
    task: str | None,
    folder: Path,
) -> tuple[dict[str, Any], Sequence[Path]]:
    labels = LabelScan(values=task == "regression")
    counts: list[int] = []
    entries = TableFile(folder / "entries", "<i8", 2)
    with ProgressBar("looking at shards", len(shards)) as bar:
        for shard in shards:
            places: list[list[int]] = []
            targets: list[NDArray[Any]] = []
            with _open_tar(shard) as tar:
                for key, fields in samples(tar, shard):
                    if not (counts or places):
                        field, target = _choose(fields, field, target, shard)
                    chosen = _field(fields, str(field), f"{shard}: sample {key}")
                    places.append([chosen.offset_data, chosen.size])
                    if target is not None:
                        targets.append(labels.add(*_target(tar, shard, key, fields, target)))
            if not places:
                raise ValueError(f"{shard} holds no samples")
            entries.append(np.array(places))
            if targets:
                kind = "<f4" if labels.kind == "values" else "<i8"
                TableFile(folder / "targets", kind, labels.outputs).append(np.stack(targets))
            counts.append(len(places))
            bar.advance()
    facts: dict[str, Any] = {"input": field, "target": target, "counts": counts}
    return facts | {"labels": labels.facts() if target is not None else None}, shards


def _open_tar(shard: Path) -> tarfile.TarFile:
    check_regular(shard)
    try:
        return tarfile.open(shard, "r:")
    except (tarfile.TarError, OSError) as error:
        raise ValueError(
            f"{shard} cannot be read as a tar without compression ({error}); unpack .tar.gz first"
        ) from error


def samples(tar: tarfile.TarFile, shard: Path) -> Iterator[tuple[str, Fields]]:
    """The samples of a shard: a name and the files that have it, by field."""
    key, fields = "", Fields()
    for info in _members(tar, shard):
        match = _NAME.match(info.name)
        if match is None or _META.match(info.name) or info.isdir():
            continue
        if not info.isreg() or info.issparse():
            raise ValueError(f"{shard}: {info.name!r} is a link or device, not a file")
        if info.size > _LARGEST:
            raise ValueError(f"{shard}: {info.name!r} claims {info.size} bytes")
        if match[1] != key and fields:
            yield key, fields
            fields = Fields()
        key, field = match[1], match[2].lower()
        if field in fields:
            raise ValueError(f"{shard}: sample {key} has the field {field!r} twice")
        fields[field] = info
    if fields:
        yield key, fields


def _members(tar: tarfile.TarFile, shard: Path) -> Iterator[tarfile.TarInfo]:
    """All members; raises where the file ends too early, which tarfile lets pass."""
    try:
        while (info := tar.next()) is not None:
            yield info
            tar.members = []  # type: ignore[attr-defined] # else it remembers them all
        assert tar.fileobj is not None
        tar.fileobj.seek(tar.offset)
        rest = tar.fileobj.read(512)
    except Exception as error:  # tarfile raises all kinds for damaged headers
        raise ValueError(f"{shard} is damaged or cut short ({error})") from error
    # tarfile has read a block of zeros, which ends an archive, or has met something else.
    if rest.strip(b"\0"):
        raise ValueError(f"{shard} is damaged at byte {tar.offset}: there is no tar header")


def _choose(
    fields: Fields, field: str | None, target: str | None, shard: Path
) -> tuple[str, str | None]:
    """The fields of input and target, where they are not given by their names in a sample."""
    if target is None:
        labels = [name for name in fields if name.partition(".")[0] in _LABELS and name != field]
        target = labels[0] if len(labels) == 1 else None
    if field is not None:
        kind_of(field, str(shard))
        return field, target
    kinds: dict[str, list[str]] = {"image": [], "npy": []}
    refused = ""
    for name in fields:
        if name != (target or "").partition(":")[0]:
            try:
                kinds.get(kind_of(name, str(shard)), []).append(name)
            except ValueError as error:
                refused = f"; {error}"
    inputs = kinds["image"] or kinds["npy"]
    if len(inputs) != 1:
        raise ValueError(
            f"{shard} has samples with {', '.join(fields)}: name the input with input= and the "
            f"label with target={refused}"
        )
    return inputs[0], target


def _field(fields: Mapping[str, tarfile.TarInfo], name: str, where: str) -> tarfile.TarInfo:
    if name not in fields:
        raise ValueError(f"{where} has no field {name!r}, it has {', '.join(fields)}")
    return fields[name]


def _target(
    tar: tarfile.TarFile, shard: Path, key: str, fields: Fields, target: str
) -> tuple[Any, str]:
    name, _, inside = target.partition(":")
    where = f"{shard}: sample {key}"
    file = tar.extractfile(_field(fields, name, where))  # into memory
    assert file is not None
    return decode_target(file.read(), kind_of(name, where), inside, f"{where}, {name}"), where


class TarSource:
    """The samples of shards by number."""

    def __init__(
        self, shards: Sequence[Path], index: Index, labels: Labels | None, reading: Reading
    ) -> None:
        self.shards, self.labels = [str(path) for path in shards], labels
        self.size, self.max_pixels = reading.size, reading.max_pixels
        self.digest = index.digest
        facts = index.facts
        self.field, self.kind = facts["input"], kind_of(facts["input"], self.shards[0])
        self.shard_ends = np.cumsum(np.array(facts["counts"], dtype=np.int64))
        self.count = int(self.shard_ends[-1])
        self.entries = TableFile(index.folder / "entries", "<i8", 2)
        if labels is not None:
            self.stored = TableFile(index.folder / "targets", labels.stored.str, labels.outputs)
        self.files = OpenFiles()
        self.row_bytes = max(1, sum(map(os.path.getsize, self.shards)) // self.count)
        block = max(1, _BLOCK // self.row_bytes, -(-self.count // _MOST_BLOCKS))
        ends = np.arange(block, self.count + block, block, dtype=np.int64)
        self.ends: Numbers | None = ends.clip(max=self.count)
        self.shape = (3, self.size, self.size) if self.kind == "image" else self._first_shape()

    def read(self, numbers: Numbers) -> Batch:
        places = self._places(numbers)

        def load(place: int) -> NDArray[Any]:
            x = self._load(places[place])
            if x.shape != self.shape:
                where = self._where(places[place])
                raise ValueError(f"{where} has the shape {x.shape}, not {self.shape}")
            return x

        targets = None if self.labels is None else lambda loaded: self.targets(numbers[loaded])
        return read_each(len(numbers), self.shape, load, targets, pixels=self.kind == "image")

    def _first_shape(self) -> tuple[int, ...]:
        """The shape of the first example that can be read."""
        problem: ValueError | None = None
        for place in self._places(np.arange(min(self.count, _TRIED), dtype=np.int64)):
            try:
                return tuple(self._load(place).shape)
            except ValueError as error:
                problem = problem or error
        raise ValueError(f"none of the first {_TRIED} examples can be read: {problem}")

    def _load(self, place: _Place) -> NDArray[Any]:
        data = self.files.read(*place)
        try:
            return decode_input(data, self.kind, self.size, "it", self.max_pixels)
        except ValueError as error:
            raise ValueError(f"{self._where(place)} {str(error).removeprefix('it ')}") from error

    def targets(self, numbers: Numbers) -> NDArray[Any]:
        assert self.labels is not None
        return self.labels(self.stored[numbers])

    def _places(self, numbers: Numbers) -> list[_Place]:
        shards = np.searchsorted(self.shard_ends, numbers, side="right").tolist()
        entries = self.entries[numbers].tolist()
        return [(self.shards[shard], *entry) for shard, entry in zip(shards, entries, strict=True)]

    def _where(self, place: _Place) -> str:
        """A sample in words: its shard, and its name from the header before the file."""
        shard, offset, _ = place
        header = self.files.read(shard, offset - 512, 512)
        return f"{shard}: {header[:100].rstrip(bytes(1)).decode('utf-8', 'replace')}"
