"""The two kinds of figures of the image studies: against β, and over epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dissensus.papers.base import Record
from dissensus.papers.collusion.comparing import (
    betas_in,
    values_at,
)
from dissensus.papers.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["AXES", "draw_beta_curves", "draw_points"]

#: What the axes are called.
AXES = {
    "accuracy": "test accuracy",
    "member_accuracy": "test accuracy of a member",
    "error": "test ERR (ensemble loss)",
    "member_error": "mean test ERR of members",
    "diversity": "test DIV",
}


def draw_beta_curves(groups: Mapping[str, Sequence[Record]], keys: Sequence[str]) -> Figure:
    """One panel a quantity, one line a group, against β, with intervals over runs."""
    from dissensus.plots.style import label, new_figure

    figure, axes = new_figure(1, len(keys), width=3.8, height=3.0)
    for panel, key in zip(axes[0], keys, strict=True):
        for number, (name, records) in enumerate(groups.items()):
            betas = betas_in(records)
            runs = [list(values_at(records, beta, key).values()) for beta in betas]
            draw_points(panel, betas, runs, number, name)
        label(panel, "β (0 independent, 1 joint)", AXES[key])
    axes[0, 0].legend(loc="lower left", fontsize=8.0, frameon=False)
    return figure


def draw_points(
    panel: Axes, x: Sequence[float], runs: Sequence[Sequence[float]], number: int, name: str
) -> None:
    """A line through the means of ``runs`` at ``x`` with its 95 % band; no band for one run."""
    from dissensus.plots.style import add_line

    found = [mean_interval(values) for values in runs]
    means = [estimate.mean for estimate in found]
    band = None
    if all(estimate.runs > 1 for estimate in found):
        band = [estimate.low for estimate in found], [estimate.high for estimate in found]
    add_line(panel, x, means, number, band=band, name=name)
