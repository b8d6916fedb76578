"""Training on adversarial examples, for any objective: batches of which half are attacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.robustness.attacks import parse
from dissensus.robustness.base import Attack, Case, Journal, all_steps
from dissensus.robustness.goals import Goal
from dissensus.robustness.gradient import GradientAttack
from dissensus.robustness.victim import Victim, frozen

__all__ = ["AdversarialBatches"]


class AdversarialBatches:
    """Adds to each training batch as many adversarial examples, made on the ensemble as it is.

    For ``fit(ens, train, objective, augment=AdversarialBatches(ens, "fgsm"))``, with any objective
    and any execution. ``attack`` is a gradient attack; ``eps`` is what its ε is drawn from, anew
    for each batch: ``U(0.01, 0.05)`` as in the adp paper (Section 4.3, Table 4), with clean and
    adversarial examples 1:1. None keeps the attack's own ε. ``augment(x, generator)`` changes
    inputs before they are attacked. Examples are made in evaluation mode and untargeted.

    The objective sees both halves as one batch, so that its value is the mean over both.

    >>> from torch import nn
    >>> from dissensus.training.fit import fit
    >>> ens = Ensemble(lambda: nn.Linear(2, 2), members=2)
    >>> x = torch.rand(64, 2, generator=torch.Generator().manual_seed(0))
    >>> batches = AdversarialBatches(ens, "pgd:steps=3")
    >>> history = fit(ens, (x, (x[:, 0] > 0.5).long()), augment=batches, epochs=1, progress=False)
    """

    #: ``fit`` passes the labels too, and takes labels back.
    labelled = True

    def __init__(
        self,
        ens: Ensemble,
        attack: str | Attack = "pgd:steps=10,step=0.1",
        *,
        eps: tuple[float, float] | None = (0.01, 0.05),
        augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    ) -> None:
        chosen = parse(attack)
        if not isinstance(chosen, GradientAttack) or chosen.targeted:
            raise ValueError(
                f"adversarial training needs an untargeted gradient attack, got {chosen.spec()}; "
                "use fgsm or pgd"
            )
        if eps is not None and not 0 < eps[0] <= eps[1]:
            raise ValueError(f"eps must be two numbers, 0 < low ≤ high, got {eps!r}")
        # All steps for all examples: the model is to be right beyond its boundary too.
        self.attack = all_steps(chosen)
        self.ens, self.eps, self.augment = ens, eps, augment
        self.victim = Victim(ens)

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``x`` and its adversarial twin, ``y`` twice."""
        if y.is_floating_point():
            raise ValueError(f"adversarial training needs integer class labels, got {y.dtype}")
        if self.augment is not None:
            x = self.augment(x, generator)
        low, high = float(x.min()), float(x.max())
        if low < 0 or high > 1:
            raise ValueError(
                f"attacks live in [0, 1], got a batch from {low:.4g} to {high:.4g}; normalise "
                "inside the model"
            )
        seed = int(torch.randint(1 << 62, (), generator=generator))
        attack = self.attack
        if self.eps is not None:
            low, high = self.eps
            drawn = low + (high - low) * float(torch.rand((), generator=generator))
            attack = replace(attack, eps=drawn)  # type: ignore[call-arg]
        rows = torch.arange(len(x), device=x.device)
        case = Case(x.detach(), Goal(y.long()), rows, seed)
        with frozen(self.ens):
            changed = attack.perturb(self.victim, case, Journal(len(x), x.device)).detach()
        return torch.cat([x, changed]), torch.cat([y, y])
