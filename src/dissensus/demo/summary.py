"""Summary of the demo: a table, and for each method a sentence that follows from its numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rich import box
from rich.table import Table

from dissensus.demo.plan import CONTENDERS
from dissensus.detection import Estimate
from dissensus.report.figure import join_names

__all__ = ["Outcome", "sentences", "table"]


@dataclass(frozen=True)
class Outcome:
    """The measurements of one ensemble, with 95% intervals."""

    accuracy: Estimate
    member: Estimate  # the mean accuracy of a single member
    error: float
    diversity: float
    verdict: str
    held_out: Estimate  # AUROC of PDS on digits that were never trained on
    corrupted: Estimate  # and on corrupted digits
    paper: Estimate  # accuracy under the paper's attack
    strong: Estimate  # and in the worst case over all attacks


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


def table(outcomes: Mapping[str, Outcome]) -> Table:
    """All methods with their intervals, in at most 80 columns."""
    rows = Table(
        title="Test digits, 95% intervals; AUROC is that of PDS",
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
    for key, outcome in outcomes.items():
        rows.add_row(CONTENDERS[key].name, *(_cell(name, getattr(outcome, name)) for name in order))
    return rows


def _cell(name: str, value: Estimate | str) -> str:
    """A value above its interval."""
    if isinstance(value, str):
        return value
    if name in AUROCS:
        return f"{value.value:.3f}\n[dim]{value.low:.2f}–{value.high:.2f}[/]"
    return f"{value:.1%}\n[dim]{100 * value.low:.0f}–{100 * value.high:.0f}[/]"


def sentences(outcomes: Mapping[str, Outcome]) -> list[str]:
    """For each method: what it does, and how it compares with independent members.

    A method is better or worse than independent members only where the intervals do not overlap.
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
            parts.append(_comparison(outcome, plain, outcomes.values()))
        if outcome.verdict != "healthy":
            ratio = outcome.diversity / plain.diversity
            parts.append(
                f"Verdict: {outcome.verdict}. A single member reaches {outcome.member:.0%} instead "
                f"of {plain.member:.0%}, and DIV is {ratio:.1f} times as large, disagreement "
                "that cancels in the average"
            )
        lines.append(". ".join(parts) + ".")
    return lines


def _comparison(outcome: Outcome, plain: Outcome, everyone: Collection[Outcome]) -> str:
    better, worse, highest = [], [], []
    for name, (_, what) in MEASURES.items():
        value, baseline = getattr(outcome, name), getattr(plain, name)
        form = "{:.2f}" if name in AUROCS else "{:.0%}"
        numbers = f"{what} ({form.format(value.value)} against {form.format(baseline.value)})"
        if value.low > baseline.high:
            better.append(numbers)
        elif value.high < baseline.low:
            worse.append(numbers)
        elif value > max(getattr(other, name) for other in everyone if other is not outcome):
            highest.append(numbers)
    if better:
        good = f"Better than independent members at {join_names(better)}"
    elif highest:
        good = f"Perhaps better at {join_names(highest)}: the highest here, but within chance"
    else:
        good = "Not better than independent members at anything measured here"
    return f"{good}; worse at {join_names(worse)}" if worse else good
