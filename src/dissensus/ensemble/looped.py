"""The looped execution: members one after the other, each as the ordinary network it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dissensus.ensemble.stack import call, places_of

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
    places, outputs = places_of(stack), []
    for j in range(members):
        own = {name: tensors[j] for name, tensors in (*split.items(), *views.items())}
        outputs.append(call(stack, places, own, x))
    return torch.stack(outputs)
