"""Members on clean images: errors (Table 1), features (Figure 2), diversity (Figure 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dissensus.papers.adp.ensembles import (
    ADP_RUNS,
    BASELINE,
    CONTENDERS,
    ENSEMBLES,
    contenders_in,
    runs_of,
)
from dissensus.papers.adp.measurements import EDGES
from dissensus.papers.adp.published import TABLE1
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Record
from dissensus.papers.comparisons import Larger, Quantity, at, by_data, data_title, interval_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ERRORS", "FEATURES", "HISTOGRAM"]

_ENTROPY, _SMOOTHED = runs_of("adp-entropy"), runs_of("smoothed")
_MEMBER_ERROR = Quantity("mean error of members", at("clean", "member_errors"), "{:.2%}")
_ERROR = Quantity("error of the ensemble", at("clean", "error"), "{:.2%}")
_DIVERSITY = Quantity("median log diversity", at("histogram", "quartiles", 1), "{:.2f}")
_SIMILARITY = Quantity("similarity of members' features (linear CKA)", at("similarity"))


# ---- Table 1 ------------------------------------------------------------------------------------


def _published(members: bool) -> str:
    """The baseline's and ADP's printed errors, of the mean member or of the ensemble."""
    parts = []
    for data, rows in TABLE1.items():
        pair = [
            float(np.mean(rows[name][:-1])) if members else rows[name][-1]
            for name in ("plain", "adp")
        ]
        parts.append(f"{data_title(data)} {pair[0]:.2f} → {pair[1]:.2f}")
    return "; ".join(parts)


def errors_table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Errors in %, measured and published."""
    rows = []
    for title, group in by_data(records).items():
        for runs in contenders_in(group):
            some = runs.of(group)
            shown = [
                interval_text([100 * value for value in quantity.values(some).values()], "{:.2f}")
                for quantity in (_MEMBER_ERROR, _ERROR)
            ]
            printed = TABLE1.get(group[0]["cell"]["data"], {}).get(runs.settings["contender"])
            beside = "–"
            if printed is not None:
                beside = f"{np.mean(printed[:-1]):.2f}, {printed[-1]:.2f}"
            rows.append([title, runs.name, *shown, beside])
    return ["data", "contender", "members, mean", "ensemble", "published: members, ensemble"], rows


ERRORS = Experiment(
    "errors",
    "adp",
    "Table 1",
    "Error rates on clean test images",
    ENSEMBLES,
    (
        Claim(
            "ADP₂,₀.₅ raises the error of individual members",
            "Section 4.2, Table 1",
            Larger(_MEMBER_ERROR, ADP_RUNS, BASELINE, by_data, _published(members=True)),
        ),
        Claim(
            "ADP₂,₀.₅ lowers the error of the ensemble",
            "Section 4.2, Table 1",
            Larger(_ERROR, BASELINE, ADP_RUNS, by_data, _published(members=False)),
        ),
    ),
    None,
    errors_table,
    ENSEMBLE_SETTING,
)


# ---- Figure 5 -----------------------------------------------------------------------------------


def _quantity_table(records: list[Record], quantity: Quantity) -> tuple[list[str], list[list[str]]]:
    """A quantity by data set and contender."""
    rows = [
        [title, runs.name, quantity.text(runs.of(group))]
        for title, group in by_data(records).items()
        for runs in contenders_in(group)
        if quantity.values(runs.of(group))
    ]
    return ["data", "contender", quantity.name], rows


def draw_histogram(records: list[Record]) -> Figure:
    """Histograms of log diversity, all seeds together."""
    from dissensus.plots.style import COLORS, label, new_figure

    groups = by_data(record for record in records if "histogram" in record["result"])
    figure, axes = new_figure(1, max(1, len(groups)), width=3.8, height=3.0)
    for panel, (title, group) in zip(axes[0], groups.items(), strict=True):
        for number, runs in enumerate((BASELINE, _SMOOTHED, _ENTROPY, ADP_RUNS)):
            rows = runs.of(group)
            if not rows:
                continue
            counts = np.sum([row["result"]["histogram"]["counts"] for row in rows], axis=0)
            panel.stairs(counts / counts.sum(), EDGES, color=COLORS[number], label=runs.name)
        label(panel, "log ensemble diversity", "share of test images", title)
        panel.set_yscale("log")
    if groups:
        axes[0, 0].legend(loc="upper left", fontsize=8.0, frameon=False)
    return figure


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
            Larger(_DIVERSITY, _ENTROPY, BASELINE, by_data),
        ),
        Claim(
            "The determinant makes them more diverse still: ADP₂,₀.₅ against ADP₂,₀",
            "Appendix B.3, Figure 5",
            Larger(_DIVERSITY, ADP_RUNS, _ENTROPY, by_data),
        ),
        Claim(
            "Label smoothing with the F_y of Eq. 7 does not: ADP₂,₀ is more diverse than it",
            "our question",
            Larger(_DIVERSITY, _ENTROPY, _SMOOTHED, by_data),
        ),
    ),
    draw_histogram,
    lambda records: _quantity_table(records, _DIVERSITY),
    ENSEMBLE_SETTING,
)


# ---- Figure 2 -----------------------------------------------------------------------------------


def draw_features(records: list[Record]) -> Figure:
    """t-SNE of each member's last hidden features, one colour a class, for the first seed."""
    from dissensus.plots.style import COLORS, new_figure

    groups = by_data(record for record in records if "tsne" in record["result"])
    first = next(iter(groups.values()), [])
    rows = [row for runs in (BASELINE, ADP_RUNS) for row in runs.of(first)]
    members = max((len(row["result"]["tsne"]["points"]) for row in rows), default=1)
    figure, axes = new_figure(max(1, len(rows)), members, width=2.4, height=2.4)
    colors = np.array([*COLORS, "#8C564B", "#7F7F7F"])
    for line, row in zip(axes, rows, strict=False):
        tsne = row["result"]["tsne"]
        shades = colors[np.asarray(tsne["labels"]) % len(colors)]
        for number, (panel, points) in enumerate(zip(line, tsne["points"], strict=True)):
            x, y = np.asarray(points).T
            panel.scatter(x, y, c=shades, s=4, linewidths=0)
            panel.set_xticks([])
            panel.set_yticks([])
            panel.grid(False)
            name = CONTENDERS[row["cell"]["contender"]].title
            words = f"{data_title(row['cell']['data'])}, {name}, net {number + 1}"
            panel.set_title(words, fontsize=8.0)
    return figure


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
            Larger(_SIMILARITY, BASELINE, ADP_RUNS, by_data),
        ),
    ),
    draw_features,
    lambda records: _quantity_table(records, _SIMILARITY),
    {
        **ENSEMBLE_SETTING,
        "cpu": ENSEMBLE_SETTING["cpu"]
        + " Features: t-SNE (scikit-learn) of 300 test images, as in the paper to be "
        "looked at; the claim is judged by linear CKA (Kornblith et al. 2019), which the paper "
        "does not have.",
    },
)
