"""The looped execution: members one after the other, each as the ordinary network it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["looped_outputs"]


def looped_outputs(
    stack: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor
) -> Tensor:
    """``[members, batch, outputs]`` from stacked tensors; buffers are updated in place.

    ``unbind`` rather than indexing: its gradient puts the members' gradients together once, where
    every index would make a gradient of the whole stack.
    """
    split = {name: tensor.unbind(0) for name, tensor in parameters.items()}
    views = {name: tensor.unbind(0) for name, tensor in buffers.items()}
    members = next(iter(parameters.values())).shape[0]
    outputs = []
    for j in range(members):
        own = {name: tensors[j] for name, tensors in (*split.items(), *views.items())}
        outputs.append(functional_call(stack, own, (x,)))
    return torch.stack(outputs)
