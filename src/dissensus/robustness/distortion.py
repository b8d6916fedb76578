"""Attacks without a budget ε, which keep the distortion small: C&W, EAD and JSMA."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from dissensus.robustness.base import Attack, Case, Journal, Unbroken, Victim
from dissensus.robustness.gradient import loss_and_gradient
from dissensus.robustness.losses import Goal, ce, margin
from dissensus.tools.specs import check_choice, number

RULES = ("en", "l1", "l2")
VARIANTS = ("fixed", "original")
DIRECTIONS = ("down", "up", "both")

#: How near to the ends of [0, 1] the change of variables of C&W can come.
_INSIDE = 0.999999


class _Search:
    """A search for c: the constants ``[batch]`` of this round, and the nearest points so far."""

    def __init__(self, victim: Victim, case: Case, journal: Journal, c: float) -> None:
        self.victim, self.case, self.journal = victim, case, journal
        self.points = case.x.clone()
        self.size = torch.full((len(case),), math.inf, dtype=case.x.dtype, device=case.x.device)
        self.constants = torch.full_like(self.size, c)
        self.low, self.high = torch.zeros_like(self.size), torch.full_like(self.size, math.inf)
        self.succeeded = torch.zeros(len(case), dtype=torch.bool, device=case.x.device)
        self.round = 0

    def offer(self, rows: Tensor, points: Tensor, size: Tensor, adversarial: Tensor) -> None:
        """Keep those ``points`` that are adversarial and nearer than what there is."""
        self.succeeded[rows] |= adversarial
        better = adversarial & (size < self.size[rows])
        self.points[rows[better]], self.size[rows[better]] = points[better], size[better]

    def next_round(self) -> None:
        """Bisect between the largest c that failed and the smallest that succeeded; else 10 c."""
        self.high = torch.where(self.succeeded, self.constants, self.high)
        self.low = torch.where(self.succeeded, self.low, self.constants)
        middle = (self.low + self.high) / 2
        self.constants = torch.where(self.high.isinf(), self.constants * 10, middle)
        self.succeeded.zero_()
        self.round += 1


@dataclass(frozen=True)
class NearestAttack(Attack):
    """Minimise a distance plus c times the loss ``max(0, κ − margin)``, and search for c.

    Where an attack succeeded, the next c is halfway to the largest that failed; where it never did,
    ten times as large (Carlini and Wagner 2017, Section VI). What is not found comes back as it
    was. ``confidence`` κ is in units of log-probability.
    """

    c: float = number(0.01, above=0, always=True)
    searches: int = number(9, low=1)
    steps: int = number(1000, low=1)
    lr: float = number(0.01, above=0)
    confidence: float = number(0.0, low=0)
    targeted: bool = False

    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        search = _Search(victim, case, journal, self.c)
        for _ in range(self.searches):
            self.minimise(search)
            search.next_round()
        return search.points

    @abstractmethod
    def minimise(self, search: _Search) -> None:
        """One minimisation with the constants of ``search``; offers its points to it."""

    def _adversarial(self, log_probs: Tensor, goal: Goal) -> Tensor:
        sure = margin(log_probs, goal) >= self.confidence
        return goal.reached(log_probs) & sure

    def _tick(self, search: _Search, step: int) -> None:
        search.journal.tick((search.round + (step + 1) / self.steps) / self.searches)


@dataclass(frozen=True)
class CarliniWagner(NearestAttack):
    """C&W: the smallest L2 distance (Carlini and Wagner 2017, Section VI); adp, Section 2.2.

    ``‖x' − x‖² + c · max(0, κ − margin(x'))`` with ``x' = ½(tanh ω + 1)``, minimised over ω by
    Adam. The margin is of log-probabilities, with the class itself left out by −∞. An example
    leaves when a tenth of the steps has not lowered its loss by 0.01%.

    Differs from the paper: the second index of the adp paper's formula should be y; and each
    example stops for itself, where published programs stop the whole batch.
    """

    def minimise(self, search: _Search) -> None:
        victim, case, journal = search.victim, search.case, search.journal
        rows = torch.arange(len(case), device=case.x.device)
        centre = ((2 * case.x - 1) * _INSIDE).atanh()
        mean, square = torch.zeros_like(centre), torch.zeros_like(centre)
        change = torch.zeros_like(centre)
        constants, before = search.constants, torch.full_like(search.size, math.inf)
        tenth = math.ceil(self.steps / 10)
        for step in range(self.steps):
            change.requires_grad_()
            points = ((centre + change).tanh() + 1) / 2
            log_probs = victim.log_probs(points)
            hinge = (self.confidence - margin(log_probs, case.goal)).clamp_min(0)
            moved = (points - (centre.tanh() + 1) / 2).flatten(1)
            loss = constants * hinge + moved.square().sum(1)
            (gradient,) = torch.autograd.grad(loss.sum(), change)
            points, log_probs, loss = points.detach(), log_probs.detach(), loss.detach()
            gradient = journal.gradient(case.rows, gradient)
            size = (points - case.x).flatten(1).norm(dim=1)
            search.offer(rows, points, size, self._adversarial(log_probs, case.goal))
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient.square()
            rate = self.lr / (1 - 0.9 ** (step + 1))
            scale = (square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
            change = change.detach() - rate * mean / scale
            self._tick(search, step)
            if step % tenth == 0:
                keep = (loss <= 0.9999 * before).nonzero().squeeze(1)
                before = loss
                if not len(keep):
                    return
                if len(keep) < len(rows):
                    case, tensors = case.take(keep), (rows, constants, before, centre)
                    rows, constants, before, centre = (tensor[keep] for tensor in tensors)
                    change, mean, square = change[keep], mean[keep], square[keep]


@dataclass(frozen=True)
class EAD(NearestAttack):
    """Elastic-net attack: ``‖x' − x‖² + β‖x' − x‖₁ + c · hinge`` (Chen et al. 2018); adp, 2.2.

    Minimised by FISTA: a gradient step without the L1 term, then shrinking by β towards the
    example, with momentum k/(k+3) and a step that decays as a square root. ``rule`` is what
    "nearest" means: ``en`` (L1 and squared L2 together), ``l1`` or ``l2``.
    """

    beta: float = number(0.01, low=0)
    rule: str = "en"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("EAD", "rule", self.rule, RULES)

    def minimise(self, search: _Search) -> None:
        victim, case, journal = search.victim, search.case, search.journal
        rows, x, goal = torch.arange(len(case), device=case.x.device), case.x, case.goal
        at = ahead = x
        for step in range(self.steps):
            gradient = journal.gradient(
                case.rows, self._slope(victim, ahead, case, search.constants)
            )
            rate = self.lr * math.sqrt(1 - step / self.steps)
            after = self._shrink(ahead - rate * gradient, x)
            ahead = after + step / (step + 3) * (after - at)
            at = after
            with torch.no_grad():
                log_probs = victim.log_probs(at)
            journal.query(case.rows)
            search.offer(rows, at, self._size(at - x), self._adversarial(log_probs, goal))
            self._tick(search, step)

    def _slope(self, victim: Victim, at: Tensor, case: Case, constants: Tensor) -> Tensor:
        """The gradient of ``c · hinge + ‖at − x‖²``."""

        def loss(logits: Tensor, log_probs: Tensor) -> Tensor:
            return constants * (self.confidence - margin(log_probs, case.goal)).clamp_min(0)

        _, gradient = loss_and_gradient(victim, at, loss)
        return gradient + 2 * (at - case.x)

    def _shrink(self, z: Tensor, x: Tensor) -> Tensor:
        """Entries within β of ``x`` go back to it, others come nearer by β, all within [0, 1]."""
        moved = z - x
        near = torch.where(moved > 0, z - self.beta, z + self.beta).clamp(0, 1)
        return torch.where(moved.abs() <= self.beta, x, near)

    def _size(self, moved: Tensor) -> Tensor:
        flat = moved.flatten(1)
        l1, l2 = flat.abs().sum(1), flat.square().sum(1)
        return {"en": self.beta * l1 + l2, "l1": l1, "l2": l2}[self.rule]


@dataclass(frozen=True)
class JSMA(Attack):
    """Change the most salient entry by ``theta``, again and again (Papernot et al. 2016; adp, 2.2).

    At most ``floor(gamma · entries)`` changes, each of one entry, which may be chosen again. With
    F_t the probability of the class to leave, lowering an entry is salient as
    ``∂F_t/∂x · |Σ_{j≠t} ∂F_j/∂x|`` where the first is not negative and the second not positive.
    Probabilities sum to 1, so that this is ``(∂F_t/∂x)²`` where ``∂F_t/∂x ≥ 0``; ranked by
    ``∂ log F_t/∂x``, which does not underflow. Where no entry qualifies, the least bad is taken.

    ``variant="original"`` is the adp authors' program: it lowers entries, but an entry may be
    chosen while it is below the *maximum* of its range. So an entry at 0 is chosen again and again
    without any effect (the attack is stuck), and one at 1 never. ``"fixed"`` lets an entry be
    chosen while it can still move. ``direction`` is ``down`` (the paper's), ``up`` or ``both``.

    Differs from the paper: an example that is broken is left as it is (``early=false``: it is
    changed on, and may recover).
    """

    theta: float = number(0.2, above=0, high=1, always=True)
    gamma: float = number(0.1, above=0, always=True)
    variant: str = "fixed"
    direction: str = "down"
    targeted: bool = False
    early: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("JSMA", "variant", self.variant, VARIANTS)
        check_choice("JSMA", "direction", self.direction, DIRECTIONS)
        if self.variant == "original" and self.direction != "down":
            raise ValueError("JSMA: variant=original only lowers entries; use variant=fixed")

    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        changes = int(self.gamma * case.x[0].numel() + 1e-9)
        batch, at = Unbroken(case, journal), case.x

        def loss(logits: Tensor, log_probs: Tensor) -> Tensor:
            return ce(log_probs, batch.case.goal)

        for step in range(changes):
            log_probs, gradient = loss_and_gradient(victim, at, loss)
            gradient = journal.gradient(batch.case.rows, gradient)
            done = batch.case.goal.reached(log_probs)
            if self.early and bool(done.any()):
                stay = batch.leave(done, at, step, 0)
                if not len(stay):
                    return batch.points
                at, gradient = at[stay], gradient[stay]
            at = self._change_entry(at, gradient)
            journal.tick((step + 1) / changes)
        batch.finish(at)
        return batch.points

    def _change_entry(self, at: Tensor, gradient: Tensor) -> Tensor:
        """``at`` with the most salient entry of each example moved by θ."""
        flat, gain = at.flatten(1), gradient.flatten(1)
        never = torch.full_like(gain, -torch.inf)
        can_fall = flat < 1 if self.variant == "original" else flat > 0
        down = torch.where(can_fall, -gain, never)  # what lowering an entry gains
        up = torch.where(flat < 1, gain, never)
        gains = {"down": (down,), "up": (up,), "both": (down, up)}[self.direction]
        best, place = torch.cat(gains, 1).max(1, keepdim=True)
        entries = flat.shape[1]
        falls = (place < entries) if self.direction != "up" else torch.zeros_like(place).bool()
        change = torch.where(falls, -self.theta, self.theta).to(flat.dtype)
        change = change.masked_fill(best == -torch.inf, 0.0)  # nothing can move any more
        place = place % entries
        moved = (flat.gather(1, place) + change).clamp(0, 1)
        return flat.scatter(1, place, moved).reshape(at.shape)
