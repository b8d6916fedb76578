"""Member outputs for a whole data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.outputs import Predictions
from dissensus.progress import ProgressBar
from dissensus.training.batches import Batches, as_batches

__all__ = ["outputs_of", "predict"]


def predict(
    ens: Ensemble,
    data: Any,
    *,
    batch_size: int = 1024,
    meta: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Predictions:
    """Every member's outputs for ``(x, y)`` tensors, ``x`` alone, or a DataLoader, on the CPU.

    ``x`` may be a feature store's rows or ``data.Examples``, which are streamed from disk; the
    outputs are all in memory. ``progress`` shows a bar on a terminal.

    In evaluation mode, without gradients, in the order of the data: a DataLoader must not shuffle.

    >>> from torch import nn
    >>> ens = Ensemble(lambda: nn.Linear(4, 3), members=2)
    >>> predict(ens, (torch.zeros(7, 4), torch.zeros(7, dtype=torch.long))).outputs.shape
    torch.Size([2, 7, 3])
    """
    outputs, targets = [], []
    batches = as_batches(data, batch_size, shuffle=False, device=ens.device, labelled=False)
    with ProgressBar("predicting", len(batches), show=progress) as bar:
        for found, y in _outputs(ens, batches):
            outputs.append(found)
            if y is not None:
                targets.append(y)
            bar.advance()
    if not outputs:
        raise ValueError("the data are empty, got 0 batches")
    known = torch.cat(targets) if targets else None
    return Predictions(torch.cat(outputs, 1), known, dict(meta or {}))


def outputs_of(ens: Ensemble, data: Any, batch_size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Every member's outputs for a batch after the other, with the targets, on the CPU."""
    return _outputs(
        ens, as_batches(data, batch_size, shuffle=False, device=ens.device, labelled=False)
    )


def _outputs(ens: Ensemble, batches: Batches) -> Iterator[tuple[Tensor, Tensor | None]]:
    with torch.random.fork_rng():
        for x, y in batches.epoch(seed=0):
            with ens.evaluating():
                outputs = ens(x.to(ens.device)).cpu()
            yield outputs, None if y is None else y.cpu()
