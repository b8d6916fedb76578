"""Offsets of one prediction disguised as M, f_j = f + c_j: which c_j minimise what (Appendix F).

Joint training: any offsets with mean y − f are a minimum, however far apart; that is learner
collusion. Independent training: the minimum is unique.

Differs from the paper: the unique minimum is at c_j = y − f, not at 0 unless f = y, and the cross
term of mean ERR is (2/M) Σ_j c_j (f − y), twice what is printed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import hessian

from dissensus.decomposition import decompose
from dissensus.objectives import Independent, Joint, Objective
from reproductions.comparisons import TOLERANCE, Equal, Finding, exact
from reproductions.exact import (
    extremes,
    generator_of,
    gradient_of,
    uniform,
)
from reproductions.experiment import Claim
from reproductions.study import Cell, Record

_FAR = (1.0, 10.0, 100.0, 1000.0, 10000.0)  # how far apart offsets are for the last claim


def run_offsets(cell: Cell) -> dict[str, Any]:
    """The largest deviations from Appendix F over random f, y and offsets."""
    generator = generator_of(cell["seed"])
    _, worst = extremes(_deviations(generator) for _ in range(cell["draws"]))
    return {**worst, "far": list(_FAR), "ratio_far": _ratios(generator)}


def _deviations(generator: torch.Generator) -> dict[str, float]:
    """The deviations for one draw of members, f, y and offsets."""
    members = int(torch.randint(2, 21, (), generator=generator))
    truth, shared = uniform(-2, 2, generator), uniform(-2, 2, generator)
    away = 10 ** uniform(-1, 2, generator)
    random = away * torch.randn(members, generator=generator, dtype=torch.float64)
    # Any offsets, shifted to the mean y − f that Appendix F asks for.
    colluding = random - random.mean() + (truth - shared)
    joint, independent = Joint(loss="mse"), Independent(loss="mse")

    def loss(objective: Objective, offsets: Tensor) -> Tensor:
        target = torch.full((1, 1), truth, dtype=torch.float64)
        return objective((shared + offsets)[:, None, None], target).loss

    value, slope = gradient_of(lambda c: loss(joint, c), colluding)
    flat, curved = (
        torch.linalg.eigvalsh(hessian(lambda c, o=one: loss(o, c), colluding))
        for one in (joint, independent)
    )
    best = torch.full((members,), truth - shared, dtype=torch.float64)
    _, at_best = gradient_of(lambda c: loss(independent, c), best)
    _, at_zero = gradient_of(lambda c: loss(independent, c), torch.zeros_like(best))
    error, mean_error = shared - truth, float(loss(independent, random))
    square = error**2 + float(random.square().mean())
    size = max(mean_error, square)
    return {
        "joint_loss_at_colluding": float(value) / size,
        "joint_slope_at_colluding": float(slope.abs().max()) / size,
        "joint_curvature_beyond_first": float(flat[:-1].abs().max()),
        "independent_slope_at_best": float(at_best.abs().max()),
        "independent_least_curvature": abs(float(curved.min()) * members / 2 - 1),
        "independent_slope_at_zero": float(at_zero.abs().max()) * members / 2,
        "cross_term_doubled": abs(mean_error - square - 2 * float(random.mean()) * error) / size,
        "cross_term_printed": abs(mean_error - square - float(random.mean()) * error) / size,
    }


def _ratios(generator: torch.Generator, members: int = 5) -> list[float]:
    """DIV / mean ERR for offsets ever farther apart, with f − y = 1."""
    shape = torch.randn(members, generator=generator, dtype=torch.float64)
    shape -= shape.mean()
    target = torch.zeros(1, 1, dtype=torch.float64)
    ratios = []
    for far in _FAR:
        parts = decompose((1.0 + far * shape)[:, None, None], target, loss="mse")
        ratios.append(float(parts.diversity / parts.member_error))
    return ratios


# ---- claims -------------------------------------------------------------------------------------


def _offsets(records: list[Record]) -> Record:
    return next(record for record in records if record["name"] == "offsets")


def _deviation(records: list[Record], key: str) -> float:
    return float(_offsets(records)["result"][key])


def _independent_minimum(records: list[Record]) -> Finding:
    """The unique minimum lies at c_j = y − f; at 0 there is a slope unless f = y."""
    slope = _deviation(records, "independent_slope_at_zero")
    return exact(slope <= TOLERANCE, f"slope up to (2/M) · {slope:.2g}; 0 at y − f")


def _cross_term(records: list[Record]) -> Finding:
    printed, doubled = (_deviation(records, f"cross_term_{key}") for key in ("printed", "doubled"))
    return exact(printed <= TOLERANCE, f"off by {printed:.2g}; twice the term: {doubled:.1e}")


def _ratio(records: list[Record]) -> Finding:
    result = _offsets(records)["result"]
    gaps = [1 - ratio for ratio in result["ratio_far"]]
    falling = all(after < before for before, after in pairwise(gaps))
    measured = f"DIV / mean ERR {result['ratio_far'][-1]:.6g} at |c_j| ≈ {result['far'][-1]:g}"
    return exact(falling and gaps[-1] < 1e-3, measured)


_COLLUDING = (
    *("joint_loss_at_colluding", "joint_slope_at_colluding"),
    "joint_curvature_beyond_first",
)

OFFSET_CLAIMS = (
    Claim(
        "Joint training: any offsets with mean y − f are a minimum, however far apart",
        "Appendix F",
        Equal(_COLLUDING, _deviation),
    ),
    Claim(
        "Independent training: the unique minimum is at c_j = 0",
        "Appendix F",
        _independent_minimum,
        "c_j = 0 for all j",
    ),
    Claim(
        "The cross term of mean ERR is (1/M) Σ_j c_j (f − y)",
        "Appendix F",
        _cross_term,
        "(1/M) Σ_j c_j (f − y)",
    ),
    Claim("Mean ERR ≈ DIV as offsets grow, |c_j| → ∞", "Appendix F", _ratio),
)
