"""Adversarial training for any objective: batches of which half are attacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.robustness.attacks import parse
from dissensus.robustness.base import Attack, Case, Journal, Victim, all_steps, frozen
from dissensus.robustness.gradient import GradientAttack
from dissensus.robustness.losses import Goal
from dissensus.robustness.outcome import check_inputs
from dissensus.tools.specs import join_spec, split_spec

#: The default limits of ε: adp, Section 4.3.
PAPER_EPS = (0.01, 0.05)


class AdversarialBatches:
    """Adds to each training batch as many adversarial examples, made on the ensemble as it is.

    For ``fit(ens, train, objective, augment=AdversarialBatches(ens, "fgsm"))``, with any objective
    and any execution. ``attack`` is an untargeted gradient attack. Its ε is drawn anew for each
    batch, by default from ``U(0.01, 0.05)`` as in the adp paper (Section 4.3, Table 4), with clean
    and adversarial examples 1:1. ``"fgsm:eps=0.02/0.1"`` or ``eps=(0.02, 0.1)`` draws from other
    limits; ``"fgsm:eps=0.1"`` and attack objects have one ε. ``augment(x, generator)`` changes
    inputs before they are attacked. Examples are made in evaluation mode.

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
        eps: tuple[float, float] | None = None,
        augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    ) -> None:
        self.attack, limits = adversary(attack)
        self.eps = limits if eps is None else eps
        if not 0 < self.eps[0] <= self.eps[1]:
            raise ValueError(f"eps must be two numbers, 0 < low ≤ high, got {self.eps!r}")
        self.ens, self.augment = ens, augment
        self.victim = Victim(ens)

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``x`` and its adversarial twin, ``y`` twice."""
        if y.is_floating_point():
            raise ValueError(f"adversarial training needs integer class labels, got {y.dtype}")
        if self.augment is not None:
            x = self.augment(x, generator)
        check_inputs(x)
        seed = int(torch.randint(1 << 62, (), generator=generator))
        least, most = self.eps
        eps = least + (most - least) * float(torch.rand((), generator=generator))
        attack = replace(self.attack, eps=eps)
        rows = torch.arange(len(x), device=x.device)
        case = Case(x.detach(), Goal(y.long()), rows, seed)
        with frozen(self.ens):
            changed = attack.perturb(self.victim, case, Journal(len(x), x.device)).detach()
        return torch.cat([x, changed]), torch.cat([y, y])


def adversary(attack: str | Attack) -> tuple[GradientAttack, tuple[float, float]]:
    """The attack to train against, making all its steps, and the limits of its ε.

    >>> adversary("fgsm:eps=0.02/0.1")[1], adversary("fgsm:eps=0.1")[1], adversary("fgsm")[1]
    ((0.02, 0.1), (0.1, 0.1), (0.01, 0.05))
    """
    limits = None
    if isinstance(attack, str):
        attack, limits = _split_eps(attack)
    chosen = parse(attack)
    if not isinstance(chosen, GradientAttack) or chosen.targeted:
        raise ValueError(f"train against an untargeted gradient attack, got {chosen.spec()}")
    # All steps for all examples: the model is to be right beyond its boundary too.
    chosen = all_steps(chosen)
    return chosen, limits or (chosen.eps, chosen.eps)


def _split_eps(text: str) -> tuple[str, tuple[float, float] | None]:
    """A spec without ``eps=low/high``, and these limits; None for one ε, which stays in it."""
    name, settings = split_spec(text)
    eps = settings.pop("eps", None)
    if eps is None:
        return text, PAPER_EPS
    if "/" not in eps:
        return text, None
    try:
        low, high = (float(value) for value in eps.split("/"))
    except ValueError:
        raise ValueError(f"{name}: eps must be a number or low/high, got {eps!r}") from None
    return join_spec(name, settings), (low, high)
