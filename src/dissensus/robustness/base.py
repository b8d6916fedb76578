"""What every attack is: a frozen dataclass with settings, and a function of a batch."""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from dissensus.robustness.goals import Goal
from dissensus.robustness.victim import Victim
from dissensus.specs import check_numbers

__all__ = ["NORMS", "Attack", "Case", "Journal", "all_steps", "distances"]

#: Norms that a budget ε can be in.
NORMS = ("linf", "l2")


@dataclass(frozen=True)
class Case:
    """The examples to attack: inputs, what is wanted, their place in the whole, and a seed.

    ``rows`` are the examples' indices among all that are attacked; their random numbers follow from
    it, so that it does not matter in which batch they are.
    """

    x: Tensor
    goal: Goal
    rows: Tensor
    seed: int

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> Case:
        """Some of the examples."""
        return Case(self.x[index], self.goal.take(index), self.rows[index], self.seed)


class Journal:
    """What attacks write down, one number an example: gradients, queries, when it broke."""

    def __init__(self, examples: int, device: torch.device) -> None:
        def zeros() -> Tensor:
            return torch.zeros(examples, dtype=torch.long, device=device)

        self.gradients, self.zero, self.nan, self.queries = zeros(), zeros(), zeros(), zeros()
        #: Step and restart at which the goal was first seen to be reached; −1 for never.
        self.step, self.restart = zeros() - 1, zeros() - 1
        self._tick: Callable[[float], None] | None = None
        self._last = time.monotonic()

    def report(self, tick: Callable[[float], None]) -> None:
        """From now on tell ``tick`` how much of the batch is done."""
        self._tick = tick

    def gradient(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """Count a gradient for each example, zero and NaN ones too; NaN come back as 0."""
        # The largest entry is NaN if any is, and 0 only if all are.
        peak = gradient.flatten(1).abs().amax(1)
        self.gradients[rows] += 1
        self.zero[rows] += peak == 0
        bad = ~peak.isfinite()
        self.nan[rows] += bad
        return gradient.nan_to_num(0.0) if bool(bad.any()) else gradient

    def query(self, rows: Tensor) -> None:
        """Count a look at the outputs for each example."""
        self.queries[rows] += 1

    def broke(self, rows: Tensor, step: int, restart: int) -> None:
        """Write down that these examples are broken."""
        self.step[rows], self.restart[rows] = step, restart

    def tick(self, share: float) -> None:
        """Say how much of this batch is done, 0 to 1; shown a few times a second at most."""
        if self._tick is not None and time.monotonic() - self._last > 0.2:
            self._last = time.monotonic()
            self._tick(share)


@dataclass(frozen=True)
class Attack(ABC):
    """The base of all attacks. To add one: one class, one line in ``ATTACKS``, one test.

    A subclass is a frozen dataclass that declares its numbers with ``specs.number`` and writes
    :meth:`perturb`. Everything around it (evaluation mode, frozen parameters, batches, checks of
    the result) is the business of :func:`dissensus.robustness.attack`.
    """

    def __post_init__(self) -> None:
        check_numbers(self)

    @abstractmethod
    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        """Changed inputs of the shape of ``case.x``, in [0, 1] and within the budget."""

    def budget(self) -> tuple[str, float] | None:
        """The norm and the ε that no result exceeds; None for attacks that look for the nearest."""
        eps = getattr(self, "eps", None)
        return None if eps is None else (getattr(self, "norm", "linf"), float(eps))

    @property
    def wants_targets(self) -> bool:
        """Whether it aims at a class."""
        return bool(getattr(self, "targeted", False))

    def spec(self) -> str:
        """The string that ``robustness.parse`` turns back into this attack."""
        from dissensus.robustness.attacks import ATTACKS
        from dissensus.specs import spec_of

        return spec_of(self, ATTACKS, "attack")


Kind = TypeVar("Kind", bound=Attack)


def all_steps(attack: Kind) -> Kind:
    """The same attack, making all its steps where it would stop as soon as it is through."""
    if not hasattr(attack, "early"):
        return attack
    return dataclasses.replace(attack, early=False)  # type: ignore[call-arg]


def distances(x: Tensor, changed: Tensor) -> dict[str, Tensor]:
    """How far inputs were moved, ``[batch]`` each: L∞, L2, L1, and L0, the number of entries."""
    moved = (changed - x).flatten(1).double()
    return {
        "linf": moved.abs().amax(1),
        "l2": moved.norm(dim=1),
        "l1": moved.abs().sum(1),
        "l0": (moved != 0).sum(1).double(),
    }
