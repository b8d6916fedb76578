"""Accuracy against ε, against steps, and against restarts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.robustness.attacks import parse
from dissensus.robustness.base import Attack
from dissensus.robustness.gradient import GradientAttack
from dissensus.robustness.masking import Row
from dissensus.robustness.running import run

__all__ = ["Curve", "curve_over_eps", "own_curves"]


@dataclass(frozen=True)
class Curve:
    """Accuracy against ``over`` (eps, steps or restarts) for one attack, whose norm is ``norm``."""

    attack: str
    norm: str
    over: str
    values: tuple[float, ...]
    accuracy: tuple[float, ...]


def curve_over_eps(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    attack: str | Attack,
    values: Sequence[float],
    batch_size: int = 256,
    seed: int = 0,
    ticks: Sequence[Callable[[float], None]] | None = None,
) -> Curve:
    """Accuracy under ``attack`` for several ε; it cannot rise, as what broke at a smaller ε counts.

    An example that broke stays broken: its changed input lies in the larger ball too.
    """
    base = parse(attack)
    budget = base.budget()
    if budget is None:
        raise ValueError(f"{base.spec()} has no ε to vary")
    order = sorted(range(len(values)), key=lambda place: values[place])
    broken = torch.zeros(len(x), dtype=torch.bool)
    accuracy = [0.0] * len(values)
    for place in order:
        changed = replace(base, eps=float(values[place]))  # type: ignore[call-arg]
        tick = None if ticks is None else ticks[place]
        broken |= run(ens, x, y, changed, None, None, batch_size, seed, tick).broken
        accuracy[place] = float((~broken).double().mean())
    return Curve(
        base.spec(), budget[0], "eps", tuple(float(value) for value in values), tuple(accuracy)
    )


def own_curves(row: Row) -> list[Curve]:
    """Accuracy after so many steps of the first walk, and after so many restarts: no new runs."""
    outcome, attack = row.outcome, row.outcome.attack
    if row.source is not None or not isinstance(attack, GradientAttack):
        return []
    plan, found = attack.plan(), []
    wrong = outcome.clean_predictions != outcome.labels

    def left(broken: Tensor) -> float:
        return float((~(wrong | broken)).double().mean())

    first = outcome.restart == 0
    if plan.early and plan.steps > 1 and not attack.targeted:
        values = sorted({2**k for k in range(12) if 2**k < plan.steps} | {0, plan.steps})
        points = tuple(left(first & (outcome.step <= value)) for value in values)
        found.append(Curve(attack.spec(), attack.norm, "steps", tuple(map(float, values)), points))
    if plan.restarts > 1 and not attack.targeted:
        counts = range(1, plan.restarts + 1)
        tried = outcome.restart >= 0
        points = tuple(left(tried & (outcome.restart < count)) for count in counts)
        found.append(
            Curve(attack.spec(), attack.norm, "restarts", tuple(map(float, counts)), points)
        )
    return found
