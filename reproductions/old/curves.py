"""Curves over training: losses, errors and diversity of both parts, for Figures 5 and 10 to 12.

They are read from the ``watched`` columns of a record, which :func:`images.columns` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.show import AnyPanel, Panel, Plot, Text
from reproductions.collusion.images import KINDS
from reproductions.old.base import Claim, Record
from reproductions.old.comparisons import Groups, Larger, Quantity, Runs, curve_series

Curve = NDArray[np.float64]
#: Curves with their units and titles.
Panels = Sequence[tuple[str, str, str]]

_INDEPENDENT, _JOINT = KINDS

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


# ---- summaries of a curve -----------------------------------------------------------------------


def last(curve: Curve) -> float:
    return float(curve[-1])


def mean(curve: Curve) -> float:
    return float(np.mean(curve))


def first_third(curve: Curve) -> float:
    return float(np.mean(curve[: max(1, len(curve) // 3)]))


def second_half(curve: Curve) -> float:
    return float(np.mean(curve[len(curve) // 2 :]))


def summary(
    curve: str, value: Callable[[Curve], float], name: str, form: str = "{:.3f}"
) -> Quantity:
    """A quantity of a record: the ``value`` of a curve."""
    return Quantity(name, lambda record: value(read_curve(record, curve)), form)


# ---- checks -------------------------------------------------------------------------------------


def joint_larger(curve: str, value: Callable[[Curve], float], name: str, groups: Groups) -> Larger:
    """A check that joint training has the larger ``value`` of a curve in every group."""
    return Larger(summary(curve, value, name), _JOINT, _INDEPENDENT, groups)


def _epoch_of(curve: str, extreme: Callable[[Curve], Any]) -> Quantity:
    """The epoch at which a curve is largest or smallest."""

    def read(record: Record) -> float:
        return float(record["result"]["watched"]["epoch"][int(extreme(read_curve(record, curve)))])

    return Quantity("epoch under joint training", read, "{:.1f}")


def diversity_first(groups: Groups) -> Larger:
    """A check that joint training's DIV is largest before its mean ERR is least, in training."""
    return Larger(
        _epoch_of("train_member_error", np.argmin),
        Runs("of least mean ERR", _JOINT.settings),
        Runs("of largest DIV", _JOINT.settings),
        groups,
        against=_epoch_of("train_diversity", np.argmax),
    )


def larger_gap_late(groups: Groups) -> Claim:
    """The claim of Figure 5 about the second half of training."""
    return Claim(
        "Its gap is larger as training proceeds: over the second half of training",
        "Section 6.2, Figure 5",
        joint_larger("gap", second_half, "mean gap over the second half", groups),
    )


def slow_convergence(groups: Groups) -> Claim:
    """The claim of Figure 10 about training data."""
    return Claim(
        "Joint training converges more slowly on the training set",
        "Section G.1, Figure 10",
        joint_larger("train_error", mean, "training ERR, mean over training", groups),
    )


def early_diversity(groups: Groups) -> tuple[Claim, Claim]:
    """The claims of Figure 11."""
    name = "training DIV, mean over the first third"
    return (
        Claim(
            "Diversity on training data is inflated early under joint training",
            "Section G.1, Figure 11",
            joint_larger("train_diversity", first_third, name, groups),
        ),
        Claim(
            "Joint training maximises diversity early, before it minimises individual error",
            "Section G.1, Figure 11",
            diversity_first(groups),
        ),
    )


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
