"""Optimisers and schedulers of torch, or of other libraries: one of each for every member.

``optimizer=torch.optim.RMSprop``, ``functools.partial(torch.optim.AdamW, lr=1e-3)`` or a function
from parameters to an optimiser; ``schedule=`` a function from an optimiser to a scheduler. A
member's optimiser is given views of its rows of the stack, so that members which a batch does not
train are left as they are.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from dissensus.tools.import_paths import path_of
from dissensus.tools.specs import check_choice, join_spec
from dissensus.training.optim import MemberOptimizer, Optimizer, Schedule

#: From the parameters of one member to its optimiser.
OptimizerFactory = Callable[[list[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class TorchSchedule:
    """A scheduler of torch: ``make(optimizer)`` for each member, stepped ``every`` epoch or batch.

    ``fit`` takes ``make`` itself for one that is stepped after each epoch. ``ReduceLROnPlateau``
    gets the validation metric of ``select_by``, or the training error where there is none.

    >>> from torch.optim.lr_scheduler import OneCycleLR
    >>> schedule = TorchSchedule(lambda o: OneCycleLR(o, 0.1, total_steps=200), every="batch")
    """

    make: Callable[[torch.optim.Optimizer], Any]
    every: str = "epoch"

    def __post_init__(self) -> None:
        check_choice("TorchSchedule", "every", self.every, ["epoch", "batch"])
        if not callable(self.make) or hasattr(self.make, "get_last_lr"):
            raise ValueError(
                f"schedule must be a function that makes a scheduler, got {type(self.make)}"
            )

    def spec(self) -> str:
        """Its name in a config."""
        return describe(self.make) + ("" if self.every == "epoch" else f" every {self.every}")


def describe(make: Any) -> str:
    """The import path of a factory, with the settings of a ``functools.partial``."""
    if isinstance(make, functools.partial):
        return join_spec(describe(make.func), make.keywords)
    return path_of(make)


def make_optimizer(
    optimizer: OptimizerFactory | Optimizer,
    schedule: Schedule | TorchSchedule,
    parameters: list[Tensor],
) -> MemberOptimizer | TorchOptimizer:
    """What steps stacked ``parameters``: the kernels of a named optimiser, or torch's own class."""
    members = len(parameters[0])
    if isinstance(optimizer, Optimizer) and isinstance(schedule, Schedule):
        return MemberOptimizer(optimizer, parameters, members)
    return TorchOptimizer(optimizer, schedule, parameters, members)


def make_torch(
    settings: Optimizer, lr: float, decay: float, parameters: list[Tensor]
) -> torch.optim.Optimizer:
    """The optimiser of torch that a named one stands for, for one member."""
    if settings.name == "sgd":
        momentum, nesterov = settings.momentum, settings.nesterov
        return torch.optim.SGD(parameters, lr, momentum, 0.0, decay, nesterov)
    kind: type[torch.optim.Adam] = (
        torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    )
    betas = settings.beta1, settings.beta2
    return kind(parameters, lr=lr, betas=betas, eps=settings.eps, weight_decay=decay)


