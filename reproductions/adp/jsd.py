"""Jensen–Shannon divergence as the diversity: no solution inside the simplex (Appendix B.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dissensus.objectives import JSD
from reproductions.cells import count_option
from reproductions.comparisons import Finding, cell_values, exact, filter_records
from reproductions.exact import generator_of, minimize_objective
from reproductions.experiment import Claim, Experiment
from reproductions.figures import Panel, Plot, Rule, Series
from reproductions.study import Cell, Record, Study

_STARTS = {"smoke": 3, "cpu": 20, "paper": 100}
_STRENGTHS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0)


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """One cell for each λ and number of members, on ten classes."""
    starts = count_option(options, "starts", _STARTS[scale])
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
    """The least loss, how near to the edge it lies, and Eq. 11 at random points."""
    members, classes, strength = cell["members"], cell["classes"], cell["strength"]
    best = minimize_objective(
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


STUDY = Study(
    "jsd",
    cells,
    run,
    jobs=1,
    options={"starts": "how many random starts each search has"},
    cost={"smoke": "5 s", "cpu": "2 min", "paper": "10 min"},
)


# ---- claims -------------------------------------------------------------------------------------

_EDGE = 1e-6  # a probability below this is taken for 0, which the search only tends to


def _no_interior(records: list[Record]) -> Finding:
    """All minima are at the edge, and Eq. 11 fails at every point that was tried."""
    smallest = max(record["result"]["smallest"] for record in records)
    left = min(record["result"]["least_left_over"] for record in records)
    measured = f"least probability up to {smallest:.0e}, Eq. 11 violated by {left:.2f} or more"
    return exact(smallest < _EDGE and left >= 1, measured)


def _overrides(records: list[Record]) -> Finding:
    """With a large λ the least loss, below 0, has members that are wrong."""
    counts = cell_values(records, "members")
    first = {}
    for members in counts:
        wrong = [
            record["cell"]["strength"]
            for record in filter_records(records, members=members)
            if record["result"]["wrong_members"] and record["result"]["loss"] < 0
        ]
        if wrong:
            first[members] = min(wrong)
    measured = ", ".join(f"K = {members}: from λ = {one:g}" for members, one in first.items())
    return exact(len(first) == len(counts), measured or "none")


def _too_weak(records: list[Record]) -> Finding:
    """With a small λ all members are sure of the label: there is no diversity at all."""
    small = [record["result"] for record in records if record["cell"]["strength"] <= 1]
    sure = [min(result["label"]) > 1 - 1e-4 for result in small]
    return exact(bool(small) and all(sure), f"in {sum(sure)} of {len(small)} settings")


# ---- figure -------------------------------------------------------------------------------------


def plot(records: list[Record]) -> Plot:
    """Members' probabilities of the label at the least loss, against λ."""
    panels = []
    for number, members in enumerate(cell_values(records, "members")):
        x, y = [], []
        for record in filter_records(records, members=members):
            y += record["result"]["label"]
            x += [record["cell"]["strength"]] * members
        points = [Series("", x, y, number, "points")]
        half = [Rule("y", 0.5)]
        panels.append(Panel("λ", "F_y of each member", points, f"{members} members", rules=half))
    alt = "The label's probability at the least loss against λ"
    return Plot(panels, alt, len(panels), (3.2, 2.8), "all")


EXPERIMENT = Experiment(
    "adp/jsd",
    "Appendix B.1",
    "Jensen–Shannon divergence as the diversity",
    STUDY,
    (
        Claim(
            "Cross-entropy minus λ · JSD has no minimum inside the simplex",
            "Appendix B.1, Theorem* 1",
            _no_interior,
        ),
        Claim(
            "The divergence can override the cross-entropy: the least loss has wrong members",
            "Appendix B.1",
            _overrides,
        ),
        Claim("With λ ≤ 1 it does nothing: F_y above 0.9999", "search", _too_weak, ours=True),
    ),
    draw=plot,
)
