"""Data sets in three splits: rows divided by a seed, never twice; classes that are held out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.tools.guards import guarded
from dissensus.tools.specs import check_choice, check_name

Split = tuple[Tensor, Tensor]
Rows = NDArray[np.int64]

TASKS = ("classification", "regression")
PARTS = ("train", "val", "test")


class OnDisk:
    """Rows on disk that stand in for a float32 tensor ``[rows, …]`` and take no memory.

    An index gives a tensor: ``x[5]``, ``x[10:20]``, ``x[torch.tensor([3, 1])]``. Training,
    prediction and evaluation take them wherever they take inputs, and read them in pieces.
    """

    dtype = torch.float32  # of an index, however rows are stored
    shape: torch.Size
    row_bytes: int  # of one row as :meth:`read` gives it
    windowed = True  # neighbours lie together on disk, and cost less when they are read together
    workers = 0  # processes that read ahead
    on_error = "raise"  # or "skip"

    def read(self, places: Rows) -> Tensor:
        """The rows at ``places``, as they are stored: pixels uint8, numbers float."""
        raise NotImplementedError

    def for_epoch(self, seed: int) -> OnDisk:
        """The rows to train on in the epoch of that seed."""
        return self

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, int | np.integer):
            return self[[int(index)]][0]
        if isinstance(index, slice):
            places = np.arange(*index.indices(len(self)))
        else:
            places = torch.arange(len(self))[index].numpy()  # as a tensor would understand it
        if places.ndim != 1:
            raise ValueError(f"rows on disk are taken by one axis of numbers, got {index!r}")
        return as_float(self.read(places))

    def numel(self) -> int:
        return self.shape.numel()

    def element_size(self) -> int:
        """The bytes of memory that each takes: none, as they are on disk."""
        return 0


def as_float(x: Tensor) -> Tensor:
    """Rows as stored, as members take them: float32, pixels in [0, 1]."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x.float()


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A data set divided into train, validation and test, each a pair ``(x, y)`` of tensors.

    ``x`` is float32 ``[rows, *input_shape]``; ``y`` is int64 labels ``[rows]`` for classification
    and float32 ``[rows, outputs]`` for regression. A split that was not asked for has 0 rows.
    ``features`` name the columns of a table after categories and dates became numbers; ``x`` has
    one input or several for each (:mod:`dissensus.data.encoder`). ``rows`` says for each split
    which rows of the source it holds; no row is in two. ``extra`` holds further sets, such as
    shifted or out-of-distribution inputs, with labels where known. ``preprocessing`` is plain JSON:
    the steps, the statistics that they used, and as ``guess`` a sentence about the task where the
    targets left it open. An ``x`` may be rows on disk, which are
    read as they are used.
    """

    name: str
    task: str
    train: Split
    val: Split
    test: Split
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    extra: Mapping[str, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        check_task(self.task)
        for part, (x, y) in self.splits().items():
            if len(x) != len(y):
                raise ValueError(f"{self.name}: {part} has {len(x)} inputs and {len(y)} targets")
            # Rows on disk were checked when they were written.
            if isinstance(x, Tensor) and not bool(torch.isfinite(x).all()):
                bad = int((~torch.isfinite(x)).sum())
                raise ValueError(f"{self.name}: {part} inputs hold {bad} NaN or infinite values")
        if len(self.train[0]) == 0:
            raise ValueError(f"{self.name}: no rows are left for training; lower val and test")
        numbers = torch.cat([*self.rows.values()]) if self.rows else torch.empty(0)
        if len(numbers.unique()) != len(numbers):
            raise ValueError(f"{self.name}: a row is in more than one split")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train[0].shape[1:])

    @property
    def outputs(self) -> int:
        """The number of outputs of a member: of classes, or of regression targets."""
        if self.task == "classification":
            return len(self.classes)
        return self.train[1].shape[1]

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The number of the column that each input of a table belongs to; None for other data."""
        if "encoder" not in self.preprocessing:
            return None
        from dissensus.data.encoder import Encoder
        from dissensus.data.preparation import Preparation

        columns = Preparation.from_dict(self.preprocessing["preparation"]).groups
        widths = Encoder.from_dict(self.preprocessing["encoder"]).widths
        return tuple(np.repeat(columns, widths).tolist())

    def splits(self) -> dict[str, Split]:
        """The three splits by name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def original(self, y: Tensor) -> Tensor:
        """Regression targets or predictions in the units of the source."""
        return original_units(y, self.preprocessing)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{part} {len(x)}" for part, (x, _) in self.splits().items())
        ends = f"{len(self.classes)} classes" if self.classes else f"{self.outputs} outputs"
        extra = f", extra {', '.join(self.extra)}" if self.extra else ""
        return f"Data({self.name!r}: {self.task}, {self.input_shape}, {ends}; {sizes}{extra})"


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`dissensus.data.load` that every loader gets."""

    places: tuple[Path, ...] = ()
    seed: int = 0
    val: float | int = 0.2
    test: float | int | None = None
    download: bool = True

    @property
    def test_share(self) -> float | int:
        """The part to hold out where a set has no test part of its own."""
        return 0.2 if self.test is None else self.test


