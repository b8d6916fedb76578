"""How the claims of the image studies are checked: in pairs of runs that share seed and data.

"Worse" is a higher error or a lower accuracy. All verdicts follow the rule of
:mod:`dissensus.papers.statistics`: the 95 % interval of the mean paired difference must lie on
the claimed side of 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dissensus.papers.base import Finding, Record
from dissensus.papers.collusion.images import (
    by_seed,
)
from dissensus.papers.comparisons import CANNOT, compare_values, paired, where
from dissensus.papers.statistics import mean_interval, paired_difference

__all__ = [
    "FORMS",
    "QUANTITIES",
    "beta_table",
    "betas_in",
    "compare",
    "joint_is_worst",
    "late_drop",
    "values_at",
]

#: How the quantities of a record are printed.
FORMS = {"accuracy": "{:.1%}", "top5": "{:.1%}", "member_accuracy": "{:.1%}"}
QUANTITIES = {
    "accuracy": "test accuracy",
    "top5": "top-5 test accuracy",
    "member_accuracy": "test accuracy of a member",
    "error": "test ERR",
    "member_error": "mean test ERR of members",
    "diversity": "test DIV",
}


def compare(
    larger: Sequence[Record],
    smaller: Sequence[Record],
    names: tuple[str, str],
    key: str,
    *,
    part: str = "test",
    published: str | None = None,
) -> Finding:
    """Whether ``key`` is larger in the first records than in the second, seed by seed."""
    left, right = paired(by_seed(larger, part, key), by_seed(smaller, part, key))
    return compare_values(left, right, names, QUANTITIES[key], FORMS.get(key, "{:.3f}"), published)


# ---- over β -------------------------------------------------------------------------------------


def betas_in(records: Sequence[Record]) -> list[float]:
    """The values of β that were run, in order."""
    return sorted({float(record["cell"]["beta"]) for record in records})


def values_at(
    records: Sequence[Record], beta: float, key: str, part: str = "test"
) -> dict[int, float]:
    """One figure at one β, by seed."""
    return by_seed(where(records, beta=beta), part, key)


def joint_is_worst(records: Sequence[Record], key: str) -> Finding:
    """Whether β = 1 is worse than every other β, by the β that comes nearest to refuting it."""
    sign = -1.0 if key in ("error", "member_error") else 1.0
    weakest: tuple[float, float, Finding] | None = None
    for beta in betas_in(records):
        if beta == 1:
            continue
        other, joint = paired(values_at(records, beta, key), values_at(records, 1.0, key))
        names, values = (f"β = {beta:g}", "β = 1"), (other, joint)
        if sign < 0:
            names, values = ("β = 1", f"β = {beta:g}"), (joint, other)
        found = compare_values(*values, names, QUANTITIES[key], FORMS.get(key, "{:.3f}"))
        if not other:
            return found
        low = paired_difference(*values).low
        if weakest is None or low < weakest[1]:
            weakest = (beta, low, found)
    if weakest is None:
        return Finding(CANNOT, "β = 1 alone was run")
    betas = len(betas_in(records)) - 1
    return Finding(
        weakest[2].verdict,
        f"the weakest of {betas} comparisons is with β = {weakest[0]:g}: {weakest[2].measured}",
    )


def late_drop(records: Sequence[Record], key: str = "accuracy") -> Finding:
    """Whether ``key`` falls more from the last β below 1 to 1 than from 0 to there."""
    below = [beta for beta in betas_in(records) if 0 < beta < 1]
    if not below:
        return Finding(CANNOT, "no β between 0 and 1 was run")
    near = below[-1]
    at = {beta: values_at(records, beta, key) for beta in (0.0, near, 1.0)}
    seeds = sorted(set(at[0.0]) & set(at[near]) & set(at[1.0]))
    late = [at[near][seed] - at[1.0][seed] for seed in seeds]
    early = [at[0.0][seed] - at[near][seed] for seed in seeds]
    names = (f"from β = {near:g} to 1", f"from 0 to {near:g}")
    return compare_values(
        late, early, names, f"fall of {QUANTITIES[key]}", FORMS.get(key, "{:.3f}")
    )


def beta_table(
    groups: Mapping[str, Sequence[Record]], keys: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Rows of group and β with each of ``keys`` on test data, as mean and interval."""
    header = ["setting", "β", "runs", *(QUANTITIES[key] for key in keys)]
    rows = []
    for name, records in groups.items():
        for beta in betas_in(records):
            found = {key: list(values_at(records, beta, key).values()) for key in keys}
            shown = [mean_interval(found[key]).shown(FORMS.get(key, "{:.3f}")) for key in keys]
            rows.append([name, f"{beta:g}", str(len(found[keys[0]])), *shown])
    return header, rows
