"""Recipes: the settings of :func:`dissensus.fit`, checked in one place."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dissensus.tools.specs import check_choice, check_name, check_numbers, number
from dissensus.training.optim import Optimizer, Schedule, parse_schedule
from dissensus.training.torch_optim import OptimizerFactory, TorchSchedule, describe

#: What the best epoch is chosen by on validation data, and whether higher is better.
SELECTIONS: dict[str, bool] = {
    "ensemble_error": False,
    "member_error": False,
    "accuracy": True,
    "last": True,
}


#: Settings that other libraries give to ``fit``, and where they belong here.
_ELSEWHERE = {
    "lr": "it belongs to the optimizer: optimizer='adam:lr={}'",
    "learning_rate": "it belongs to the optimizer: optimizer='adam:lr={}'",
    "weight_decay": "it belongs to the optimizer: optimizer='adamw:weight_decay={}'",
    "momentum": "it belongs to the optimizer: optimizer='sgd:momentum={}'",
    "device": "training happens where the ensemble is: ens.to({!r})",
    "loss": "the objective says what to minimise: fit(ens, train, 'independent:loss={}')",
    "scheduler": "pass it as schedule=",
    "verbose": "progress=False is quiet",
}


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run.

    ``optimizer`` and ``schedule`` are objects or strings (``"adam:lr=1e-3"``,
    ``"multistep:at=30/50,factor=0.2"``), or those of torch: ``torch.optim.RMSprop``,
    ``lambda p: torch.optim.AdamW(p, lr=1e-3)``; ``lambda o: CosineAnnealingLR(o, 20)``, stepped
    after each epoch, or as :class:`TorchSchedule` says. Each member has one of its own.

    With validation data the best epoch by ``select_by`` is kept, and training stops once it has not
    improved for ``patience`` epochs. A member whose own validation error has not improved for
    ``freeze_patience`` epochs is frozen while the others go on (adp, Algorithm 1). ``clip`` limits
    the norm of each member's gradient. ``exact_train`` adds an evaluation of the training data
    after each epoch. ``amp`` (True or ``"bf16"``) trains in bfloat16. All members see the same
    batches; ``shuffle="members"`` gives each one its own order, and ``bootstrap`` its own rows, as
    many as there are, drawn once with replacement. Both need an objective that is a mean over
    members (``independent``). A run folder gets a checkpoint after each epoch and, within one,
    after every ``checkpoint_every`` batches, minutes or seconds (``100``, ``"5min"``, ``"30s"``);
    by default every ten minutes.

    Learning rate, weight decay and ``clip`` mean what they mean for one network, whatever the
    number of members and the objective: a member of an ``independent`` ensemble takes the steps
    that it would take alone.
    """

    epochs: int = number(20, low=1)
    batch_size: int = number(128, low=1)
    optimizer: Optimizer | OptimizerFactory | str = "adam"
    schedule: Schedule | TorchSchedule | Callable[..., Any] | str = "constant"
    patience: int | None = number(None, low=1)
    select_by: str = "ensemble_error"
    freeze_patience: int | None = number(None, low=1)
    clip: float | None = number(None, above=0.0)
    seed: int = number(0, low=0)
    exact_train: bool = False
    shuffle: str = "shared"
    bootstrap: bool = False
    amp: bool | str = False
    compile: bool = False
    checkpoint_every: int | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", Optimizer.parse(self.optimizer))
        if isinstance(self.schedule, str):
            object.__setattr__(self, "schedule", parse_schedule(self.schedule))
        elif not isinstance(self.schedule, Schedule | TorchSchedule):
            object.__setattr__(self, "schedule", TorchSchedule(self.schedule))
        if not isinstance(self.optimizer, Optimizer) and not callable(self.optimizer):
            raise ValueError(
                f"optimizer must be a name, a class or a function, got {type(self.optimizer)}"
            )
        if self.amp in ("bf16", "bfloat16"):
            object.__setattr__(self, "amp", True)
        if not isinstance(self.amp, bool):
            raise ValueError(
                f"amp must be True or 'bf16', which train in bfloat16, got {self.amp!r}"
            )
        check_numbers(self)
        check_choice("Recipe", "select_by", self.select_by, list(SELECTIONS))
        check_choice("Recipe", "shuffle", self.shuffle, ["shared", "members"])
        if self.patience is not None and self.select_by == "last":
            raise ValueError("patience waits for a better epoch; select_by='last' knows none")
        CheckpointInterval(self.checkpoint_every)  # raises where it is no interval

    @property
    def own_batches(self) -> bool:
        """Whether each member is trained on batches of its own."""
        return self.bootstrap or self.shuffle == "members"

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Recipe:
        """A recipe from keyword arguments; an unknown one names the nearest known one.

        >>> Recipe.of({"epoch": 3})
        Traceback (most recent call last):
        ...
        ValueError: there is no training setting 'epoch'; did you mean 'epochs'?
        """
        for name, value in settings.items():
            if name in _ELSEWHERE:
                raise ValueError(f"fit has no {name}=; {_ELSEWHERE[name].format(value)}")
            check_name(name, [item.name for item in fields(cls)], "training setting")
        return cls(**settings)

    def check_validation(self, val: Any, combine: str) -> None:
        """Raise where epochs cannot be chosen as the recipe says."""
        if val is None and (self.patience or self.freeze_patience):
            raise ValueError("patience and freeze_patience need validation data, val=")
        if self.select_by == "accuracy" and combine == "mean":
            raise ValueError("select_by='accuracy' is not known in regression (combine='mean')")

    @property
    def named(self) -> bool:
        """Whether optimiser and schedule are named ones, not classes or functions of torch."""
        return isinstance(self.optimizer, Optimizer) and isinstance(self.schedule, Schedule)

    def of_members(self, chosen: Sequence[int], members: int) -> Recipe:
        """The recipe with the learning rates and weight decays of some of the members."""
        if not isinstance(self.optimizer, Optimizer):
            return self
        return replace(self, optimizer=self.optimizer.of_members(chosen, members))

    def scale(self, time: float) -> float:
        """The factor on the learning rate at ``time``, in epochs; schedulers of torch set it."""
        return self.schedule(time, self.epochs) if isinstance(self.schedule, Schedule) else 1.0

    def plain(self) -> dict[str, Any]:
        """The settings as values that fit into TOML and JSON; those that are None are left out."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["optimizer"] = (
            self.optimizer.spec()
            if isinstance(self.optimizer, Optimizer)
            else describe(self.optimizer)
        )
        values["schedule"] = self.schedule.spec()  # type: ignore[union-attr]
        return {name: value for name, value in values.items() if value is not None}


_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_DEFAULT = "10min"


class CheckpointInterval:
    """When to save within an epoch.

    ``every`` so many batches (a whole number), or so much time (``"90s"``, ``"5min"``).

    >>> interval = CheckpointInterval(100)
    >>> [batch for batch in range(1, 301) if interval.due(batch)]
    [100, 200, 300]
    >>> CheckpointInterval("5 parsecs")
    Traceback (most recent call last):
    ...
    ValueError: checkpoint_every must be batches (100) or a time ("30s", "5min", "1h"), got ...
    """

    def __init__(self, every: int | str | None) -> None:
        self.batches, self.seconds = 0, 0.0
        text = str(_DEFAULT if every is None else every).strip()
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)|([1-9]\d*)", text)
        if match is None or isinstance(every, bool) or (match[1] and float(match[1]) == 0):
            raise ValueError(
                'checkpoint_every must be batches (100) or a time ("30s", "5min", "1h"), got '
                f"{every!r}"
            )
        if match[3]:
            self.batches = int(match[3])
        else:
            self.seconds = float(match[1]) * _UNITS[match[2]]
        self.last = time.monotonic()

    def due(self, batch: int) -> bool:
        """Whether to save after the batch of this number in its epoch."""
        if self.batches:
            return batch % self.batches == 0
        if time.monotonic() - self.last < self.seconds:
            return False
        self.last = time.monotonic()
        return True
