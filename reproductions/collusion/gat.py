"""Gradient adjusted targets (GAT): Figures 8 and 9, Theorems D.1 and D.3, exactly.

Training each member on a target moved against the ensemble's error by a step α is training with
the augmented objective L^β for a β that follows from α. The equalities of Appendix D are tried on
random draws of members, batches and steps in float64, with the library's own objectives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
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
from reproductions.cells import count_option
from reproductions.comparisons import TOLERANCE, Equal, Finding, exact
from reproductions.exact import (
    draw_alpha,
    draw_regression,
    extremes,
    generator_of,
    relative_difference,
    value_and_gradient,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot, Series
from reproductions.study import Cell, Record, Study

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
    draws = count_option(options, "draws", DRAWS[scale])
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
    draws = (
        _deviations_of(*draw_regression(cell["members"], generator), draw_alpha(generator))
        for _ in range(cell["draws"])
    )
    return extremes(draws)[1]


def _deviations_of(outputs: Tensor, targets: Tensor, alpha: float) -> dict[str, float]:
    members = outputs.shape[0]
    deviations: dict[str, float] = {}
    for form, settings in _FORMS.items():
        # Beyond α = M − 1 the detached form on the others equals a β > 1, which has no minimum.
        step = alpha % (members - 1) if form == "detached_others" else alpha
        objective = GradientAdjustedTargets(alpha=step, **settings)
        beta = equivalent_beta(step, members, **settings)
        against = _against(objective, beta, outputs, targets)
        deviations |= {f"{form}_{quantity}": value for quantity, value in against.items()}
    paper = equivalent_beta(alpha)  # Theorem D.1's β, tried on a target that is held constant
    constant = GradientAdjustedTargets(alpha=alpha, detach=True)
    direction = _against(constant, paper, outputs, targets)["direction"]
    gamma = equivalent_beta(alpha, members, others_only=True)
    return deviations | {
        "detached_with_beta_of_d1_direction": direction,
        "lemma_d2": _lemma_d2(outputs, targets),
        "printed_gamma": abs(_printed_gamma(alpha, members) - gamma),
    }


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


# ---- claims -------------------------------------------------------------------------------------


def _draws(records: list[Record]) -> list[Record]:
    return [record for record in records if record["name"] != "curves"]


def _curve(records: list[Record]) -> dict[str, Any]:
    curve: dict[str, Any] = next(r["result"] for r in records if r["name"] == "curves")
    return curve


def _worst(records: list[Record], key: str) -> float:
    return max(float(record["result"][key]) for record in _draws(records))


def _equal(*keys: str) -> Equal:
    """A check that the largest of these deviations is rounding."""
    return Equal(keys, _worst)


def _steps(records: list[Record]) -> Finding:
    curve = _curve(records)
    zero, one = curve["beta_of_step_0_1"]
    last = curve["beta"][-1]
    rising = all(a < b for a, b in pairwise(curve["beta"]))
    holds = zero == 0 and abs(one - 0.75) <= TOLERANCE and rising and 0.99 < last < 1
    return exact(holds, f"{zero:g}, {one:g}, {last:.4f} at α = {curve['alphas'][-1]:g}")


def _ever_faster(records: list[Record]) -> Finding:
    """α = (1 − β)^−½ − 1 has a pole at β = 1; an exponential would be finite there."""
    alphas = _curve(records)["alpha_near_one"]
    growth = [after / before for before, after in pairwise(alphas)]
    measured = f"α = {alphas[0]:.3g}, {alphas[1]:.3g}, {alphas[2]:.3g} at β = 0.9, 0.99, 0.999"
    return exact(all(factor > 3 for factor in growth), measured)


def _falls_with_members(records: list[Record], limit: float) -> Finding:
    """Whether γ falls with M at every step up to ``limit``."""
    curve = _curve(records)
    gamma = {int(count): values for count, values in curve["gamma"].items()}
    falls = [
        gamma[few][place] > gamma[many][place]
        for place, alpha in enumerate(curve["alphas"])
        if 0 < alpha <= limit
        for few, many in pairwise(sorted(gamma))
    ]
    return exact(all(falls), f"reversed in {falls.count(False)} of {len(falls)} comparisons")


def _peak(records: list[Record]) -> Finding:
    peaks = _curve(records)["peaks"]
    holds = all(
        abs(peak["alpha"] - (int(count) - 1)) <= TOLERANCE
        and abs(peak["gamma"] - 1) <= TOLERANCE
        and peak["falls_after"]
        for count, peak in peaks.items()
    )
    places = ", ".join(f"{peak['alpha']:g}" for peak in peaks.values())
    return exact(holds, f"α = {places} for M = {', '.join(peaks)}")


def _constant_target(records: list[Record]) -> Finding:
    """Theorem D.1 lets gradient flow through the moved target; given targets have none."""
    wrong = _worst(records, "detached_with_beta_of_d1_direction")
    return exact(wrong <= TOLERANCE, f"directions differ by up to {wrong:.2g} of their length")


# ---- figure and table ---------------------------------------------------------------------------


def plot(records: list[Record]) -> Plot:
    """Figure 9 (α against β) on the left, Figure 8 (γ against α for several M) on the right."""
    curve = _curve(records)
    alphas, counts = curve["alphas"], [int(count) for count in curve["gamma"]]
    steps = [
        Series("Theorem D.1", curve["beta"], alphas, 0),
        Series("target held constant", curve["beta_detached"], alphas, 1, dash="dashed"),
    ]
    weights = [
        *(Series(f"M = {m}", alphas, curve["gamma"][str(m)], n) for n, m in enumerate(counts)),
        Series("all members", alphas, curve["beta"], "ink", dash="dotted"),
        Series("", [m - 1.0 for m in counts], [1.0] * len(counts), "ink", "points"),
    ]
    left = Panel(
        "β",
        "step α",
        steps,
        "Figure 9: the step that β stands for",
        x_range=(0.0, 1.0),
        y_range=(0.0, 10.0),
        legend="upper left",
    )
    right = Panel(
        "step α",
        "γ",
        weights,
        "Figure 8: γ is 1 at α = M − 1 (dots)",
        x_range=(0.2, alphas[-1]),
        y_range=(0.0, 1.03),
        x_log=True,
        legend="lower right",
    )
    return Plot([left, right], "α against β, and γ against α", 2, (4.2, 3.2))


def table(records: list[Record]) -> Table:
    """The largest relative deviation from each theorem, for every number of members."""
    columns = {
        "theorem_d1_value": "D.1, value",
        "theorem_d1_gradient": "D.1, gradient",
        "theorem_d3_value": "D.3, value",
        "theorem_d3_gradient": "D.3, gradient",
        "lemma_d2": "Lemma D.2",
        "detached_gradient": "constant target, gradient",
        "detached_others_gradient": "the same, others only",
    }
    rows = [
        [
            *(str(record["cell"][key]) for key in ("members", "draws")),
            *(f"{record['result'][key]:.1e}" for key in columns),
        ]
        for record in _draws(records)
    ]
    return Table(["members", "draws", *columns.values()], rows)


EXPERIMENT = Experiment(
    "collusion/gat",
    "Figures 8 and 9, Theorems D.1 and D.3",
    "Members trained on targets moved against the ensemble's error train with L^β",
    STUDY,
    (
        Claim(
            "GAT is (1 + α)² L^β with β = 1 − 1/(1 + α)²: loss and gradient",
            "Theorem D.1, Eq. 8",
            _equal("theorem_d1_value", "theorem_d1_gradient"),
        ),
        Claim(
            "With the mean of the other members, it is (1 + α)² L^γ",
            "Theorem D.3, Eq. 10",
            _equal("theorem_d3_value", "theorem_d3_gradient"),
        ),
        Claim("γ = α/(α+1)² · M((α+2)M − 2(α+1))/(M−1)²", "Theorem D.3", _equal("printed_gamma")),
        Claim("Σ_j (f̄ − f_j)(y − f_j) = M · DIV", "Lemma D.2, Eq. 9", _equal("lemma_d2")),
        Claim(
            "β at α = 0, 1 and ∞: independent training, 0.75, joint training",
            "Appendix D, below Theorem D.1",
            _steps,
            "0, 0.75, 1",
        ),
        Claim(
            "α grows ever faster, without bound, as β → 1",
            "Appendix D, Figure 9",
            _ever_faster,
            "“exponentially”",
        ),
        Claim(
            "γ falls with M for steps up to the gradient (α ≤ 1)",
            "Appendix D, Figure 8",
            partial(_falls_with_members, limit=1.0),
        ),
        Claim(
            "γ falls with M for steps of any length",
            "Appendix D, below Theorem D.3",
            partial(_falls_with_members, limit=math.inf),
        ),
        Claim(
            "γ reaches 1, joint training, at α = M − 1 and falls after it",
            "follows from Theorem D.3",
            _peak,
            ours=True,
        ),
        Claim(
            "Training on moved targets, taken as given, has the β of Theorem D.1",
            "Appendix D, below Eq. 7",
            _constant_target,
            "β = 0.75 at α = 1",
        ),
        Claim(
            "Given targets: (1 + α) ∇L^β with β = α/(1 + α), or αM/((M−1)(1+α)) with the others",
            "correction of Theorem D.1",
            _equal("detached_gradient", "detached_others_gradient"),
            ours=True,
        ),
    ),
    table,
    plot,
)
