"""Member outputs for a whole data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dissensus.ensemble import Ensemble
from dissensus.outputs import Predictions
from dissensus.training.batches import as_batches

__all__ = ["predict"]


def predict(
    ens: Ensemble, data: Any, *, batch_size: int = 1024, meta: Mapping[str, Any] | None = None
) -> Predictions:
    """Every member's outputs for ``(x, y)`` tensors, ``x`` alone, or a DataLoader, on the CPU.

    In evaluation mode, without gradients, in the order of the data: a DataLoader must not shuffle.

    >>> from torch import nn
    >>> ens = Ensemble(lambda: nn.Linear(4, 3), members=2)
    >>> predict(ens, (torch.zeros(7, 4), torch.zeros(7, dtype=torch.long))).outputs.shape
    torch.Size([2, 7, 3])
    """
    batches = as_batches(data, batch_size, shuffle=False, device=ens.device, labelled=False)
    outputs, targets = [], []
    with ens.evaluating(), torch.random.fork_rng():
        for x, y in batches.epoch(seed=0):
            outputs.append(ens(x.to(ens.device)).cpu())
            if y is not None:
                targets.append(y.cpu())
    if not outputs:
        raise ValueError("the data are empty, got 0 batches")
    known = torch.cat(targets) if targets else None
    return Predictions(torch.cat(outputs, 1), known, dict(meta or {}))
