"""Summary of the demo: a table, and for each method a sentence that follows from its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from dissensus.demo.plan import CONTENDERS
from dissensus.measures import Estimate, among_best
from dissensus.show.figure import join_names


@dataclass(frozen=True)
class ContenderResult:
    """The measurements of one ensemble, with 95% intervals."""

    accuracy: Estimate
    member: Estimate  # the mean accuracy of a single member
    diversity: float
    verdict: str
    held_out: Estimate  # AUROC of the default score on digits that were never trained on
    corrupted: Estimate  # and on corrupted digits
    paper: Estimate  # accuracy under the paper's attack
    strong: Estimate  # and in the worst case over all attacks
    correct: NDArray[np.float64] | None = None  # whether each test digit is predicted correctly


#: Measures by which methods are compared: the field, its heading, and its name in a sentence.
MEASURES = {
    "accuracy": ("accuracy", "accuracy"),
    "held_out": ("8 and 9\nAUROC", "detecting the held-out digits"),
    "corrupted": ("corrupted\nAUROC", "detecting corrupted digits"),
    "paper": ("paper's\nattack", "resisting the paper's attack"),
    "strong": ("strong\nattacks", "resisting strong attacks"),
}

#: Measures that are an AUROC; the others are accuracies.
AUROCS = ("held_out", "corrupted")

#: The method that others are compared with.
PLAIN = "independent"


def table(outcomes: Mapping[str, ContenderResult]) -> Table:
    """All methods with their intervals, in at most 80 columns.

    A star marks what is not distinguishable from the best of its column; one in brackets, the same
    of an ensemble that colludes.
    """
    rows = Table(
        title="Test digits, 95% intervals; AUROC of the default score of each",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    rows.add_column("method", no_wrap=True)
    headings = {key: heading for key, (heading, _) in MEASURES.items()}
    headings |= {"member": "single\nmember", "verdict": "verdict"}
    order = ["accuracy", "member", "verdict", "held_out", "corrupted", "paper", "strong"]
    for name in order:
        rows.add_column(headings[name], justify="right", no_wrap=True)
    columns = [_column(name, list(outcomes.values())) for name in order]
    for key, *cells in zip(outcomes, *columns, strict=True):
        rows.add_row(CONTENDERS[key].name, *cells)
    return rows


def _column(name: str, outcomes: Sequence[ContenderResult]) -> list[Text]:
    """Values above their intervals, the best marked."""
    if name == "verdict":
        return [Text(outcome.verdict) for outcome in outcomes]
    values = [getattr(outcome, name) for outcome in outcomes]
    marks = _among_best(name, outcomes) if name in MEASURES else [False] * len(values)
    cells = []
    for outcome, value, best in zip(outcomes, values, marks, strict=True):
        star = ("(*)" if outcome.verdict == "colluding" else "*") if best else ""
        if name in AUROCS:
            text, ends = f"{value.value:.3f}", f"{value.low:.2f}–{value.high:.2f}"
        else:
            text, ends = f"{value:.1%}", f"{100 * value.low:.0f}–{100 * value.high:.0f}"
        cells.append(Text.assemble(f"{star}{text}\n", (ends, "dim")))
    return cells


def _among_best(
    name: str, outcomes: Sequence[ContenderResult], pairs: int | None = None
) -> list[bool]:
    """What is not distinguishable from the best; accuracies are compared digit by digit."""
    parts = [outcome.correct if name == "accuracy" else None for outcome in outcomes]
    return among_best([getattr(outcome, name) for outcome in outcomes], parts, pairs=pairs)


def sentences(outcomes: Mapping[str, ContenderResult]) -> list[str]:
    """For each method: what it does, and how it compares with independent members.

    A method is better or worse than independent members only where the two are distinguishable,
    by the rule of the table.
    """
    plain = outcomes[PLAIN]
    lines = []
    for key, outcome in outcomes.items():
        contender = CONTENDERS[key]
        parts = [f"{contender.name}: {contender.what}"]
        if outcome is plain:
            parts.append(
                f"The baseline: {plain.accuracy:.1%} accuracy, AUROC {plain.held_out.value:.2f} on "
                f"8 and 9, {plain.strong:.0%} accuracy under strong attacks"
            )
        else:
            parts.append(_comparison(outcome, plain, math.comb(len(outcomes), 2)))
        if outcome.verdict != "healthy":
            ratio = outcome.diversity / plain.diversity
            parts.append(
                f"Verdict: {outcome.verdict}. A single member reaches {outcome.member:.0%} instead "
                f"of {plain.member:.0%}, and DIV is {ratio:.1f} times as large, disagreement "
                "that cancels in the average"
            )
        lines.append(". ".join(parts) + ".")
    return lines


def _comparison(outcome: ContenderResult, plain: ContenderResult, pairs: int) -> str:
    better, worse = [], []
    for name, (_, what) in MEASURES.items():
        value, baseline = getattr(outcome, name), getattr(plain, name)
        form = "{:.2f}" if name in AUROCS else "{:.0%}"
        numbers = f"{what} ({form.format(value.value)} against {form.format(baseline.value)})"
        first, second = _among_best(name, (outcome, plain), pairs)
        better += [numbers] if first else []
        worse += [numbers] if second else []
    sentence = "Not distinguishably better than independent members at anything measured here"
    if better:
        sentence = f"Better than independent members at {join_names(better)}"
    return f"{sentence}; worse at {join_names(worse)}" if worse else sentence
