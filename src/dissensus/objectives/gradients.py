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

__all__ = ["Factor", "WrittenOut", "add_scaled"]

Factor = float | Tensor
Compute = Callable[..., tuple[Tensor, ...]]
Gradient = Callable[[Sequence[Factor], Sequence[Any], Sequence[Tensor]], Tensor]
Function = type[torch.autograd.Function]


def add_scaled(total: Tensor, part: Tensor, factor: Factor) -> Tensor:
    """``total + factor · part``, in one step to differentiate where ``factor`` is a number."""
    if isinstance(factor, Tensor):
        return total + factor * part
    return torch.add(total, part, alpha=factor)


class WrittenOut:
    """Scalars that are differentiable, once, in their first argument, the logits.

    ``compute(logits, *others)`` returns so many scalar ``values`` and then the tensors that
    ``gradient`` needs. ``gradient(factors, others, kept)`` has one factor for each value, a number
    or a scalar tensor, and returns ``Σ_i factors_i ∂value_i/∂logits``.
    """

    def __init__(self, name: str, compute: Compute, values: int, gradient: Gradient) -> None:
        refusal = f"{name} has no second derivative; build it from dissensus.diversity"
        others = len(inspect.signature(compute).parameters) - 1
        self._values = values
        self._eager = _eager(compute, values, gradient, refusal)
        self._transformed = _transformed(compute, values, gradient, others, refusal)

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Every value."""
        # Inside torch.func what is kept has to be an output too, which costs more than the term.
        if torch._C._are_functorch_transforms_active():
            return _apply(self._transformed, *inputs)[: self._values]
        return _apply(self._eager, None, None, *inputs)

    def total(
        self, factors: Sequence[Factor], *inputs: Any, base: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """``base`` plus every value times its factor, followed by every value.

        Without ``base`` the first value takes its place, and only the others have a factor. Where
        factors are numbers this is one step, and the gradient of the total is known at once.
        """
        hidden = torch._C._are_functorch_transforms_active()
        if hidden or any(isinstance(factor, Tensor) for factor in factors):
            values = self(*inputs)
            return _total(base, factors, values), *values
        return _apply(self._eager, factors, base, *inputs)


def _apply(function: Function, *inputs: Any) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = function.apply(*inputs)
    return results


def _total(base: Tensor | None, factors: Sequence[Factor], values: Sequence[Tensor]) -> Tensor:
    if base is None:
        base, *values = values
    for value, factor in zip(values, factors, strict=True):
        base = add_scaled(base, value, factor)
    return base


def _eager(compute: Compute, values: int, gradient: Gradient, refusal: str) -> Function:
    """For plain tensors: the values, after their total where there are ``factors``."""

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, factors: Sequence[float] | None, base: Tensor | None, *inputs: Any
        ) -> tuple[Tensor, ...]:
            ctx.set_materialize_grads(False)
            results = compute(*inputs)
            if factors is None:
                ctx.factors = None
                ctx.save_for_backward(None, *inputs)
                return results[:values]
            ctx.factors = factors if base is not None else (1.0, *factors)
            slope = None
            if ctx.needs_input_grad[2]:
                slope = gradient(ctx.factors, inputs[1:], results[values:])
            ctx.save_for_backward(slope, *inputs)
            return _total(base, factors, results[:values]), *results[:values]

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            slope, *inputs = ctx.saved_tensors
            total = grads[0] if ctx.needs_input_grad[1] else None
            if slope is not None and all(grad is None for grad in grads[1:]):
                slope = None if grads[0] is None else slope * grads[0]
            elif ctx.needs_input_grad[2]:
                # Someone differentiates the values: what is rare is computed again.
                full = _grads_of_values(ctx.factors, grads)
                slope = gradient(full, inputs[1:], compute(*inputs)[values:])
            if slope is not None and torch.is_grad_enabled():
                # create_graph=True: without a history it would seem constant.
                slope = _apply(_Refusal, refusal, slope, inputs[0])[0]
            return None, total, slope, *[None] * (len(inputs) - 1)

    return Eager


def _grads_of_values(
    factors: Sequence[float] | None, grads: Sequence[Tensor | None]
) -> list[Factor]:
    """One gradient for each value, from those of the outputs; None is that of no use."""
    known: list[Factor] = [0.0 if grad is None else grad for grad in grads]
    if factors is None:
        return known
    total, *own = known
    return [grad + total * factor for grad, factor in zip(own, factors, strict=True)]


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
            ctx.save_for_backward(*inputs[1:], *output[values:])
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            if any(grad is not None for grad in grads[values:]):  # only in a second derivative
                raise RuntimeError(refusal)
            saved = ctx.saved_tensors
            full = _grads_of_values(None, grads[:values])
            return gradient(full, saved[:others], saved[others:]), *[None] * others

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
