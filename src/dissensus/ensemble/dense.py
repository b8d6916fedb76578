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
        """Whether a batch ``x`` is, or is made, a matrix ``[batch, features]``."""
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
    """Outputs ``[rows, batch, outputs]`` and the activations that :func:`dense_backward` needs.

    ``x`` is ``[ensembles, batch, …]``. The rows of the stacked tensors are the members of these
    ensembles in turn, equally many of each; for one ensemble pass ``x[None]``. Records nothing for
    automatic differentiation.
    """
    with torch.no_grad():
        first, *others = plan.layers
        inputs = x.flatten(2) if plan.flattens else x
        # All members of an ensemble see one input: their first layer is one matrix product.
        hidden = _activated(first, _product(_merged(tensors, first, len(x)), inputs.mT))
        hidden = hidden.unflatten(1, (-1, tensors[first.weight].shape[1])).flatten(0, 1)
        activations = [inputs, hidden]
        for layer in others:
            bias = tensors[layer.bias][..., None] if layer.bias else None
            hidden = _activated(layer, _product((tensors[layer.weight], bias), hidden))
            activations.append(hidden)
        return hidden.mT, activations


def _merged(
    tensors: Mapping[str, Tensor], layer: DenseLayer, ensembles: int
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a layer with the members of each ensemble one below the other."""
    weight = tensors[layer.weight]
    bias = tensors[layer.bias].reshape(ensembles, -1, 1) if layer.bias else None
    return weight.reshape(ensembles, -1, weight.shape[2]), bias


def _product(layer: tuple[Tensor, Tensor | None], hidden: Tensor) -> Tensor:
    weight, bias = layer
    return torch.bmm(weight, hidden) if bias is None else torch.baddbmm(bias, weight, hidden)


def _activated(layer: DenseLayer, hidden: Tensor) -> Tensor:
    return hidden if layer.activation is None else _ACTIVATIONS[layer.activation][0](hidden)


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
        back = gradient.mT
        for number in range(len(layers) - 1, -1, -1):
            layer, before, after = layers[number], activations[number], activations[number + 1]
            if layer.activation is not None:
                back = _ACTIVATIONS[layer.activation][1](back, after)
            if layer.bias is not None:
                found[layer.bias] = back.sum(-1)
            if number:
                found[layer.weight] = torch.bmm(back, before.mT)
                back = torch.bmm(tensors[layer.weight].mT, back)
            else:
                merged = back.reshape(len(before), -1, back.shape[2])
                found[layer.weight] = torch.bmm(merged, before).view_as(tensors[layer.weight])
    return found
