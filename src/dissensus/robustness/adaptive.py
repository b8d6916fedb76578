"""Adaptive attacks: one weighs the members of an ensemble anew, one hides from a detector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.robustness.base import Case, Journal, Victim
from dissensus.robustness.gradient import GradientAttack, Walk, loss_and_gradient
from dissensus.robustness.losses import Goal, margin, rival
from dissensus.scores import SCORES
from dissensus.tools.specs import check_choice, number

#: Scores that a gradient attack can hide from; those left out only count predicted classes.
SMOOTH = [name for name in SCORES if name not in ("unique", "disagreement", "variance")]


def member_weights(gaps: Tensor, temperature: float) -> Tensor:
    """How much each member counts, ``[members, batch]``, from its ``gaps`` ``log p_y − log p_r``.

    ``w_j ∝ σ(g_j/τ) σ(−g_j/τ)``, the slope of member j's probability between the two classes: a
    member that is lost already, or far from it, moves the mean probability little, one near its
    boundary moves it most. ``τ = max(1, max_j |g_j| / temperature)`` keeps the weights of
    over-confident members from vanishing all at once. Weights sum to 1.

    >>> member_weights(torch.tensor([[0.0], [4.0]]), temperature=4.0).T
    tensor([[0.9340, 0.0660]])
    """
    scale = (gaps.abs().amax(0) / temperature).clamp_min(1)
    scaled = gaps / scale
    slopes = scaled.sigmoid() * (-scaled).sigmoid()
    return slopes / slopes.sum(0)


@dataclass(frozen=True)
class Reweighted(GradientAttack):
    """PGD whose loss weighs the members anew at each step, following their margins.

    With r the ensemble's best wrong class and ``g_j = log p_y^j − log p_r^j`` it climbs
    ``−Σ_j w_j g_j``, the weights :func:`member_weights` taken as constants. The gradient of the
    ensemble's own loss is carried by the members that are surest of the label, and theirs is the
    flattest; an ensemble whose members are confident in different ways looks robust because of it.

    After MORA (Yu, Gao and Xu, NeurIPS 2022), which takes an ADP ensemble of three on CIFAR-10 at
    L∞ 0.01 to about 1%. Differs from the paper: MORA's loss is a mixture with the ensemble's own
    and masks members that are lost; here their slope does that, and the step is PGD's. Steps are
    in units of ε and shrink linearly from 2ε, as MORA's.
    """

    steps: int = number(100, low=1)
    step: float = number(2.0, above=0)
    schedule: str = "linear"
    restarts: int = number(1, low=1)
    temperature: float = number(4.0, above=0)
    early: bool = True

    def plan(self) -> Walk:
        return Walk(self.steps, self.step, self.schedule, True, self.restarts, self.early)

    def attack_loss(self, victim: Victim, logits: Tensor, log_probs: Tensor, goal: Goal) -> Tensor:
        by_member = log_softmax(logits, -1)
        other = rival(log_probs.detach(), goal)
        index = torch.stack([goal.classes, other], -1).expand(*by_member.shape[:-1], 2)
        own, rivals = by_member.gather(-1, index).unbind(-1)
        gaps = own - rivals
        weights = member_weights(gaps.detach(), self.temperature)
        if victim.weights is not None:
            weights = weights * victim.weights.to(weights.dtype)[:, None]
        return -goal.sign * (weights * gaps).sum(0)


@dataclass(frozen=True)
class Disguised(GradientAttack):
    """PGD that is misclassified *and* looks normal to a detector by ``score``.

    While an example is not misclassified by a margin of ``confidence``, a step climbs the margin;
    once it is, a step lowers the score (selective gradient descent: Bryniarski et al. 2022). The
    result is the misclassified point of least score, whether the detector's threshold is known or
    not. ``score`` is a differentiable one of ``dissensus.scores``: ``ensemble_diversity`` is the
    adp paper's detector (Section 4.5), with the predicted label.
    """

    score: str = "ensemble_diversity"
    steps: int = number(100, low=1)
    step: float | None = number(None, above=0)
    schedule: str = "constant"
    random: bool = True
    confidence: float = number(0.0, low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("Disguised", "score", self.score, SMOOTH)

    def plan(self) -> Walk:
        length = self.step or 2.5 / self.steps
        return Walk(self.steps, length, self.schedule, self.random, early=False)

    def attack_loss(self, victim: Victim, logits: Tensor, log_probs: Tensor, goal: Goal) -> Tensor:
        gap = margin(log_probs, goal)
        return torch.where(gap > self.confidence, -SCORES[self.score](logits), gap)

    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        plan, goal = self.plan(), case.goal
        at = self._start(case, plan, 0)
        points, least = at.clone(), torch.full_like(at.flatten(1)[:, 0], torch.inf)
        scores = least

        def loss(logits: Tensor, log_probs: Tensor) -> Tensor:
            nonlocal scores
            scores = SCORES[self.score](logits.detach())
            return self.attack_loss(victim, logits, log_probs, goal)

        for step in range(plan.steps + 1):
            log_probs, gradient = loss_and_gradient(victim, at, loss)
            gradient = journal.gradient(case.rows, gradient)
            better = goal.reached(log_probs) & (scores < least)
            points[better], least[better] = at[better], scores[better]
            if step < plan.steps:
                at = self._step(case.x, at, gradient, plan, step)
            journal.tick((step + 1) / (plan.steps + 1))
        never = least.isinf()
        points[never] = at[never]
        return points
