"""Where shifted and unknown inputs come from: ``svhn``, ``corrupt:5``, ``folder/``, ``x.npz``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from dissensus.data import OOD_SETS, Data, Examples, corrupt, corrupt_mixture, load, load_ood
from dissensus.data.arrays import read_npz
from dissensus.data.corruptions import parse_corruption
from dissensus.runs import Facts, data_of, read_config, read_inputs
from dissensus.shift.pictures import PictureRows
from dissensus.specs import nearest

__all__ = ["Origin", "Rows", "Source", "check_names", "known", "unknown"]

SPLITS = ("test", "val", "train")


class Rows(Protocol):
    """Inputs that need not be in memory: a tensor, or anything with a length and slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Source:
    """Inputs by name, with labels where they are the run's classes, and groups where given."""

    name: str
    x: Rows
    y: Tensor | None = None
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Inputs and labels, ``size`` rows at a time."""
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield self.x[rows], None if self.y is None else self.y[rows]

    def limited(self, limit: int | None, seed: int = 0) -> Source:
        """At most ``limit`` rows, drawn at random and the same for the same seed."""
        if limit is None or limit >= len(self):
            return self
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randperm(len(self), generator=generator)[:limit].sort().values
        return Source(
            self.name,
            self.x[drawn],
            None if self.y is None else self.y[drawn],
            None if self.groups is None else self.groups[drawn],
        )


@dataclass(frozen=True, eq=False)
class Origin:
    """The data that a run was made with, and how it reads others."""

    data: Data
    facts: Facts
    target: str | None = None
    header: bool = True
    data_dir: str | Path | None = None

    @classmethod
    def of(cls, run: str | Path, data_dir: str | Path | None = None) -> Self:
        """That of a run of ``dissensus train``; raises if its data are not what they were."""
        config, facts = read_config(run), Facts.read(run)
        if facts is None:
            raise ValueError(
                f"{run} does not know its data, as it was not made by `dissensus train`; use "
                "dissensus.shift in Python"
            )
        asked = config.get("data", {})
        return cls(
            data_of(run, data_dir=data_dir),
            facts,
            asked.get("target"),
            bool(config.get("data_options", {}).get("header", True)),
            asked.get("data_dir") if data_dir is None else data_dir,
        )


def known(text: str, origin: Origin, *, groups: str | None = None) -> Source:
    """In-distribution data: a split of the run's data, or a file or folder of one's own."""
    if text not in SPLITS:
        return _own(text, origin, groups)
    x, y = origin.data.splits()[text]
    if not len(x):
        raise ValueError(f"the split {text!r} of {origin.data.name} has no rows; choose another")
    return Source(text, x, y)


def unknown(text: str, origin: Origin, *, groups: str | None = None, seed: int = 0) -> Source:
    """Inputs that ``text`` names, in the form that a run with these data takes.

    In this order: ``corrupt:SEVERITY`` (all fifteen kinds mixed) or ``corrupt:KIND:SEVERITY`` of
    the test images; a set that the data bring along (``data.extra``); one of ``data.OOD_SETS``; a
    file or folder.
    """
    data, facts = origin.data, origin.facts
    if text.startswith("corrupt:"):
        return _corrupted(text, data, seed)
    if text in data.extra:
        return Source(text, *data.extra[text])
    name = text.lower().replace("-", "_")
    if name in OOD_SETS:
        _check_images(text, facts)
        x = load_ood(name, data_dir=origin.data_dir, input_shape=facts.input_shape)
        return Source(name, x)
    if Path(text).exists():
        return _own(text, origin, groups)
    choice = [*data.extra, *OOD_SETS]
    raise ValueError(
        f"there is no set {text!r}; {nearest(name, choice)}; corrupt:SEVERITY, files (.npz, .npy, "
        ".csv, .tsv, .parquet) and folders will do as well"
    )


def _check_images(text: str, facts: Facts) -> None:
    if len(facts.input_shape) != 3:
        raise ValueError(
            f"{text} needs a run on images, and {facts.name} has inputs of shape "
            f"{tuple(facts.input_shape)}; give unknown inputs as a file"
        )


def _corrupted(text: str, data: Data, seed: int) -> Source:
    kind, severity = parse_corruption(text)
    if len(data.input_shape) != 3:
        raise ValueError(
            f"{text} needs images, and {data.name} has inputs of shape {data.input_shape}"
        )
    x, y = data.test
    if not len(x):
        raise ValueError(f"{data.name} has no test images to corrupt")
    if isinstance(x, Examples):
        x, y = x[:], y[:]
    if kind is not None:
        return Source(text, corrupt(x, kind, severity, seed), y)
    return Source(text, corrupt_mixture(x, severity, seed), y)


def _own(text: str, origin: Origin, groups: str | None) -> Source:
    path, facts = Path(text), origin.facts
    if path.is_dir():
        return _folder(path, facts)
    if not path.is_file():
        raise ValueError(
            f"there is no file or folder {text!r}; in-distribution data are {', '.join(SPLITS)}, a "
            "file or a folder"
        )
    inputs = None
    if facts.task == "classification":
        try:
            inputs = read_inputs(
                path, facts, target=origin.target, header=origin.header, labelled=True
            )
        except ValueError:
            inputs = None  # without labels, or with those of other classes
    if inputs is None:
        inputs = read_inputs(path, facts, target=origin.target, header=origin.header)
    return Source(path.stem, inputs.x, inputs.y, _groups(path, groups, len(inputs.x)))


def _folder(path: Path, facts: Facts) -> Source:
    """Pictures of any layout; for a run on features a folder of features, its test part."""
    if len(facts.input_shape) == 3:
        pictures = PictureRows(path, facts.input_shape)
        return Source(path.name, pictures, pictures.labels(facts.classes))
    data = load(path)
    if list(data.input_shape) != facts.input_shape:
        raise ValueError(
            f"{path} has inputs of shape {data.input_shape}, the run takes "
            f"{tuple(facts.input_shape)}"
        )
    x, y = data.test
    return Source(path.name, x, y if list(data.classes) == facts.classes else None)


def _groups(path: Path, name: str | None, rows: int) -> Tensor | None:
    """The array ``name`` of an ``.npz``, its values numbered; None where there is none."""
    if name is None or path.suffix.lower() != ".npz":
        return None
    arrays = read_npz(path)
    if name not in arrays:
        return None
    values = arrays[name]
    if values.shape != (rows,):
        raise ValueError(f"{name} in {path} must be [rows] = ({rows},), got {values.shape}")
    if values.dtype.kind in "iu":
        return torch.from_numpy(values.astype(np.int64))
    return torch.from_numpy(np.unique(values, return_inverse=True)[1].astype(np.int64))


def check_names(sources: Sequence[Source]) -> None:
    """Raise where two sets are called alike, as results go by name."""
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two sets are called {name!r}; rename one of the files")
