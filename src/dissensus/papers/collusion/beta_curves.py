"""Quantities of image ensembles against β: checks, a table and a figure that the sweeps share.

"Worse" is a higher error or a lower accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dissensus.papers.base import Finding, Record
from dissensus.papers.comparisons import (
    CANNOT,
    Groups,
    Quantity,
    Runs,
    all_of,
    at,
    compare_values,
    pair_values,
)
from dissensus.papers.statistics import paired_difference
from dissensus.plots import Panel, Plot

__all__ = [
    "INDEPENDENT",
    "JOINT",
    "QUANTITIES",
    "InEach",
    "JointWorst",
    "LateDrop",
    "at_beta",
    "beta_table",
    "betas_in",
    "plot_beta_curves",
]

#: The quantities of a run on test data.
QUANTITIES = {
    "accuracy": Quantity("test accuracy", at("test", "accuracy"), "{:.1%}"),
    "top5": Quantity("top-5 test accuracy", at("test", "top5"), "{:.1%}"),
    "member_accuracy": Quantity(
        "test accuracy of a member", at("test", "member_accuracies"), "{:.1%}"
    ),
    "error": Quantity("test ERR", at("test", "error")),
    "member_error": Quantity("mean test ERR of members", at("test", "member_error")),
    "diversity": Quantity("test DIV", at("test", "diversity")),
}


def at_beta(beta: float) -> Runs:
    """The runs at one β."""
    return Runs(f"β = {beta:g}", {"beta": beta})


INDEPENDENT, JOINT = at_beta(0.0), at_beta(1.0)


def betas_in(records: Sequence[Record]) -> list[float]:
    """The values of β that were run, in order."""
    return sorted({float(record["cell"]["beta"]) for record in records})


# ---- checks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InEach:
    """Checks every group: holds if ``check`` holds in each."""

    groups: Groups
    check: Callable[[list[Record]], Finding]

    def __call__(self, records: list[Record]) -> Finding:
        return all_of({name: self.check(runs) for name, runs in self.groups(records).items()})


@dataclass(frozen=True)
class JointWorst:
    """Checks that β = 1 is worse than every other β, by the β that comes nearest to refuting it."""

    key: str

    def __call__(self, records: list[Record]) -> Finding:
        quantity = QUANTITIES[self.key]
        weakest: tuple[float, str, Finding] | None = None
        others = [at_beta(beta) for beta in betas_in(records) if beta != 1]
        for other in others:
            pair = (JOINT, other) if self.key in ("error", "member_error") else (other, JOINT)
            left, right = pair_values(*(quantity.values(runs.of(records)) for runs in pair))
            names = (pair[0].name, pair[1].name)
            finding = compare_values(left, right, names, quantity.name, quantity.form)
            if not left:
                return finding
            low = paired_difference(left, right).low
            if weakest is None or low < weakest[0]:
                weakest = (low, other.name, finding)
        if weakest is None:
            return Finding(CANNOT, "β = 1 alone was run")
        _, name, finding = weakest
        sentence = f"the weakest of {len(others)} comparisons is with {name}: {finding.measured}"
        return Finding(finding.verdict, sentence)


@dataclass(frozen=True)
class LateDrop:
    """Checks that a quantity falls more from the last β below 1 to 1 than from 0 to there."""

    key: str = "accuracy"

    def __call__(self, records: list[Record]) -> Finding:
        below = [beta for beta in betas_in(records) if 0 < beta < 1]
        if not below:
            return Finding(CANNOT, "no β between 0 and 1 was run")
        quantity, near = QUANTITIES[self.key], below[-1]
        first, middle, last = (
            quantity.values(at_beta(beta).of(records)) for beta in (0.0, near, 1.0)
        )
        seeds = sorted(set(first) & set(middle) & set(last))
        late = [middle[seed] - last[seed] for seed in seeds]
        early = [first[seed] - middle[seed] for seed in seeds]
        names = (f"from β = {near:g} to 1", f"from 0 to {near:g}")
        return compare_values(late, early, names, f"fall of {quantity.name}", quantity.form)


# ---- table and figure ---------------------------------------------------------------------------


def beta_table(
    groups: Mapping[str, Sequence[Record]], keys: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Rows of group and β with each of ``keys`` on test data, as mean and interval."""
    quantities = [QUANTITIES[key] for key in keys]
    rows = []
    for name, records in groups.items():
        for beta in betas_in(records):
            runs = at_beta(beta).of(records)
            shown = [quantity.text(runs) for quantity in quantities]
            rows.append([name, f"{beta:g}", str(len(runs)), *shown])
    return ["setting", "β", "runs", *(quantity.name for quantity in quantities)], rows


def plot_beta_curves(groups: Mapping[str, Sequence[Record]], keys: Sequence[str]) -> Plot:
    """A panel for each quantity and a line for each group, against β, with intervals over runs."""
    panels = []
    for key in keys:
        series = []
        for number, (name, records) in enumerate(groups.items()):
            betas = betas_in(records)
            runs = [at_beta(beta).of(records) for beta in betas]
            series.append(QUANTITIES[key].series(name, betas, runs, number))
        panels.append(Panel("β (0 independent, 1 joint)", QUANTITIES[key].name, series))
    return Plot(panels, "Test quantities against β", len(panels), (3.8, 3.0))
