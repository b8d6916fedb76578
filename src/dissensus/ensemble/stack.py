"""The stack: members as one module, with parameters and buffers ``[members, …]``.

The stack keeps the structure and the names of a member, so ``state_dict`` reads as a member's does.
Both executions run from it; which one is used never changes what is stored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

#: Tensors by the names that they have in a module.
Tensors = Mapping[str, Tensor]


def alike(modules: Sequence[nn.Module]) -> bool:
    """Whether all modules have the same layers with the same settings and can be stacked."""
    first = modules[0]
    return all(
        type(module) is type(first)
        and repr(module) == repr(first)
        and _signature(module) == _signature(first)
        and _same(_settings(module), _settings(first))
        for module in modules[1:]
    )


def _signature(module: nn.Module) -> list[tuple[str, torch.Size, torch.dtype, bool]]:
    """Names, shapes and kinds of all tensors; of a tied one the first name."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return [(name, t.shape, t.dtype, t.requires_grad) for name, t in tensors]


def _settings(module: nn.Module) -> list[dict[str, Any]]:
    """The attributes of all layers that are not torch's own; ``repr`` need not show them."""
    return [
        {key: value for key, value in vars(layer).items() if key not in _OF_EVERY_MODULE}
        for layer in module.modules()
    ]


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _same(a: Any, b: Any) -> bool:
    """Whether two attributes are the same; of objects unknown here only the type is compared."""
    if type(a) is not type(b):
        return False
    if isinstance(a, nn.Parameter):
        return True  # one of the layer's own, by another way
    if isinstance(a, Tensor):
        return a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, FunctionType):
        return bool(a.__code__ == b.__code__)
    if isinstance(a, bool | int | float | str | bytes | type | BuiltinFunctionType | torch.dtype):
        return bool(a == b)
    return True


def stack_modules(modules: Sequence[nn.Module]) -> nn.Module:
    """One module with every parameter and buffer of ``modules`` stacked along a new first axis."""
    parameters = [dict(module.named_parameters()) for module in modules]
    buffers = [dict(module.named_buffers()) for module in modules]

    def stacked(name: str, tensor: Tensor) -> Tensor:
        group = parameters if isinstance(tensor, nn.Parameter) else buffers
        return like(tensor, torch.stack([member[name].detach() for member in group]))

    return rebuild(modules[0], stacked)


def unstack(stack: nn.Module, pick: Callable[[Tensor], Tensor]) -> nn.Module:
    """An ordinary module with ``pick(stacked tensor)`` in place of every parameter and buffer."""
    return rebuild(stack, lambda name, tensor: like(tensor, pick(tensor.detach()).clone()))


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """``values`` as a parameter where ``tensor`` is one."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values


def tensors_of(stack: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The stacked parameters and buffers by name; a tensor with two names is listed once."""
    return dict(stack.named_parameters()), dict(stack.named_buffers())


def call(stack: nn.Module, places: Mapping[str, str], tensors: Tensors, x: Tensor) -> Tensor:
    """Run ``stack`` as one member, with ``tensors`` in the :func:`places_of` it.

    torch would look for tied weights itself, at each call, and leave a layer that stands twice with
    the tensors that were put into it.
    """
    own = {place: tensors[name] for place, name in places.items()}
    outputs: Tensor = functional_call(stack, own, (x,), tie_weights=False)
    return outputs


def places_of(stack: nn.Module) -> dict[str, str]:
    """Every place that holds a tensor, and the name that the tensor has in :func:`tensors_of`."""
    first: dict[int, str] = {}
    return {place: first.setdefault(id(tensor), place) for place, _, tensor in _every_place(stack)}


def _every_place(stack: nn.Module) -> Iterator[tuple[str, dict[str, Any], Tensor]]:
    """Every place that holds a tensor, the layer's registry that it is in, and the tensor."""
    for prefix, module in stack.named_modules():
        for registry in (module._parameters, module._buffers):
            for key, tensor in registry.items():
                if tensor is not None:
                    yield f"{prefix}.{key}" if prefix else key, registry, tensor


def with_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors with ``prefix`` in front of their names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Those of the tensors whose names begin with ``prefix``, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def hooked(module: nn.Module) -> bool:
    """Whether anything is called beside the module's own forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def put_tensors(stack: nn.Module, change: Callable[[str, Tensor], Tensor]) -> None:
    """Replace every parameter and buffer by ``change(name, tensor)``; tied tensors stay tied."""
    done: dict[int, Tensor] = {}
    for place, registry, tensor in list(_every_place(stack)):
        if id(tensor) not in done:
            done[id(tensor)] = change(place, tensor)
        registry[place.rpartition(".")[2]] = done[id(tensor)]


def rebuild(module: nn.Module, change: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """A copy of ``module`` with every tensor replaced by ``change(name, tensor)``."""
    # Copied without its tensors: the copy would hold as much memory again for a moment.
    memo = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    rebuilt = copy.deepcopy(module, memo)
    put_tensors(rebuilt, change)
    return rebuilt
