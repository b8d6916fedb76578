"""The stacked execution: one batched operation a layer for all members.

Networks made of layers that :data:`BATCHED` knows, in an ``nn.Sequential``, run as batched matrix
products written out here. Anything else goes through ``torch.func.vmap``, which batches every
operation: the same numbers, a little more overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import dropout, layer_norm

from dissensus.ensemble.stack import call, layers_in_turn, places_of

__all__ = ["BATCHED", "stacked_outputs", "supported"]

Tensors = Mapping[str, Tensor]


def stacked_outputs(
    stack: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor
) -> Tensor:
    """``[members, batch, outputs]`` from stacked tensors; buffers are updated in place."""
    layers = _plan(stack)
    if layers is not None:
        tensors = {**parameters, **buffers}
        hidden = _Hidden(x, next(iter(parameters.values())).shape[0], batched=False)
        for batched, module, prefix in layers:
            hidden = batched(module, tensors, prefix, hidden)
        return hidden.all_members()

    places = places_of(stack)

    def member(own: dict[str, Tensor], state: dict[str, Tensor]) -> Tensor:
        return call(stack, places, {**own, **state}, x)

    try:
        result: Tensor = vmap(member, in_dims=(0, 0), randomness="different")(parameters, buffers)
    except RuntimeError as error:
        if "vmap" not in str(error) and "Batching rule" not in str(error):
            raise
        raise ValueError(
            f"these members cannot be stacked, use execution='looped': {error}"
        ) from error
    return result


def supported(module: nn.Module) -> bool:
    """Whether ``module`` is one batched layer, or a plain ``nn.Sequential`` of nothing else.

    Layers with hooks or tied weights are left to vmap.
    """
    return _plan(module) is not None


_Layer = tuple["_Batched", nn.Module, str]
_PLANS: WeakKeyDictionary[nn.Module, list[_Layer] | None] = WeakKeyDictionary()


def _plan(module: nn.Module) -> list[_Layer] | None:
    """The batched layers to run in turn, or None; found once for each ``nn.Sequential``."""
    if type(module) is not nn.Sequential:
        return _found(module)  # kept, a layer of its own would never be let go
    if module not in _PLANS:
        _PLANS[module] = _found(module)
    return _PLANS[module]


def _found(module: nn.Module) -> list[_Layer] | None:
    layers = layers_in_turn(module)
    if layers is None or not all(_known(layer) for _, layer in layers):
        return None
    return [(BATCHED[type(layer)], layer, prefix) for prefix, layer in layers]


def _known(module: nn.Module) -> bool:
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


def _linear(module: nn.Module, tensors: Tensors, prefix: str, hidden: _Hidden) -> _Hidden:
    weight, bias = tensors[prefix + "weight"], tensors.get(prefix + "bias")
    hidden = hidden.next(hidden.all_members())
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
    assert isinstance(module, nn.Dropout)
    if not module.training:
        return hidden
    # Each member draws for itself; never in place, as members may share the values until here.
    return hidden.next(dropout(hidden.all_members(), module.p))


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


_Batched = Callable[[nn.Module, Tensors, str, _Hidden], _Hidden]

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
BATCHED: dict[type[nn.Module], _Batched] = {
    nn.Linear: _linear,
    nn.Dropout: _dropout,
    nn.Flatten: _flatten,
    nn.LayerNorm: _layer_norm,
    **dict.fromkeys(_ACTIVATIONS, _elementwise),
}
