"""Learning-rate schedules: a factor for every moment of training, in epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dissensus.specs import check_name, join_spec, read_settings, split_spec

__all__ = ["SCHEDULES", "Schedule", "parse_schedule"]


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
    factor: float | None = None
    warmup: float = 0.0

    def __post_init__(self) -> None:
        check_name(self.name, SCHEDULES, "schedule")
        if self.factor is None:
            object.__setattr__(self, "factor", 0.1 if self.name == "multistep" else 0.0)
        object.__setattr__(self, "at", tuple(float(moment) for moment in self.at))
        if (self.name == "multistep") != bool(self.at):
            raise ValueError(
                "at= belongs to a multistep schedule, which needs it: multistep:at=30/50/70"
            )
        assert self.factor is not None
        if not (math.isfinite(self.factor) and self.factor >= 0):
            raise ValueError(f"factor must be at least 0, got {self.factor}")
        if self.warmup < 0 or not math.isfinite(self.warmup):
            raise ValueError(f"warmup must be at least 0 epochs, got {self.warmup}")

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


def _constant(schedule: Schedule, time: float, epochs: int) -> float:
    return 1.0


def _multistep(schedule: Schedule, time: float, epochs: int) -> float:
    assert schedule.factor is not None
    return float(schedule.factor ** sum(time >= moment for moment in schedule.at))


def _cosine(schedule: Schedule, time: float, epochs: int) -> float:
    assert schedule.factor is not None
    share = min(1.0, (time - schedule.warmup) / max(epochs - schedule.warmup, 1e-12))
    return schedule.factor + (1 - schedule.factor) * 0.5 * (1 + math.cos(math.pi * share))


#: Schedules by name.
SCHEDULES: dict[str, Callable[[Schedule, float, int], float]] = {
    "constant": _constant,
    "multistep": _multistep,
    "cosine": _cosine,
}


def parse_schedule(text: str) -> Schedule:
    """Build a schedule from ``name:key=value,…`` with keys ``at``, ``factor`` and ``warmup``."""
    name, settings = split_spec(text)
    check_name(name, SCHEDULES, "schedule")
    return Schedule(name, **read_settings(name, settings, Schedule, ("at", "factor", "warmup")))
