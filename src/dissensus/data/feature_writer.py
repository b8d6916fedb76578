"""Writer of feature stores, shard by shard: a kill costs one shard, and no file is half done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dissensus.data.feature_store import (
    DTYPES,
    MANIFEST,
    UNFINISHED,
    Manifest,
    StorePart,
    check_name,
    digest,
    label_file,
    map_array,
    shard_file,
)
from dissensus.tools.files import (
    LOCK,
    lock_folder,
    read_json,
    remove_parts,
    replace_atomically,
    write_text,
)

Compute = Callable[[int, int, int], NDArray[Any]]


class FeatureWriter:
    """Writes a feature store; as a context, the manifest is written when it ends without an error.

    ``shape`` is that of one example's features. ``backbone``, ``transform``, ``data`` and
    ``versions`` are plain JSON about where they come from. A writer with the same settings goes on
    in a folder where one was interrupted and keeps its shards; other settings are refused.
    """

    def __init__(
        self,
        folder: str | Path,
        shape: Sequence[int],
        *,
        dtype: str = "float16",
        classes: Sequence[str] = (),
        shard_rows: int = 4096,
        backbone: Mapping[str, Any] | None = None,
        transform: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder)
        sizes, names = tuple(int(size) for size in shape), tuple(str(name) for name in classes)
        about = (dict(facts or {}) for facts in (backbone, transform, data, versions))
        self.manifest = Manifest(dtype, sizes, shard_rows, {}, names, *about)
        self.stored = np.dtype(DTYPES[dtype])
        self.parts: dict[str, StorePart] = {}
        self._lock = ExitStack()
        self._lock.enter_context(lock_folder(self.folder))
        try:
            self._begin()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if kind is None:
                self.finish()

    def add(self, name: str, x: ArrayLike, y: ArrayLike | None = None) -> None:
        """Add a part of features that are in memory: ``x`` ``[rows, *shape]``, labels ``y``."""
        features = np.asarray(x)
        self.compute(name, len(features), y, lambda number, start, stop: features[start:stop])

    def compute(
        self,
        name: str,
        rows: int,
        y: ArrayLike | None,
        compute: Compute,
        *,
        passes: int = 1,
        on_shard: Callable[[int], object] = lambda rows: None,
    ) -> None:
        """Add a part shard by shard: ``compute(pass, start, stop)`` gives those rows' features.

        It is not called for shards that exist. ``on_shard`` is called with the rows of each shard
        that is done.
        """
        check_name(name)
        if name in self.parts:
            raise ValueError(f"part {name!r} was added before")
        if rows < 1:
            raise ValueError(f"part {name!r} must have at least one row")
        shards = []
        for number in range(passes):
            own = []
            for shard, start in enumerate(range(0, rows, self.manifest.shard_rows)):
                stop = min(start + self.manifest.shard_rows, rows)
                file = shard_file(self.folder, name, number, shard)
                if file.is_file():
                    map_array(file, (stop - start, *self.manifest.shape), self.stored)
                else:
                    self._write(file, self._checked(compute(number, start, stop), stop - start))
                own.append(digest(file))
                on_shard(stop - start)
            shards.append(tuple(own))
        labels = None if y is None else self._add_labels(name, rows, np.asarray(y))
        self.parts[name] = StorePart(rows, passes, y is not None, tuple(shards), labels)

    def finish(self) -> None:
        """Write the manifest, which makes the folder a store."""
        if not self.parts:
            raise ValueError("a feature store must have at least one part, add one first")
        for folder in (self.folder, *(self.folder / name for name in self.parts)):
            remove_parts(folder)  # before the manifest, after which nobody comes back
        Manifest(**{**vars(self.manifest), "parts": self.parts}).write(self.folder)
        (self.folder / UNFINISHED).unlink(missing_ok=True)
        self._lock.close()

    def _begin(self) -> None:
        """Record the settings, or check that they are those of the store begun here."""
        if (self.folder / MANIFEST).is_file():
            raise ValueError(f"there are features in {self.folder} already; choose another folder")
        settings = {name: value for name, value in vars(self.manifest).items() if name != "parts"}
        asked = json.loads(json.dumps(settings))
        file = self.folder / UNFINISHED
        if file.is_file():
            _check_same(file, asked)
            return
        for part in self.folder.glob(f".{UNFINISHED}.*.part"):  # left by a kill at this very line
            part.unlink()
        if any(file.name != LOCK for file in self.folder.iterdir()):
            raise ValueError(f"{self.folder} is not empty and holds no features; choose another")
        write_text(file, json.dumps(asked, indent=1) + "\n")

    def _checked(self, x: NDArray[Any], rows: int) -> NDArray[Any]:
        if x.shape != (rows, *self.manifest.shape):
            raise ValueError(
                f"features must be {(rows, *self.manifest.shape)}, got {tuple(x.shape)}"
            )
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(x, self.stored)
        if bad := int(x.size - np.isfinite(stored).sum()):
            if np.isfinite(x).all():
                raise ValueError(f"{bad} features are too large for float16; store them as float32")
            raise ValueError(f"the features hold {bad} NaN or infinite values")
        return stored

    def _add_labels(self, name: str, rows: int, labels: NDArray[Any]) -> str:
        if labels.shape != (rows,) or labels.dtype.kind not in "iu":
            raise ValueError(
                f"labels must be whole numbers [{rows}], got {labels.dtype} {labels.shape}"
            )
        low, high, classes = int(labels.min()), int(labels.max()), len(self.manifest.classes)
        if low < 0 or high >= classes:
            raise ValueError(f"labels of {name} run from {low} to {high}, of {classes} classes")
        file = label_file(self.folder, name)
        self._write(file, labels.astype(np.int64))
        return digest(file)

    @staticmethod
    def _write(file: Path, array: NDArray[Any]) -> None:
        def save(part: Path) -> None:
            with part.open("wb") as raw:
                np.save(raw, array, allow_pickle=False)

        replace_atomically(file, save)


def _check_same(file: Path, asked: dict[str, Any]) -> None:
    try:
        begun = dict(read_json(file))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error}); start in another folder") from error
    for key, value in asked.items():
        if begun.get(key) != value:
            raise ValueError(
                f"other features were begun in {file.parent}: {key} was {_short(begun.get(key))}, "
                f"now it is {_short(value)}; repeat what was asked then, or choose another folder"
            )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + " …"
