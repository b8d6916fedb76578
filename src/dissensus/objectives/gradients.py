"""How a term comes by a gradient that is written out.

Automatic differentiation records every step and visits each again. On tensors as small as a batch
of outputs that, not arithmetic, is what a term costs; a :class:`WrittenOut` term is one step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.objectives.arrays import Array, Namespace, NumPy, Torch, namespace

__all__ = ["Factor", "WrittenOut", "add_scaled"]

Factor = float | Tensor
Compute = Callable[..., tuple[Array, ...]]
Gradient = Callable[[Namespace, Sequence[Factor], Sequence[Any], Sequence[Array]], Array]
Function = type[torch.autograd.Function]


def add_scaled(total: Array, part: Array, factor: Factor) -> Array:
    """``total + factor · part``, in one step to differentiate where ``factor`` is a number."""
    if isinstance(part, Tensor) and not isinstance(factor, Tensor):
        return torch.add(total, part, alpha=factor)
    return total + factor * part


class WrittenOut:
    """Scalars that are differentiable, once, in their first argument, the logits.

    ``compute(xp, z, *others)`` returns so many scalar ``values`` and then the arrays that
    ``gradient`` needs; z are the logits as ``[classes, members, batch]``, and ``xp`` is torch or
    NumPy (see ``arrays``). ``gradient(xp, factors, others, kept)`` has one factor for each value, a
    number or a scalar tensor, and returns ``Σ_i factors_i ∂value_i/∂z``.
    """

    def __init__(self, name: str, compute: Compute, values: int, gradient: Gradient) -> None:
        self.refusal = f"{name} has no second derivative; build it from dissensus.diversity"
        self._compute, self._values, self._gradient = compute, values, gradient
        others = len(inspect.signature(compute).parameters) - 2
        self._transformed = _transformed(compute, values, gradient, others, self.refusal)

    def __call__(self, logits: Tensor, *others: Any) -> tuple[Tensor, ...]:
        """Every value."""
        # Inside torch.func what is kept has to be an output too, which costs more than the term.
        if torch._C._are_functorch_transforms_active():
            return _apply(self._transformed, logits, *others)[: self._values]
        return _apply(_Eager, self, None, None, logits, others)

    def total(
        self, factors: Sequence[Factor], logits: Tensor, *others: Any, base: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """``base`` plus every value times its factor, followed by every value.

        Without ``base`` the first value takes its place, and only the others have a factor. Where
        factors are numbers this is one step, and the gradient of the total is known at once.
        """
        hidden = torch._C._are_functorch_transforms_active()
        if hidden or any(isinstance(factor, Tensor) for factor in factors):
            values = self(logits, *others)
            return _total(base, factors, values), *values
        return _apply(_Eager, self, factors, base, logits, others)

    def evaluate(
        self, factors: Sequence[Factor] | None, logits: Tensor, others: Sequence[Any]
    ) -> tuple[Sequence[Array], Array | None]:
        """Every value, and the gradient of their sum, each times its factor, where there are some.

        Small tensors go through NumPy, and these are its scalars and its array then.
        """
        if namespace(logits, *others) is Torch:
            return self._evaluate(Torch, factors, logits, others)
        if factors is not None:
            factors = [_number(factor) for factor in factors]
        array, *arrays = [x if x is None else _as_numpy(x) for x in (logits, *others)]
        with np.errstate(all="ignore"):  # log 0 is −∞ and no accident, as in torch
            return self._evaluate(NumPy, factors, array, arrays)

    def _evaluate(
        self,
        xp: Namespace,
        factors: Sequence[Factor] | None,
        logits: Array,
        others: Sequence[Any],
    ) -> tuple[Sequence[Array], Array | None]:
        results = self._compute(xp, xp.classes_first(logits), *others)
        values, kept = results[: self._values], results[self._values :]
        if factors is None:
            return values, None
        return values, xp.classes_last(self._gradient(xp, factors, others, kept))


def _as_numpy(x: Tensor) -> Array:
    return x.detach().numpy() if x.requires_grad else x.numpy()


def _number(factor: Factor) -> float:
    return float(factor.detach()) if isinstance(factor, Tensor) else factor


def _apply(function: Function, *inputs: Any) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = function.apply(*inputs)
    return results


def _total(base: Array | None, factors: Sequence[Factor], values: Sequence[Array]) -> Array:
    if base is None:
        base, *values = values
    for value, factor in zip(values, factors, strict=True):
        base = add_scaled(base, value, factor)
    return base


def _tensors(values: Sequence[Array], dtype: torch.dtype) -> list[Tensor]:
    """Scalars of NumPy as tensors; tensors as they are."""
    if isinstance(values[0], Tensor):
        return list(values)
    kind = np.float32 if dtype is torch.float32 else np.float64
    return [torch.from_numpy(np.asarray(value, kind)) for value in values]


def _times(slope: Array, grad: Tensor) -> Tensor:
    if isinstance(slope, Tensor):
        return slope * grad
    return torch.from_numpy(slope * float(grad))


class _Eager(torch.autograd.Function):
    """For plain tensors: the values, after their total where there are ``factors``."""

    @staticmethod
    def forward(
        ctx: Any,
        term: WrittenOut,
        factors: Sequence[float] | None,
        base: Tensor | None,
        logits: Tensor,
        others: Sequence[Any],
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, *others)
        ctx.term, ctx.factors, ctx.slope = term, factors, None
        if factors is None:
            return tuple(_tensors(term.evaluate(None, logits, others)[0], logits.dtype))
        if base is None:
            ctx.factors = (1.0, *factors)
        wanted = ctx.factors if ctx.needs_input_grad[3] else None
        values, ctx.slope = term.evaluate(wanted, logits, others)
        if base is None:
            return tuple(_tensors((_total(None, factors, values), *values), logits.dtype))
        values = _tensors(values, logits.dtype)
        return _total(base, factors, values), *values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, *others = ctx.saved_tensors
        total = grads[0] if ctx.needs_input_grad[2] else None
        slope = None
        if ctx.slope is not None and all(grad is None for grad in grads[1:]):
            slope = None if grads[0] is None else _times(ctx.slope, grads[0].detach())
        elif ctx.needs_input_grad[3]:
            # Someone differentiates the values: what is rare is computed again.
            factors = _grads_of_values(ctx.factors, grads)
            slope = torch.as_tensor(ctx.term.evaluate(factors, logits, others)[1])
        if slope is not None and torch.is_grad_enabled():
            # create_graph=True: without a history it would seem constant.
            slope = _apply(_Refusal, ctx.term.refusal, slope, logits)[0]
        return None, None, total, slope, None


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
        def forward(logits: Tensor, *others: Any) -> tuple[Tensor, ...]:
            return compute(Torch, Torch.classes_first(logits), *others)

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
            slope = gradient(Torch, full, saved[:others], saved[others:])
            return Torch.classes_last(slope), *[None] * others

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
