"""Gradient adjusted targets (GAT): claims, figure and table of Appendix D.

Training each member on a target moved against the ensemble's error by a step α is training with
the augmented objective L^β for a β that follows from α. The study that tries these equalities is
in :mod:`dissensus.papers.collusion.gat_study`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.collusion.gat_study import DRAWS, MEMBERS, STUDY, run
from dissensus.papers.comparisons import decide
from dissensus.papers.exact import TOLERANCE, Equal
from dissensus.plots import Panel, Plot, Series

__all__ = ["EXPERIMENT", "run"]


# ---- claims -------------------------------------------------------------------------------------


def _draws(records: list[Record]) -> list[Record]:
    return [record for record in records if record["name"] != "curves"]


def _curve(records: list[Record]) -> dict[str, Any]:
    curve: dict[str, Any] = next(r["result"] for r in records if r["name"] == "curves")
    return curve


def _worst(records: list[Record], key: str) -> float:
    return max(float(record["result"][key]) for record in _draws(records))


def _sample(records: list[Record]) -> str:
    """The number of draws, and what they range over."""
    draws = sum(record["cell"]["draws"] for record in _draws(records))
    counts = [record["cell"]["members"] for record in _draws(records)]
    return f"{draws} draws, M from {min(counts)} to {max(counts)}, α from 0.001 to 1000"


def _equal(*keys: str) -> Equal:
    """A check that the largest of these deviations is rounding."""
    return Equal(keys, _worst, _sample)


def _steps(records: list[Record]) -> Finding:
    curve = _curve(records)
    zero, one = curve["beta_of_step_0_1"]
    last = curve["beta"][-1]
    rising = all(a < b for a, b in pairwise(curve["beta"]))
    sentence = (
        f"β(0) = {zero:g}, β(1) = {one:g}, β({curve['alphas'][-1]:g}) = {last:.4f}, "
        f"{'rising' if rising else 'not rising'} all the way"
    )
    holds = zero == 0 and abs(one - 0.75) <= TOLERANCE and rising and 0.99 < last < 1
    return decide(holds, sentence, "0, 0.75, and 1 as α → ∞")


def _ever_faster(records: list[Record]) -> Finding:
    alphas = _curve(records)["alpha_near_one"]
    growth = [after / before for before, after in pairwise(alphas)]
    sentence = (
        f"α = {alphas[0]:.3g}, {alphas[1]:.3g}, {alphas[2]:.3g} at β = 0.9, 0.99, 0.999; each "
        f"further decade multiplies α by {growth[-1]:.4g} (√10 = 3.162): α = (1 − β)^−½ − 1, a "
        "pole at β = 1, steeper than an exponential, which would be finite there"
    )
    return decide(all(factor > 3 for factor in growth), sentence, "“grows exponentially”")


@dataclass(frozen=True)
class FallsWithMembers:
    """Checks that γ falls with M at every step up to ``limit``."""

    limit: float

    def __call__(self, records: list[Record]) -> Finding:
        curve = _curve(records)
        gamma = {int(count): values for count, values in curve["gamma"].items()}
        comparisons, reversals, example = 0, 0, ""
        for place, alpha in enumerate(curve["alphas"]):
            for few, many in pairwise(sorted(gamma)) if 0 < alpha <= self.limit else ():
                small, large = gamma[few][place], gamma[many][place]
                comparisons += 1
                if small <= large:
                    reversals += 1
                    example = (
                        f"; at α = {alpha:g} γ is {small:.3f} for M = {few} and {large:.3f} for "
                        f"M = {many}"
                    )
        sentence = f"reversed in {reversals} of {comparisons} comparisons of neighbouring M"
        return decide(not reversals, sentence + example)


def _peak(records: list[Record]) -> Finding:
    curve = _curve(records)
    fine = all(
        abs(peak["alpha"] - (int(count) - 1)) <= TOLERANCE
        and abs(peak["gamma"] - 1) <= TOLERANCE
        and peak["falls_after"]
        for count, peak in curve["peaks"].items()
    )
    places = ", ".join(f"{p['alpha']:g} for M = {count}" for count, p in curve["peaks"].items())
    few = min(curve["gamma"], key=int)
    end = f"at α = {curve['alphas'][-1]:g} γ is down to {curve['gamma'][few][-1]:.3f} for M = {few}"
    return decide(fine, f"on a grid of steps of 0.05 γ is largest at α = {places}; {end}")


def _constant_target(records: list[Record]) -> Finding:
    wrong = _worst(records, "detached_with_beta_of_d1_direction")
    sentence = (
        "gradient flows through the moved target in Theorem D.1; with the target held constant, as "
        f"training on given targets would, directions differ by up to {wrong:.2g} of their length "
        "(α = 1 then equals β = 0.5, not 0.75)"
    )
    return decide(wrong <= TOLERANCE, sentence, "β = 0.75 at α = 1")


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


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
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
    return ["members", "draws", *columns.values()], rows


_SETTING = (
    "Outputs and targets from normal distributions of varying width, {draws} draws for each of M = "
    "{members}; steps α from 0.001 to 1000, evenly in the logarithm; float64. The paper proves "
    "these equalities and draws the curves; nothing is left out, and the draws are added here."
)

EXPERIMENT = Experiment(
    name="gat",
    paper="collusion",
    shows="Figures 8 and 9, Theorems D.1 and D.3",
    title="Members trained on targets moved against the ensemble's error train with L^β",
    study=STUDY,
    claims=(
        Claim(
            "GAT's loss and gradient are (1 + α)² times those of L^β with β = 1 − 1/(1 + α)²",
            "Theorem D.1, Eq. 8",
            _equal("theorem_d1_value", "theorem_d1_gradient"),
        ),
        Claim(
            "With the mean of the other members they are (1 + α)² times those of L^γ",
            "Theorem D.3, Eq. 10",
            _equal("theorem_d3_value", "theorem_d3_gradient"),
        ),
        Claim(
            "γ = α/(α+1)² · M((α+2)M − 2(α+1))/(M−1)², which is 1 − ((M−1−α)/((M−1)(1+α)))²",
            "Theorem D.3",
            _equal("printed_gamma"),
        ),
        Claim("Σ_j (f̄ − f_j)(y − f_j) = M · DIV", "Lemma D.2, Eq. 9", _equal("lemma_d2")),
        Claim(
            "No step is independent training, a step of the gradient itself is β = 0.75, and ever "
            "larger steps approach joint training",
            "Appendix D, below Theorem D.1",
            _steps,
        ),
        Claim(
            "The step α grows ever faster, without bound, as β → 1",
            "Appendix D, Figure 9",
            _ever_faster,
        ),
        Claim(
            "Smaller ensembles weigh diversity more: γ falls with M, for steps up to the gradient "
            "itself (α ≤ 1)",
            "Appendix D, Figure 8",
            FallsWithMembers(1.0),
        ),
        Claim(
            "Smaller ensembles weigh diversity more, for steps of any length",
            "Appendix D, below Theorem D.3",
            FallsWithMembers(float("inf")),
        ),
        Claim(
            "γ reaches 1, joint training, at α = M − 1 and falls after it (not said in the paper)",
            "follows from Theorem D.3",
            _peak,
        ),
        Claim(
            "Independent training on the moved targets, taken as given, is training with the β of "
            "Theorem D.1",
            "Appendix D, below Eq. 7",
            _constant_target,
        ),
        Claim(
            "With a constant target the gradient is (1 + α) times that of L^β with β = α/(1 + α), "
            "or αM/((M−1)(1+α)) with the others only (not said in the paper)",
            "correction of Theorem D.1",
            _equal("detached_gradient", "detached_others_gradient"),
        ),
    ),
    draw=plot,
    table=table,
    setting={
        scale: _SETTING.format(draws=DRAWS[scale], members=", ".join(map(str, MEMBERS[scale])))
        for scale in MEMBERS
    },
)
