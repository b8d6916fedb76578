"""How a term comes by a gradient that is written out.

Automatic differentiation records every step and visits each again. On tensors as small as a batch
of outputs that, not arithmetic, is what a term costs; a :class:`WrittenOut` term is one step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["WrittenOut", "mixed_slopes"]

Compute = Callable[..., tuple[Tensor, ...]]
Gradient = Callable[[Sequence[Tensor], Sequence[Any], Sequence[Tensor]], Tensor]
Function = type[torch.autograd.Function]


def mixed_slopes(
    grads: Sequence[Tensor], inputs: Sequence[Any], slopes: Sequence[Tensor]
) -> Tensor:
    """``Σ_i g_i ∂v_i/∂z`` for values whose slopes are known since the forward pass."""
    total = slopes[0] * grads[0][..., None]
    for slope, grad in zip(slopes[1:], grads[1:], strict=True):
        total = torch.addcmul(total, slope, grad[..., None])
    return total


class WrittenOut:
    """A function of tensors that is differentiable, once, in its first argument, the logits.

    ``compute(logits, *others)`` returns so many ``values`` and then what ``gradient`` needs. A
    value is a scalar, ``[batch]`` or ``[members, batch]``. ``gradient(grads, others, kept)`` has
    one entry of ``grads`` for each value, of its shape or to be broadcast to it, and returns the
    gradient of the logits. By default what is kept are the slopes ∂value/∂logits, each entry of a
    value depending on its own example alone.
    """

    def __init__(
        self, name: str, compute: Compute, values: int, gradient: Gradient = mixed_slopes
    ) -> None:
        refusal = f"{name} has no second derivative; build it from dissensus.diversity"
        others = len(inspect.signature(compute).parameters) - 1
        self._values = values
        self._eager = _eager(compute, values, gradient, others, refusal)
        self._transformed = _transformed(compute, values, gradient, others, refusal)

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Every value, example by example."""
        # Inside torch.func what is kept has to be an output too, which costs more than the term.
        if torch._C._are_functorch_transforms_active():
            return _apply(self._transformed, *inputs)[: self._values]
        return _apply(self._eager, False, None, *inputs)

    def mean(self, weights: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
        """The mean of every value over examples and, weighted, over members: scalars."""
        if torch._C._are_functorch_transforms_active():
            return tuple(_mean(value, weights) for value in self(*inputs))
        return _apply(self._eager, True, weights, *inputs)


def _apply(function: Function, *inputs: Any) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = function.apply(*inputs)
    return results


def _mean(value: Tensor, weights: Tensor | None) -> Tensor:
    if value.ndim == 2 and weights is not None:
        value = weights.to(value.dtype) @ value
    return value.mean() if value.ndim else value


def _mean_gradient(grad: Tensor, shape: torch.Size, weights: Tensor | None) -> Tensor:
    """The gradient of a value of this shape, from that of its mean; left to be broadcast."""
    if len(shape) == 2 and weights is not None:
        return (weights.to(grad.dtype) * (grad / shape[1]))[:, None]
    return grad / shape.numel() if shape else grad


def _eager(
    compute: Compute, values: int, gradient: Gradient, others: int, refusal: str
) -> Function:
    """For plain tensors: the values, or their means."""

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, mean: bool, weights: Tensor | None, *inputs: Any
        ) -> tuple[Tensor, ...]:
            results = compute(*inputs)
            ctx.save_for_backward(weights, *inputs, *results[values:])
            ctx.shapes = [value.shape for value in results[:values]] if mean else None
            if not mean:
                return results[:values]
            return tuple(_mean(value, weights) for value in results[:values])

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            weights, logits, *saved = ctx.saved_tensors
            if ctx.shapes is not None:
                pairs = zip(grads, ctx.shapes, strict=True)
                grads = tuple(_mean_gradient(grad, shape, weights) for grad, shape in pairs)
            slope = gradient(grads, saved[:others], saved[others:])
            if torch.is_grad_enabled():  # create_graph=True: without a history it seems constant
                slope = _apply(_Refusal, refusal, slope, logits)[0]
            return None, None, slope, *[None] * others

    return Eager


def _transformed(
    compute: Compute, values: int, gradient: Gradient, others: int, refusal: str
) -> Function:
    """For tensors inside ``torch.func``."""

    class Transformed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor, ...]:
            return compute(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.save_for_backward(*inputs[1:], *output)
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            if any(grad is not None for grad in grads[values:]):  # only in a second derivative
                raise RuntimeError(refusal)
            saved = ctx.saved_tensors
            results, kept = saved[others : others + values], saved[others + values :]
            full = [
                torch.zeros_like(result) if grad is None else grad
                for result, grad in zip(results, grads[:values], strict=True)
            ]
            return gradient(full, saved[:others], kept), *[None] * others

    return Transformed


class _Refusal(torch.autograd.Function):
    """A gradient that says why it cannot be differentiated when someone tries."""

    @staticmethod
    def forward(ctx: Any, text: str, gradient: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
        ctx.text = text
        return (gradient.view_as(gradient),)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError(ctx.text)
