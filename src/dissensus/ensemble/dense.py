"""Plain dense networks, forward and backward written out, for all members at once.

Most of the time of a small network goes into the bookkeeping of automatic differentiation. For a
stack of linear layers with simple activations between them the gradients are a few batched matrix
products, so training takes them directly. Activations are kept feature-major,
``[members, features, batch]``, the layout in which those products are fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dissensus.ensemble.stack import layers_in_turn

__all__ = ["DenseLayer", "DensePlan", "dense_backward", "dense_forward", "dense_plan"]


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer by the names of its stacked tensors, and the activation after it."""

    weight: str
    bias: str | None
    activation: type[nn.Module] | None


#: Activations in place, and torch's own gradients of them, which take what they returned.
_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[..., Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda grad, out: torch.ops.aten.threshold_backward(grad, out, 0)),
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid_, torch.ops.aten.sigmoid_backward),
}


@dataclass(frozen=True)
class DensePlan:
    """The layers of a network that is dense throughout, and whether it flattens its input first."""

    layers: list[DenseLayer]
    flattens: bool

    def fits(self, x: Tensor) -> bool:
        """Whether ``x`` is, or is made, a matrix ``[batch, features]``."""
        return x.ndim == 2 or self.flattens


def dense_plan(stack: nn.Module) -> DensePlan | None:
    """The plan of a stack that is dense throughout; None where anything else is in it."""
    layers: list[DenseLayer] = []
    flattens = False
    for number, (name, module) in enumerate(layers_in_turn(stack) or ()):
        kind = type(module)
        if kind is nn.Linear:
            bias = f"{name}bias" if module.bias is not None else None
            layers.append(DenseLayer(f"{name}weight", bias, None))
        elif kind in _ACTIVATIONS and layers and layers[-1].activation is None:
            layers[-1] = DenseLayer(layers[-1].weight, layers[-1].bias, kind)
        elif isinstance(module, nn.Flatten) and number == 0:
            flattens = True
            if (module.start_dim, module.end_dim) != (1, -1):
                return None
        elif kind is not nn.Identity:
            return None
    return DensePlan(layers, flattens) if layers else None


def dense_forward(
    plan: DensePlan, tensors: Mapping[str, Tensor], x: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Outputs ``[members, batch, outputs]`` and the activations that :func:`dense_backward` needs.

    Records nothing for automatic differentiation.
    """
    with torch.no_grad():
        members = tensors[plan.layers[0].weight].shape[0]
        hidden = x.flatten(1).T.expand(members, -1, -1)
        activations = [hidden]
        for layer in plan.layers:
            weight = tensors[layer.weight]
            if layer.bias is None:
                hidden = torch.bmm(weight, hidden)
            else:
                hidden = torch.baddbmm(tensors[layer.bias][..., None], weight, hidden)
            if layer.activation is not None:
                hidden = _ACTIVATIONS[layer.activation][0](hidden)
            activations.append(hidden)
        return hidden.transpose(1, 2), activations


def dense_backward(
    plan: DensePlan,
    tensors: Mapping[str, Tensor],
    activations: list[Tensor],
    gradient: Tensor,
) -> dict[str, Tensor]:
    """Gradients of all weights and biases from that of the outputs."""
    found: dict[str, Tensor] = {}
    layers = plan.layers
    with torch.no_grad():
        back = gradient.transpose(1, 2)
        for number in range(len(layers) - 1, -1, -1):
            layer, before, after = layers[number], activations[number], activations[number + 1]
            if layer.activation is not None:
                back = _ACTIVATIONS[layer.activation][1](back, after)
            found[layer.weight] = torch.bmm(back, before.transpose(1, 2))
            if layer.bias is not None:
                found[layer.bias] = back.sum(-1)
            if number:
                back = torch.bmm(tensors[layer.weight].transpose(1, 2), back)
    return found
