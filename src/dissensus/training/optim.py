"""Optimisers that step some members and leave the others as they are; learning-rate schedules.

The arithmetic is torch's own (the fused kernels of SGD, Adam and AdamW), applied to rows of a
stack. A member that a batch does not train keeps its parameters, its moments and its step count,
gets no weight decay, and costs nothing. A schedule is a factor on the learning rate at a time in
epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from dissensus.ensemble.stack import with_prefix, without_prefix
from dissensus.tools.guards import formula
from dissensus.tools.specs import (
    check_name,
    check_number,
    check_numbers,
    join_spec,
    number,
    read_settings,
    split_spec,
)

#: Optimisers by name, with the learning rate each starts from where none is given.
OPTIMIZERS: dict[str, float] = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}

PerMember = float | tuple[float, ...]


@dataclass(frozen=True)
class Optimizer:
    """The settings of an optimiser. ``lr`` and ``weight_decay`` may have a value for each member.

    ``weight_decay`` is added to the gradient for ``sgd`` and ``adam``, and decoupled for ``adamw``,
    as in torch. ``momentum`` and ``nesterov`` belong to ``sgd``, the betas and ``eps`` to the
    others.

    >>> Optimizer.parse("sgd:lr=0.1,momentum=0.9,weight_decay=5e-4").momentum
    0.9
    >>> Optimizer.parse("adam:lr=1e-3/1e-2").lr                       # two members, unlike
    (0.001, 0.01)
    """

    name: str = "adam"
    lr: PerMember | None = None
    weight_decay: PerMember = 0.0
    momentum: float = 0.9
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = number(1e-8, above=0.0)

    @formula
    def __post_init__(self) -> None:
        check_name(self.name, OPTIMIZERS, "optimizer")
        if self.lr is None:
            object.__setattr__(self, "lr", OPTIMIZERS[self.name])
        for key in ("lr", "weight_decay"):
            value = getattr(self, key)
            several = isinstance(value, tuple | list)
            values = tuple(float(v) for v in (value if several else (value,)))
            if not values or not all(math.isfinite(v) and v >= 0 for v in values):
                raise ValueError(f"{self.name}: {key} must be finite and at least 0, got {value}")
            object.__setattr__(self, key, values if several else values[0])
        for key in ("momentum", "beta1", "beta2"):
            check_number(f"{self.name}: {key}", getattr(self, key), low=0, below=1)
        if self.nesterov and (self.name != "sgd" or not self.momentum):
            raise ValueError(f"{self.name}: nesterov needs sgd with a momentum greater than 0")
        check_numbers(self)

    @classmethod
    def parse(cls, text: str) -> Optimizer:
        """Build one from ``name:key=value,…``; slashes separate the values of members."""
        if "." in text.partition(":")[0]:
            raise ValueError(
                f"{text} is code, which only Python can pass; named are {', '.join(OPTIMIZERS)}"
            )
        name, settings = split_spec(text)
        check_name(name, OPTIMIZERS, "optimizer")
        return cls(name, **read_settings(name, settings, cls, _keys(name)))

    def spec(self) -> str:
        """The string that :meth:`parse` turns back into this optimiser."""
        return join_spec(self.name, {key: getattr(self, key) for key in _keys(self.name)})

    def of_members(self, chosen: Sequence[int], members: int) -> Optimizer:
        """The same with the learning rates and weight decays of some of the members."""
        lr, decay = (tuple(each[j] for j in chosen) for each in self.for_members(members))
        return replace(self, lr=lr, weight_decay=decay)

    def for_members(self, members: int) -> tuple[list[float], list[float]]:
        """Learning rate and weight decay of each member."""
        assert self.lr is not None
        lists = []
        for key, value in (("lr", self.lr), ("weight_decay", self.weight_decay)):
            values = list(value) if isinstance(value, tuple) else [value] * members
            if len(values) != members:
                raise ValueError(f"{key} has {len(values)} values for {members} members")
            lists.append(values)
        return lists[0], lists[1]


def _keys(name: str) -> tuple[str, ...]:
    """The settings that an optimiser of this name has."""
    own = ("momentum", "nesterov") if name == "sgd" else ("beta1", "beta2", "eps")
    return ("lr", "weight_decay", *own)


class MemberOptimizer:
    """The state of an :class:`Optimizer` for stacked parameters ``[members, …]``.

    ``step`` takes gradients of the rows that were trained. While every member has taken the same
    steps with the same settings, a whole stack is stepped at once; else row by row.
    """

    def __init__(self, settings: Optimizer, parameters: Sequence[Tensor], members: int) -> None:
        self.settings, self.members = settings, members
        self.lr, self.weight_decay = settings.for_members(members)
        self.parameters = [parameter.detach() for parameter in parameters]
        slots = 1 if settings.name == "sgd" else 2
        self.moments = [[torch.zeros_like(p) for p in self.parameters] for _ in range(slots)]
        self.counts = [0] * members
        self.uniform = len(set(self.lr)) == len(set(self.weight_decay)) == 1
        # The step count as the kernels want it, one tensor for each stacked parameter.
        self._steps = [torch.zeros((), device=p.device) for p in self.parameters]

    def step(
        self, gradients: Sequence[Tensor], rows: Sequence[int] | None = None, scale: float = 1.0
    ) -> None:
        """One step; ``rows`` are the members of ``gradients`` ``[rows, …]``, None for all.

        ``scale`` multiplies every learning rate: where a schedule stands.
        """
        if rows is None and self.uniform and len(set(self.counts)) == 1:
            for count in self._steps if self._steps[0] != self.counts[0] else ():
                count.fill_(self.counts[0])
            self._apply(self.parameters, gradients, self.moments, self._steps, 0, scale)
            self.counts = [count + 1 for count in self.counts]
            return
        chosen = list(range(self.members)) if rows is None else list(rows)
        groups: dict[tuple[float, float], list[tuple[int, int]]] = {}  # equal rate and decay
        for position, member in enumerate(chosen):
            key = (self.lr[member], self.weight_decay[member])
            groups.setdefault(key, []).append((position, member))
        for group in groups.values():
            members = [member for _, member in group]
            parameters = [p[m] for m in members for p in self.parameters]
            grads = [g[position] for position, _ in group for g in gradients]
            moments = [[s[m] for m in members for s in slot] for slot in self.moments]
            steps = [
                torch.tensor(float(self.counts[m]), device=p.device)
                for m in members
                for p in self.parameters
            ]
            self._apply(parameters, grads, moments, steps, members[0], scale)
        for member in chosen:
            self.counts[member] += 1

    def advance(self, every: str, metric: float = math.nan) -> None:
        """Do nothing after an epoch or a batch: schedules come as ``scale``."""

    def _apply(
        self,
        parameters: list[Tensor],
        gradients: Sequence[Tensor],
        moments: list[list[Tensor]],
        steps: list[Tensor],
        member: int,
        scale: float,
    ) -> None:
        settings, grads = self.settings, [g.contiguous() for g in gradients]
        lr, decay = self.lr[member] * scale, self.weight_decay[member]
        common: dict[str, Any] = {"lr": lr, "weight_decay": decay, "fused": True, "maximize": False}
        if settings.name == "sgd":
            buffers: list[Tensor | None] = list(moments[0]) if settings.momentum else []
            sgd(
                parameters,
                grads,
                buffers or [None] * len(parameters),
                momentum=settings.momentum,
                dampening=0.0,
                nesterov=settings.nesterov,
                **common,
            )
            return
        function = adamw if settings.name == "adamw" else adam
        function(
            parameters,
            grads,
            moments[0],
            moments[1],
            [],
            steps,
            amsgrad=False,
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=settings.eps,
            **common,
        )

    def select(self, rows: Tensor, parameters: Sequence[Tensor]) -> MemberOptimizer:
        """An optimiser of some rows, held in ``parameters``, that continues from their state."""
        chosen = rows.tolist()
        lr, decay, counts = (
            [values[row] for row in chosen] for values in (self.lr, self.weight_decay, self.counts)
        )
        settings = replace(self.settings, lr=tuple(lr), weight_decay=tuple(decay))
        selected = MemberOptimizer(settings, parameters, len(chosen))
        selected.moments = [[moment[rows] for moment in slot] for slot in self.moments]
        selected.counts = counts
        return selected

    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint needs."""
        tensors = {
            f"moment{slot}.{index}": tensor
            for slot, moments in enumerate(self.moments)
            for index, tensor in enumerate(moments)
        }
        return {**tensors, "counts": torch.tensor(self.counts)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from what :meth:`state` returned."""
        for slot, moments in enumerate(self.moments):
            for index, tensor in enumerate(moments):
                tensor.copy_(state[f"moment{slot}.{index}"])
        self.counts = [int(count) for count in state["counts"].tolist()]


class OptimizerParts:
    """Optimisers of some parts of an ensemble by name: of kinds of parameters, or of members."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts

    def advance(self, every: str, metric: float = math.nan) -> None:
        for part in self.parts.values():
            part.advance(every, metric)

    def state(self) -> dict[str, Tensor]:
        states = (with_prefix(f"{name}.", part.state()) for name, part in self.parts.items())
        return {name: tensor for state in states for name, tensor in state.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, part in self.parts.items():
            part.load(without_prefix(f"{name}.", state))


def clip_by_member(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Scale each member's gradient to a norm of at most ``limit``; members do not share a norm.

    So a member that trains with others takes the steps it would take alone. As torch's
    ``clip_grad_norm_``, with its 1e-6 beside the norm. The gradient of weights that members share
    has a row for several of them: it is part of each one's norm and takes the mean of their scales.
    """
    rows = max(map(len, gradients))
    squares = [g.reshape(len(g), -1).square().sum(1) for g in gradients]
    norms = torch.stack([s.repeat_interleave(rows // len(s)) for s in squares]).sum(0).sqrt()
    factor = (limit / (norms + 1e-6)).clamp_max(1.0)
    return [
        g * factor.reshape(len(g), -1).mean(1).reshape(-1, *[1] * (g.ndim - 1)) for g in gradients
    ]


# ---- learning-rate schedules ---------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """A shape after a linear warm-up of ``warmup`` epochs. Call it with (time, epochs).

    ``constant``; ``multistep``: times ``factor`` at each epoch of ``at``; ``cosine``: from 1 down
    to ``factor`` along half a cosine.

    >>> steps = parse_schedule("multistep:at=30/50/70,factor=0.2")
    >>> [round(steps(t, 80), 4) for t in (0, 30, 69.5, 70)]
    [1.0, 0.2, 0.04, 0.008]
    """

    name: str = "constant"
    at: tuple[float, ...] = ()
    factor: float | None = number(None, low=0.0)
    warmup: float = number(0.0, low=0.0)

    @formula
    def __post_init__(self) -> None:
        check_name(self.name, SCHEDULES, "schedule")
        if self.factor is None:
            object.__setattr__(self, "factor", 0.1 if self.name == "multistep" else 0.0)
        object.__setattr__(self, "at", tuple(float(moment) for moment in self.at))
        if (self.name == "multistep") != bool(self.at):
            raise ValueError(
                "at= belongs to a multistep schedule, which needs it: multistep:at=30/50/70"
            )
        check_numbers(self)

    def __call__(self, time: float, epochs: int) -> float:
        """The factor on the learning rate at ``time``, in epochs since the start."""
        if time < self.warmup:
            # Not quite 0 at the start, so that the first step is not lost.
            return max(time, 1e-3 * self.warmup) / self.warmup
        return SCHEDULES[self.name](self, time, epochs)

    def spec(self) -> str:
        """The string that :func:`parse_schedule` turns back into this schedule."""
        settings: dict[str, object] = {"at": self.at} if self.at else {}
        if self.name != "constant":
            settings["factor"] = self.factor
        if self.warmup:
            settings["warmup"] = self.warmup
        return join_spec(self.name, settings)


def _multistep(schedule: Any, time: float, epochs: int) -> float:
    return float(schedule.factor ** sum(time >= moment for moment in schedule.at))


def _cosine(schedule: Any, time: float, epochs: int) -> float:
    share = min(1.0, (time - schedule.warmup) / max(epochs - schedule.warmup, 1e-12))
    return float(schedule.factor + (1 - schedule.factor) * 0.5 * (1 + math.cos(math.pi * share)))


#: Schedules by name.
SCHEDULES: dict[str, Callable[[Schedule, float, int], float]] = {
    "constant": lambda schedule, time, epochs: 1.0,
    "multistep": _multistep,
    "cosine": _cosine,
}


def parse_schedule(text: str) -> Schedule:
    """Build a schedule from ``name:key=value,…`` with keys ``at``, ``factor`` and ``warmup``."""
    name, settings = split_spec(text)
    check_name(name, SCHEDULES, "schedule")
    return Schedule(name, **read_settings(name, settings, Schedule, ("at", "factor", "warmup")))
