"""Square and plain noise: attacks that see only outputs, as a check on gradient attacks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dissensus.robustness.base import (
    Attack,
    Case,
    Journal,
    Unbroken,
    Victim,
    ball,
    uniform,
    with_restarts,
)
from dissensus.robustness.gradient import project, unit_step
from dissensus.robustness.losses import LOSSES
from dissensus.tools.specs import check_choice, number

#: The share of entries in a square falls by half after these many of 10,000 queries.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


@dataclass(frozen=True)
class Noise(Attack):
    """Random points of the ball, its corners in L∞: a baseline for attacks that use gradients."""

    eps: float = number(0.1, above=0, always=True)
    norm: str = "linf"
    tries: int = number(20, low=1)
    targeted: bool = False

    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        batch = Unbroken(case, journal)
        for turn in range(self.tries):
            case = batch.case
            points = ball(case.seed, case.rows, (turn,), case.x, self.norm)
            points = (case.x + self.eps * unit_step(points, self.norm)).clamp(0, 1)
            with torch.no_grad():
                done = case.goal.reached(victim.log_probs(points))
            journal.query(case.rows)
            if not len(batch.leave(done, points, 0, turn)):
                break
            journal.tick((turn + 1) / self.tries)
        return batch.points


@dataclass(frozen=True)
class Square(Attack):
    """Random search with squares at random places (Andriushchenko et al. 2020), L∞ and L2.

    A change is kept where it raises the loss. In L∞ a square gets ±ε in each channel, from a
    start of vertical stripes; in L2 the budget of one square goes to another, whose pattern is
    their Algorithm 3's. ``start`` is the share of entries in the first squares. Inputs that are no
    images ``[batch, channels, rows, columns]`` are taken as one row.

    Each example has squares of its own. Differs from the paper's program: there a batch shares
    their places, and none ever reaches the last row or column.
    """

    eps: float = number(0.1, above=0, always=True)
    norm: str = "linf"
    queries: int = number(1000, low=1)
    start: float = number(0.8, above=0, high=1)
    loss: str = "margin"
    restarts: int = number(1, low=1)
    targeted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("Square", "loss", self.loss, list(LOSSES))

    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        shape = case.x.shape
        if len(shape) != 4:
            case = Case(case.x.reshape(len(case), 1, 1, -1), case.goal, case.rows, case.seed)
        points = with_restarts(
            case, self.restarts, lambda part, k: self._walk(victim, part, journal, k, shape[1:])
        )
        return points.reshape(shape)

    def _walk(
        self, victim: Victim, case: Case, journal: Journal, restart: int, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        batch = Unbroken(case, journal)
        at, best = case.x, torch.full((len(case),), -math.inf, device=case.x.device)
        for query in range(self.queries):
            case = batch.case
            trial = self._propose(case, at, (restart, query), query)
            with torch.no_grad():
                log_probs = victim.log_probs(trial.reshape(len(trial), *shape))
            journal.query(case.rows)
            loss, done = LOSSES[self.loss](log_probs, case.goal), case.goal.reached(log_probs)
            better = done | (loss > best)
            at = torch.where(better[:, None, None, None], trial, at)
            best = torch.where(better, loss, best.to(loss.dtype))
            if bool(done.any()):
                stay = batch.leave(done, at, query, restart)
                if not len(stay):
                    return batch.points, batch.broken
                at, best = at[stay], best[stay]
            journal.tick((restart + (query + 1) / self.queries) / self.restarts)
        batch.finish(at)
        return batch.points, batch.broken

    def _propose(self, case: Case, at: Tensor, draw: tuple[int, int], query: int) -> Tensor:
        channels, rows, columns = at.shape[1:]
        if self.norm == "linf":
            if query == 0:  # stripes
                signs = self._signs(case, draw, (channels, 1, columns))
                return (case.x + self.eps * signs).clamp(0, 1)
            inside = _Window.draw(case, draw, (rows, columns), self._share(query)).inside(at)
            signs = self._signs(case, draw, (channels, 1, 1))
            moved = torch.where(inside, at + 2 * self.eps * signs, at)
            return project(moved, case.x, self.eps, "linf")
        if query == 0:
            change = _tiles(at) * self._signs(case, draw, (channels, 1, 1))
        else:
            change = self._move_mass(case, at - case.x, draw, query)
        return (case.x + self.eps * unit_step(change, "l2")).clamp(0, 1)

    def _move_mass(self, case: Case, change: Tensor, draw: tuple[int, int], query: int) -> Tensor:
        """Algorithm 3: take one window's mass, and what is left of ε², into another window."""
        size, share = tuple(change.shape[2:]), self._share(query)
        to, source = (_Window.draw(case, (*draw, k), size, share, least=3) for k in (0, 1))
        inside, either = to.inside(change), to.inside(change) | source.inside(change)
        nothing = torch.zeros_like(change)

        def mass(values: Tensor, mask: Tensor) -> Tensor:
            return torch.where(mask, values, nothing).square().sum((-2, -1), keepdim=True)

        whole = change.square().sum((1, 2, 3), keepdim=True)
        spare = (self.eps**2 - whole).clamp_min(0) / change.shape[1]
        old = change / mass(change, inside).sqrt().clamp_min(1e-12)
        pattern = to.pattern(change) * self._signs(case, draw, (change.shape[1], 1, 1))
        new = torch.where(inside, pattern + old, nothing)
        wanted = (mass(change, either) + spare).sqrt()
        new = new / mass(new, inside).sqrt().clamp_min(1e-12) * wanted
        return torch.where(inside, new, torch.where(either, nothing, change))

    def _signs(self, case: Case, draw: tuple[int, int], shape: tuple[int, ...]) -> Tensor:
        values = uniform(case.seed, case.rows, (*draw, 7), shape, case.x.dtype)
        return torch.where(values < 0.5, -1.0, 1.0).to(case.x.dtype)

    def _share(self, query: int) -> float:
        """The share of entries in a square, by the paper's schedule for 10,000 queries."""
        scaled = int(query / self.queries * 10_000)
        halvings = sum(scaled > limit for limit in HALVINGS)
        return self.start * 0.5**halvings


