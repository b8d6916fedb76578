"""Curves over training: losses, errors and diversity of both parts, for Figures 5 and 10 to 12.

They are read from the ``watched`` columns of a record, which :func:`images.columns` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproductions.collusion.images import KINDS
from reproductions.comparisons import Groups, Larger, Quantity, Runs, larger
from reproductions.experiment import Claim
from reproductions.figures import AnyPanel, Panel, Plot, Text, curve_series
from reproductions.study import Record

INDEPENDENT, JOINT = KINDS

Curve = NDArray[np.float64]
#: A number of a curve, such as its last.
Summary = Callable[[Curve], float]
#: Curves with their units and titles.
Panels = Sequence[tuple[str, str, str]]

PANELS: Panels = (
    ("gap", "ERR test − ERR train", "Generalisation gap (Fig. 5)"),
    ("train_error", "ERR", "Training loss (Fig. 10)"),
    ("test_error", "ERR", "Test loss (Fig. 10)"),
    ("train_member_error", "mean ERR", "Training: individual error (Fig. 11)"),
    ("train_diversity", "DIV", "Training: diversity (Fig. 11)"),
    ("test_member_error", "mean ERR", "Test: individual error (Fig. 12)"),
    ("test_diversity", "DIV", "Test: diversity (Fig. 12)"),
)


def read_curve(record: Record, name: str) -> Curve:
    """A quantity over the watched epochs; the gap and diversities follow from the errors."""

    def watched(key: str) -> Curve:
        return np.asarray(record["result"]["watched"][key], dtype=np.float64)

    if name == "gap":
        return watched("test_error") - watched("train_error")
    part, _, rest = name.partition("_")
    if rest == "diversity":
        return watched(f"{part}_member_error") - watched(f"{part}_error")
    return watched(name)


# ---- claims -------------------------------------------------------------------------------------


def last(curve: Curve) -> float:
    return float(curve[-1])


def mean(curve: Curve) -> float:
    return float(np.mean(curve))


def first_third(curve: Curve) -> float:
    return float(np.mean(curve[: max(1, len(curve) // 3)]))


def second_half(curve: Curve) -> float:
    return float(np.mean(curve[len(curve) // 2 :]))


def summary(curve: str, value: Summary, name: str, form: str = "{:.3f}") -> Quantity:
    """A quantity of a record: the ``value`` of a curve."""
    return Quantity(name, lambda record: value(read_curve(record, curve)), form)


def _epoch_of(curve: str, extreme: Callable[[Curve], Any]) -> Quantity:
    def read(record: Record) -> float:
        return float(record["result"]["watched"]["epoch"][int(extreme(read_curve(record, curve)))])

    return Quantity("epoch under joint training", read, "{:.1f}")


def _diversity_first(groups: Groups) -> Larger:
    """A check that joint training's DIV is largest before its mean ERR is least, in training."""
    return larger(
        _epoch_of("train_member_error", np.argmin),
        Runs("of least mean ERR", JOINT.settings),
        Runs("of largest DIV", JOINT.settings),
        groups,
        against=_epoch_of("train_diversity", np.argmax),
    )


#: What is larger in joint training: a claim in words, its place, and the value of a curve.
_CLAIMS: Mapping[str, tuple[str, str, Quantity]] = {
    "gap": (
        "Joint training ends with a larger generalisation gap",
        "Section 6.2, Figure 5",
        summary("gap", last, "gap in the last epoch"),
    ),
    "early gap": (
        "Its gap is larger over the first third of training",
        "Section 6.2, Figure 5",
        summary("gap", first_third, "mean gap over the first third"),
    ),
    "late gap": (
        "Its gap is larger over the second half of training",
        "Section 6.2, Figure 5",
        summary("gap", second_half, "mean gap over the second half"),
    ),
    "slow": (
        "Joint training converges more slowly on the training set",
        "Section G.1, Figure 10",
        summary("train_error", mean, "training ERR, mean over training"),
    ),
    "test loss": (
        "Joint training reaches a larger test loss",
        "Section G.1, Figure 10",
        summary("test_error", last, "test ERR in the last epoch"),
    ),
    "early diversity": (
        "Its training DIV is inflated early",
        "Section G.1, Figure 11",
        summary("train_diversity", first_third, "training DIV, mean over the first third"),
    ),
    "members": (
        "Its members have a larger test loss",
        "Section G.1, Figure 12",
        summary("test_member_error", last, "mean test ERR in the last epoch"),
    ),
}


def curve_claim(kind: str, groups: Groups, *, more: str = "", ours: bool = False) -> Claim:
    """One of these claims, or ``"diversity first"``; ``more`` ends its sentence."""
    if kind == "diversity first":
        text, where = "Its DIV is largest before its mean ERR is least", "Section G.1, Figure 11"
        return Claim(text + more, where, _diversity_first(groups), ours=ours)
    text, where, quantity = _CLAIMS[kind]
    return Claim(text + more, where, larger(quantity, JOINT, INDEPENDENT, groups), ours=ours)


# ---- figure -------------------------------------------------------------------------------------


def plot_training(
    groups: Mapping[str, list[Record]],
    kinds: Sequence[Runs],
    panels: Panels = PANELS,
    columns: int = 4,
) -> Plot:
    """The panels of each group, a line for each kind of training, then the name of the group."""
    drawn: list[AnyPanel] = []
    for name, group in groups.items():
        epochs = group[0]["result"]["watched"]["epoch"]
        for curve, unit, title in panels:
            series = []
            for number, kind in enumerate(kinds):
                curves = [read_curve(record, curve).tolist() for record in kind.of(group)]
                if curves:
                    series.append(curve_series(kind.name, epochs, curves, number))
            drawn.append(Panel("epoch", unit, series, title))
        drawn.append(Text(name))
    return Plot(drawn, "Losses, errors and diversity over training", columns, (3.2, 2.6))
