"""Gradient attacks, which step along the gradient in a ball: FGSM, BIM, PGD, MIM, in L∞ and L2."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.robustness.base import Attack, Case, Journal, Unbroken, Victim, ball, with_restarts
from dissensus.robustness.losses import LOSSES, Goal
from dissensus.tools.specs import check_choice, number

#: Whose loss an attack climbs: the combination's, or the sum of the members' own losses.
OF = ("ensemble", "members")

#: How the step shrinks, as a function of the share of steps that is done.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
}


@dataclass(frozen=True)
class Walk:
    """The walk of an attack: how many steps, how long (in units of ε), from where, how often."""

    steps: int
    step: float
    schedule: str = "constant"
    random: bool = False
    restarts: int = 1
    early: bool = True
    momentum: float | None = None


@dataclass(frozen=True)
class GradientAttack(Attack):
    """The loop that all attacks along a gradient share.

    ``x ← Π(x + a · s(∇ℓ(x)))`` with s the sign (L∞) or the direction (L2) of the gradient and Π
    the projection on the ε-ball around the example and on [0, 1]. An example whose goal is reached
    leaves the batch, unless ``early=false``: then all steps are made and the last point counts, as
    in the papers.
    """

    eps: float = number(0.1, above=0, always=True)
    norm: str = "linf"
    targeted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(type(self).__name__, "schedule", self.plan().schedule, list(SCHEDULES))

    @abstractmethod
    def plan(self) -> Walk:
        """The steps to make."""

    @abstractmethod
    def attack_loss(self, victim: Victim, logits: Tensor, log_probs: Tensor, goal: Goal) -> Tensor:
        """The loss to climb, ``[batch]``, from the members' logits and the combination."""

    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        plan = self.plan()
        return with_restarts(
            case, plan.restarts, lambda part, k: self._walk(victim, part, journal, plan, k)
        )

    def _walk(
        self, victim: Victim, case: Case, journal: Journal, plan: Walk, restart: int
    ) -> tuple[Tensor, Tensor]:
        """One walk: where it ended, and which examples are known to be broken there."""
        batch = Unbroken(case, journal)
        at, momentum = self._start(case, plan, restart), torch.zeros_like(case.x)

        def loss(logits: Tensor, log_probs: Tensor) -> Tensor:
            return self.attack_loss(victim, logits, log_probs, batch.case.goal)

        for step in range(plan.steps):
            log_probs, gradient = loss_and_gradient(victim, at, loss)
            gradient = journal.gradient(batch.case.rows, gradient)
            done = batch.case.goal.reached(log_probs)
            if plan.early and bool(done.any()):
                stay = batch.leave(done, at, step, restart)
                if not len(stay):
                    return batch.points, batch.broken
                at, gradient, momentum = at[stay], gradient[stay], momentum[stay]
            if plan.momentum is not None:
                momentum = plan.momentum * momentum + _unit_l1(gradient)
                gradient = momentum
            at = self._step(batch.case.x, at, gradient, plan, step)
            journal.tick((restart + (step + 1) / plan.steps) / plan.restarts)
        batch.finish(at)
        if plan.early or restart + 1 < plan.restarts:
            with torch.no_grad():
                done = batch.case.goal.reached(victim.log_probs(at))
            journal.query(batch.case.rows)
            batch.leave(done, at, plan.steps, restart)
        return batch.points, batch.broken

    def _start(self, case: Case, plan: Walk, restart: int) -> Tensor:
        if not plan.random:
            return case.x
        noise = ball(case.seed, case.rows, (restart,), case.x, self.norm)
        return (case.x + self.eps * noise).clamp(0, 1)

    def _step(self, x: Tensor, at: Tensor, gradient: Tensor, plan: Walk, step: int) -> Tensor:
        length = self.eps * plan.step * SCHEDULES[plan.schedule](step / plan.steps)
        moved = at + length * unit_step(gradient, self.norm)
        return project(moved, x, self.eps, self.norm)


