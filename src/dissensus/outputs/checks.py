"""Checks of the one tensor, its targets and its weights, with clear errors.

Inside ``torch.func.vmap`` and while ``torch.export`` traces, values cannot be read, so there only
shapes are checked.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dissensus.tools.guards import check_finite, check_shape, describe, formula, unreadable

#: What outputs may be stored as. Torch has little arithmetic for 8 bits.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@formula
def check_outputs(outputs: Tensor, *, name: str = "outputs", finite: bool = True) -> None:
    """Raise unless ``outputs`` is a non-empty floating ``[members, batch, outputs]`` tensor."""
    check_tensor(outputs, name=name)
    last = "classes" if name == "logits" else "outputs"
    shape = tuple(outputs.shape)
    if outputs.ndim != 3 or 0 in shape:
        hint = f"; for one model pass {name}[None]" if outputs.ndim == 2 else ""
        raise ValueError(f"{name} must be [members, batch, {last}], got {shape}{hint}")
    check_floats(outputs, name=name)
    if finite:
        check_finite(outputs, name=name)


def check_floats(values: Tensor, *, name: str) -> None:
    """Raise unless ``values`` is a dense tensor of float16, bfloat16, float32 or float64."""
    check_tensor(values, name=name)
    if values.dtype not in FLOATS:
        raise ValueError(f"{name} must be floating point, got {values.dtype}; convert by .float()")
    if values.layout is not torch.strided or values.is_meta:
        raise ValueError(f"{name} must be dense and have values, got {describe(values)}")


@formula
def check_logits(logits: Tensor, *, finite: bool = True) -> None:
    """Raise unless ``logits`` is a ``[members, batch, classes]`` tensor of two or more classes."""
    check_outputs(logits, name="logits", finite=finite)
    if logits.shape[-1] < 2:
        raise ValueError(
            f"logits must have two classes or more, got {tuple(logits.shape)}; for single logits z "
            "pass torch.cat([torch.zeros_like(z), z], -1)"
        )
    if finite:
        refuse_probs(logits)


@formula
def looks_like_probs(outputs: Tensor) -> bool:
    """Whether every row is non-negative and sums to 1: probabilities, passed for logits.

    >>> looks_like_probs(torch.tensor([[[0.2, 0.8]]])), looks_like_probs(torch.zeros(1, 1, 2))
    (True, False)
    """
    if outputs.shape[-1] < 2 or unreadable(outputs):
        return False
    first = outputs[(0,) * (outputs.ndim - 1)]  # of logits, one row shows it
    return all(
        bool((rows >= 0).all()) and bool(((rows.double().sum(-1) - 1).abs() < 1e-3).all())
        for rows in (first, outputs)
    )


def refuse_probs(logits: Tensor) -> None:
    """Raise if ``logits`` look like probabilities."""
    if looks_like_probs(logits.detach()):
        raise ValueError(
            "the outputs look like probabilities where logits are expected; "
            'pass space="probs" (--probs on the command line)'
        )


@formula
def check_labels(targets: Tensor, batch: int, classes: int) -> None:
    """Raise unless ``targets`` are integer labels ``[batch]`` in ``[0, classes)``."""
    check_shape(targets, name="integer targets", batch=batch)
    if targets.dtype == torch.bool or targets.is_complex():
        raise ValueError(f"class labels must be integers, got {targets.dtype}; pass targets.long()")
    if unreadable(targets):
        return
    low, high = (int(value) for value in torch.aminmax(targets))
    if low < 0 or high >= classes:
        raise ValueError(f"labels must lie in [0, {classes}), got values from {low} to {high}")


def check_tensor(values: object, *, name: str = "targets") -> None:
    """Raise unless ``values`` is a tensor."""
    if not isinstance(values, Tensor):
        got = type(values).__name__
        raise ValueError(f"{name} must be a torch.Tensor, got {got}; pass torch.as_tensor({name})")


@formula
def check_targets(targets: Tensor, batch: int, classes: int) -> None:
    """Raise unless ``targets`` are labels ``[batch]`` or probabilities ``[batch, classes]``."""
    check_tensor(targets)
    if not targets.is_floating_point():
        check_labels(targets, batch, classes)
        return
    check_floats(targets, name="soft targets")
    if tuple(targets.shape) != (batch, classes):
        raise ValueError(
            f"soft targets must be [batch, classes] = ({batch}, {classes}), got "
            f"{tuple(targets.shape)}; for class labels pass targets.long()"
        )
    if unreadable(targets):
        return
    check_finite(targets, name="soft targets")
    sums = targets.sum(-1)
    tolerance = 1e-3 if targets.dtype in (torch.float16, torch.bfloat16) else 1e-5
    off = float((sums - 1).abs().max())
    if bool((targets < 0).any()) or off > tolerance * max(1.0, math.sqrt(classes)):
        low, least, most = (float(each) for each in (targets.min(), sums.min(), sums.max()))
        raise ValueError(
            "soft targets must be probabilities that sum to 1, got a smallest of "
            f"{low:.4g} and sums from {least:.6g} to {most:.6g}"
        )


@formula
def check_regression_targets(targets: Tensor, outputs: Tensor) -> None:
    """Raise unless ``targets`` are finite floats of the shape of one member's outputs."""
    check_tensor(targets)
    wanted = tuple(outputs.shape[1:])
    if tuple(targets.shape) != wanted:
        hint = "; pass targets[:, None]" if tuple(targets.shape) == wanted[:1] else ""
        got = f"{tuple(targets.shape)}{hint}"
        raise ValueError(f"regression targets must be [batch, outputs] = {wanted}, got {got}")
    check_floats(targets, name="regression targets")
    check_finite(targets, name="targets")


@formula
def check_weights(weights: Tensor | None, members: int) -> None:
    """Raise unless ``weights`` is None or ``[members]``, not negative, summing to 1."""
    if weights is None:
        return
    check_tensor(weights, name="weights")
    check_shape(weights, name="weights", members=members)
    check_floats(weights, name="weights")
    if unreadable(weights):
        return
    check_finite(weights, name="weights")
    weights = weights.detach()
    total = float(weights.double().sum())
    if bool((weights < 0).any()) or abs(total - 1) > 1e-5:
        low = float(weights.min())
        raise ValueError(
            "weights must not be negative and must sum to 1, got a smallest of "
            f"{low:.4g} and a sum of {total:.6g}; pass weights / weights.sum()"
        )
