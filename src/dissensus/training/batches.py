"""Batches of ``(x, y)`` from tensors in memory or from a DataLoader.

The batches of an epoch and their order follow from a seed alone, so that a training run that was
stopped continues with exactly the batches that were left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dissensus.data import OnDisk
from dissensus.data.arrow import inputs_and_targets, is_dataset
from dissensus.tools.guards import describe

Augmentation = Callable[[Tensor, torch.Generator], Tensor]


def derived_seed(seed: int, *path: int) -> int:
    """A seed for one purpose, from the run's seed and numbers that name the purpose."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0]) >> 1


_PICKED = 1 << 20  # numbers of x that are picked from the data at once


class Batches(Protocol):
    def __len__(self) -> int: ...

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The batches of one epoch from number ``start`` on."""


def batch_sizes(examples: int, batch_size: int, *, shuffle: bool) -> list[int]:
    """The sizes of an epoch's batches; if shuffled, a last example alone joins the batch before."""
    full, left = divmod(examples, batch_size)
    sizes = [batch_size] * full + ([left] if left else [])
    if shuffle and full and left == 1:
        sizes[-2:] = [batch_size + 1]
    return sizes


def batches_together(sizes: list[int], row: int, numbers: int = _PICKED) -> int:
    """The number of batches picked at once: for small ones, picking costs as much as a layer.

    ``row`` is how many numbers an example has, ``numbers`` how many may be picked.
    """
    return max(1, numbers // max(row * sum(sizes[:1]), 1))


def pieces(
    sizes: list[int], together: int, start: int = 0
) -> Iterator[tuple[range, list[int], int]]:
    """The pieces that batches are cut from, beginning with the one that holds batch ``start``.

    For each piece: its examples, the sizes of its batches, and how many of these come before
    ``start``. Pieces are the same wherever an epoch is resumed: where in memory a batch lies
    affects the last bits of matrix products.
    """
    begin = sum(sizes[: start - start % together])
    for first in range(start - start % together, len(sizes), together):
        own = sizes[first : first + together]
        yield range(begin, begin + sum(own)), own, max(start - first, 0)
        begin += sum(own)


def split_batches(
    x: Tensor, y: Tensor | None, sizes: list[int], axis: int = 0
) -> list[tuple[Tensor, Tensor | None]]:
    """Consecutive examples, along ``axis``, as batches of these sizes."""
    targets = [None] * len(sizes) if y is None else y.split(sizes, axis)
    return list(zip(x.split(sizes, axis), targets, strict=True))


def shuffled(examples: int, seed: int) -> Tensor:
    """The order of an epoch's examples."""
    return torch.randperm(examples, generator=torch.Generator().manual_seed(seed))


class TensorBatches:
    """Tensors in memory: batches are index selections, without workers.

    If shuffled, for training, a last example alone joins the batch before it, as BatchNorm cannot
    train on one example.
    """

    def __init__(self, x: Tensor, y: Tensor | None, batch_size: int, *, shuffle: bool) -> None:
        self.x, self.y, self.shuffle = x, y, shuffle
        self.sizes = batch_sizes(len(x), batch_size, shuffle=shuffle)

    def __len__(self) -> int:
        return len(self.sizes)

    def order(self, seed: int) -> Tensor:
        """The rows of a shuffled epoch, ``[examples]``."""
        return shuffled(len(self.x), seed).to(self.x.device)

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        if not self.shuffle:
            yield from split_batches(self.x, self.y, self.sizes)[start:]
            return
        order = self.order(seed)
        axis, members = order.ndim - 1, order.numel() // len(self.x)
        together = batches_together(self.sizes, self.x[0].numel() * members)
        for rows, sizes, skip in pieces(self.sizes, together, start):
            index = order[..., rows.start : rows.stop]
            y = None if self.y is None else _rows(self.y, index)
            yield from split_batches(_rows(self.x, index), y, sizes, axis)[skip:]


def _rows(data: Tensor, index: Tensor) -> Tensor:
    """``data[index]``, four times as fast."""
    return data.index_select(0, index.flatten()).unflatten(0, index.shape)  # type: ignore[no-any-return]


class MemberBatches(TensorBatches):
    """Batches ``[members, batch, …]``: for each member rows of its own, or an order of its own.

    ``rows`` ``[members, examples]`` are those that each member sees in an epoch.
    """

    def __init__(
        self, batches: TensorBatches, batch_size: int, rows: Tensor, *, own_order: bool
    ) -> None:
        super().__init__(batches.x, batches.y, batch_size, shuffle=True)
        self.rows, self.own_order = rows, own_order

    def order(self, seed: int) -> Tensor:
        """The rows of an epoch, ``[members, examples]``."""
        examples = len(self.x)
        orders = [
            shuffled(examples, derived_seed(seed, member) if self.own_order else seed)
            for member in range(len(self.rows))
        ]
        return self.rows.gather(1, torch.stack(orders)).to(self.x.device)


def bootstrap_rows(examples: int, members: int, seed: int) -> Tensor:
    """``[members, examples]``: rows drawn with replacement, for each member its own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(examples, (members, examples), generator=generator)


class LoaderBatches:
    """A DataLoader, or any sized iterable of ``(x, y)`` or ``x``.

    A DataLoader draws its order, its workers' seeds and, in this process, its transforms from
    random numbers that all share. While it is asked for a batch, those are its own, seeded for the
    epoch; so it gives the same batches whatever else draws between them.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError as error:
            raise ValueError(
                "the loader must have a length; wrap its data in a DataLoader or a list"
            ) from error

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        sampler = getattr(self.loader, "sampler", None)
        for owner in (self.loader, sampler, getattr(self.loader, "batch_sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
        # Only a DataLoader without workers may draw from NumPy and Python here: its transforms do.
        chance = _Chance(seed, transforms=getattr(self.loader, "num_workers", None) == 0)
        with chance:
            batches = iter(self.loader)
        number = 0
        while True:
            with chance:
                batch = next(batches, None)
            if batch is None:
                return
            if number >= start:
                yield _pair(batch)
            number += 1


class _Chance:
    """While entered, torch's random numbers are this one's own; NumPy's and Python's on request."""

    def __init__(self, seed: int, *, transforms: bool) -> None:
        self.transforms = transforms
        self.outside = self.inside = self._states()
        torch.default_generator.manual_seed(seed)
        if transforms:
            np.random.seed(seed % 2**32)  # noqa: NPY002 - the one that transforms draw from
            random.seed(seed)
        self.__exit__()

    def __enter__(self) -> None:
        self.outside = self._states()
        self._set(self.inside)

    def __exit__(self, *error: object) -> None:
        self.inside = self._states()
        self._set(self.outside)

    def _states(self) -> tuple[Any, ...]:
        if not self.transforms:
            return (torch.get_rng_state(),)
        return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002

    def _set(self, states: tuple[Any, ...]) -> None:
        torch.set_rng_state(states[0])
        if self.transforms:
            np.random.set_state(states[1])  # noqa: NPY002
            random.setstate(states[2])


def as_tensors(data: Any) -> Any:
    """NumPy arrays (or pandas columns) in ``(x, y)`` or alone as tensors; the rest as it is.

    Floats become torch's default type and whole numbers int64, as networks and losses want them.

    >>> x, y = as_tensors((np.zeros((2, 3)), np.array([0, 1], dtype=np.int32)))
    >>> x.dtype, y.dtype
    (torch.float32, torch.int64)
    """
    if type(data) in (tuple, list) and any(hasattr(item, "__array__") for item in data):
        return tuple(as_tensors(item) for item in data)
    if isinstance(data, Tensor) or not hasattr(data, "__array__"):
        return data
    array = np.asarray(data)
    if array.dtype.kind == "f":
        return torch.tensor(array, dtype=torch.get_default_dtype())
    if array.dtype.kind not in "iub":
        raise ValueError(f"x and y must hold numbers, got an array of {array.dtype}")
    pixels = array.dtype == np.uint8 and array.ndim > 1
    return torch.tensor(array, dtype=torch.uint8 if pixels else torch.int64)


def as_batches(
    data: Any,
    batch_size: int,
    *,
    shuffle: bool,
    device: torch.device,
    labelled: bool = True,
    what: str = "training",
) -> Batches:
    """Batches from ``(x, y)`` tensors (moved to ``device`` once), ``x`` alone, or a DataLoader.

    ``x`` may be rows on disk, which stay there, and the data a ``datasets.Dataset``.
    """
    if is_dataset(data):
        data = inputs_and_targets(data)
    if is_dataset(data, "IterableDataset"):
        raise ValueError("a streamed dataset cannot be resumed exactly; load it without streaming")
    if isinstance(data, Tensor | OnDisk):
        data = (data, None)
    if _tensors(data):
        x, y = data
        if labelled and y is None:
            raise ValueError(f"{what} data must be (x, y), got x alone")
        for part in (x, y):
            if isinstance(part, Tensor) and (part.is_meta or part.is_sparse or part.ndim == 0):
                raise ValueError(
                    f"{what} data must be dense tensors of rows with values, got {describe(part)}"
                )
        if y is not None and len(x) != len(y):
            raise ValueError(f"x and y must have one length, got {len(x)} and {len(y)}")
        if len(x) == 0:
            raise ValueError("the data are empty, got 0 examples")
        if isinstance(x, OnDisk):
            from dissensus.training.disk_batches import DiskBatches

            return DiskBatches(x, y, batch_size, shuffle=shuffle)
        moved = None if y is None else y.to(device)
        return TensorBatches(x.to(device), moved, batch_size, shuffle=shuffle)
    pair = isinstance(data, tuple | list) and len(data) == 2
    if pair and not all(isinstance(item, tuple | list) for item in data):
        kinds = " and ".join(type(item).__name__ for item in data)
        raise ValueError(f"data must be (x, y) tensors or a DataLoader, got a pair of {kinds}")
    if not isinstance(data, Iterable):
        raise ValueError(f"data must be (x, y) tensors or a DataLoader, got {type(data).__name__}")
    return LoaderBatches(data)


def split_weights(data: Any) -> tuple[Any, Tensor | None]:
    """``(x, y)`` and the example weights ``[examples]`` of ``(x, y, weights)``, checked.

    Anything else comes back as it is, without weights.

    >>> split_weights((torch.zeros(2, 3), torch.zeros(2), torch.tensor([1.0, -1.0])))
    Traceback (most recent call last):
    ...
    ValueError: example weights must be finite, at least 0 and not all 0, got -1.0
    """
    three = isinstance(data, tuple | list) and len(data) == 3
    if not three or not all(isinstance(item, Tensor) for item in data):
        return data, None
    x, y, weights = data
    if weights.ndim != 1 or len(weights) != len(x) or not weights.is_floating_point():
        raise ValueError(
            f"example weights must be [examples] = ({len(x)},) floats, got {describe(weights)}"
        )
    bad = weights[~(weights.isfinite() & (weights >= 0))]
    if len(bad) or not bool(weights.any()):
        got = float(bad[0]) if len(bad) else "zeros alone"
        raise ValueError(f"example weights must be finite, at least 0 and not all 0, got {got}")
    return (x, y), weights


def _tensors(data: Any) -> bool:
    return (
        isinstance(data, tuple | list)
        and len(data) == 2
        and isinstance(data[0], Tensor | OnDisk)
        and (data[1] is None or isinstance(data[1], Tensor))
    )


def _pair(batch: Any) -> tuple[Tensor, Tensor | None]:
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor):
        return batch[0], batch[1] if len(batch) > 1 else None
    raise ValueError(f"a batch must be (x, y) or x, got {type(batch).__name__}")