def loss_and_gradient(
    victim: Victim, x: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The combined log-probabilities at ``x``, and the gradient of the loss with respect to it.

    ``loss`` takes the members' logits and the combined log-probabilities and gives ``[batch]``.
    """
    x = x.detach().requires_grad_()
    logits = victim.logits(x)
    log_probs = victim.combined(logits)
    (gradient,) = torch.autograd.grad(loss(logits, log_probs).sum(), x)
    return log_probs.detach(), gradient


def unit_step(gradient: Tensor, norm: str) -> Tensor:
    """The steepest step of length 1: signs in L∞, the direction in L2; 0 where the gradient is."""
    if norm == "linf":
        return gradient.sign()
    flat = _unit_peak(gradient)
    length: Tensor = flat.norm(dim=1, keepdim=True)
    return (flat / length.clamp_min(1e-12)).reshape(gradient.shape)


def project(at: Tensor, x: Tensor, eps: float, norm: str) -> Tensor:
    """The point of the ε-ball around ``x``, and then of [0, 1], that is nearest to ``at``."""
    moved = at - x
    if norm == "linf":
        return (x + moved.clamp(-eps, eps)).clamp(0, 1)
    length: Tensor = moved.flatten(1).norm(dim=1).clamp_min(1e-12)
    factor = (eps / length).clamp_max(1).reshape(-1, *[1] * (x.ndim - 1))
    return (x + moved * factor).clamp(0, 1)


def _unit_peak(gradient: Tensor) -> Tensor:
    """Rows scaled to a largest entry of 1: squares of tiny gradients would vanish."""
    flat = gradient.flatten(1)
    return flat / flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)


def _unit_l1(gradient: Tensor) -> Tensor:
    flat = _unit_peak(gradient)
    return (flat / flat.abs().sum(1, keepdim=True).clamp_min(1e-12)).reshape(gradient.shape)


@dataclass(frozen=True)
class LossAttack(GradientAttack):
    """What FGSM, BIM, PGD and MIM share; they differ in their :class:`Walk`.

    They climb ``loss`` (of ``losses.LOSSES``) of the ensemble's own prediction, or with
    ``of="members"`` the sum of the members' losses.
    """

    loss: str = "ce"
    of: str = "ensemble"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(type(self).__name__, "loss", self.loss, list(LOSSES))
        check_choice(type(self).__name__, "of", self.of, OF)

    def attack_loss(self, victim: Victim, logits: Tensor, log_probs: Tensor, goal: Goal) -> Tensor:
        loss = LOSSES[self.loss]
        if self.of == "ensemble":
            return loss(log_probs, goal)
        by_member = loss(log_softmax(logits, -1), goal)
        if victim.weights is None:
            return by_member.sum(0)
        return (victim.weights.to(by_member.dtype)[:, None] * by_member).sum(0)


@dataclass(frozen=True)
class FGSM(LossAttack):
    """One step of length ε along the gradient (Goodfellow, Shlens and Szegedy 2015)."""

    def plan(self) -> Walk:
        return Walk(steps=1, step=1.0, early=False)


@dataclass(frozen=True)
class BIM(LossAttack):
    """Steps from the example itself (Kurakin, Goodfellow and Bengio 2017); adp, Section 2.2.

    ``step`` is in units of ε; None is 1 / steps.
    """

    steps: int = number(10, low=1)
    step: float | None = number(None, above=0)
    early: bool = True

    def plan(self) -> Walk:
        return Walk(self.steps, self.step or 1 / self.steps, early=self.early)


@dataclass(frozen=True)
class PGD(LossAttack):
    """Steps from a random point of the ball, with restarts (Madry et al. 2018); adp, Section 2.2.

    ``step`` is in units of ε; None is 2.5 / steps, enough to cross the ball. The adp paper's 10
    steps of ε/10 cannot: from a random start they are weaker than BIM.
    """

    steps: int = number(40, low=1)
    step: float | None = number(None, above=0)
    schedule: str = "constant"
    random: bool = True
    restarts: int = number(1, low=1)
    early: bool = True

    def plan(self) -> Walk:
        length = self.step or 2.5 / self.steps
        return Walk(self.steps, length, self.schedule, self.random, self.restarts, self.early)


@dataclass(frozen=True)
class MIM(LossAttack):
    """BIM with momentum: ``g ← μ g + ∇ℓ / ‖∇ℓ‖₁`` (Dong et al. 2018, Eq. 6); adp, Section 2.2.

    ``step`` is in units of ε; None is 1 / steps. ``decay`` is μ.
    """

    steps: int = number(10, low=1)
    step: float | None = number(None, above=0)
    decay: float = number(1.0, low=0)
    early: bool = True

    def plan(self) -> Walk:
        length = self.step or 1 / self.steps
        return Walk(self.steps, length, early=self.early, momentum=self.decay)
