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
from reproductions.exact import (
    extremes,
    generator_of,
    gradient_of,
    uniform,
)
from reproductions.old.base import Cell, Claim, Finding, Record
from reproductions.old.comparisons import TOLERANCE, Equal, decide, scientific

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


def _sample(records: list[Record]) -> str:
    return f"{_offsets(records)['cell']['draws']} draws, 2 to 20 members"


def _independent_minimum(records: list[Record]) -> Finding:
    curvature, at_best, at_zero = (
        _deviation(records, f"independent_{key}")
        for key in ("least_curvature", "slope_at_best", "slope_at_zero")
    )
    right = at_best <= TOLERANCE and curvature <= TOLERANCE
    sentence = (
        f"the minimum is unique (curvature 2/M everywhere, deviation {scientific(curvature)}) and "
        f"{'lies' if right else 'does not lie'} at c_j = y − f (slope there "
        f"{scientific(at_best)}); at c_j = 0 the slope is (2/M) |f − y|, here up to (2/M) · "
        f"{at_zero:.2g}, so that it is no minimum unless f = y ({_sample(records)})"
    )
    return decide(at_zero <= TOLERANCE, sentence, "c_j = 0 for all j")


def _cross_term(records: list[Record]) -> Finding:
    printed, doubled = (_deviation(records, f"cross_term_{key}") for key in ("printed", "doubled"))
    sentence = (
        f"as printed the identity is off by up to {printed:.2g} of its size; with (2/M) Σ_j c_j "
        f"(f − y) by {scientific(doubled)} ({_sample(records)})"
    )
    return decide(printed <= TOLERANCE, sentence, "(1/M) Σ_j c_j (f − y)")


def _ratio(records: list[Record]) -> Finding:
    result = _offsets(records)["result"]
    gaps = [1 - ratio for ratio in result["ratio_far"]]
    falling = all(after < before for before, after in pairwise(gaps))
    pairs = zip(result["far"], result["ratio_far"], strict=True)
    ratios = ", ".join(f"{ratio:.6g} at {far:g}" for far, ratio in pairs)
    sentence = f"DIV / mean ERR with f − y = 1 and offsets of width c: {ratios}"
    return decide(falling and gaps[-1] < 1e-3, sentence)


OFFSET_CLAIMS = (
    Claim(
        "Joint training: any offsets with mean y − f are a minimum, however far apart",
        "Appendix F",
        Equal(
            [
                "joint_loss_at_colluding",
                "joint_slope_at_colluding",
                "joint_curvature_beyond_first",
            ],
            _deviation,
            _sample,
            "loss and slope are 0 and M − 1 directions are flat: ",
        ),
    ),
    Claim(
        "Independent training: the unique minimum is at c_j = 0",
        "Appendix F",
        _independent_minimum,
    ),
    Claim("The cross term of mean ERR is (1/M) Σ_j c_j (f − y)", "Appendix F", _cross_term),
    Claim("Mean ERR ≈ DIV as offsets grow, |c_j| → ∞", "Appendix F", _ratio),
)