class TorchOptimizer:
    """Optimisers of torch for stacked parameters, in the place of a ``MemberOptimizer``."""

    def __init__(
        self,
        make: OptimizerFactory | Optimizer,
        schedule: Schedule | TorchSchedule,
        parameters: Sequence[Tensor],
        members: int,
    ) -> None:
        stacks = [parameter.detach() for parameter in parameters]
        self.views = [[stack[j] for stack in stacks] for j in range(members)]
        self.optimizers = [self._make(make, j) for j in range(members)]
        self.schedule, self.schedulers = schedule, list[Any]()
        if isinstance(schedule, TorchSchedule):
            self.schedulers = [_make_scheduler(schedule, o) for o in self.optimizers]
        self.watches = any("metrics" in signature(s.step).parameters for s in self.schedulers)
        self.steps, self.metrics = 0, list[float]()  # that schedulers took, and what they watched
        self.rates = [[group["lr"] for group in o.param_groups] for o in self.optimizers]

    def _make(self, make: OptimizerFactory | Optimizer, member: int) -> torch.optim.Optimizer:
        own = self.views[member]
        if isinstance(make, Optimizer):
            lr, decay = (values[member] for values in make.for_members(len(self.views)))
            make = functools.partial(make_torch, make, lr, decay)
        optimizer = make(own)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer must make a torch.optim.Optimizer, got {type(optimizer)}")
        closure = signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise ValueError(
                f"{type(optimizer).__name__} needs a closure; use one without, such as AdamW"
            )
        known = {id(parameter) for parameter in own}
        if not all(id(p) in known for group in optimizer.param_groups for p in group["params"]):
            raise ValueError("the optimizer must be made for the parameters that it is given")
        return optimizer

    def step(
        self, gradients: Sequence[Tensor], rows: Sequence[int] | None = None, scale: float = 1.0
    ) -> None:
        """One step; ``rows`` are the members of ``gradients`` ``[rows, …]``, None for all."""
        for place, member in enumerate(range(len(self.views)) if rows is None else rows):
            optimizer = self.optimizers[member]
            if not self.schedulers:
                for group, rate in zip(optimizer.param_groups, self.rates[member], strict=True):
                    group["lr"] = rate * scale
            for parameter, gradient in zip(self.views[member], gradients, strict=True):
                parameter.grad = gradient[place].contiguous()
            optimizer.step()
            for parameter in self.views[member]:
                parameter.grad = None

    def advance(self, every: str, metric: float = math.nan) -> None:
        """Step the schedulers after an epoch or a batch, if that is when they are stepped."""
        if isinstance(self.schedule, TorchSchedule) and self.schedule.every == every:
            self._advance(metric)

    def _advance(self, metric: float) -> None:
        self.steps += 1
        if self.watches:
            self.metrics.append(metric)
        with warnings.catch_warnings():  # a member may not have taken a step yet
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            for scheduler in self.schedulers:
                scheduler.step(*self.metrics[-1:])

    # ---- checkpoints ----------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint needs, with a leading axis of members."""
        tensors: dict[str, list[Tensor | None]] = {}
        count = len(self.optimizers)
        for member, optimizer in enumerate(self.optimizers):
            for index, parameter in enumerate(self.views[member]):
                for key, value in optimizer.state.get(parameter, {}).items():
                    if value is None:
                        continue
                    kind = "number" if isinstance(value, int | float) else "tensor"
                    column = tensors.setdefault(f"{kind}.{index}.{key}", [None] * count)
                    column[member] = _tensor(value, optimizer)
        state: dict[str, Tensor] = {}
        for name, column in tensors.items():
            like = next(tensor for tensor in column if tensor is not None)
            state[name] = torch.stack([torch.zeros_like(like) if t is None else t for t in column])
            state[f"has.{name}"] = torch.tensor([tensor is not None for tensor in column])
        state["steps"] = torch.full((count,), self.steps)
        state["metrics"] = torch.tensor(self.metrics, dtype=torch.float64).repeat(count, 1)
        return state

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from what :meth:`state` returned; schedulers take their steps again."""
        for member, optimizer in enumerate(self.optimizers):
            ordered = [p for group in optimizer.param_groups for p in group["params"]]
            positions = {id(parameter): place for place, parameter in enumerate(ordered)}
            values: dict[int, dict[str, Any]] = {}
            for name, tensor in state.items():
                kind, _, rest = name.partition(".")
                if kind not in ("number", "tensor") or not state[f"has.{name}"][member]:
                    continue
                index, _, key = rest.partition(".")
                value = tensor[member].item() if kind == "number" else tensor[member].clone()
                place = positions[id(self.views[member][int(index)])]
                values.setdefault(place, {})[key] = value
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": values, "param_groups": groups})
        metrics = state["metrics"][0].tolist()
        for number in range(int(state["steps"][0])):
            self._advance(metrics[number] if self.watches else math.nan)


def _make_scheduler(schedule: TorchSchedule, optimizer: torch.optim.Optimizer) -> Any:
    scheduler = schedule.make(optimizer)
    if not callable(getattr(scheduler, "step", None)):
        raise ValueError(f"schedule must make a scheduler of torch, got {type(scheduler)}")
    return scheduler


def _tensor(value: Any, optimizer: torch.optim.Optimizer) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
    raise ValueError(
        f"{type(optimizer).__name__} keeps a {type(value).__name__}, which a checkpoint cannot hold"
    )
