"""The stacked execution: one batched operation a layer for all members.

Networks made of layers that :data:`BATCHED` knows, in an ``nn.Sequential``, run as batched matrix
products written out here. Anything else goes through ``torch.func.vmap``, which batches every
operation: the same numbers, a little more overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import layer_norm, linear

__all__ = ["BATCHED", "stacked_outputs", "supported"]

Tensors = Mapping[str, Tensor]


def stacked_outputs(
    stack: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor
) -> Tensor:
    """``[members, batch, outputs]`` from stacked tensors; buffers are updated in place."""
    if supported(stack):
        hidden = _Hidden(x, next(iter(parameters.values())).shape[0], batched=False)
        return _sequential(stack, {**parameters, **buffers}, "", hidden).all_members()

    def member(own: dict[str, Tensor], state: dict[str, Tensor]) -> Tensor:
        outputs: Tensor = functional_call(stack, {**own, **state}, (x,))
        return outputs

    result: Tensor = vmap(member, in_dims=(0, 0), randomness="different")(parameters, buffers)
    return result


def supported(module: nn.Module) -> bool:
    """Whether ``module`` is one batched layer, or a plain ``nn.Sequential`` of nothing else."""
    if type(module) is nn.Sequential:
        return all(supported(child) for child in module)
    if type(module) is nn.Flatten:
        return module.start_dim == 1 and module.end_dim == -1
    return type(module) in BATCHED


class _Hidden:
    """Activations on their way: one ``[batch, …]`` for all members, or ``[members, batch, …]``."""

    def __init__(self, values: Tensor, members: int, *, batched: bool) -> None:
        self.values, self.members, self.batched = values, members, batched

    def next(self, values: Tensor) -> _Hidden:
        return _Hidden(values, self.members, batched=True)

    def all_members(self) -> Tensor:
        if self.batched:
            return self.values
        return self.values.expand(self.members, *self.values.shape)


def _sequential(module: nn.Module, tensors: Tensors, prefix: str, hidden: _Hidden) -> _Hidden:
    if type(module) is nn.Sequential:
        for name, child in module.named_children():
            hidden = _sequential(child, tensors, f"{prefix}{name}.", hidden)
        return hidden
    return BATCHED[type(module)](module, tensors, prefix, hidden)


def _linear(module: nn.Module, tensors: Tensors, prefix: str, hidden: _Hidden) -> _Hidden:
    weight, bias = tensors[prefix + "weight"], tensors.get(prefix + "bias")
    members, outputs, inputs = weight.shape
    if not hidden.batched:
        # One matrix product for all members: the weights side by side, the input read once.
        side_by_side = None if bias is None else bias.reshape(-1)
        product = linear(hidden.values, weight.reshape(-1, inputs), side_by_side)
        split = product.unflatten(-1, (members, outputs))
        return hidden.next(split.movedim(-2, 0))
    if hidden.values.ndim > 3:  # [members, batch, …, inputs]
        flat = hidden.next(hidden.values.flatten(1, -2))
        values = _linear(module, tensors, prefix, flat).values
        return hidden.next(values.unflatten(1, hidden.values.shape[1:-1]))
    if bias is None:
        return hidden.next(torch.bmm(hidden.values, weight.transpose(1, 2)))
    return hidden.next(torch.baddbmm(bias[:, None], hidden.values, weight.transpose(1, 2)))


def _elementwise(module: nn.Module, tensors: Tensors, prefix: str, hidden: _Hidden) -> _Hidden:
    return _Hidden(module(hidden.values), hidden.members, batched=hidden.batched)


def _dropout(module: nn.Module, tensors: Tensors, prefix: str, hidden: _Hidden) -> _Hidden:
    if not module.training:
        return hidden
    return hidden.next(module(hidden.all_members()))  # each member draws for itself


def _flatten(module: nn.Module, tensors: Tensors, prefix: str, hidden: _Hidden) -> _Hidden:
    first = 2 if hidden.batched else 1
    return _Hidden(hidden.values.flatten(first), hidden.members, batched=hidden.batched)


def _layer_norm(module: nn.Module, tensors: Tensors, prefix: str, hidden: _Hidden) -> _Hidden:
    assert isinstance(module, nn.LayerNorm)
    shape = list(module.normalized_shape)
    values = layer_norm(hidden.all_members(), shape, eps=module.eps)
    weight, bias = tensors.get(prefix + "weight"), tensors.get(prefix + "bias")
    between = [1] * (values.ndim - 1 - len(shape))
    if weight is not None:
        values = values * weight.reshape(-1, *between, *shape)
    if bias is not None:
        values = values + bias.reshape(-1, *between, *shape)
    return hidden.next(values)


_ACTIVATIONS = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)

#: Layers written as one batched operation; to add one: a function, a line here, a test.
BATCHED: dict[type[nn.Module], Callable[[nn.Module, Tensors, str, _Hidden], _Hidden]] = {
    nn.Linear: _linear,
    nn.Dropout: _dropout,
    nn.Flatten: _flatten,
    nn.LayerNorm: _layer_norm,
    **dict.fromkeys(_ACTIVATIONS, _elementwise),
}
