"""Accuracy under shift: the ensemble, its soups, its members, and the worst group of each.

The rows of ldr's Tables 3 and 8: the prediction ensemble, the uniform soup, the greedy soup (chosen
on validation data), oracle selection (the member that is best on the shifted data themselves: an
upper bound that nobody can choose beforehand), and the mean single member.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dissensus.detection import Estimate
from dissensus.ensemble import Ensemble
from dissensus.ensemble.soups import greedy_soup, soup
from dissensus.outputs import check_labels, combine

__all__ = [
    "ORACLE",
    "Accuracies",
    "Candidates",
    "GroupAccuracy",
    "accuracies",
    "group_accuracies",
    "mean_estimate",
]

#: The row that is chosen with the answers in hand.
ORACLE = "oracle"


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy by group: ``worst`` is that of ``group``, the one with the lowest."""

    worst: Estimate
    group: int
    by_group: dict[int, float]


@dataclass(frozen=True)
class Accuracies:
    """What :func:`accuracies` measured; the keys of ``overall`` are the ways to decide.

    ``"ensemble"``, ``"uniform_soup"``, ``"greedy_soup"`` (with validation data), ``"mean_member"``,
    ``"oracle"``: an upper bound. ``worst_group`` has the same keys where groups were given; its
    oracle is the member whose worst group is best. ``members`` are the members' accuracies.
    """

    overall: dict[str, Estimate]
    worst_group: dict[str, GroupAccuracy]
    members: list[float]
    examples: int
    greedy_members: list[int] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "examples": self.examples,
            "overall": {name: _plain(found) for name, found in self.overall.items()},
            "worst_group": {
                name: {**_plain(found.worst), "group": found.group, "by_group": found.by_group}
                for name, found in self.worst_group.items()
            },
            "members": self.members,
            "greedy_members": self.greedy_members,
        }


@dataclass(frozen=True, eq=False)
class Candidates:
    """An ensemble and the single networks made of it, ready for any number of shifted sets."""

    ens: Ensemble
    soups: Mapping[str, nn.Module] = field(default_factory=dict)
    greedy_members: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        ens: Ensemble,
        val: tuple[Tensor, Tensor] | None = None,
        loader: Iterable[Any] | None = None,
    ) -> Self:
        """Make the soups; the greedy one needs ``val``, BatchNorm a ``loader`` of training data.

        Members of unlike structure have no soup.
        """
        if ens.combine == "mean":
            raise ValueError("accuracy is for classifiers; this ensemble has combine='mean'")
        if ens.stack is None:
            return cls(ens)
        soups: dict[str, nn.Module] = {"uniform_soup": soup(ens, loader).eval()}
        chosen: list[int] = []
        if val is not None:
            soups["greedy_soup"], chosen = greedy_soup(ens, *val, loader)
        return cls(ens, soups, tuple(chosen))

    def right(self, x: Tensor, y: Tensor, logits: Tensor | None = None) -> dict[str, Tensor]:
        """Which answers are right, ``[batch]`` bool, and ``"members"`` ``[members, batch]``.

        ``logits`` are the members' for ``x``, if they are at hand.
        """
        x, y = x.to(self.ens.device), y.to(self.ens.device)
        with self.ens.evaluating():
            logits = self.ens(x) if logits is None else logits
            found = {name: network(x).argmax(-1) == y for name, network in self.soups.items()}
        check_labels(y, logits.shape[1], logits.shape[2])
        predicted = combine(logits, self.ens.combine, self.ens.weights).argmax(-1)
        found = {"ensemble": predicted == y, **found, "members": logits.argmax(-1) == y}
        return {name: values.cpu() for name, values in found.items()}


def accuracies(
    ens: Ensemble | Candidates,
    x: Tensor,
    y: Tensor,
    *,
    val: tuple[Tensor, Tensor] | None = None,
    loader: Iterable[Any] | None = None,
    groups: Tensor | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    batch_size: int = 1024,
) -> Accuracies:
    """Accuracy on shifted data ``(x, y)`` of every way to decide with an ensemble (ldr, A.2).

    ``val`` is validation data, by which the greedy soup is chosen; without it there is none.
    ``loader`` gives training batches, by which soups of networks with BatchNorm estimate their
    statistics. ``groups`` ``[batch]`` are whole numbers; with them the worst group of each is told
    (Table 8). For several shifted sets make ``Candidates.of(ens, val, loader)`` once. Intervals
    are 95% and by bootstrap over examples; that of an oracle does not know that it was chosen.
    """
    if isinstance(ens, Candidates):
        if val is not None or loader is not None:
            raise ValueError("Candidates are made already; leave out val and loader")
        candidates = ens
    else:
        candidates = Candidates.of(ens, val, loader)
    parts = [
        candidates.right(x[start : start + batch_size], y[start : start + batch_size])
        for start in range(0, len(x), batch_size)
    ]
    right = {name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}
    return judged(right, groups, candidates.greedy_members, bootstrap=bootstrap, seed=seed)


