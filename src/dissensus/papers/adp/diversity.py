"""Figures 5 and 2: how diverse members are on test data, in predictions and in features."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dissensus.papers.adp.contenders import CONTENDERS
from dissensus.papers.adp.ensembles import ENSEMBLES
from dissensus.papers.adp.measuring import EDGES
from dissensus.papers.adp.reading import contenders_in, data_in, rows_of, title
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparing import (
    all_of,
    compare_values,
    paired,
)
from dissensus.papers.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FEATURES", "HISTOGRAM"]

_SHOWN = ("plain", "smoothed", "adp-entropy", "adp")


# ---- Figure 5 -----------------------------------------------------------------------------------


def _medians(records: list[Record], data: str, who: str) -> dict[int, float]:
    return {
        row["cell"]["seed"]: float(row["result"]["histogram"]["quartiles"][1])
        for row in rows_of(records, data, who)
        if "histogram" in row["result"]
    }


def _more_diverse(larger: str, smaller: str) -> Callable[[list[Record]], Finding]:
    names = (CONTENDERS[larger].title, CONTENDERS[smaller].title)

    def check(records: list[Record]) -> Finding:
        findings = {}
        for data in data_in(records):
            values = [_medians(records, data, who) for who in (larger, smaller)]
            if all(values):
                pair = paired(*values)
                quantity = "median log diversity"
                findings[title(data)] = compare_values(*pair, names, quantity, "{:.2f}")
        return all_of(findings)

    return check


def draw_histogram(records: list[Record]) -> Figure:
    """Histograms of log diversity, all seeds together."""
    from dissensus.plots.style import COLORS, label, new_figure

    chosen = [record for record in records if "histogram" in record["result"]]
    sets = data_in(chosen)
    figure, axes = new_figure(1, max(1, len(sets)), width=3.8, height=3.0)
    for panel, data in zip(axes[0], sets, strict=True):
        for number, who in enumerate(_SHOWN):
            rows = rows_of(chosen, data, who)
            if not rows:
                continue
            counts = np.sum([row["result"]["histogram"]["counts"] for row in rows], axis=0)
            share = counts / counts.sum()
            panel.stairs(share, EDGES, color=COLORS[number], label=CONTENDERS[who].title)
        label(panel, "log ensemble diversity", "share of test images", title(data))
        panel.set_yscale("log")
    if sets:
        axes[0, 0].legend(loc="upper left", fontsize=8.0, frameon=False)
    return figure


def histogram_table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Medians by data set and contender."""
    header = ["data", "contender", "median log diversity"]
    rows = []
    for data in data_in(records):
        for who in contenders_in(records):
            values = list(_medians(records, data, who).values())
            if values:
                shown = mean_interval(values).shown("{:.2f}")
                rows.append([title(data), CONTENDERS[who].title, shown])
    return header, rows


HISTOGRAM = Experiment(
    "histogram",
    "adp",
    "Figure 5",
    "The logarithm of the ensemble diversity on test images",
    ENSEMBLES,
    (
        Claim(
            "The entropy alone makes members more diverse: ADP₂,₀ has a higher diversity than the "
            "baseline",
            "Section 4.3, Appendix B.3, Figure 5",
            _more_diverse("adp-entropy", "plain"),
        ),
        Claim(
            "The determinant makes them more diverse still: ADP₂,₀.₅ against ADP₂,₀",
            "Appendix B.3, Figure 5",
            _more_diverse("adp", "adp-entropy"),
        ),
        Claim(
            "Label smoothing with the F_y of Eq. 7 does not: ADP₂,₀ is more diverse than it",
            "our question",
            _more_diverse("adp-entropy", "smoothed"),
        ),
    ),
    draw_histogram,
    histogram_table,
    ENSEMBLE_SETTING,
)


# ---- Figure 2 -----------------------------------------------------------------------------------


def _similarity(records: list[Record], data: str, who: str) -> dict[int, float]:
    return {
        row["cell"]["seed"]: float(row["result"]["similarity"])
        for row in rows_of(records, data, who)
        if "similarity" in row["result"]
    }


def _less_alike(records: list[Record]) -> Finding:
    findings = {}
    for data in data_in(records):
        values = [_similarity(records, data, who) for who in ("plain", "adp")]
        if all(values):
            names = (CONTENDERS["plain"].title, CONTENDERS["adp"].title)
            pair = paired(*values)
            quantity = "similarity of members' features (linear CKA)"
            findings[title(data)] = compare_values(*pair, names, quantity, "{:.3f}")
    return all_of(findings)


def draw_features(records: list[Record]) -> Figure:
    """t-SNE of each member's last hidden features, one colour a class, for the first seed."""
    from dissensus.plots.style import COLORS, new_figure

    chosen = [record for record in records if "tsne" in record["result"]]
    data = data_in(chosen)[:1]
    rows = [row for who in ("plain", "adp") for one in data for row in rows_of(chosen, one, who)]
    members = max((len(row["result"]["tsne"]["points"]) for row in rows), default=1)
    figure, axes = new_figure(max(1, len(rows)), members, width=2.4, height=2.4)
    colors = np.array([*COLORS, "#8C564B", "#7F7F7F"])
    for line, row in zip(axes, rows, strict=False):
        found = row["result"]["tsne"]
        shades = colors[np.asarray(found["labels"]) % len(colors)]
        for number, (panel, points) in enumerate(zip(line, found["points"], strict=True)):
            x, y = np.asarray(points).T
            panel.scatter(x, y, c=shades, s=4, linewidths=0)
            panel.set_xticks([])
            panel.set_yticks([])
            panel.grid(False)
            name = CONTENDERS[row["cell"]["contender"]].title
            words = f"{title(row['cell']['data'])}, {name}, net {number + 1}"
            panel.set_title(words, fontsize=8.0)
    return figure


def features_table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Linear CKA, mean over pairs of members."""
    rows = []
    for data in data_in(records):
        for who in ("plain", "adp"):
            values = list(_similarity(records, data, who).values())
            if values:
                shown = mean_interval(values).shown("{:.3f}")
                rows.append([title(data), CONTENDERS[who].title, shown])
    return ["data", "contender", "similarity of members' features (linear CKA)"], rows


FEATURES = Experiment(
    "features",
    "adp",
    "Figure 2",
    "The members' last hidden features",
    ENSEMBLES,
    (
        Claim(
            "Members trained with ADP₂,₀.₅ have less similar feature distributions than the "
            "baseline's",
            "Section 4.2, Figure 2",
            _less_alike,
        ),
    ),
    draw_features,
    features_table,
    {
        **ENSEMBLE_SETTING,
        "cpu": ENSEMBLE_SETTING["cpu"]
        + " Features: t-SNE (scikit-learn) of 300 test images, as in the paper to be "
        "looked at; the claim is judged by linear CKA (Kornblith et al. 2019), which the paper "
        "does not have.",
    },
)
