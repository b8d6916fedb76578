"""Appendix B.1: cross-entropy minus Jensen–Shannon divergence has no solution inside the simplex."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dissensus.experiments.adp.minimising import minimised
from dissensus.experiments.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.experiments.collusion.exact import generator_of
from dissensus.objectives import ADP, JSD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "JSDS", "left_over"]

_STRENGTHS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0)


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """One cell for each λ and number of members, on ten classes."""
    starts = options.get("starts", {"smoke": 3, "cpu": 20, "paper": 100}[scale])
    strengths = _STRENGTHS[::3] if scale == "smoke" else _STRENGTHS
    counts = (3,) if scale == "smoke" else (2, 3, 5)
    return [
        {
            "name": f"members={members}-strength={strength:g}",
            "members": members,
            "classes": 10,
            "strength": strength,
            "starts": starts,
            "draws": {"smoke": 200, "cpu": 20_000, "paper": 100_000}[scale],
            "seed": 0,
        }
        for members in counts
        for strength in strengths
    ]


def run(cell: Cell) -> dict[str, Any]:
    """The least loss that is found, how near to the edge it is, and Eq. 11 at random points."""
    members, classes, strength = cell["members"], cell["classes"], cell["strength"]
    best = minimised(
        JSD(strength), members, classes, starts=cell["starts"], seed=cell["seed"], spread=2.0
    )
    return {
        "loss": best.loss,
        "label": sorted(best.probs[:, 0].tolist()),
        "smallest": float(best.probs.min()),
        "wrong_members": int((best.probs.argmax(1) != 0).sum()),
        "least_left_over": left_over(members, classes, strength, cell["draws"], cell["seed"]),
    }


def left_over(members: int, classes: int, strength: float, draws: int, seed: int) -> float:
    """The least violation of Eq. 11 over random interior points: 0 would be a solution.

    Eq. 11 asks of every member k that ``(λ/K) log[F_y (1 − F_y^k) / (F_y^k (1 − F_y))] = 1/F_y^k``.
    For the member with the largest F_y^k the logarithm is at most 0 and the right side above 1, so
    the largest violation is above 1 at every point.
    """
    spread = 4 * torch.rand(draws, 1, 1, generator=generator_of(seed), dtype=torch.float64)
    logits = spread * torch.randn(
        draws, members, classes, generator=generator_of(seed + 1), dtype=torch.float64
    )
    own = logits.softmax(-1)[..., 0]
    mean = own.mean(1, keepdim=True)
    left = strength / members * (mean * (1 - own) / (own * (1 - mean))).log()
    return float((1 / own - left).abs().amax(1).min())


JSDS = Study(
    "jsd",
    cells,
    run,
    jobs=1,
    options={"starts": "how many random starts each search has"},
    cost={"smoke": "5 s", "cpu": "2 min", "paper": "10 min"},
)
