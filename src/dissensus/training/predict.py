"""Predictions and metrics for a whole data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.outputs import Predictions
from dissensus.tools.guards import check_finite, guarded
from dissensus.tools.progress import ProgressBar
from dissensus.training.batches import Batches, as_batches, as_tensors, split_weights
from dissensus.training.meters import Meter


@guarded
def predict(
    ens: Ensemble,
    data: Any,
    *,
    batch_size: int = 1024,
    meta: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Predictions:
    """Every member's outputs for ``(x, y)``, ``x`` alone, or a DataLoader, on the CPU.

    ``x`` may be a feature store's rows or ``data.Examples``, which are streamed from disk; the
    outputs are all in memory. ``progress`` shows a bar on a terminal.

    In evaluation mode, without gradients, in the order of the data: a DataLoader must not shuffle.

    >>> from torch import nn
    >>> ens = Ensemble(lambda: nn.Linear(4, 3), members=2)
    >>> predict(ens, (torch.zeros(7, 4), torch.zeros(7, dtype=torch.long))).outputs.shape
    torch.Size([2, 7, 3])
    """
    outputs, targets, data = [], [], as_tensors(data)
    batches = as_batches(data, batch_size, shuffle=False, device=ens.device, labelled=False)
    with ProgressBar("predicting", len(batches), show=progress) as bar:
        for batch, y in _outputs(ens, batches):
            outputs.append(batch)
            if y is not None:
                targets.append(y)
            bar.advance()
    if not outputs:
        raise ValueError("the data are empty, got 0 batches")
    predicted = torch.cat(outputs, 1)
    check_finite(predicted, name="outputs")
    return Predictions(predicted, torch.cat(targets) if targets else None, dict(meta or {}))


def evaluate(
    ens: Ensemble,
    data: Any,
    batch_size: int,
    *,
    meter: Meter | None = None,
    rows: Callable[[int], range] | None = None,
) -> dict[str, Any]:
    """The metrics of a data set in evaluation mode, as in the record of an epoch.

    Outputs are measured batch by batch and never all in memory. One of several processes passes the
    ``meter`` that gathers outputs, and ``rows``, which of a batch's rows are its own.
    """
    meter = Meter(ens.members, ens.combine) if meter is None else meter
    data, weights = split_weights(data)
    size, done = max(batch_size, 1024), 0
    batches = as_batches(data, size, shuffle=False, device=ens.device, labelled=False)
    for outputs, y in _outputs(ens, batches, rows):
        if y is None:
            raise ValueError("validation data must be (x, y), got x alone")
        if not done:
            meter.check(outputs, y)
        own = None if weights is None else weights[done : done + len(y)].cpu()
        meter.add(outputs, y, {}, None, own)
        done += len(y)
    if not done:
        raise ValueError("the validation data are empty, got 0 batches")
    return meter.record()


def _outputs(
    ens: Ensemble, batches: Batches, rows: Callable[[int], range] | None = None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Outputs for the ``rows`` of each batch, and all its targets, on the CPU."""
    with torch.random.fork_rng():
        for x, y in batches.epoch(seed=0):
            own = range(len(x)) if rows is None else rows(len(x))
            # A process without a row still runs one: split members need every process.
            part = x[own.start : own.stop] if own else x[:1]
            with ens.evaluating():
                outputs = ens(part.to(ens.device)).cpu()[:, : len(own)]
            yield outputs, None if y is None else y.cpu()
