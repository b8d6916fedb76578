"""What the demo says: one table, and a sentence for each method that follows from its numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rich import box
from rich.table import Table

from dissensus.demo.plan import CONTENDERS
from dissensus.detection import Estimate

__all__ = ["Outcome", "sentences", "table"]


@dataclass(frozen=True)
class Outcome:
    """What was measured of one ensemble; the shares with 95% intervals."""

    accuracy: Estimate
    member: Estimate  # the mean accuracy of a member alone
    error: float
    diversity: float
    verdict: str
    held_out: Estimate  # AUROC of PDS, digits that were never trained on
    corrupted: Estimate  # and corrupted ones
    paper: Estimate  # accuracy under the paper's attack
    strong: Estimate  # and in the worst case over strong ones


#: Measures on which methods are compared: the field, its heading, what a method is then good at.
MEASURES = {
    "accuracy": ("accuracy", "accuracy"),
    "held_out": ("8 and 9\nAUROC", "noticing digits it was never taught"),
    "corrupted": ("corrupted\nAUROC", "noticing corrupted digits"),
    "paper": ("paper's\nattack", "resisting the paper's attack"),
    "strong": ("strong\nattacks", "resisting strong attacks"),
}

#: The method that others are compared with.
PLAIN = "independent"


def table(outcomes: Mapping[str, Outcome]) -> Table:
    """All methods with their intervals, in at most 80 columns."""
    found = Table(
        title="Test digits, 95% intervals; PDS tells known from unknown",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    found.add_column("method", no_wrap=True)
    headings = {key: heading for key, (heading, _) in MEASURES.items()}
    order = ["accuracy", "member", "verdict", "held_out", "corrupted", "paper", "strong"]
    headings |= {"member": "a member\nalone", "verdict": "verdict"}
    for key in order:
        found.add_column(headings[key], justify="right", no_wrap=True)
    for key, outcome in outcomes.items():
        cells = [_cell(key, getattr(outcome, name)) for key, name in _kinds(order)]
        found.add_row(CONTENDERS[key].name, *cells)
    return found


def _kinds(order: list[str]) -> list[tuple[str, str]]:
    return [("auroc" if name in ("held_out", "corrupted") else "share", name) for name in order]


def _cell(kind: str, value: Estimate | str) -> str:
    """A value above its interval."""
    if isinstance(value, str):
        return value
    if kind == "auroc":
        return f"{value.value:.3f}\n[dim]{value.low:.2f}–{value.high:.2f}[/]"
    return f"{value:.1%}\n[dim]{100 * value.low:.0f}–{100 * value.high:.0f}[/]"


def sentences(outcomes: Mapping[str, Outcome]) -> list[str]:
    """One a method: what it does, what it is good for, and what speaks against it.

    Better or worse than independent members is what has an interval of its own, apart from theirs.
    """
    plain = outcomes[PLAIN]
    said = []
    for key, outcome in outcomes.items():
        contender = CONTENDERS[key]
        parts = [f"{contender.name}: {contender.what}"]
        if outcome is plain:
            parts.append(_of_plain(plain))
        else:
            parts.append(_compared(outcome, plain, outcomes.values()))
        if outcome.verdict != "healthy":
            parts.append(_suspected(outcome, plain))
        said.append(". ".join(parts) + ".")
    return said


def _of_plain(plain: Outcome) -> str:
    return (
        f"Good for {plain.accuracy:.1%} accuracy with nothing to choose, and the one to beat: "
        f"AUROC {plain.held_out.value:.2f} on 8 and 9, {plain.strong:.0%} right under strong "
        "attacks"
    )


def _compared(outcome: Outcome, plain: Outcome, everyone: Collection[Outcome]) -> str:
    better, worse, highest = [], [], []
    for name, (_, what) in MEASURES.items():
        own, other = getattr(outcome, name), getattr(plain, name)
        numbers = f"{what} ({_short(name, own)} against {_short(name, other)})"
        if own.low > other.high:
            better.append(numbers)
        elif own.high < other.low:
            worse.append(numbers)
        elif own > max(getattr(one, name) for one in everyone if one is not outcome):
            highest.append(numbers)
    if better:
        good = f"Good for {_listed(better)}"
    elif highest:
        good = f"Perhaps good for {_listed(highest)}: the highest here, but within chance"
    else:
        good = "Good for nothing here that independent members are not"
    bad = f"; clearly worse at {_listed(worse)}" if worse else ""
    return f"{good}{bad}"


def _suspected(outcome: Outcome, plain: Outcome) -> str:
    ratio = outcome.diversity / plain.diversity
    return (
        f"Its members are {outcome.verdict}: alone a member has {outcome.member:.0%}, not "
        f"{plain.member:.0%}, and DIV is {ratio:.1f} times as large, disagreement that cancels in "
        "the average"
    )


def _short(name: str, value: Estimate) -> str:
    return f"{value.value:.2f}" if name in ("held_out", "corrupted") else f"{value:.0%}"


def _listed(items: list[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
