"""Accuracy under shift: the ensemble, its soups, its members, and the worst group of each.

These are the rows of ldr's Tables 3 and 8: the prediction ensemble, the uniform soup, the greedy
soup (chosen on validation data), oracle selection (the member that is best on the shifted data
themselves: an upper bound that nobody can choose beforehand), and the mean single member.
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

from dissensus.ensemble import Ensemble
from dissensus.ensemble.soups import greedy_soup, soup
from dissensus.measures import Estimate
from dissensus.outputs import check_labels, combine

#: The row that is chosen by the labels of the shifted data themselves.
ORACLE = "oracle"


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy by group: ``worst`` is that of ``group``, the one with the lowest."""

    worst: Estimate
    group: int
    by_group: dict[int, float]


@dataclass(frozen=True)
class Accuracies:
    """Accuracy of each way to decide with an ensemble; the keys of ``overall`` are the ways.

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
            "overall": {name: _plain(estimate) for name, estimate in self.overall.items()},
            "worst_group": {
                name: {**_plain(way.worst), "group": way.group, "by_group": way.by_group}
                for name, way in self.worst_group.items()
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
        greedy_members: list[int] = []
        if val is not None:
            soups["greedy_soup"], greedy_members = greedy_soup(ens, *val, loader)
        return cls(ens, soups, tuple(greedy_members))

    def correct(self, x: Tensor, y: Tensor, logits: Tensor | None = None) -> dict[str, Tensor]:
        """Whether each answer is correct, bool ``[batch]``; ``"members"``: ``[members, batch]``.

        ``logits`` are the members' for ``x``, if they are at hand.
        """
        x, y = x.to(self.ens.device), y.to(self.ens.device)
        with self.ens.evaluating():
            logits = self.ens(x) if logits is None else logits
            soups = {name: network(x).argmax(-1) == y for name, network in self.soups.items()}
        check_labels(y, logits.shape[1], logits.shape[2])
        predicted = combine(logits, self.ens.combine, self.ens.weights).argmax(-1)
        correct = {"ensemble": predicted == y, **soups, "members": logits.argmax(-1) == y}
        return {name: values.cpu() for name, values in correct.items()}


def accuracies(
    candidates: Candidates,
    x: Tensor,
    y: Tensor,
    *,
    groups: Tensor | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    batch_size: int = 1024,
) -> Accuracies:
    """Accuracy on shifted data ``(x, y)`` of every way to decide with an ensemble (ldr, A.2).

    ``candidates`` are ``Candidates.of(ens, val)``, made once for any number of sets. ``groups``
    ``[batch]`` are whole numbers; with them the result has the worst group of each way (Table 8).
    Intervals are 95% bootstrap intervals over examples; that of an oracle ignores that the oracle
    was selected.
    """
    batches = [
        candidates.correct(*part)
        for part in zip(x.split(batch_size), y.split(batch_size), strict=True)
    ]
    correct = {name: torch.cat([batch[name] for batch in batches], -1) for name in batches[0]}
    return summarize(correct, groups, candidates.greedy_members, bootstrap=bootstrap, seed=seed)


def summarize(
    correct: Mapping[str, Tensor],
    groups: Tensor | None = None,
    greedy_members: Iterable[int] = (),
    *,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Accuracies:
    """Accuracies from what :meth:`Candidates.correct` gives for all examples."""
    members = correct["members"].double()
    ways = {name: values.double() for name, values in correct.items() if name != "members"}
    ways["mean_member"] = members.mean(0)
    best = members[int(members.mean(1).argmax())]
    overall = {
        name: mean_estimate(values, bootstrap=bootstrap, seed=seed)
        for name, values in (ways | {ORACLE: best}).items()
    }
    worst: dict[str, GroupAccuracy] = {}
    if groups is not None:
        _check_groups(groups, members.shape[1])
        lowest = torch.tensor([min(_by_group(values, groups).values()) for values in members])
        best = members[int(lowest.argmax())]
        worst = {
            name: _worst_group(values, groups, bootstrap, seed)
            for name, values in (ways | {ORACLE: best}).items()
        }
    per_member = members.mean(1).tolist()
    return Accuracies(overall, worst, per_member, members.shape[1], list(greedy_members))


def mean_estimate(values: Tensor, *, bootstrap: int = 1000, seed: int = 0) -> Estimate:
    """The mean of ``[batch]`` values with a 95% bootstrap interval over examples.

    Values that repeat, as 0 and 1 do here, are resampled by their counts alone.
    """
    levels, counts = np.unique(values.double().numpy(), return_counts=True)
    mean = float(counts @ levels / counts.sum())
    if not bootstrap:
        return Estimate(mean)
    resampled = np.random.default_rng(seed).multinomial(
        counts.sum(), counts / counts.sum(), size=bootstrap
    )
    replicates: NDArray[np.float64] = resampled @ levels / counts.sum()
    low, high = np.quantile(replicates, [0.025, 0.975])
    return Estimate(mean, float(low), float(high))


def _check_groups(groups: Tensor, batch: int) -> None:
    if tuple(groups.shape) != (batch,) or groups.is_floating_point():
        got = f"{groups.dtype} {tuple(groups.shape)}"
        raise ValueError(f"groups must be whole numbers [batch] = ({batch},), got {got}")


def _by_group(correct: Tensor, groups: Tensor) -> dict[int, float]:
    return {int(group): float(correct[groups == group].mean()) for group in groups.unique()}


def _worst_group(correct: Tensor, groups: Tensor, bootstrap: int, seed: int) -> GroupAccuracy:
    by_group = _by_group(correct, groups)
    group = min(by_group, key=lambda key: by_group[key])
    worst = mean_estimate(correct[groups == group], bootstrap=bootstrap, seed=seed)
    return GroupAccuracy(worst, group, by_group)


def _plain(estimate: Estimate) -> dict[str, float | None]:
    """An estimate as JSON values; None for an interval that was not asked for."""
    ends = {"low": estimate.low, "high": estimate.high}
    return {"value": estimate.value} | {
        name: None if math.isnan(value) else value for name, value in ends.items()
    }
