"""Where the inputs of a backbone come from: a data set in memory, or images read one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data import (
    DATASETS,
    OOD_SETS,
    Data,
    Examples,
    ImageFolder,
    corrupt,
    corrupt_mixture,
    is_shards,
    load_ood,
)
from dissensus.data import load as load_data
from dissensus.data.arrays import read_npz
from dissensus.data.base import Request
from dissensus.data.corruptions import parse_corruption
from dissensus.data.features import is_store
from dissensus.data.folder import find_images, read_image
from dissensus.data.images import to_unit

__all__ = ["Source", "Sources", "ood_source", "sources"]

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Source:
    """One part: ``read(rows)`` gives inputs, images in [0, 1]; ``digest`` tells it from others."""

    read: Callable[[Rows], Tensor]
    rows: Rows
    labels: NDArray[np.int64] | None
    digest: str
    change: Callable[[Tensor, int], Tensor] | None = field(default=None)  # of inputs, by a seed

    def __len__(self) -> int:
        return len(self.rows)

    def inputs(self, start: int, stop: int) -> Tensor:
        """Inputs ``start`` to ``stop``; ``change`` has not been applied."""
        return self.read(self.rows[start:stop])

    def limited(self, limit: int | None, seed: int) -> Source:
        """At most ``limit`` rows, drawn by the seed, in their order."""
        if limit is None or limit >= len(self):
            return self
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        drawn = np.sort(np.random.default_rng([seed, 2]).permutation(len(self))[:limit])
        labels = None if self.labels is None else self.labels[drawn]
        return replace(self, rows=self.rows[drawn], labels=labels)

    def fingerprint(self) -> str:
        """A digest of what is read, which rows, and their labels."""
        found = hashlib.sha256(self.digest.encode())
        for array in (self.rows, self.labels):
            found.update(b"-" if array is None else np.ascontiguousarray(array).data)
        return found.hexdigest()


@dataclass(frozen=True, eq=False)
class Sources:
    """The parts of a data set with their labels' names."""

    name: str
    classes: tuple[str, ...]
    parts: dict[str, Source]


def sources(
    data: Data | str | Path,
    *,
    size: int | None = None,
    seed: int = 0,
    val: float | int = 0.2,
    data_dir: str | Path | None = None,
    options: dict[str, Any] | None = None,
) -> Sources:
    """The parts of a data set; of a folder of images, or shards, each is read when it is needed."""
    options = dict(options or {})
    if not isinstance(data, Data):
        path = Path(data).expanduser()
        named = isinstance(data, str) and data.lower().replace("-", "_") in DATASETS
        if path.is_dir() and not (named or options or is_store(path) or is_shards(path)):
            return _folder(path, size or 224, seed, val)
        if is_shards(data):
            options.setdefault("size", size or 224)
        data = load_data(data, data_dir=data_dir, seed=seed, val=val, **options)
    if data.task != "classification":
        raise ValueError(f"features are kept with class labels; {data.name} is a {data.task}")
    parts = {name: _part(x, y) for name, (x, y) in data.splits().items() if len(x)}
    parts |= {name: _tensors(x, y) for name, (x, y) in data.extra.items()}
    return Sources(data.name, data.classes, parts)


def ood_source(
    name: str, known: Sources, *, size: int | None, seed: int, data_dir: str | Path | None
) -> tuple[str, Source]:
    """A set of unknown inputs, and the name of its part.

    ``corrupt:5`` (all kinds at severity 5) or ``corrupt:contrast:3`` change the test images; else a
    name of ``OOD_SETS``, a folder with images at any depth, or an ``.npz`` with ``x``.
    """
    if name.startswith("corrupt:"):
        return _corrupted(name, known, seed)
    path = Path(name).expanduser()
    if name.lower().replace("-", "_") in OOD_SETS:
        key = name.lower().replace("-", "_")
        return key, _tensors(load_ood(key, data_dir=data_dir), None)
    if path.is_dir():
        return path.resolve().name, _files(find_images(path), path, size or 224, None)
    if path.suffix.lower() == ".npz":
        arrays = read_npz(path)
        if "x" not in arrays:
            raise ValueError(f"{path} must hold the inputs as x, got {', '.join(arrays)}")
        x = arrays["x"]
        inputs = to_unit(x) if x.dtype == np.uint8 else torch.from_numpy(x).float()
        return path.stem, _tensors(inputs, None)
    raise ValueError(
        f"there is no set of unknown inputs {name!r}; give corrupt:1 to corrupt:5, "
        f"{', '.join(OOD_SETS)}, a folder of images, or an .npz with x"
    )


