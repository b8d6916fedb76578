"""Operations of the engine: each one forward and backward, for all members at once.

A value is ``[rows, batch, …, features]``, where the rows are the members, or, in a fleet, the
members of one ensemble after the other. Until a parameter or chance makes the members of an
ensemble differ, they share a value, and its first axis counts ensembles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dissensus.ensemble.adapters import AdaptedLinear
from dissensus.ensemble.stack import Tensors
from dissensus.models.layers import ScaledLinear

Saved = tuple[Any, ...]
Back = tuple[Tensor | None, ...]
aten = torch.ops.aten


# ---- memory that is used again at each step ------------------------------------------------------

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


# ---- steps ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One operation of a network: its kind, the values it reads, and the value it makes."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    module: nn.Module | None = None
    name: str = ""  # prefix of the module's parameters, name of a scale, index of a token
    shared: bool = False  # whether the members of an ensemble share the first input
    in_place: bool = False  # whether the first input may be overwritten


class Operation(NamedTuple):
    """Forward returns the output and what backward needs.

    Backward adds the gradients of parameters to the buffers and returns those of the inputs, None
    where no parameter stands before an input.
    """

    forward: Callable[[Step, Tensors, Values], tuple[Tensor, Saved]]
    backward: Callable[[Step, Saved, Tensor, GradientBuffers], Back]


# ---- linear layers ------------------------------------------------------------------------------
# Products are computed feature-major, [rows, features, batch], the layout in which they are
# fastest; values are transposed views of them.


def _linear(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    weight, bias = tensors[step.name + "weight"], tensors.get(step.name + "bias")
    x, rows = values[step.inputs[0]], len(weight)
    between = x.shape[1:-1]
    if len(between) > 1:
        x = x.flatten(1, -2)
    if len(x) < rows:  # one product for all members of an ensemble
        weight = weight.reshape(len(x), -1, weight.shape[2])
        bias = None if bias is None else bias.reshape(len(x), -1)
    out = torch.bmm(weight, x.mT) if bias is None else torch.baddbmm(bias[..., None], weight, x.mT)
    if len(x) < rows:
        out = out.reshape(rows, -1, out.shape[2])
    return (out.mT if len(between) == 1 else out.mT.unflatten(1, between)), (x, between)


def _linear_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    name, (x, between) = step.name + "weight", saved
    weight = buffers.tensors[name]
    grad = (grad if len(between) == 1 else grad.flatten(1, -2)).mT
    if step.name + "bias" in buffers.tensors:
        buffers.add(step.name + "bias", grad.sum(2))
    if len(x) < len(weight):
        buffers.add_product(name, grad.reshape(len(x), -1, grad.shape[2]), x)
        return (None,)
    buffers.add_product(name, grad, x)
    if step.shared:
        return (None,)
    # Layers with adapters are batch-major: what stands before is slow on two layouts at once.
    batch_major = buffers.scratch.taken and x.is_contiguous()
    back = torch.bmm(grad.mT, weight) if batch_major else torch.bmm(weight.mT, grad).mT
    return (back if len(between) == 1 else back.unflatten(1, between),)


def _scaled(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    """``(c g ∘ x) Wᵀ + b = x Vᵀ + b`` with ``V = W ∘ c g``: members still share one product."""
    assert isinstance(step.module, ScaledLinear)
    gain = step.module.rate * tensors[step.name + "gain"][:, None]
    inner = dict(tensors) | {step.name + "weight": tensors[step.name + "weight"] * gain}
    out, saved = _linear(step, inner, values)
    return out, (saved, inner, gain)


def _scaled_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    assert isinstance(step.module, ScaledLinear)
    linear, inner, gain = saved
    name = step.name + "weight"
    weight, own = buffers.tensors[name], GradientBuffers()
    own.tensors = inner
    if name not in buffers.gradients:  # else its memory is taken by an earlier use of the layer
        own.memory = buffers.memory
    back = _linear_back(step, linear, grad, own)
    at_product = own.gradients.pop(name).view_as(weight)  # dL/dV
    at_gain = torch.mul(at_product, weight, out=inner[name]).sum(1)  # V has had its last use
    buffers.add(step.name + "gain", step.module.rate * at_gain)
    buffers.add(name, at_product.mul_(gain))
    for name, bias in own.gradients.items():
        buffers.add(name, bias)
    return back


# ---- layers with a parameter for each feature ---------------------------------------------------


def _own(value: Tensor, rows: int) -> Tensor:
    """A value for each row, from one that the members of an ensemble may share."""
    if len(value) == rows:
        return value
    if len(value) == 1:
        return value.expand(rows, *value.shape[1:])
    return value.repeat_interleave(rows // len(value), 0)


def _along(parameter: Tensor, values: Tensor) -> Tensor:
    """A parameter ``[rows, features]`` with axes between, as ``values`` have them."""
    between = [1] * (values.ndim - parameter.ndim)
    return parameter.view(len(parameter), *between, *parameter.shape[1:])


def _total(grad: Tensor, parameter: Tensor) -> Tensor:
    """The sum over all axes that a parameter ``[rows, features]`` was broadcast along."""
    total = grad.flatten(1, grad.ndim - parameter.ndim).sum(1)
    return _narrowed(total, parameter.shape[-1])


def _narrowed(grad: Tensor, width: int) -> Tensor:
    """The gradient of a value that was ``width`` features wide before it was broadcast."""
    return grad if grad.shape[-1] == width else grad.sum(-1, keepdim=True)


def _norm(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    assert isinstance(step.module, nn.LayerNorm)
    x, shape = values[step.inputs[0]], list(step.module.normalized_shape)
    hat, mean, rstd = aten.native_layer_norm(x, shape, None, None, step.module.eps)
    weight, bias = tensors.get(step.name + "weight"), tensors.get(step.name + "bias")
    if weight is None:
        return hat, (x, hat, mean, rstd)
    hat = _own(hat, len(weight))
    scale = _along(weight, hat)
    out = hat * scale if bias is None else torch.addcmul(_along(bias, hat), hat, scale)
    return out, (x, hat, mean, rstd)


def _norm_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    assert isinstance(step.module, nn.LayerNorm)
    x, hat, mean, rstd = saved
    weight, bias = (buffers.tensors.get(step.name + name) for name in ("weight", "bias"))
    if weight is not None:
        buffers.add(step.name + "weight", _total(grad * hat, weight))
    if bias is not None:
        buffers.add(step.name + "bias", _total(grad, bias))
    if step.shared:
        return (None,)
    grad_hat = grad if weight is None else grad * _along(weight, grad)
    shape, of_input = list(step.module.normalized_shape), [True, False, False]
    back = aten.native_layer_norm_backward(grad_hat, x, shape, mean, rstd, None, None, of_input)
    return (back[0],)


def _scale(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    scale = tensors[step.name]
    x = _own(values[step.inputs[0]], len(scale))
    return x * _along(scale, x), (x,)


def _scale_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    scale = buffers.tensors[step.name]
    buffers.add(step.name, _total(grad * saved[0], scale))
    if step.shared:
        return (None,)
    return (_narrowed(grad * _along(scale, grad), saved[0].shape[-1]),)


# ---- linear layers with adapters ----------------------------------------------------------------
# The rows of the shared weight count ensembles: all members of an ensemble are one product.


def _adapted(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    shared, r, s = (tensors[step.name + key] for key in ("shared", "r", "s"))
    bias, x = tensors.get(step.name + "bias"), _own(values[step.inputs[0]], len(r))
    z = torch.mul(x, _along(_gains(step, r), x), out=values.take(x, *x.shape))
    joined, width = _joined(z, len(shared)), shared.shape[1]
    place = values.take(x, *joined.shape[:2], width)
    u = torch.bmm(joined, shared.mT, out=place).view(*z.shape[:-1], width)
    scale, place = _along(s, u), values.take(u, *u.shape)
    if bias is None:
        return torch.mul(u, scale, out=place), (x, z, u)
    return torch.addcmul(_along(bias, u), u, scale, out=place), (x, z, u)


def _adapted_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    shared, r, s = (buffers.tensors[step.name + key] for key in ("shared", "r", "s"))
    x, z, u = saved
    if step.name + "bias" in buffers.tensors:
        buffers.add(step.name + "bias", _total(grad, s))
    product = torch.mul(grad, u, out=buffers.scratch.take(u, *u.shape))
    buffers.add(step.name + "s", _total(product, s))
    at_u = _joined(torch.mul(grad, _along(s, grad), out=product), len(shared))
    # The sum over the members; a trainer makes it their mean.
    joined = _joined(z, len(shared))
    buffers.add_product(step.name + "shared", at_u.mT, joined)
    at_z = torch.bmm(at_u, shared, out=buffers.scratch.take(z, *joined.shape)).view(z.shape)
    product = torch.mul(at_z, x, out=buffers.scratch.take(x, *x.shape))
    buffers.add(step.name + "r", _gains(step, _total(product, r)))
    return (None if step.shared else at_z.mul_(_along(_gains(step, r), at_z)),)


def _gains(step: Step, r: Tensor) -> Tensor:
    """``c r``: what multiplies the inputs, or from its gradient that of ``r``."""
    assert isinstance(step.module, AdaptedLinear)
    rate = step.module.rate
    return r if rate == 1 else rate * r


def _joined(values: Tensor, ensembles: int) -> Tensor:
    """The values of all members of an ensemble one below the other."""
    return values.reshape(ensembles, -1, values.shape[-1])


# ---- layers without parameters ------------------------------------------------------------------


def _dropout(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    assert isinstance(step.module, nn.Dropout)
    x = values[step.inputs[0]]
    if not step.module.training or step.module.p == 0:
        return x, ()
    own = _own(x, max(map(len, tensors.values())))  # a shared weight has fewer rows
    out, mask = torch.native_dropout(own.contiguous(), step.module.p, True)
    return out, (mask, 1 / (1 - step.module.p) if step.module.p < 1 else 0.0)


def _dropout_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    return (aten.native_dropout_backward(grad, *saved) if saved else grad,)


def _add(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    a, b = (values[name] for name in step.inputs)
    rows = max(len(a), len(b))
    a, b = _own(a, rows), _own(b, rows)
    return a + b, (a.shape[-1], b.shape[-1])


def _add_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    return tuple(_narrowed(grad, width) for width in saved)


def _flatten(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    x = values[step.inputs[0]]
    return x.flatten(2), (x.shape[2:],)


def _flatten_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    return (grad.unflatten(2, saved[0]),)


def _token(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    x = values[step.inputs[0]]
    return x.select(2, int(step.name)), (x.shape,)


def _token_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    if step.shared:
        return (None,)
    back = grad.new_zeros(saved[0])
    back.select(2, int(step.name)).copy_(grad)
    return (back,)


# ---- activations --------------------------------------------------------------------------------


def _activation(
    function: Callable[[Tensor], Tensor],
    in_place: Callable[[Tensor], Tensor],
    backward: Callable[[Tensor, Tensor], Tensor],
) -> Operation:
    """An activation and torch's own gradient of it, which takes its output."""

    def forward(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
        overwrite = step.in_place and not torch.is_grad_enabled()
        out = (in_place if overwrite else function)(values[step.inputs[0]])
        return out, (out,)

    def back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
        return (backward(grad, saved[0]),)

    return Operation(forward, back)


def _elementwise(step: Step, tensors: Tensors, values: Values) -> tuple[Tensor, Saved]:
    assert step.module is not None
    x = values[step.inputs[0]]
    return step.module(x), (x,)


def _elementwise_back(step: Step, saved: Saved, grad: Tensor, buffers: GradientBuffers) -> Back:
    """Automatic differentiation of this one operation."""
    assert step.module is not None
    with torch.enable_grad():
        x = saved[0].detach().requires_grad_()
        (back,) = torch.autograd.grad(step.module(x), x, grad)
    return (back,)


#: Activations without an operation of their own.
ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.Mish,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Softplus,
    nn.Softsign,
)

#: Operations by kind. To add one: a pair of functions, a line here and in ``engine.py``, a test.
OPERATIONS: dict[str, Operation] = {
    "linear": Operation(_linear, _linear_back),
    "adapted": Operation(_adapted, _adapted_back),
    "scaled": Operation(_scaled, _scaled_back),
    "norm": Operation(_norm, _norm_back),
    "scale": Operation(_scale, _scale_back),
    "dropout": Operation(_dropout, _dropout_back),
    "add": Operation(_add, _add_back),
    "flatten": Operation(_flatten, _flatten_back),
    "token": Operation(_token, _token_back),
    "relu": _activation(torch.relu, torch.relu_, lambda g, y: aten.threshold_backward(g, y, 0)),
    "tanh": _activation(torch.tanh, torch.tanh_, aten.tanh_backward),
    "sigmoid": _activation(torch.sigmoid, torch.sigmoid_, aten.sigmoid_backward),
    "elementwise": Operation(_elementwise, _elementwise_back),
}
