"""Attacks as data: a frozen dataclass of settings, and a function of a batch.

An attack changes the inputs of a :class:`Case` against a :class:`Victim` and counts what it does in
a :class:`Journal`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.outputs import combined_log_probs
from dissensus.robustness.losses import Goal
from dissensus.tools.guards import describe
from dissensus.tools.modules import eval_mode
from dissensus.tools.specs import check_choice, check_numbers, spec_of

#: Norms that a budget ε can be in.
NORMS = ("linf", "l2")


@dataclass(frozen=True)
class Case:
    """The examples to attack: inputs, the goal, their indices among all examples, and a seed.

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
    """Counts for each example: its gradients and queries, and when the attack succeeded."""

    def __init__(
        self, examples: int, device: torch.device, tick: Callable[[float], None] | None = None
    ) -> None:
        counts = torch.zeros(6, examples, dtype=torch.long, device=device)
        self.gradients, self.zero_gradients, self.nan_gradients, self.queries = counts[:4]
        #: Step and restart at which the goal was first seen to be reached; −1 for never.
        self.step, self.restart = counts[4:] - 1
        #: Where this batch begins among all of them, and its share.
        self.span = (0.0, 1.0)
        self._tick = tick
        self._last = time.monotonic()

    def gradient(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """Count a gradient for each example, zero and NaN ones too; NaN come back as 0."""
        # The largest entry is NaN if any is, and 0 only if all are.
        peak = gradient.flatten(1).abs().amax(1)
        self.gradients[rows] += 1
        self.zero_gradients[rows] += peak == 0
        bad = ~peak.isfinite()
        self.nan_gradients[rows] += bad
        return gradient.nan_to_num(0.0) if bool(bad.any()) else gradient

    def query(self, rows: Tensor) -> None:
        """Count a query of the outputs for each example."""
        self.queries[rows] += 1

    def tick(self, share: float) -> None:
        """Report how much of this batch is done, 0 to 1; at most a few times a second."""
        if self._tick is not None and time.monotonic() - self._last > 0.2:
            self._last = time.monotonic()
            first, size = self.span
            self._tick(first + share * size)


class Unbroken:
    """The examples that an attack still works on; the others have left with their result."""

    def __init__(self, case: Case, journal: Journal) -> None:
        self.case, self.journal = case, journal
        self.points, self.broken = case.x.clone(), torch.zeros_like(case.rows, dtype=torch.bool)
        self._places = torch.arange(len(case), device=case.x.device)

    def leave(self, done: Tensor, at: Tensor, step: int, restart: int) -> Tensor:
        """Let examples that are ``done`` leave with their ``at``; returns indices of the others."""
        places = self._places[done]
        self.points[places], self.broken[places] = at[done], True
        rows = self.case.rows[done]
        self.journal.step[rows], self.journal.restart[rows] = step, restart
        stay = (~done).nonzero().squeeze(1)
        self.case, self._places = self.case.take(stay), self._places[stay]
        return stay

    def finish(self, at: Tensor) -> None:
        """Keep ``at`` as the result of all examples that have not left."""
        self.points[self._places] = at


def with_restarts(
    case: Case, restarts: int, walk: Callable[[Case, int], tuple[Tensor, Tensor]]
) -> Tensor:
    """The points of ``walk(case, restart)``, made again for the examples it has not broken."""
    points = case.x.clone()
    rows = torch.arange(len(case), device=case.x.device)
    for restart in range(restarts):
        points[rows], broken = walk(case.take(rows), restart)
        rows = rows[~broken]
        if not len(rows):
            break
    return points


@dataclass(frozen=True)
class Attack(ABC):
    """The base of all attacks. To add one: one class, one line in ``ATTACKS``, one test.

    A subclass is a frozen dataclass that declares its numbers with ``specs.number`` and writes
    :meth:`perturb`. Everything around it (evaluation mode, frozen parameters, batches, checks of
    the result) is the business of :func:`dissensus.robustness.attack`.
    """

    def __post_init__(self) -> None:
        check_numbers(self)
        if hasattr(self, "norm"):
            check_choice(type(self).__name__, "norm", self.norm, NORMS)

    @abstractmethod
    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        """Changed inputs of the shape of ``case.x``, in [0, 1] and within the budget."""

    def budget(self) -> tuple[str, float] | None:
        """The norm and the ε that no result exceeds; None for attacks that minimise it."""
        eps = getattr(self, "eps", None)
        return None if eps is None else (getattr(self, "norm", "linf"), float(eps))

    @property
    def wants_targets(self) -> bool:
        """Whether it aims at a class."""
        return bool(getattr(self, "targeted", False))

    def spec(self) -> str:
        """The string that ``robustness.parse`` turns back into this attack."""
        from dissensus.robustness.attacks import ATTACKS

        return spec_of(self, ATTACKS, "attack")


Kind = TypeVar("Kind", bound=Attack)


def all_steps(attack: Kind) -> Kind:
    """The same attack without early stopping: it makes all its steps for all examples."""
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


class Victim:
    """An ensemble as its attacker sees it, or some members of it.

    The attacked output is the log-probability that the ensemble predicts with:
    ``logsumexp_j(log_softmax(f_j) + log w_j)`` for ``combine="probability"`` and
    ``log_softmax(Σ_j w_j f_j)`` for ``"score"``. The log of a mean of softmaxes would be −∞ with
    NaN gradients for over-confident members, and an attack on it would find nothing.
    """

    def __init__(self, ens: Ensemble, members: Sequence[int] | None = None) -> None:
        if not isinstance(ens, Ensemble):
            raise ValueError(f"an attack needs an Ensemble, got {describe(ens)}; wrap it in one")
        if ens.combine == "mean":
            raise ValueError(
                "attacks change a class; this ensemble predicts values (combine='mean')"
            )
        self.ens = ens
        self.members = None if members is None else [int(member) for member in members]
        self.weights = ens.weights
        if members is not None and ens.weights is not None:
            weights = ens.weights[self.members]
            self.weights = weights / weights.sum() if bool(weights.sum() > 0) else None

    @property
    def dtype(self) -> torch.dtype:
        """The members' dtype; torch's default where they have no parameters."""
        dtypes = (p.dtype for p in self.ens.parameters() if p.is_floating_point())
        return next(dtypes, torch.get_default_dtype())

    def logits(self, x: Tensor) -> Tensor:
        """The attacked members' outputs, ``[members, batch, classes]``."""
        outputs: Tensor = self.ens(x, self.members)
        return outputs

    def combined(self, logits: Tensor) -> Tensor:
        """The log-probabilities of the attacked members together, ``[batch, classes]``."""
        return combined_log_probs(logits, self.ens.combine, self.weights)

    def log_probs(self, x: Tensor) -> Tensor:
        """The combined log-probabilities of the attacked members for ``x``."""
        return self.combined(self.logits(x))


@contextmanager
def frozen(ens: Ensemble) -> Iterator[None]:
    """Evaluation mode and no gradients for parameters; both are restored, after errors too.

    Gradients are switched on for inputs, even where the caller has switched them off.
    """
    wanted = [(parameter, parameter.requires_grad) for parameter in ens.parameters()]
    try:
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        with eval_mode(ens), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for parameter, grad in wanted:
            parameter.requires_grad_(grad)


# ---- random numbers -----------------------------------------------------------------------------

# They belong to one example: no generator, no state, no order. A number is a hash of the seed, the
# example's index, what it is drawn for, and its place in the tensor. So an attack's chance does not
# depend on the batch size, on which examples have left the batch, or on the device.

_GOLDEN = 0x9E3779B97F4A7C15


def _to_int64(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _mix(z: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014) on int64, which wraps around."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * _to_int64(factor)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def uniform(
    seed: int, examples: Tensor, draw: Sequence[int], shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Numbers in [0, 1), ``[examples, *shape]``; ``draw`` says what for, as (restart, step).

    >>> both = uniform(0, torch.tensor([3, 8]), (0,), (2,), torch.float64)
    >>> bool((both[1:] == uniform(0, torch.tensor([8]), (0,), (2,), torch.float64)).all())
    True
    """
    key = int(np.random.SeedSequence([seed, *draw]).generate_state(1, np.uint64)[0])
    streams = _mix(examples.long() * _to_int64(_GOLDEN) + _to_int64(key))
    places = torch.arange(1, math.prod(shape) + 1, device=examples.device) * _to_int64(_GOLDEN)
    bits = (_mix(streams[:, None] + places) >> 11) & ((1 << 53) - 1)
    return (bits.double() * 2.0**-53).to(dtype).reshape(len(examples), *shape)


def normal(
    seed: int, examples: Tensor, draw: Sequence[int], shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Standard normal numbers, by Box and Muller (1958)."""
    pairs = uniform(seed, examples, draw, (2, *shape), torch.float64)
    radius = (-2 * torch.log1p(-pairs[:, 0])).sqrt()
    return (radius * torch.cos(2 * math.pi * pairs[:, 1])).to(dtype)


def ball(seed: int, examples: Tensor, draw: Sequence[int], like: Tensor, norm: str) -> Tensor:
    """Points in the unit ball of ``norm``, uniform, of the shape of ``like``."""
    shape = tuple(like.shape[1:])
    if norm == "linf":
        return 2 * uniform(seed, examples, draw, shape, like.dtype) - 1
    points = normal(seed, examples, (*draw, 1), shape, like.dtype).flatten(1)
    radius = uniform(seed, examples, (*draw, 2), (1,), like.dtype) ** (1 / points.shape[1])
    length: Tensor = points.norm(dim=1, keepdim=True)
    points = points / length.clamp_min(torch.finfo(like.dtype).tiny)
    return (points * radius).reshape(like.shape)