def _corrupted(name: str, known: Sources, seed: int) -> tuple[str, Source]:
    if "test" not in known.parts:
        raise ValueError(f"{name} changes test images, and {known.name} has none")
    kind, level = parse_corruption(name)

    def change(x: Tensor, own: int) -> Tensor:
        drawn = (seed * 1_000_003 + own) % 2**40
        return corrupt(x, kind, level, drawn) if kind else corrupt_mixture(x, level, drawn)

    test = known.parts["test"]
    return f"{kind or 'corrupt'}{level}", replace(
        test, change=change, digest=f"{test.digest} {name} {seed}"
    )


def _part(x: Tensor | Examples, y: Tensor) -> Source:
    if not isinstance(x, Examples):
        return _tensors(x, y)
    rows = np.arange(len(x), dtype=np.int64)
    labels = np.concatenate([y[i : i + 4096].numpy() for i in range(0, len(x), 4096)])
    told = f"{x.digest} {x.part.first} {x.part.stop} {x.part.seed}"
    return Source(lambda chosen: x[chosen], rows, labels, told)


def _tensors(x: Tensor, y: Tensor | None) -> Source:
    labels = None if y is None else y.numpy().astype(np.int64)
    rows = np.arange(len(x), dtype=np.int64)
    digest = hashlib.sha256(f"{tuple(x.shape)}".encode())
    for start in range(0, len(x), 4096):
        digest.update(np.ascontiguousarray(x[start : start + 4096].numpy()).data)
    return Source(lambda chosen: x[torch.from_numpy(chosen)], rows, labels, digest.hexdigest())


def _folder(path: Path, size: int, seed: int, val: float | int) -> Sources:
    """As ``data.load_folder`` divides them, without reading the images."""
    request = Request(seed=seed, val=val)
    train = ImageFolder(path / "train" if (path / "train").is_dir() else path, size)
    held = next((path / part for part in ("test", "val") if (path / part).is_dir()), None)
    if (path / "train").is_dir() and held is not None:
        tested = ImageFolder(held, size, train.classes)
        kept, validated = request.split_train(len(train), path.name)
        rows = {"train": (train, kept), "val": (train, validated)}
        rows["test"] = tested, np.arange(len(tested), dtype=np.int64)
    else:
        parts = request.split(len(train))
        rows = {
            name: (train, own) for name, own in zip(("train", "val", "test"), parts, strict=True)
        }
    made = {name: _images(images, chosen) for name, (images, chosen) in rows.items() if len(chosen)}
    return Sources(path.resolve().name, train.classes, made)


def _images(images: ImageFolder, rows: Rows) -> Source:
    labels = np.array([label for _, label in images.files], dtype=np.int64)
    source = _files([file for file, _ in images.files], images.root, images.size, labels)
    return replace(source, rows=rows, labels=labels[rows])


def _files(
    files: Sequence[Path], root: Path, size: int, labels: NDArray[np.int64] | None
) -> Source:
    if not files:
        raise ValueError(f"{root} holds no images")
    listed = "".join(f"{file.relative_to(root)} {file.stat().st_size}\n" for file in files)

    def read(rows: Rows) -> Tensor:
        return to_unit(np.stack([read_image(files[i], size).transpose(2, 0, 1) for i in rows]))

    digest = hashlib.sha256(f"{size} {listed}".encode()).hexdigest()
    return Source(read, np.arange(len(files), dtype=np.int64), labels, digest)
