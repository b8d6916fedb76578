"""Transfer of adversarial examples from one network to another: members, and whole ensembles.

A transfer matrix is evidence of diversity, never of robustness: an attacker of the ensemble sees
all of its members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.robustness.attacks import parse
from dissensus.robustness.base import Attack, Victim, all_steps
from dissensus.robustness.losses import Goal
from dissensus.robustness.outcome import Outcome, draw_targets, member_logits, run
from dissensus.tools.progress import ProgressBar


def transfer(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    attack: str | Attack = "pgd:eps=0.05",
    targeted: bool = False,
    *,
    to: Ensemble | None = None,
    batch_size: int = 256,
    seed: int = 0,
    progress: bool = True,
) -> Tensor:
    """``[members, members]``: entry (i, j) is how member j does on inputs made to fool member i.

    Untargeted it is member j's accuracy, so that *high* means little transfer; targeted it is how
    often member j predicts the target, so that *low* does (adp, Section 4.4 and Figure 3). The
    diagonal is the attack on the member itself. Each member is attacked once. ``to`` receives the
    examples in place of ``ens``: ``[members, members of to]``.

    All steps of an attack are made, even where a member is fooled early: points just across one
    member's boundary would not tell how far an attack carries.
    """
    receiver = ens if to is None else to
    chosen = all_steps(parse(attack))
    if targeted:
        if not hasattr(chosen, "targeted"):
            raise ValueError(f"{chosen.spec()} cannot be targeted; use pgd or mim")
        chosen = replace(chosen, targeted=True)  # type: ignore[call-arg]
    wanted, targets = y.cpu(), None
    if chosen.wants_targets:
        classes = member_logits(receiver, x[:1], batch_size).shape[-1]
        wanted = targets = draw_targets(y.long(), classes, seed).cpu()
    rows = []
    with ProgressBar("attacks", ens.members, show=progress, delay=2.0) as bar:
        for member in range(ens.members):
            tick = bar.begin(f"{chosen.spec()} on member {member}")
            outcome = run(
                ens, x, y, chosen, batch_size, seed, tick, members=[member], targets=targets
            )
            predicted = member_logits(receiver, outcome.adversarial, batch_size).argmax(-1).cpu()
            rows.append((predicted == wanted).double().mean(-1))
    return torch.stack(rows)


def attack_by_transfer(
    ens: Ensemble,
    surrogate: Ensemble,
    x: Tensor,
    y: Tensor,
    attack: Attack,
    batch_size: int,
    seed: int,
    tick: Callable[[float], None],
) -> Outcome:
    """``attack`` made on ``surrogate`` with all its steps, and what ``ens`` predicts for it."""
    outcome = run(surrogate, x, y, all_steps(attack), batch_size, seed, tick)
    before, after = (
        Victim(ens).combined(member_logits(ens, inputs, batch_size)).cpu()
        for inputs in (x, outcome.adversarial)
    )
    return replace(
        outcome,
        clean_predictions=before.argmax(-1),
        predictions=after.argmax(-1),
        success=Goal(outcome.labels, outcome.targets).reached(after),
    )
