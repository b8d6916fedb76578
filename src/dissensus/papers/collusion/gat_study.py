"""Study of gradient adjusted targets (GAT): Figures 8 and 9, Theorems D.1 and D.3, exactly.

The equalities of Appendix D are tried on random draws of members, batches and steps in float64,
with the library's own objectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor

from dissensus.decomposition import decompose
from dissensus.objectives import (
    Augmented,
    GradientAdjustedTargets,
    equivalent_alpha,
    equivalent_beta,
)
from dissensus.papers.base import Cell, Study
from dissensus.papers.exact import (
    draw_alpha,
    draw_regression,
    draws_of,
    generator_of,
    relative_difference,
    value_and_gradient,
)

__all__ = ["DRAWS", "MEMBERS", "STUDY", "run"]

MEMBERS = {
    "smoke": (2, 3, 5),
    "cpu": (2, 3, 4, 5, 7, 10, 15, 20, 50),
    "paper": (2, 3, 4, 5, 7, 10, 15, 20, 50, 100, 200),
}
DRAWS = {"smoke": 20, "cpu": 400, "paper": 2000}
_CURVE_MEMBERS = (2, 3, 5, 10, 20)

#: The four forms of GAT: seen by members (all, or the others only) and target (moving or constant).
_FORMS = {
    "theorem_d1": {"others_only": False, "detach": False},
    "theorem_d3": {"others_only": True, "detach": False},
    "detached": {"others_only": False, "detach": True},
    "detached_others": {"others_only": True, "detach": True},
}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """One cell for each number of members, and one for the curves."""
    draws = draws_of(options, DRAWS[scale])
    equalities = [
        {"name": f"members={count}", "members": count, "draws": draws, "seed": count}
        for count in MEMBERS[scale]
    ]
    return [{"name": "curves", "members": list(_CURVE_MEMBERS)}, *equalities]


def run(cell: Cell) -> dict[str, Any]:
    """The curves, or the largest deviations from the theorems over a cell's draws."""
    return _curves(cell["members"]) if cell["name"] == "curves" else _deviations(cell)


def _curves(counts: list[int]) -> dict[str, Any]:
    """β(α) and γ(α, M) on a grid of steps, and α(β) near 1, from the library's functions."""
    alphas = [step / 20 for step in range(401)]
    near_one = [1 - 10.0**-power for power in range(1, 9)]
    gamma = {
        str(count): [equivalent_beta(alpha, count, others_only=True) for alpha in alphas]
        for count in counts
    }
    return {
        "alphas": alphas,
        "beta": [equivalent_beta(alpha) for alpha in alphas],
        "beta_detached": [equivalent_beta(alpha, detach=True) for alpha in alphas],
        "gamma": gamma,
        "peaks": {count: _peak_of(alphas, values) for count, values in gamma.items()},
        "beta_of_step_0_1": [equivalent_beta(0.0), equivalent_beta(1.0)],
        "one_minus_beta": [10.0**-power for power in range(1, 9)],
        "alpha_near_one": [equivalent_alpha(beta) for beta in near_one],
    }


def _peak_of(alphas: list[float], gamma: list[float]) -> dict[str, Any]:
    """Where γ is largest, and whether it falls from there on; before numbers are rounded."""
    top = max(range(len(gamma)), key=gamma.__getitem__)
    falls = all(a > b for a, b in pairwise(gamma[top:]))
    return {"alpha": alphas[top], "gamma": gamma[top], "falls_after": falls}


def _deviations(cell: Cell) -> dict[str, Any]:
    """The largest relative deviations over random draws of outputs, targets and steps."""
    generator = generator_of(cell["seed"])
    members = cell["members"]
    worst: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        worst[name] = max(worst.get(name, 0.0), value)

    for _ in range(cell["draws"]):
        outputs, targets = draw_regression(members, generator)
        alpha = draw_alpha(generator)
        for form, deviations in _deviations_of(outputs, targets, alpha).items():
            for quantity, value in deviations.items():
                note(f"{form}_{quantity}", value)
        note("lemma_d2", _lemma_d2(outputs, targets))
        printed = _printed_gamma(alpha, members)
        note("printed_gamma", abs(printed - equivalent_beta(alpha, members, others_only=True)))
    return worst


def _deviations_of(outputs: Tensor, targets: Tensor, alpha: float) -> dict[str, dict[str, float]]:
    deviations = {}
    members = outputs.shape[0]
    for form, settings in _FORMS.items():
        # Beyond α = M − 1 the detached form on the others equals a β > 1, which has no minimum.
        step = alpha % (members - 1) if form == "detached_others" else alpha
        objective = GradientAdjustedTargets(alpha=step, **settings)
        beta = equivalent_beta(step, members, **settings)
        deviations[form] = _against(objective, beta, outputs, targets)
    paper = equivalent_beta(alpha)  # Theorem D.1's β, tried on a target that is held constant
    constant = GradientAdjustedTargets(alpha=alpha, detach=True)
    direction = _against(constant, paper, outputs, targets)["direction"]
    deviations["detached_with_beta_of_d1"] = {"direction": direction}
    return deviations


def _against(
    objective: GradientAdjustedTargets, beta: float, outputs: Tensor, targets: Tensor
) -> dict[str, float]:
    """GAT against ``Augmented(β)``: values and gradients up to their factors, and directions."""
    # A β of 1 + 1e-16 is 1: rounding must not put it out of bounds.
    augmented = Augmented(beta=min(beta, 1.0), loss="mse")
    value, gradient = value_and_gradient(objective, outputs, targets)
    other_value, other_gradient = value_and_gradient(augmented, outputs, targets)
    factor = (1 + objective.alpha) ** 2
    slope = 1 + objective.alpha if objective.detach else factor
    return {
        "value": relative_difference(value, factor * other_value),
        "gradient": relative_difference(gradient, slope * other_gradient),
        "direction": relative_difference(
            gradient / gradient.norm(), other_gradient / other_gradient.norm()
        ),
    }


def _lemma_d2(outputs: Tensor, targets: Tensor) -> float:
    """``Σ_j (f̄ − f_j)(y − f_j) = M · DIV`` (Eq. 9), the mean over examples."""
    products = ((outputs.mean(0) - outputs) * (targets - outputs)).sum(-1).mean(-1)
    right = len(outputs) * decompose(outputs, targets, loss="mse").diversity
    # Relative to the terms of the sum: where members are close they nearly cancel.
    return float((products.sum() - right).abs() / products.abs().sum())


def _printed_gamma(alpha: float, members: int) -> float:
    """Theorem D.3's γ as the paper prints it: α/(α+1)² · M((α+2)M − 2(α+1)) / (M−1)²."""
    inner = members * ((alpha + 2) * members - 2 * (alpha + 1))
    return alpha / (alpha + 1) ** 2 * inner / (members - 1) ** 2


STUDY = Study(
    name="gat",
    cells=cells,
    run=run,
    jobs=1,
    options={"draws": "how many random draws for each number of members"},
    cost={"smoke": "1 s", "cpu": "20 s", "paper": "2 min"},
)
