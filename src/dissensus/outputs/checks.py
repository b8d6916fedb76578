"""Checks of the one tensor, its targets and its weights: an error says what is wrong.

Inside ``torch.func.vmap`` and while ``torch.export`` traces, values cannot be read, so there only
shapes are checked.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dissensus.tools.guards import check_finite, describe, formula, unreadable

#: What outputs may be stored as. Torch has little arithmetic for 8 bits.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@formula
def check_outputs(outputs: Tensor, *, name: str = "outputs", finite: bool = True) -> None:
    """Raise unless ``outputs`` is a non-empty floating ``[members, batch, outputs]`` tensor."""
    last = "classes" if name == "logits" else "outputs"
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"{name} must be a torch.Tensor [members, batch, {last}], got "
            f"{type(outputs).__name__}; convert it with torch.as_tensor"
        )
    shape = tuple(outputs.shape)
    if outputs.ndim != 3:
        hint = f"; for one model pass {name}[None]" if outputs.ndim == 2 else ""
        raise ValueError(f"{name} must be [members, batch, {last}], got {shape}{hint}")
    if 0 in shape:
        raise ValueError(
            f"{name} must hold at least one member, one example and one output, got {shape}"
        )
    check_floats(outputs, name=name)
    if finite:
        check_finite(outputs, name=name)


def check_floats(values: Tensor, *, name: str) -> None:
    """Raise unless ``values`` is a dense tensor of float16, bfloat16, float32 or float64."""
    if not isinstance(values, Tensor) or values.dtype not in FLOATS:
        tensor = isinstance(values, Tensor)
        more = " of 16 bits or more" if tensor and values.is_floating_point() else ""
        got = values.dtype if tensor else describe(values)
        raise ValueError(
            f"{name} must be floating point{more}, got {got}; convert it with {name}.float()"
        )
    if values.layout is not torch.strided or values.is_meta:
        raise ValueError(f"{name} must be dense and have values, got {describe(values)}")


@formula
def check_logits(logits: Tensor, *, finite: bool = True) -> None:
    """Raise unless ``logits`` is a ``[members, batch, classes]`` tensor of two or more classes."""
    check_outputs(logits, name="logits", finite=finite)
    if logits.shape[-1] < 2:
        raise ValueError(
            f"logits must have at least two classes, got {tuple(logits.shape)}; a single-logit "
            "binary classifier is stacked as torch.cat([torch.zeros_like(z), z], -1)"
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
            "the outputs look like probabilities, as every row is non-negative and sums to 1, but "
            'logits are expected; pass space="probs" (--probs on the command line), or convert '
            'them with dissensus.outputs.to_logits(probs, "probs")'
        )


@formula
def check_labels(targets: Tensor, batch: int, classes: int) -> None:
    """Raise unless ``targets`` are integer labels ``[batch]`` in ``[0, classes)``."""
    if tuple(targets.shape) != (batch,):
        raise ValueError(
            f"integer targets must be [batch] = ({batch},), got {tuple(targets.shape)}"
        )
    if targets.dtype == torch.bool or targets.is_complex():
        raise ValueError(
            f"integer targets must be class labels, got {targets.dtype}; pass targets.long()"
        )
    if unreadable(targets):
        return
    low, high = (int(value) for value in torch.aminmax(targets))
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels must lie in [0, {classes}) for {classes} classes, got values from {low} to "
            f"{high}; renumber the labels from 0"
        )


def check_tensor(targets: Tensor) -> None:
    """Raise unless ``targets`` is a tensor."""
    if not isinstance(targets, Tensor):
        raise ValueError(
            f"targets must be a torch.Tensor, got {type(targets).__name__}; "
            "convert them with torch.as_tensor"
        )


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
            f"{tuple(targets.shape)}; integer class labels must have an integer dtype"
        )
    if unreadable(targets):
        return
    check_finite(targets, name="soft targets")
    sums = targets.sum(-1)
    tolerance = 1e-3 if targets.dtype in (torch.float16, torch.bfloat16) else 1e-5
    off = float((sums - 1).abs().max())
    if bool((targets < 0).any()) or off > tolerance * max(1.0, math.sqrt(classes)):
        raise ValueError(
            "soft targets must be probabilities: not negative, summing to 1 for each example; got "
            f"a smallest value of {float(targets.min()):.4g} and sums from "
            f"{float(sums.min()):.6g} to {float(sums.max()):.6g}"
        )


@formula
def check_regression_targets(targets: Tensor, outputs: Tensor) -> None:
    """Raise unless ``targets`` are finite floats of the shape of one member's outputs."""
    check_tensor(targets)
    wanted = tuple(outputs.shape[1:])
    if tuple(targets.shape) != wanted:
        hint = "; pass targets[:, None]" if tuple(targets.shape) == wanted[:1] else ""
        raise ValueError(
            f"regression targets must be [batch, outputs] = {wanted}, got "
            f"{tuple(targets.shape)}{hint}"
        )
    if not targets.is_floating_point():
        raise ValueError(
            f"regression targets must be floating point, got {targets.dtype}; "
            "pass targets.float(), or choose a classification loss"
        )
    check_floats(targets, name="regression targets")
    check_finite(targets, name="targets")


@formula
def check_weights(weights: Tensor | None, members: int) -> None:
    """Raise unless ``weights`` is None or ``[members]``, not negative, summing to 1."""
    if weights is None:
        return
    if not isinstance(weights, Tensor) or tuple(weights.shape) != (members,):
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"weights must be a tensor [members] = ({members},), got {got}")
    check_floats(weights, name="weights")
    if unreadable(weights):
        return
    check_finite(weights, name="weights")
    weights = weights.detach()
    total = float(weights.double().sum())
    if bool((weights < 0).any()) or abs(total - 1) > 1e-5:
        raise ValueError(
            "weights must not be negative and must sum to 1, got a smallest of "
            f"{float(weights.min()):.4g} and a sum of {total:.6g}; pass weights / weights.sum()"
        )
