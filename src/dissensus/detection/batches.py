"""Batches of inputs for a detector, and the state of the ensemble that scores them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


def batches(data: Tensor | Iterable[Any]) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Inputs and labels of a tensor, an ``(x, y)`` tuple, a DataLoader or iterable of batches."""
    if isinstance(data, Dataset):
        raise ValueError(
            f"data must come in batches, got the Dataset {type(data).__name__}; pass "
            "DataLoader(data, batch_size=256)"
        )
    whole = isinstance(data, Tensor) or (
        isinstance(data, tuple) and len(data) == 2 and all(isinstance(d, Tensor) for d in data)
    )
    for batch in [data] if whole else data:
        parts = batch if isinstance(batch, (tuple, list)) and batch else [batch]
        x, y = parts[0], parts[1] if len(parts) > 1 else None
        if not isinstance(x, Tensor) or x.ndim == 0:
            raise ValueError(
                "data must be a tensor [batch, …], a tuple (x, y) of tensors, or batches of x or "
                f"(x, y); got a batch whose x is {type(x).__name__}"
            )
        yield x, y if isinstance(y, Tensor) else None


def device_of(ens: object) -> torch.device | None:
    """The device of a module's first parameter; None where there is none."""
    parameter = next(ens.parameters(), None) if isinstance(ens, nn.Module) else None
    return None if parameter is None else parameter.device


@contextmanager
def eval_mode(ens: object) -> Iterator[None]:
    """Put a module in eval mode; afterwards give each submodule its own mode back."""
    if not isinstance(ens, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in ens.modules()]
    try:
        ens.eval()
        yield
    finally:
        ens.train(modes[0][1])  # first through the module, which may do more than set a flag
        for module, training in modes:
            module.training = training
