"""One network from many: uniform and greedy soups, and the best single member.

A soup (Wortsman et al., 2022) averages weights. It is one of the three ways ldr combines members
(its Appendix A.2); members that did not start from common weights rarely make a good one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.ensemble.module import Ensemble
from dissensus.ensemble.stack import unstack

__all__ = ["best_member", "greedy_soup", "soup"]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def soup(
    ens: Ensemble, loader: Iterable[Any] | None = None, members: Sequence[int] | None = None
) -> nn.Module:
    """A module with the mean of the members' parameters and running statistics.

    ``f(x; (1/M) Σ_m θ^m)`` (ldr, Appendix A.2). With a ``loader`` of ``x`` or ``(x, y)`` batches
    the statistics of BatchNorm layers are estimated anew; averaging them does not do.
    """
    if ens.stack is None:
        raise ValueError("a soup needs members of one structure, got unlike members")
    chosen = list(range(ens.members)) if members is None else ens._indices(members)

    def mean(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor[chosen[0]]
        return tensor[chosen].mean(0)

    module = ens._with_backbone(unstack(ens.stack, mean))
    if loader is not None:
        _estimate_statistics(module, loader, ens.device)
    return module


def greedy_soup(
    ens: Ensemble, x: Tensor, y: Tensor, loader: Iterable[Any] | None = None
) -> tuple[nn.Module, list[int]]:
    """Add members to a soup, best first, where they do not lower accuracy on ``(x, y)``.

    Returns the soup and the members in it. ``(x, y)`` should be validation data.
    """
    accuracies = member_accuracies(ens, x, y)
    order = accuracies.argsort(descending=True, stable=True).tolist()
    kept = [order[0]]
    best, best_accuracy = soup(ens, loader, kept), float(accuracies[order[0]])
    for member in order[1:]:
        candidate = soup(ens, loader, [*kept, member])
        accuracy = _accuracy(candidate, x, y)
        if accuracy >= best_accuracy:
            kept, best, best_accuracy = [*kept, member], candidate, accuracy
    return best, kept


def best_member(ens: Ensemble, x: Tensor, y: Tensor) -> int:
    """The most accurate member on ``(x, y)``: oracle selection (ldr, Appendix A.2)."""
    return int(member_accuracies(ens, x, y).argmax())


def member_accuracies(ens: Ensemble, x: Tensor, y: Tensor) -> Tensor:
    """Each member's accuracy on ``(x, y)``; minus its squared error in regression."""
    with ens.evaluating():
        outputs: Tensor = ens(x)
    if ens.combine == "mean":
        return -(outputs - y).square().sum(-1).mean(-1)
    return (outputs.argmax(-1) == y).double().mean(-1)


def _accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    module.eval()
    with torch.no_grad():
        outputs = module(x)
    if y.is_floating_point():
        return -float((outputs - y).square().sum(-1).mean())
    return float((outputs.argmax(-1) == y).double().mean())


def _estimate_statistics(module: nn.Module, loader: Iterable[Any], device: torch.device) -> None:
    norms = [layer for layer in module.modules() if isinstance(layer, _NORMS)]
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over all batches
    module.eval()
    for layer in norms:
        layer.train()
    with torch.no_grad():
        for batch in loader:
            x = batch[0] if isinstance(batch, tuple | list) else batch
            module(x.to(device))
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    module.eval()
