"""The few functions that written-out terms are made of, once for torch and once for NumPy.

A term is written once, over ``xp``, which is one of the two namespaces here (the manner of the
array API). What costs on a small batch is the call: 3 to 6 µs in torch, 0.5 to 1.5 in NumPy, and a
term makes fifty of them. So :func:`namespace` hands small tensors in main memory to NumPy, without
a copy, and all others to torch; both give the same numbers up to rounding.

Inside a term classes come first and examples last, ``[classes, members, batch]``. A value for every
member and example is ``[members, batch]`` and broadcasts; of pairs, ``[members, members, batch]``,
it belongs to the second index, and with ``[:, None]`` to the first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter, functional

__all__ = ["SMALL", "Array", "Namespace", "NumPy", "Torch", "namespace"]

#: A tensor or an ndarray, as the namespace says.
Array = Any
Function = Callable[..., Array]

#: The size of the logits, in bytes, up to which NumPy is quicker: 16,384 numbers in float32.
SMALL = 1 << 16


class Torch:
    """For tensors: any size, any device, inside ``torch.func`` too.

    Classes come first as a view; memory stays as it was, and sums over classes run along it.
    """

    exp: Function = staticmethod(torch.exp)
    exp_: Function = staticmethod(torch.exp_)
    log: Function = staticmethod(torch.log)
    log_: Function = staticmethod(torch.log_)
    logaddexp: Function = staticmethod(torch.logaddexp)
    where: Function = staticmethod(torch.where)

    @staticmethod
    def classes_first(x: Array) -> Array:
        return x.movedim(-1, 0)

    @staticmethod
    def classes_last(x: Array) -> Array:
        return x.movedim(0, -1)

    @staticmethod
    def softplus(x: Array) -> Array:
        """``log(1 + eˣ)``."""
        return functional.softplus(x, threshold=50)

    @staticmethod
    def copy(x: Array) -> Array:
        return x.clone()

    @staticmethod
    def sum(x: Array, axis: int) -> Array:
        return x.sum(axis)

    @staticmethod
    def total(x: Array) -> Array:
        return x.sum()

    @staticmethod
    def mean_of_members(z: Array) -> Array:
        """``[classes, 1, batch]``."""
        return z.movedim(0, -1).mean(0).movedim(-1, 0)[:, None]

    @staticmethod
    def largest(z: Array) -> Array:
        return z.amax(0)

    @staticmethod
    def top(z: Array) -> tuple[Array, Array]:
        """The largest of all classes, ``[members, batch]``, and the index of the first such."""
        if _hidden() or not _readable(z):
            value, label = z.max(0)
            return value, label[None]
        # NumPy's search is vectorised; torch's takes ten times as long.
        return z.amax(0), torch.from_numpy(z.movedim(0, -1).numpy().argmax(-1))[None]

    @staticmethod
    def softmax(z: Array) -> Array:
        return z.movedim(0, -1).softmax(-1).movedim(-1, 0)

    @staticmethod
    def log_softmax(z: Array) -> Array:
        return functional.log_softmax(z.movedim(0, -1), -1).movedim(-1, 0)

    @staticmethod
    def through_softmax(slope: Array, probs: Array) -> Array:
        """The slope in z of what has this slope in the probabilities, F (s − Σ F s)."""
        last, probs = slope.expand_as(probs).movedim(0, -1), probs.movedim(0, -1)
        return torch._softmax_backward_data(last, probs, -1, probs.dtype).movedim(-1, 0)

    @staticmethod
    def multiply_add(x: Array, factor: Array, total: Array, scale: float = 1.0) -> Array:
        """``scale · x · factor + total``; factor and total may be numbers."""
        factor, total = (y if isinstance(y, Tensor) else x.new_full((), y) for y in (factor, total))
        return torch.addcmul(total, x, factor, value=scale)

    @staticmethod
    def index(labels: Array, z: Array) -> Array:
        """Where in ``z`` the classes ``labels`` ``[batch]`` are, ``[1, members, batch]``.

        For :meth:`take`, :meth:`put` and :meth:`add_at`; more classes are more rows.
        """
        return labels.long().expand(1, *z.shape[1:])

    @staticmethod
    def across(index: Array) -> Array:
        """For the class of every member where it is for all members, ``[members, members, …]``."""
        return index.swapaxes(0, 1).expand(-1, index.shape[1], -1)

    @staticmethod
    def take(z: Array, index: Array) -> Array:
        return z.gather(0, index)

    @staticmethod
    def put(z: Array, index: Array, values: Array) -> Array:
        """``z`` with ``values`` there, one class of each member; ``z`` may be overwritten."""
        if isinstance(values, Tensor):
            values = values.expand_as(index)
        if torch._C._are_functorch_transforms_active():  # vmap may run over the labels alone
            return z.scatter(0, index, values)
        return z.scatter_(0, index, values)

    @staticmethod
    def add_at(z: Array, index: Array, values: Array) -> Array:
        """``z`` with ``values`` added there; ``z`` may be overwritten."""
        if not isinstance(values, Tensor):
            values = z.new_full((), values)
        if torch._C._are_functorch_transforms_active():  # vmap may run over the labels alone
            return z.scatter_add(0, index, values.expand_as(index))
        return z.scatter_add_(0, index, values.expand_as(index))

    @staticmethod
    def by_example(z: Array) -> Array:
        """A matrix for every example, ``[batch, members, classes]``."""
        return z.swapaxes(0, 2)

    @staticmethod
    def double(x: Array) -> Array:
        return x.double()

    @staticmethod
    def diagonal(matrices: Array) -> Array:
        return matrices.diagonal(dim1=1, dim2=2)

    @staticmethod
    def identity(matrices: Array) -> Array:
        size, dtype, device = matrices.shape[-1], matrices.dtype, matrices.device
        return torch.eye(size, dtype=dtype, device=device)

    @staticmethod
    def tensor(x: Array) -> Tensor:
        """For what only torch has, such as matrices by the batch."""
        result: Tensor = x
        return result

    @staticmethod
    def array(x: Tensor) -> Array:
        return x

    @staticmethod
    def like(x: Array, z: Array) -> Array:
        """``x`` in the precision of ``z``."""
        return x.to(z.dtype)

    @staticmethod
    def at_least(x: Array, number: float) -> Array:
        return x.clamp_min(number)

    @staticmethod
    def tiny(z: Array) -> float:
        return torch.finfo(z.dtype).tiny


class NumPy:
    """For ndarrays, which are contiguous: sums over classes then run over whole rows."""

    exp: Function = staticmethod(np.exp)
    log: Function = staticmethod(np.log)
    where: Function = staticmethod(np.where)

    @staticmethod
    def classes_first(x: Array) -> Array:
        return np.ascontiguousarray(x.T if x.ndim == 2 else x.transpose(2, 0, 1))

    @staticmethod
    def classes_last(x: Array) -> Array:
        return np.ascontiguousarray(x.transpose(1, 2, 0))

    @staticmethod
    def exp_(x: Array) -> Array:
        return np.exp(x, out=x)

    @staticmethod
    def log_(x: Array) -> Array:
        return np.log(x, out=x)

    @staticmethod
    def logaddexp(x: Array, y: Array) -> Array:
        if x.size <= 1 << 8:
            return np.logaddexp(x, y)
        high, low = np.maximum(x, y), np.minimum(x, y)  # more calls, but vectorised ones
        low -= high
        np.exp(low, out=low)
        low += 1
        np.log(low, out=low)
        low += high
        return low

    @staticmethod
    def softplus(x: Array) -> Array:
        return np.logaddexp(x, 0.0)

    @staticmethod
    def copy(x: Array) -> Array:
        return x.copy()

    @staticmethod
    def sum(x: Array, axis: int) -> Array:
        return np.add.reduce(x, axis)

    @staticmethod
    def total(x: Array) -> Array:
        return np.add.reduce(x, None)

    @staticmethod
    def mean_of_members(z: Array) -> Array:
        mean = np.add.reduce(z, 1, keepdims=True)
        mean *= 1 / z.shape[1]
        return mean

    @staticmethod
    def largest(z: Array) -> Array:
        return np.maximum.reduce(z, 0)

    @staticmethod
    def top(z: Array) -> tuple[Array, Array]:
        value = np.maximum.reduce(z, 0)
        return value, NumPy.index((z == value).argmax(0), z)  # twice as quick as that of z

    @staticmethod
    def softmax(z: Array) -> Array:
        probs = z - np.maximum.reduce(z, 0)
        np.exp(probs, out=probs)
        probs /= np.add.reduce(probs, 0)
        return probs

    @staticmethod
    def log_softmax(z: Array) -> Array:
        log_probs = z - np.maximum.reduce(z, 0)
        log_probs -= np.log(np.add.reduce(np.exp(log_probs), 0))
        return log_probs

    @staticmethod
    def through_softmax(slope: Array, probs: Array) -> Array:
        away = slope - np.add.reduce(slope * probs, 0)
        away *= probs
        return away

    @staticmethod
    def multiply_add(x: Array, factor: Array, total: Array, scale: float = 1.0) -> Array:
        result = x * factor
        if scale != 1:
            result *= scale
        result += total
        return result

    @staticmethod
    def index(labels: Array, z: Array) -> Array:
        members, batch = z.shape[1:]
        if labels.dtype != np.intp:
            labels = labels.astype(np.intp)
        return labels * (members * batch) + _places(members, batch)

    @staticmethod
    def across(index: Array) -> Array:
        _, members, batch = index.shape
        return index.reshape(members, 1, batch) + _steps(members, batch)

    @staticmethod
    def take(z: Array, index: Array) -> Array:
        return z.take(index)

    @staticmethod
    def put(z: Array, index: Array, values: Array) -> Array:
        flat = z.reshape(-1)
        flat[index] = values
        return flat.reshape(z.shape)

    @staticmethod
    def add_at(z: Array, index: Array, values: Array) -> Array:
        flat = z.reshape(-1)
        if len(index) == 1:  # one class of every member and example: none is there twice
            flat[index] += values
        else:
            np.add.at(flat, index.reshape(-1), values.reshape(-1))
        return flat.reshape(z.shape)

    @staticmethod
    def by_example(z: Array) -> Array:
        return z.swapaxes(0, 2).copy()

    @staticmethod
    def double(x: Array) -> Array:
        return x.astype(np.float64)

    @staticmethod
    def diagonal(matrices: Array) -> Array:
        return matrices.diagonal(0, 1, 2)

    @staticmethod
    def identity(matrices: Array) -> Array:
        return np.eye(matrices.shape[-1], dtype=matrices.dtype)

    @staticmethod
    def tensor(x: Array) -> Tensor:
        return torch.from_numpy(x)

    @staticmethod
    def array(x: Tensor) -> Array:
        return x.numpy()

    @staticmethod
    def like(x: Array, z: Array) -> Array:
        return x.astype(z.dtype, copy=False)

    @staticmethod
    def at_least(x: Array, number: float) -> Array:
        return np.maximum(x, number)

    @staticmethod
    def tiny(z: Array) -> float:
        return _TINY[z.dtype.char]


Namespace = type[Torch] | type[NumPy]

_TINY = {kind: float(np.finfo(kind).tiny) for kind in "fd"}


@lru_cache
def _places(members: int, batch: int) -> Array:
    """Where an example of a member stands within a class, ``[1, members, batch]``."""
    return np.arange(members * batch).reshape(1, members, batch)


@lru_cache
def _steps(members: int, batch: int) -> Array:
    """How far it is from an example of a member to that of another, ``[members, members, 1]``."""
    places = np.arange(members) * batch
    return (places - places[:, None])[..., None]


def namespace(logits: Tensor, *others: Tensor | None) -> Namespace:
    """NumPy for logits of up to ``SMALL`` bytes, where it can read all tensors as they are."""
    if logits.dtype not in (torch.float32, torch.float64) or logits.nbytes > SMALL or _hidden():
        return Torch
    for x in (logits, *others):
        if x is not None and not _readable(x):
            return Torch
    return NumPy


def _readable(x: Tensor) -> bool:
    return type(x) in (Tensor, Parameter) and x.is_cpu and x.dtype is not torch.bfloat16


def _hidden() -> bool:
    """Whether tensors may have no memory to look at: in ``torch.func`` or ``torch.compile``."""
    return torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling()
