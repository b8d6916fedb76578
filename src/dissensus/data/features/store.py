"""A folder of features: opened, checked, and given as a data set whose inputs stay on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from dissensus.data.base import Data, Request, Split
from dissensus.data.features.manifest import MANIFEST, UNFINISHED, Manifest, digest
from dissensus.data.features.rows import StoredRows, inside, label_file, map_array, shard_file

__all__ = ["FeatureStore", "is_store", "load_store"]

_PARTS = ("train", "val", "test")


def is_store(folder: Path) -> bool:
    """Whether a folder holds features, or will when they are finished."""
    return (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file()


class FeatureStore:
    """Features on disk: ``parts`` by name, each rows and labels (None where there are none).

    Opening checks the form of every file. ``verify=True`` reads all of them and compares their
    checksums, with ``progress(done, total)`` in bytes as it goes.

    >>> import tempfile
    >>> from dissensus.data.features import FeatureWriter
    >>> folder = tempfile.mkdtemp()
    >>> with FeatureWriter(folder, (4,), classes=["a", "b"]) as writer:
    ...     writer.add("train", np.ones((10, 4)), np.zeros(10, int))
    >>> x, y = FeatureStore(folder, verify=True).parts["train"]
    >>> x, x[7], y[7]
    (StoredRows('train': (10, 4) float16), tensor([1., 1., 1., 1.]), tensor(0))
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        verify: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        if verify:
            self._verify(progress)
        self.parts: dict[str, tuple[StoredRows, Tensor | None]] = {
            name: (self._rows(name), self._labels(name)) for name in self.manifest.parts
        }

    def data(self, *, in_memory: bool = False) -> Data:
        """The store as a data set; parts other than train, val and test are its ``extra``.

        ``in_memory`` reads all features into tensors, for sets that are small.
        """
        if "train" not in self.parts:
            raise ValueError(f"{self.folder} has no part 'train', only {', '.join(self.parts)}")
        found = self.manifest

        def given(name: str) -> tuple[Tensor, Tensor | None]:
            x, y = self.parts[name]
            # Rows on disk stand in for a tensor; what takes inputs knows them.
            return (x.to_memory() if in_memory else cast(Tensor, x)), y

        def split(name: str) -> Split:
            if name not in self.parts:
                return torch.empty(0, *found.shape), torch.empty(0, dtype=torch.int64)
            x, y = given(name)
            if y is None:
                raise ValueError(f"{self.folder}: part {name!r} has no labels")
            return x, y

        return Data(
            self.folder.resolve().name,
            "classification",
            *(split("train"), split("val"), split("test")),
            classes=found.classes,
            extra={name: given(name) for name in self.parts if name not in _PARTS},
            preprocessing={"backbone": dict(found.backbone), "transform": dict(found.transform)},
            # A run keeps the digest of its source: the manifest has those of all files.
            source=str(self.folder / MANIFEST),
        )

    def _rows(self, name: str) -> StoredRows:
        found = self.manifest
        part = found.parts[name]
        return StoredRows(
            self.folder,
            name,
            part.rows,
            found.shape,
            found.dtype,
            shard_rows=found.shard_rows,
            passes=part.passes,
        )

    def _labels(self, name: str) -> Tensor | None:
        part = self.manifest.parts[name]
        if not part.labelled:
            return None
        file = inside(self.folder, label_file(self.folder, name))
        labels = np.array(map_array(file, (part.rows,), np.dtype(np.int64)))
        low, high, classes = int(labels.min()), int(labels.max()), len(self.manifest.classes)
        if low < 0 or high >= classes:
            raise ValueError(f"{file} holds labels from {low} to {high}, of {classes} classes")
        return torch.from_numpy(labels)

    def _verify(self, progress: Callable[[int, int], object] | None) -> None:
        wanted: dict[Path, str] = {}
        for name, part in self.manifest.parts.items():
            for number, sums in enumerate(part.shards):
                for shard, checksum in enumerate(sums):
                    wanted[shard_file(self.folder, name, number, shard)] = checksum
            if part.labels is not None:
                wanted[label_file(self.folder, name)] = part.labels
        missing = [str(file) for file in wanted if not file.is_file()]
        if missing:
            raise ValueError(f"{missing[0]} is missing from the features")
        total, done = sum(file.stat().st_size for file in wanted), 0
        for file, checksum in wanted.items():
            if digest(inside(self.folder, file)) != checksum:
                raise ValueError(
                    f"{file} is damaged: its sha256 is not the manifest's; delete the folder "
                    f"{self.folder} and make the features again"
                )
            done += file.stat().st_size
            if progress is not None:
                progress(done, total)


def load_store(
    path: Path, request: Request, *, in_memory: bool = False, verify: bool = False
) -> Data:
    """Features that ``dissensus features`` made; their parts are kept as they were divided."""
    if request.test is not None:
        raise ValueError(f"{path} has been divided already; leave test out")
    return FeatureStore(path, verify=verify).data(in_memory=in_memory)