def divide(
    name: str,
    task: str,
    ids: Mapping[str, Rows],
    pick: Callable[[str, Rows], Split],
    request: Request,
    **facts: Any,
) -> Data:
    """A data set from the parts that a source has; splits that are missing are cut from train.

    ``ids`` are the row numbers of each part, ``"train"`` and perhaps ``"val"`` and ``"test"``;
    ``pick(part, places)`` reads some rows of a part, by their places in it.
    """
    if "test" in ids and request.test is not None:
        raise ValueError(f"{name} has an official test set, which is kept; leave test out")
    train, val, test = split_rows(
        len(ids["train"]),
        val=0 if "val" in ids else request.val,
        test=0 if "test" in ids else request.test_share,
        seed=request.seed,
    )
    places = {"train": ("train", train), "val": ("train", val), "test": ("train", test)}
    places |= {part: (part, np.arange(len(ids[part]))) for part in ids if part != "train"}
    splits: dict[str, Any] = {part: pick(source, rows) for part, (source, rows) in places.items()}
    return Data(
        name,
        task,
        **splits,
        rows={part: torch.from_numpy(ids[source][rows]) for part, (source, rows) in places.items()},
        **facts,
    )


@guarded
def split_rows(
    count: int, *, val: float | int = 0.2, test: float | int = 0.2, seed: int = 0
) -> tuple[Rows, Rows, Rows]:
    """Draw disjoint row numbers for train, validation and test; the same for the same seed.

    ``test`` is a share of all rows, ``val`` a share of those that remain (collusion, Appendix B:
    20% test, the rest 80/20); a whole number is a number of rows; 0 leaves the part empty.

    >>> [len(part) for part in split_rows(100)]
    [64, 16, 20]
    >>> [len(part) for part in split_rows(100, val=10, test=0)]
    [90, 10, 0]
    """
    order = np.random.default_rng(seed).permutation(count).astype(np.int64)
    val_size, test_size = part_sizes(count, val=val, test=test)
    held_out = test_size + val_size
    return order[held_out:], order[test_size:held_out], order[:test_size]


def part_sizes(count: int, *, val: float | int, test: float | int) -> tuple[int, int]:
    """The numbers of rows for validation and test; raise unless some are left for training."""
    test_size = _part_size("test", test, count)
    val_size = _part_size("val", val, count - test_size)
    if test_size + val_size >= count:
        raise ValueError(f"test={test!r} and val={val!r} of {count} rows leave none for training")
    return val_size, test_size


def _part_size(name: str, part: float | int, count: int) -> int:
    """The number of rows that ``part``, a share of ``count`` or a number, means."""
    if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part < math.inf:
        raise ValueError(f"{name} must be a share below 1 or a number of rows, got {part!r}")
    if isinstance(part, int):
        return part
    if part >= 1:
        raise ValueError(f"{name} must be a share below 1 or a whole number, got {part!r}")
    size = math.floor(part * count + 0.5)
    if part > 0 and size == 0:
        raise ValueError(f"{name}={part!r} of {count} rows is none; raise it, or set it to 0")
    return size


def check_task(task: str) -> None:
    """Raise unless ``task`` is one of :data:`TASKS`."""
    check_choice("data", "task", task, TASKS)


def guess_task(name: str, values: NDArray[Any], *, most_classes: int | None) -> tuple[str, str]:
    """The task that numbers to be predicted suggest, and a sentence that says so.

    Whole numbers are classes, unless there are more than ``most_classes`` different ones.

    >>> guess_task("rooms", np.array([1, 2, 2]), most_classes=20)[1]
    'rooms has 2 different whole numbers: classification; --task regression if they are quantities'
    """
    count = len(np.unique(values))
    whole = bool((values == np.round(values)).all()) and bool(np.isfinite(values).all())
    few = most_classes is None or count <= most_classes
    has = f"{name} has {count:,} different {'whole ' if whole else ''}numbers"
    if whole and few:
        return "classification", f"{has}: classification; --task regression if they are quantities"
    return "regression", f"{has}: regression; --task classification if they are classes"


