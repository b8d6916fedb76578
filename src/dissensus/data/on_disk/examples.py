"""Examples that stay on disk and are read as they are used, however many there are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.dataset import OnDisk
from dissensus.data.formats import MAX_PIXELS
from dissensus.data.images import to_unit
from dissensus.data.on_disk.order import Blocks, Numbers, Order, Part, Scattered, Windowed

#: The most processes that read.
MAX_WORKERS = 256

# A window has this many examples, or fewer if they would take more than this many bytes.
_WINDOW, _WINDOW_BYTES = 1 << 16, 1 << 27


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples that were read: ``x`` as stored (pixels uint8, numbers float32), ``y`` if known.

    ``problems`` describes each example that could not be read; it is in neither ``x`` nor ``y``.
    """

    x: Tensor
    y: Tensor | None
    problems: list[str] = field(default_factory=list)


class Source(Protocol):
    """Examples by number. ``ends`` are those of blocks that lie together; None if none do."""

    count: int
    shape: tuple[int, ...]
    row_bytes: int  # the approximate size of one example on disk
    ends: Numbers | None
    digest: str

    def read(self, numbers: Numbers) -> Batch:
        """The examples of these numbers, in their order."""

    def targets(self, numbers: Numbers) -> NDArray[Any]:
        """Their targets alone; an error where there are none."""


def read_each(
    count: int,
    shape: Sequence[int],
    load: Callable[[int], NDArray[Any]],
    targets: Callable[[list[int]], NDArray[Any]] | None,
    *,
    pixels: bool,
) -> Batch:
    """Load ``count`` examples, each by its place; those that fail are left out and reported.

    ``targets`` takes the places that were loaded.
    """
    # Memory of torch's own, which is aligned: where a batch lies decides about last bits.
    x = torch.empty((count, *shape), dtype=torch.uint8 if pixels else torch.float32)
    array = x.numpy()
    loaded: list[int] = []
    problems: list[str] = []
    for place in range(count):
        try:
            array[len(loaded)] = load(place)
            loaded.append(place)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        x = x[: len(loaded)].clone()
    y = None if targets is None else torch.from_numpy(targets(loaded))
    return Batch(x, y, problems)


@dataclass(frozen=True)
class Reading:
    """Settings for reading examples."""

    size: int
    window: int | None = None
    workers: int = 0
    on_error: str = "raise"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("window", 1), ("workers", 0), ("max_pixels", 1)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(
                    f"{name} must be a whole number of at least {least}, got {value!r}"
                )
        if self.workers > MAX_WORKERS:
            raise ValueError(f"workers must be at most {MAX_WORKERS}, got {self.workers}")
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")

    def window_of(self, row_bytes: int) -> int:
        """The examples of a window: as asked, or as many as memory allows."""
        return self.window or max(1, min(_WINDOW, _WINDOW_BYTES // row_bytes))


class Examples(OnDisk):
    """The inputs ``[rows, *shape]`` of one part, on disk; in use much like a float32 tensor.

    It has ``len``, ``shape`` and ``dtype``, and an index gives a tensor: ``x[5]``, ``x[10:20]``.
    Training, prediction and evaluation take it, or ``(x, y)`` with its :class:`Targets`, wherever
    they take inputs. ``workers`` processes read and decode ahead; the examples and their order do
    not depend on them. ``on_error="skip"`` leaves out examples that cannot be read and says
    how many. ``window`` is how many examples of shards are shuffled together.
    """

    dtype = torch.float32  # of what is read, however it is stored

    def __init__(
        self,
        source: Source,
        part: Part,
        reading: Reading,
        target_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.source, self.part, self.window = source, part, reading.window_of(source.row_bytes)
        self.workers, self.on_error = reading.workers, reading.on_error
        self.shape = torch.Size((len(part), *source.shape))
        self.target_shape = target_shape
        self.rank, self.world = 0, 1
        self.blocks = None if source.ends is None else Blocks(source.ends, part)

    @property
    def targets(self) -> Targets | None:
        return None if self.target_shape is None else Targets(self)

    @property
    def digest(self) -> str:
        """A digest of the files' names, their sizes and the number of examples."""
        return self.source.digest

    def __repr__(self) -> str:
        workers = f", {self.workers} workers" if self.workers else ""
        return f"Examples({tuple(self.shape)} on disk{workers})"

    def for_rank(self, rank: int, world: int) -> Examples:
        """The same, but of each batch only the share of one of ``world`` processes.

        Batches have the same numbers in all processes, and ``batch_size`` is that of all together;
        where a last batch has fewer examples than there are processes, some get none of it.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank must be from 0 to {world - 1}, got {rank}")
        share = copy.copy(self)
        share.rank, share.world = rank, world
        return share

    def order(self, seed: int | None) -> Order:
        """The order of an epoch; without a seed that on disk."""
        if self.blocks is not None:
            return Windowed(self.blocks, self.window, seed)
        return Scattered(self.part, seed)

    def read(self, start: int, stop: int, order: Order | None = None, step: int = 1) -> Batch:
        """Every ``step``-th of the examples at places ``start`` to ``stop`` − 1, as stored."""
        numbers = (order or self.order(None)).numbers(start, stop)[::step]
        batch = self.source.read(numbers)
        if batch.problems and self.on_error == "raise":
            raise ValueError(
                f"{batch.problems[0]}; pass on_error='skip' to leave out what cannot be read"
            )
        return batch

    def __getitem__(self, index: Any) -> Tensor:
        batch = self.source.read(self._numbers(index))
        if batch.problems:
            raise ValueError(batch.problems[0])
        return as_float(batch.x)[0 if isinstance(index, int) else slice(None)]

    def _numbers(self, index: Any) -> Numbers:
        """The numbers that an index means."""
        order = self.order(None)
        if isinstance(index, slice) and index.step in (None, 1):
            start, stop, _ = index.indices(len(self))
            return order.numbers(start, stop)
        places = np.atleast_1d(np.asarray(index, dtype=np.int64))
        if places.ndim != 1 or ((places < -len(self)) | (places >= len(self))).any():
            raise IndexError(f"examples on disk have numbers below {len(self)}, got {index!r}")
        places = places % len(self)
        if len(places) and (np.diff(places) == 1).all():
            return order.numbers(int(places[0]), int(places[-1]) + 1)
        return np.concatenate([order.numbers(p, p + 1) for p in places.tolist()])


class Targets(OnDisk):
    """The targets ``[rows]`` or ``[rows, outputs]`` of some examples, read together with them."""

    def __init__(self, examples: Examples) -> None:
        assert examples.target_shape is not None
        self.examples = examples
        self.shape = torch.Size((len(examples), *examples.target_shape))
        self.dtype = torch.float32 if examples.target_shape else torch.int64

    def __repr__(self) -> str:
        return f"Targets({tuple(self.shape)} on disk)"

    def __getitem__(self, index: Any) -> Tensor:
        y = torch.from_numpy(self.examples.source.targets(self.examples._numbers(index)))
        return y[0 if isinstance(index, int) else slice(None)]


def as_float(x: Tensor) -> Tensor:
    """Inputs as stored, as members take them: pixels in [0, 1]."""
    return to_unit(x.numpy()) if x.dtype == torch.uint8 else x
