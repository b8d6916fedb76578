"""Curves over training: losses, errors and diversity of both parts, for Figures 5 and 10 to 12.

They are read from the ``watched`` columns of a record, which :func:`images.columns` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproductions.comparisons import Quantity, Runs
from reproductions.figures import AnyPanel, Panel, Plot, Text, curve_series
from reproductions.study import Record

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


# ---- summaries of a curve -----------------------------------------------------------------------


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


def error_epoch() -> Quantity:
    """The epoch at which mean training ERR is least."""
    return _epoch_of("train_member_error", np.argmin)


def diversity_epoch() -> Quantity:
    """The epoch at which training DIV is largest."""
    return _epoch_of("train_diversity", np.argmax)


def _epoch_of(curve: str, extreme: Callable[[Curve], Any]) -> Quantity:
    def read(record: Record) -> float:
        return float(record["result"]["watched"]["epoch"][int(extreme(read_curve(record, curve)))])

    return Quantity("epoch under joint training", read, "{:.1f}")


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
