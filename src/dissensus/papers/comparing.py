"""How claims are checked: in pairs of runs that share seed and data.

All verdicts follow the rule of :mod:`dissensus.papers.statistics`: the 95 % interval of the
mean paired difference must lie on the claimed side of 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dissensus.papers.base import Finding, Record, Verdict
from dissensus.papers.statistics import judge_larger, paired_difference

__all__ = [
    "CANNOT",
    "SEEDS_OPTION",
    "all_of",
    "compare_values",
    "paired",
    "seeds_of",
    "where",
]

CANNOT: Verdict = "cannot be tested at this scale"
SEEDS_OPTION = {"seeds": "how many runs of each setting, each with its own seed and data split"}


def seeds_of(options: Mapping[str, Any], default: int) -> range:
    """The seeds of a study: as many as ``--set seeds=`` says."""
    count = options.get("seeds", default)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"seeds must be an integer of at least 1, got {count!r}")
    return range(count)


def where(records: Iterable[Record], **settings: Any) -> list[Record]:
    """The records whose cells have these settings."""
    return [
        record
        for record in records
        if all(record["cell"][key] == value for key, value in settings.items())
    ]


def paired(
    first: Mapping[int, float], second: Mapping[int, float]
) -> tuple[list[float], list[float]]:
    """The values of the seeds that both have, in the same order."""
    seeds = sorted(set(first) & set(second))
    return [first[seed] for seed in seeds], [second[seed] for seed in seeds]


def compare_values(
    left: Sequence[float],
    right: Sequence[float],
    names: tuple[str, str],
    quantity: str,
    form: str = "{:.3f}",
    published: str | None = None,
) -> Finding:
    """Whether ``quantity`` is larger in the first runs than in the second, pair by pair."""
    if not left:
        return Finding(CANNOT, f"{quantity}: no runs of both kinds", published)
    difference = paired_difference(left, right)
    verdict, words = judge_larger(difference)
    means = [form.format(float(np.mean(values))) for values in (left, right)]
    sentence = (
        f"{quantity}: {names[0]} {means[0]}, {names[1]} {means[1]}, difference "
        f"{difference.shown(form)}, {words}"
    )
    return Finding(verdict, sentence, published)


def all_of(findings: Mapping[str, Finding], published: str | None = None) -> Finding:
    """One finding from several: it holds where each holds; the sentences stand side by side."""
    verdicts = {finding.verdict for finding in findings.values()}
    verdict: Verdict = "holds"
    if not findings or CANNOT in verdicts:
        verdict = CANNOT
    if "does not hold" in verdicts:
        verdict = "does not hold"
    sentence = "; ".join(
        f"{name}: {finding.measured}" if name else finding.measured
        for name, finding in findings.items()
    )
    return Finding(verdict, sentence or "no runs", published)
