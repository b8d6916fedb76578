"""Comparable networks: only those that come near the paper's accuracy can test its claims.

A claim about a data set of the paper is tested by networks whose error on clean images is at most
twice the published one: 0.64 % on MNIST, 13.6 % on CIFAR-10, 60.7 % on CIFAR-100. Runs with weaker
networks answer our own questions, and claims on data that the paper does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reproductions.adp.ensembles import BASELINE
from reproductions.adp.published import TABLE1
from reproductions.old.base import CANNOT, Experiment, Finding, Record
from reproductions.old.comparisons import Quantity, at, group_by_data

#: The most that the baseline's error may be, as a multiple of the published error.
FACTOR = 2.0

_ERROR = Quantity("error", at("clean", "error"), "{:.1%}")


@dataclass(frozen=True)
class Comparable:
    """A check on the data sets on which the baseline comes near the published accuracy."""

    check: Callable[[list[Record]], Finding]

    def __call__(self, records: list[Record]) -> Finding:
        kept, weak, reasons = list[Record](), list[Record](), list[str]()
        for title, group in group_by_data(records).items():
            reason = _too_weak(title, group)
            if not reason:
                kept += group
            elif self.check(group).verdict != CANNOT:  # else the claim is not about these data
                weak += group
                reasons.append(reason)
        finding = self.check(kept)
        if not reasons:
            return finding
        beside = f"not tested on {'; '.join(reasons)}"
        if finding.verdict != CANNOT:
            return replace(finding, measured=f"{finding.measured}; {beside}")
        finding = self.check(weak)
        sentence = f"{beside}. Of these networks: {finding.measured}"
        return replace(finding, verdict=CANNOT, measured=sentence)


def _too_weak(title: str, group: list[Record]) -> str:
    """Why the networks of a data set cannot speak for the paper; empty where they can."""
    printed = TABLE1.get(group[0]["cell"]["data"], {}).get("plain")
    baseline = BASELINE.of(group)
    if printed is None or not baseline:
        return ""
    error, limit = _ERROR.mean(baseline), FACTOR * printed[-1] / 100
    if error <= limit:
        return ""
    return f"{title}, where the baseline's error is {error:.1%}, not {printed[-1] / 100:.2%}"


def paper_experiment(*parts: Any) -> Experiment:
    """An :class:`Experiment` whose claims, where they are the paper's, need comparable networks.

    Our own claims say so where others have the place in the paper.
    """
    experiment = Experiment(*parts)
    claims = tuple(
        claim if claim.where.startswith("our ") else replace(claim, check=Comparable(claim.check))
        for claim in experiment.claims
    )
    return replace(experiment, claims=claims)
