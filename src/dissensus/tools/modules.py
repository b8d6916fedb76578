"""Modules of PyTorch: the device that one is on, and evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["device_of", "eval_mode"]


def device_of(module: object) -> torch.device | None:
    """The device of a module's first parameter; None where there is none."""
    parameter = next(module.parameters(), None) if isinstance(module, nn.Module) else None
    return None if parameter is None else parameter.device


@contextmanager
def eval_mode(module: object) -> Iterator[None]:
    """Put a module in eval mode; afterwards give each submodule its own mode back."""
    if not isinstance(module, nn.Module):
        yield
        return
    modes = [(each, each.training) for each in module.modules()]
    try:
        module.eval()
        yield
    finally:
        module.train(modes[0][1])  # first through the module, which may do more than set a flag
        for each, training in modes:
            each.training = training
