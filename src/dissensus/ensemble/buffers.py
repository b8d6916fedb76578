"""Buffers of the engine: memory for values and gradients that is used again at each step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dissensus.ensemble.stack import Tensors

_SMALL = 1 << 15  # numbers; the C library asks the system for pieces of 128 KB and more


class Memory:
    """Memory that every pass takes in the same order; fresh memory would be cleared each time."""

    def __init__(self) -> None:
        self.pieces: list[Tensor] = []
        self.taken = 0

    def take(self, like: Tensor, *shape: int) -> Tensor | None:
        """A place for a value of this shape and the type of ``like``: the ``out=`` of an operation.

        None, for memory that torch allocates, where the value is small.
        """
        number, size = self.taken, math.prod(shape)
        self.taken += 1
        if size < _SMALL:
            return None
        while number >= len(self.pieces):
            self.pieces.append(like.new_empty(0))
        piece = self.pieces[number]
        if piece.numel() < size or piece.dtype != like.dtype or piece.device != like.device:
            piece = self.pieces[number] = like.new_empty(size)
        return piece[:size].view(shape)


class Values(dict[str, Tensor]):
    """The values of one pass by name; ``memory`` for them where torch does not record the pass."""

    memory: Memory | None = None

    def take(self, like: Tensor, *shape: int) -> Tensor | None:
        """As :meth:`Memory.take`, or None."""
        return None if self.memory is None else self.memory.take(like, *shape)


class GradientBuffers:
    """Gradients of ``tensors`` by name, in memory that is reused from step to step.

    Fresh memory for the gradients of all members would be cleared page by page at each step.
    """

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self.memory: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.scratch = Memory()  # for values

    def add_product(self, name: str, a: Tensor, b: Tensor) -> None:
        """Add the batched matrix product ``a b`` to the gradient of ``name``."""
        shape = torch.Size((a.shape[0], a.shape[1], b.shape[2]))
        if name in self.gradients:  # the layer is used twice
            self.gradients[name].view(shape).baddbmm_(a, b)
            return
        memory = self.memory.get(name)
        if memory is None or memory.numel() != shape.numel() or memory.dtype != a.dtype:
            memory = self.memory[name] = a.new_empty(shape)
        self.gradients[name] = torch.bmm(a, b, out=memory.view(shape))

    def add(self, name: str, value: Tensor) -> None:
        before = self.gradients.get(name)
        self.gradients[name] = value if before is None else before + value
