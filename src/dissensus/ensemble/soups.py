"""Soups: one network from many members, and the best single member.

A soup (Wortsman et al., 2022) averages weights. It is one of the three ways ldr combines members
(its Appendix A.2); members that did not start from common weights rarely make a good one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.ensemble.adapters import separate
from dissensus.ensemble.execution import BATCH_NORMS
from dissensus.ensemble.module import Ensemble
from dissensus.ensemble.stack import unstack

_BATCH = 1024  # examples that run at once


def soup(
    ens: Ensemble, loader: Iterable[Any] | None = None, members: Sequence[int] | None = None
) -> nn.Module:
    """A module with the mean of the members' parameters and running statistics.

    ``f(x; (1/M) Σ_m θ^m)`` (ldr, Appendix A.2). With a ``loader`` of ``x`` or ``(x, y)`` batches
    the statistics of BatchNorm layers are estimated again; averaging them is not enough.
    """
    if ens.stack is None:
        raise ValueError("a soup needs members of one structure, got unlike members")
    chosen = list(range(ens.members)) if members is None else ens._indices(members)

    def mean(tensor: Tensor) -> Tensor:
        return tensor[chosen].mean(0) if tensor.is_floating_point() else tensor[chosen[0]]

    # The mean of effective weights, as r and s are factors of them.
    stack = separate(ens.stack, range(ens.members)) if ens.sharing else ens.stack
    mixed = unstack(stack, mean)
    module = ens._with_backbone(mixed)
    if loader is not None:
        _estimate_statistics(module, mixed, loader, ens.device)
    return module


def greedy_soup(
    ens: Ensemble, x: Tensor, y: Tensor, loader: Iterable[Any] | None = None
) -> tuple[nn.Module, list[int]]:
    """Add members to a soup, best first, where they do not lower accuracy on ``(x, y)``.

    Returns the soup and the members in it. ``(x, y)`` should be validation data.
    """
    accuracies = member_accuracies(ens, x, y)
    order = accuracies.argsort(descending=True, stable=True).tolist()
    members = order[:1]
    # A single member keeps its own statistics, so that the soup starts as good as the best one.
    best, best_accuracy = soup(ens, members=members).eval(), float(accuracies[order[0]])
    for member in order[1:]:
        candidate = soup(ens, loader, [*members, member]).eval()
        with torch.no_grad():
            accuracy = float(_accuracies(candidate, x, y, ens))
        if accuracy >= best_accuracy:
            members, best, best_accuracy = [*members, member], candidate, accuracy
    return best, members


def best_member(ens: Ensemble, x: Tensor, y: Tensor) -> int:
    """The most accurate member on ``(x, y)``: oracle selection (ldr, Appendix A.2)."""
    return int(member_accuracies(ens, x, y).argmax())


def member_accuracies(ens: Ensemble, x: Tensor, y: Tensor) -> Tensor:
    """Each member's accuracy on ``(x, y)``; minus its squared error in regression."""
    with ens.evaluating():
        return _accuracies(ens, x, y, ens)


def _accuracies(network: nn.Module, x: Tensor, y: Tensor, ens: Ensemble) -> Tensor:
    """The accuracy on ``(x, y)``, in pieces, of a network of ``ens``, or of each one in ``ens``."""
    total: Tensor | float = 0.0
    for start in range(0, len(x), _BATCH):
        outputs: Tensor = network(x[start : start + _BATCH].to(ens.device))
        targets = y[start : start + _BATCH].to(outputs.device)
        if ens.combine == "mean":
            total = total - (outputs - targets).square().sum(-1).double().sum(-1)
        else:
            labels = targets.argmax(-1) if targets.is_floating_point() else targets
            total = total + (outputs.argmax(-1) == labels).sum(-1)  # whole numbers: ties are exact
    return torch.as_tensor(total, dtype=torch.float64) / len(x)


def _estimate_statistics(
    module: nn.Module, mixed: nn.Module, loader: Iterable[Any], device: torch.device
) -> None:
    """Let BatchNorm layers of ``mixed``, the end of ``module``, take the mean over all batches."""
    norms = [layer for layer in mixed.modules() if isinstance(layer, BATCH_NORMS)]
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over all batches
    module.eval()
    for layer in norms:
        layer.train()
    batches = 0
    with torch.no_grad():
        for batch in loader:
            x = batch[0] if isinstance(batch, tuple | list) else batch
            module(x.to(device))
            batches += 1
    if not batches:
        raise ValueError("the loader gave no batch; pass a list or a DataLoader, not an iterator")
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    module.eval()
