"""The operations of ``written.py``: how each is done for all members at once, and undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["RULES", "Gradients", "Rule", "Saved", "Step", "Tensors"]

Tensors = Mapping[str, Tensor]
aten = torch.ops.aten


@dataclass(frozen=True)
class Step:
    """One operation: what kind, on which values, with which module or parameters, to which."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    module: nn.Module | None = None
    prefix: str = ""  # of the module's parameters; a scale's name; a token's number
    differentiable: bool = True  # whether any parameter stands before the first input


class Gradients:
    """Gradients by name, in memory that is kept from step to step."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}
        self.found: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Forget the gradients, not their memory."""
        self.found = {}

    def product(self, name: str, a: Tensor, b: Tensor) -> None:
        """Add ``a b`` to the gradient of ``name``."""
        if name in self.found:
            self.found[name].baddbmm_(a, b)
            return
        shape = (a.shape[0], a.shape[1], b.shape[2])
        memory = self.kept.get(name)
        if memory is None or memory.shape != shape or memory.dtype != a.dtype:
            memory = self.kept[name] = a.new_empty(shape)
        self.found[name] = torch.bmm(a, b, out=memory)

    def add(self, name: str, value: Tensor) -> None:
        """Add ``value`` to the gradient of ``name``."""
        self.found[name] = self.found[name] + value if name in self.found else value


# Values are [members, batch, …, features], or [1, batch, …] as long as members share them.
# Forward returns the output and what backward needs; backward adds the parameters' gradients and
# returns those of the inputs, None where no parameter stands before one.

Saved = tuple[Any, ...]


class Rule(NamedTuple):
    """How a step is done, and how it is undone."""

    forward: Callable[[Step, Tensors, list[Tensor]], tuple[Tensor, Saved]]
    backward: Callable[[Step, Tensors, Saved, Tensor, Gradients], list[Tensor | None]]


def _linear(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    weight, bias = tensors[step.prefix + "weight"], tensors.get(step.prefix + "bias")
    between = values[0].shape[1:-1]
    x = values[0].flatten(1, -2).expand(len(weight), -1, -1)
    shift = None if bias is None else bias[:, None]
    out = torch.bmm(x, weight.mT) if shift is None else torch.baddbmm(shift, x, weight.mT)
    return out.unflatten(1, between), (x, between)


def _linear_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    weight, (x, between) = step.prefix + "weight", saved
    grad = grad.flatten(1, -2)
    found.product(weight, grad.mT, x)
    if step.prefix + "bias" in tensors:
        found.add(step.prefix + "bias", grad.sum(1))
    if not step.differentiable:
        return [None]
    return [torch.bmm(grad, tensors[weight]).unflatten(1, between)]


def _along(parameter: Tensor, values: Tensor) -> Tensor:
    """A parameter ``[members, features]`` with axes between, as ``values`` have them."""
    return parameter.view(len(parameter), *[1] * (values.ndim - 2), parameter.shape[1])


def _total(grad: Tensor) -> Tensor:
    """The sum over all axes but those of members and features."""
    return grad.flatten(1, -2).sum(1)


def _norm(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    assert isinstance(step.module, nn.LayerNorm)
    (x,), shape = values, list(step.module.normalized_shape)
    hat, mean, rstd = aten.native_layer_norm(x, shape, None, None, step.module.eps)
    weight, bias = tensors.get(step.prefix + "weight"), tensors.get(step.prefix + "bias")
    out = hat
    if weight is not None:
        scale = _along(weight, hat)
        out = hat * scale if bias is None else _along(bias, hat).addcmul(hat, scale)
    return out, (x, hat, mean, rstd)


def _norm_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    assert isinstance(step.module, nn.LayerNorm)
    x, hat, mean, rstd = saved
    weight = tensors.get(step.prefix + "weight")
    if weight is not None:
        found.add(step.prefix + "weight", _total(grad * hat))
    if step.prefix + "bias" in tensors:
        found.add(step.prefix + "bias", _total(grad))
    if not step.differentiable:
        return [None]
    grad_hat = grad if weight is None else grad * _along(weight, grad)
    shape, wanted = list(step.module.normalized_shape), [True, False, False]
    back = aten.native_layer_norm_backward(grad_hat, x, shape, mean, rstd, None, None, wanted)
    return [back[0]]


def _scale(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    return values[0] * _along(tensors[step.prefix], values[0]), (values[0],)


def _wide(grad: Tensor, width: int) -> Tensor:
    """The gradient of a value that was ``width`` features wide before it was broadcast."""
    return grad if grad.shape[-1] == width else grad.sum(-1, keepdim=True)


def _scale_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    scale = tensors[step.prefix]
    found.add(step.prefix, _wide(_total(grad * saved[0]), scale.shape[-1]))
    if not step.differentiable:
        return [None]
    return [_wide(grad * _along(scale, grad), saved[0].shape[-1])]


def _dropout(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    assert isinstance(step.module, nn.Dropout)
    if not step.module.training or step.module.p == 0:
        return values[0], ()
    members = len(next(iter(tensors.values())))
    own = values[0].expand(members, *values[0].shape[1:]).contiguous()
    out, mask = torch.native_dropout(own, step.module.p, True)
    return out, (mask, 1 / (1 - step.module.p))


def _dropout_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    return [aten.native_dropout_backward(grad, *saved) if saved else grad]


def _add(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    return values[0] + values[1], (values[0].shape[-1], values[1].shape[-1])


def _add_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    return [_wide(grad, width) for width in saved]


def _token(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    return values[0].select(2, int(step.prefix)), (values[0].shape,)


def _token_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    if not step.differentiable:
        return [None]
    back = grad.new_zeros(saved[0])
    back.select(2, int(step.prefix)).copy_(grad)
    return [back]


def _activation(backward: Callable[..., Tensor], *, of_output: bool) -> Rule:
    """An activation by torch's own gradient of it, which takes its input or its output."""

    def forward(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
        assert step.module is not None
        out = step.module(values[0])
        return out, (out if of_output else values[0],)

    def back(
        step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
    ) -> list[Tensor | None]:
        return [backward(step.module, grad, saved[0])]

    return Rule(forward, back)


#: Operations by name; to add one: a rule, a line here and where it is recognised, a test.
RULES: dict[str, Rule] = {
    "linear": Rule(_linear, _linear_back),
    "norm": Rule(_norm, _norm_back),
    "scale": Rule(_scale, _scale_back),
    "dropout": Rule(_dropout, _dropout_back),
    "add": Rule(_add, _add_back),
    "token": Rule(_token, _token_back),
    "gelu": _activation(
        lambda m, g, x: aten.gelu_backward(g, x, approximate=m.approximate), of_output=False
    ),
    "silu": _activation(lambda m, g, x: aten.silu_backward(g, x), of_output=False),
    "relu": _activation(lambda m, g, y: aten.threshold_backward(g, y, 0), of_output=True),
    "tanh": _activation(lambda m, g, y: aten.tanh_backward(g, y), of_output=True),
    "sigmoid": _activation(lambda m, g, y: aten.sigmoid_backward(g, y), of_output=True),
}
