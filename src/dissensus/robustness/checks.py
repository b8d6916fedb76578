"""Checks of attacks: signs of masked gradients, and of attacks that are too weak.

A model whose gradients are useless (saturated, quantised, NaN) looks robust to attacks that follow
them (Athalye, Carlini and Wagner 2018; Carlini et al. 2019, Section 5). Each check compares what
must be ordered if gradients can be trusted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.robustness.gradient import FGSM, PGD, GradientAttack
from dissensus.robustness.outcome import Outcome, run
from dissensus.robustness.square import Noise, Square

#: How many examples are attacked by the checks that need runs of their own.
PROBE_EXAMPLES = 128

#: The shares that are still tolerated: of examples, of zero gradients, of examples that resist.
TOLERATED_SHARE, MAX_ZERO_SHARE, MAX_RESISTING = 0.01, 0.1, 0.05


class Flag(NamedTuple):
    """One sign, by a short name and in a sentence with its numbers."""

    name: str
    text: str


@dataclass(frozen=True)
class AttackRow:
    """One line of an evaluation: an attack and what it did; ``source`` names a surrogate."""

    outcome: Outcome
    source: str | None = None

    @property
    def label(self) -> str:
        """The name of the line: the attack, and the surrogate it was made on."""
        spec = self.outcome.attack.spec()
        return spec if self.source is None else f"{spec} on {self.source}, transferred"

    @property
    def kind(self) -> str:
        """``iterative`` or ``one step`` along this ensemble's gradients, or ``gradient-free``."""
        attack = self.outcome.attack
        if self.source is not None or isinstance(attack, Square | Noise):
            return "gradient-free"
        if not isinstance(attack, GradientAttack) or attack.targeted:
            return ""
        return "one step" if isinstance(attack, FGSM) else "iterative"


def _exceeds(count: int, examples: int, share: float = TOLERATED_SHARE) -> bool:
    """More than one example, and more than the share that chance may explain."""
    return count > max(1, share * examples)


def order_flags(rows: Sequence[AttackRow]) -> list[Flag]:
    """Flags from the outcomes alone: compared with each other, and each by itself."""
    return [*_strength_flags(rows), *_gradient_flags(rows), *_convergence_flags(rows)]


def _strength_flags(rows: Sequence[AttackRow]) -> Iterator[Flag]:
    """Iterative attacks that lose to a single step, or to attacks without gradients."""
    for budget in dict.fromkeys(row.outcome.attack.budget() for row in rows):
        same = [row for row in rows if row.outcome.attack.budget() == budget]
        iterative = [row.outcome.broken for row in same if row.kind == "iterative"]
        if budget is None or not iterative:
            continue
        by_gradient = torch.stack(iterative).any(0)
        for row in same:
            missed = int((row.outcome.broken & ~by_gradient).sum())
            if row.kind in ("one step", "gradient-free") and _exceeds(missed, len(by_gradient)):
                yield Flag(
                    row.kind,
                    f"{row.label} ({row.kind}) breaks {missed} of {len(by_gradient)} examples that "
                    "no iterative gradient attack breaks: gradients are masked, or it has too few "
                    "steps.",
                )


def _gradient_flags(rows: Sequence[AttackRow]) -> Iterator[Flag]:
    for row in rows:
        bad, zero = int(row.outcome.nan_gradients.sum()), row.outcome.zero_share
        if bad:
            yield Flag(
                "NaN gradients",
                f"{row.label} met {bad} gradients that are not finite, so its accuracy means "
                "nothing: look for an overflow in the model.",
            )
        if zero > MAX_ZERO_SHARE:
            yield Flag(
                "zero gradients",
                f"{zero:.0%} of the gradients of {row.label} are exactly 0: the loss is saturated "
                "or the model is flat. Trust the margin loss, float64 and Square instead.",
            )


def _convergence_flags(rows: Sequence[AttackRow]) -> Iterator[Flag]:
    """Attacks that would go on breaking examples with more steps or restarts."""
    for row in rows:
        attack, outcome = row.outcome.attack, row.outcome
        if row.source is not None or not isinstance(attack, GradientAttack):
            continue
        plan = attack.plan()
        late = int(((outcome.restart == 0) & (outcome.step > 0.9 * plan.steps)).sum())
        last = int((outcome.restart == plan.restarts - 1).sum())
        if (
            plan.early
            and plan.steps >= 10
            and _exceeds(late, len(outcome), share=2 * TOLERATED_SHARE)
        ):
            yield Flag(
                "more steps",
                f"{row.label} broke {late} of {len(outcome)} examples in the last tenth of its "
                "steps: use more of them.",
            )
        if plan.restarts > 1 and _exceeds(last, len(outcome)):
            yield Flag(
                "more restarts",
                f"{row.label} broke {last} of {len(outcome)} examples in the last of its "
                f"{plan.restarts} restarts: use more of them.",
            )


def strongest_attack(rows: Sequence[AttackRow]) -> GradientAttack:
    """The iterative gradient attack that left the least accuracy; plain PGD if there is none."""
    iterative = [row.outcome for row in rows if row.kind == "iterative"]
    if not iterative:
        budget = rows[0].outcome.attack.budget()
        return PGD() if budget is None else PGD(norm=budget[0], eps=budget[1])
    attack = min(iterative, key=lambda outcome: outcome.accuracy).attack
    assert isinstance(attack, GradientAttack)
    return attack


def probe_flags(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    probe: GradientAttack,
    rows: Sequence[AttackRow],
    batch_size: int,
    seed: int,
) -> Iterator[Flag]:
    """Two runs of ``probe`` on some examples: at a large ε, and in float64 if a row has it."""
    x, y = x[:PROBE_EXAMPLES], y[:PROBE_EXAMPLES]
    # With this ε any image can be turned into plain grey, so that nothing can resist.
    eps = 0.5 if probe.norm == "linf" else 0.5 * float(x[0].numel()) ** 0.5
    large = replace(probe, eps=eps)
    outcome = run(ens, x, y, large, batch_size, seed)
    resisting = int((~outcome.broken).sum())
    if _exceeds(resisting, len(outcome), MAX_RESISTING):
        yield Flag(
            "large ε",
            f"{resisting} of {len(outcome)} examples resist {large.spec()}, whose ε can make every "
            "input plain grey: gradients are masked, or it has too few steps.",
        )
    broken = [row.outcome.broken for row in rows if row.outcome.attack is probe]
    if not broken or next(ens.parameters()).dtype == torch.float64:
        return
    exact = copy.deepcopy(ens).double()
    try:
        outcome = run(exact, x.double(), y, probe, batch_size, seed)
    except RuntimeError as error:  # a layer that makes float32 of its own
        words = " ".join(str(error).split())
        yield Flag("float64", f"Rounding was not checked, the model fails in float64 ({words}).")
        return
    more = int(outcome.broken.sum()) - int(broken[0][:PROBE_EXAMPLES].sum())
    if _exceeds(more, len(outcome), 2 * TOLERATED_SHARE):
        yield Flag(
            "float64",
            f"In float64 {probe.spec()} breaks {more} more of {len(outcome)} examples than in "
            "float32: rounding hides gradients. Evaluate ens.double().",
        )
