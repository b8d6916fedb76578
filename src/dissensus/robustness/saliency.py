"""JSMA: a few entries of the input, one at a time, chosen by a saliency map."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dissensus.robustness.base import Attack, Batch, Case, Journal, Victim
from dissensus.robustness.gradient import loss_and_gradient
from dissensus.robustness.losses import ce
from dissensus.specs import check_choice, number

__all__ = ["JSMA"]

VARIANTS = ("fixed", "original")
DIRECTIONS = ("down", "up", "both")


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
            raise ValueError(
                f"JSMA: variant=original only lowers entries, got direction={self.direction}; use "
                "variant=fixed"
            )

    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        changes = int(self.gamma * case.x[0].numel() + 1e-9)
        batch, at = Batch(case, journal), case.x

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
        batch.end(at)
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