def check_classes(names: Iterable[str], known: Sequence[str], where: object) -> None:
    """Raise for classes that train does not have."""
    unknown = [name for name in names if name not in set(known)]
    if unknown:
        raise ValueError(f"{where} has classes that train has not: {', '.join(unknown[:10])}")


def cache_folder() -> Path:
    """The project's folder in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache.expanduser() / "dissensus"


def data_places(data_dir: str | Path | None = None) -> tuple[Path, ...]:
    """The folders in which data sets are looked for, in order.

    ``data_dir`` alone where it is given; else the folders that ``DISSENSUS_DATA`` lists, separated
    as in ``PATH`` (``:``, on Windows ``;``), then the user's cache. A data set comes from the first
    that has it, and downloads go to the first that can be written. Of a list, folders that do not
    exist are left out, so that a typing mistake makes no folder.
    """
    if data_dir is not None:
        return (Path(data_dir).expanduser(),)
    listed = os.environ.get("DISSENSUS_DATA", "").split(os.pathsep)
    folders = [Path(folder).expanduser() for folder in listed if folder]
    if len(listed) > 1:
        folders = [folder for folder in folders if folder.is_dir()]
    return (*folders, cache_folder() / "data")


def original_units(y: Tensor, notes: Mapping[str, Any]) -> Tensor:
    """Regression targets in the units of the source; ``notes`` are those of preprocessing."""
    scale, mean = notes.get("target_std", 1.0), notes.get("target_mean", 0.0)
    return y * torch.as_tensor(scale).to(y) + torch.as_tensor(mean).to(y)


def missing_extra(what: str, package: str, install: str) -> ValueError:
    """The error for an optional package that is not installed."""
    return ValueError(f"{what} needs {package}, which is not installed: pip install {install}")


# ---- classes held out as unknown inputs ----------------------------------------------------------

#: The name of the set in ``Data.extra``.
HELD_OUT = "held_out"


def hold_out_classes(data: Data, classes: str | Sequence[str | int]) -> Data:
    """``data`` without these classes, whose rows are then ``extra["held_out"]``.

    No split has a row of them, so a model that is trained on the rest has never seen any; the
    remaining classes are numbered again, in their order. ``classes`` are names, as a sequence or
    with commas between them.

    >>> from dissensus.data import load
    >>> hold_out_classes(load("wine"), "class_1")
    Data('wine': classification, (221,), 2 classes; train 75, val 14, test 18, extra held_out)
    """
    names = _held_out_classes(data, classes)
    known_classes = tuple(name for name in data.classes if name not in names)
    new_labels = torch.tensor(
        [-1 if name in names else known_classes.index(name) for name in data.classes]
    )
    splits: dict[str, Any] = {}
    rows: dict[str, Tensor] = {}
    unknown: list[Tensor] = []
    for part, (x, y) in data.splits().items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{data.name}: rows on disk cannot be held out by their class")
        known = new_labels[y] >= 0
        splits[part] = x[known], new_labels[y[known]]
        unknown.append(x[~known])
        if part in data.rows:
            rows[part] = data.rows[part][known]
    notes = [*data.preprocessing.get("notes", ()), f"classes held out: {', '.join(names)}"]
    return replace(
        data,
        **splits,
        classes=known_classes,
        rows=rows,
        extra={**data.extra, HELD_OUT: (torch.cat(unknown), None)},
        preprocessing={**data.preprocessing, "notes": notes},
    )


def _held_out_classes(data: Data, classes: str | Sequence[str | int]) -> list[str]:
    """Names of classes; raises for those that do not exist, and for too many."""
    if data.task != "classification":
        raise ValueError(f"{data.name} is a regression: there are no classes to hold out")
    listed = classes.split(",") if isinstance(classes, str) else classes
    names = list(dict.fromkeys(str(name).strip() for name in listed))
    for name in names:
        check_name(name, data.classes, "class")
    if not names or len(names) > len(data.classes) - 2:
        raise ValueError(f"hold_out must name a class and leave two, got {names}")
    return names