@dataclass(frozen=True)
class _Window:
    """A rectangle for each example: its upper left corner ``[batch]``, and the sides they share."""

    top: Tensor
    left: Tensor
    height: int
    width: int

    @classmethod
    def draw(
        cls,
        case: Case,
        draw: tuple[int, ...],
        size: tuple[int, ...],
        share: float,
        least: int = 1,
    ) -> _Window:
        rows, columns = size
        side = max(least, round(math.sqrt(share * rows * columns)))
        height = min(side, rows)
        width = min(columns, max(least, round(share * rows * columns / height)))
        if rows == columns:
            width = height
        places = uniform(case.seed, case.rows, (*draw, 5), (2,), torch.float64)
        top = (places[:, 0] * (rows - height + 1)).long()
        left = (places[:, 1] * (columns - width + 1)).long()
        return cls(top, left, height, width)

    def _coordinates(self, like: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(like.shape[2], device=like.device) - self.top[:, None]
        columns = torch.arange(like.shape[3], device=like.device) - self.left[:, None]
        return rows[:, None, :, None], columns[:, None, None, :]

    def inside(self, like: Tensor) -> Tensor:
        """Whether an entry is in the rectangle, bool ``[batch, 1, rows, columns]``."""
        rows, columns = self._coordinates(like)
        return (rows >= 0) & (rows < self.height) & (columns >= 0) & (columns < self.width)

    def pattern(self, like: Tensor) -> Tensor:
        """Two opposite bumps of length 1 together, laid over the rectangle."""
        rows, columns = self._coordinates(like)
        bumps = _bumps(self.height, self.width).to(like)
        return bumps[rows.clamp(0, self.height - 1), columns.clamp(0, self.width - 1)]


def _bumps(height: int, width: int) -> Tensor:
    """Algorithm 3's pattern: a bump above and its negative below, or side by side in one row."""
    if height == 1:
        return _bumps(width, 1).T if width > 1 else torch.ones(1, 1)
    upper = height // 2
    both = torch.cat([_bump(upper, width), -_bump(height - upper, width)])
    length: Tensor = both.norm()
    return both / length


def _bump(height: int, width: int) -> Tensor:
    """``Σ_k 1/(k+1)²`` over rectangles that grow from the middle."""
    bump = torch.zeros(height, width)
    row, column = height // 2, width // 2
    for k in range(max(row, column) + 1):
        bump[max(row - k, 0) : row + k + 1, max(column - k, 0) : column + k + 1] += 1 / (k + 1) ** 2
    length: Tensor = bump.norm()
    return bump / length


def _tiles(like: Tensor) -> Tensor:
    """The start in L2: the pattern laid side by side, five times in each direction."""
    rows, columns = like.shape[2:]
    height, width = max(rows // 5, 1), max(columns // 5, 1)
    tile = _bumps(height, width).to(like)
    repeats = (math.ceil(rows / height), math.ceil(columns / width))
    return tile.repeat(*repeats)[:rows, :columns].expand(like.shape)