def judged(
    right: Mapping[str, Tensor],
    groups: Tensor | None = None,
    greedy_members: Iterable[int] = (),
    *,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Accuracies:
    """Accuracies from what :meth:`Candidates.right` gives of all examples."""
    members = right["members"].double()
    ways = {name: values.double() for name, values in right.items() if name != "members"}
    ways["mean_member"] = members.mean(0)
    best = members[int(members.mean(1).argmax())]
    overall = {
        name: mean_estimate(values, bootstrap=bootstrap, seed=seed)
        for name, values in (ways | {ORACLE: best}).items()
    }
    worst: dict[str, GroupAccuracy] = {}
    if groups is not None:
        _check_groups(groups, members.shape[1])
        lowest = torch.tensor([_lowest(_by_group(values, groups))[1] for values in members])
        for name, values in (ways | {ORACLE: members[int(lowest.argmax())]}).items():
            worst[name] = _worst(values, groups, bootstrap, seed)
    return Accuracies(
        overall,
        worst,
        members.mean(1).tolist(),
        members.shape[1],
        list(greedy_members),
    )


def group_accuracies(
    predicted: Tensor, targets: Tensor, groups: Tensor, *, bootstrap: int = 1000, seed: int = 0
) -> GroupAccuracy:
    """Accuracy by group of predicted labels ``[batch]``, with an interval for the worst one.

    >>> labels, groups = torch.tensor([0, 1, 1, 0]), torch.tensor([7, 7, 9, 9])
    >>> found = group_accuracies(torch.tensor([0, 1, 1, 1]), labels, groups)
    >>> found.group, found.worst.value, found.by_group
    (9, 0.5, {7: 1.0, 9: 0.5})
    """
    if predicted.shape != targets.shape or predicted.ndim != 1:
        raise ValueError(
            f"predicted and targets must be labels [batch], got {tuple(predicted.shape)} and "
            f"{tuple(targets.shape)}"
        )
    _check_groups(groups, len(targets))
    return _worst((predicted == targets).double(), groups, bootstrap, seed)


def mean_estimate(
    values: Tensor, *, bootstrap: int = 1000, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """The mean of ``[batch]`` values with a bootstrap interval over examples.

    Values that repeat, as right and wrong do, are resampled by their counts alone.
    """
    levels, counts = np.unique(values.double().numpy(), return_counts=True)
    mean = float(counts @ levels / counts.sum())
    if not bootstrap:
        return Estimate(mean)
    drawn = np.random.default_rng(seed).multinomial(
        counts.sum(), counts / counts.sum(), size=bootstrap
    )
    replicates: NDArray[np.float64] = drawn @ levels / counts.sum()
    low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(mean, float(low), float(high))


def _check_groups(groups: Tensor, batch: int) -> None:
    if tuple(groups.shape) != (batch,) or groups.is_floating_point():
        raise ValueError(
            f"groups must be whole numbers [batch] = ({batch},), got {groups.dtype} "
            f"{tuple(groups.shape)}"
        )


def _by_group(right: Tensor, groups: Tensor) -> dict[int, float]:
    return {int(group): float(right[groups == group].mean()) for group in groups.unique()}


def _lowest(by_group: dict[int, float]) -> tuple[int, float]:
    return min(by_group.items(), key=lambda item: item[1])


def _worst(right: Tensor, groups: Tensor, bootstrap: int, seed: int) -> GroupAccuracy:
    by_group = _by_group(right, groups)
    group, _ = _lowest(by_group)
    worst = mean_estimate(right[groups == group], bootstrap=bootstrap, seed=seed)
    return GroupAccuracy(worst, group, by_group)


def _plain(found: Estimate) -> dict[str, float | None]:
    """An estimate as JSON values; None for an interval that was not asked for."""
    ends = {"low": found.low, "high": found.high}
    return {"value": found.value} | {
        name: None if math.isnan(value) else value for name, value in ends.items()
    }
