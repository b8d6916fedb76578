"""Members on clean images: errors (Table 1), features (Figure 2), diversity (Figure 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from reproductions.adp import resnet20
from reproductions.adp.accuracy import Comparable, contender_table
from reproductions.adp.ensembles import (
    ADP_RUNS,
    BASELINE,
    ENSEMBLES,
    runs_of,
    style_of,
)
from reproductions.adp.measurements import EDGES
from reproductions.adp.published import TABLE1, changes_text, effects
from reproductions.comparisons import (
    Finding,
    Larger,
    Quantity,
    at,
    data_title,
    group_by_data,
    larger,
)
from reproductions.experiment import Claim, Experiment
from reproductions.figures import Panel, Plot, Series
from reproductions.statistics import over_shares
from reproductions.study import Record

_ENTROPY, _SMOOTHED = runs_of("adp-entropy"), runs_of("smoothed")
_MEMBER_ERROR = Quantity("mean error of members", at("clean", "member_errors"), "{:.2%}")
_ERROR = Quantity("error of the ensemble", at("clean", "error"), "{:.2%}")
_DIVERSITY = Quantity("median log diversity", at("histogram", "quartiles", 1), "{:.2f}")
_SIMILARITY = Quantity("similarity of members' features (linear CKA)", at("similarity"))


# ---- Table 1 ------------------------------------------------------------------------------------


def in_these_runs(
    check: Larger, images: Callable[[Record], int]
) -> Callable[[list[Record]], Finding]:
    """``check`` of a share of images, by an interval over the images of the runs that there are."""

    def over_their_images(records: list[Record]) -> Finding:
        count = min(map(images, records), default=1)
        return replace(check, interval=over_shares(count), share=True)(records)

    return over_their_images


def _error_claims(*titles: str, here: bool = False) -> tuple[Claim, ...]:
    """The claims of Table 1, with its numbers on these data sets."""
    claims = []
    for text, quantity, (first, second), columns in (
        ("ADP raises the error of single members", _MEMBER_ERROR, (ADP_RUNS, BASELINE), slice(-1)),
        ("ADP lowers the error of the ensemble", _ERROR, (BASELINE, ADP_RUNS), slice(-1, None)),
    ):
        printed = {
            data_title(data): tuple(
                float(np.mean(rows[name][columns])) for name in ("plain", "adp")
            )
            for data, rows in TABLE1.items()
            if data_title(data) in titles
        }
        changes = {title: (before, after) for title, (before, after) in printed.items()}
        sign = 1 if first is ADP_RUNS else -1
        published = {title: sign * rise for title, rise in effects(changes).items()}
        check = larger(quantity, first, second, group_by_data, published=published)
        shares = in_these_runs(check, lambda record: int(record["result"]["clean"]["examples"]))
        words = changes_text(changes, "{:.2f} → {:.2f}")
        claims.append(
            Claim(text, "Section 4.2, Table 1", Comparable(shares if here else check), words)
        )
    return tuple(claims)


ERRORS = Experiment(
    "adp/errors",
    "Table 1",
    "Error rates on clean test images",
    ENSEMBLES,
    _error_claims("MNIST", "CIFAR-10", "CIFAR-100"),
    lambda records: contender_table(records, _MEMBER_ERROR, _ERROR),
)


# ---- Figure 5 -----------------------------------------------------------------------------------


def plot_histogram(records: list[Record]) -> Plot:
    """Histograms of log diversity, all seeds together."""
    panels = []
    for title, group in group_by_data(r for r in records if "histogram" in r["result"]).items():
        series = []
        for runs in (BASELINE, _SMOOTHED, _ENTROPY, ADP_RUNS):
            counts = [row["result"]["histogram"]["counts"] for row in runs.of(group)]
            if counts:
                share = np.sum(counts, axis=0) / np.sum(counts)
                series.append(Series(runs.name, EDGES, share, style_of(runs), "steps"))
        y = "share of test images"
        panels.append(Panel("log ensemble diversity", y, series, title, y_log=True))
    return Plot(panels, "Histograms of the log diversity", len(panels) or 1, (3.8, 3.0))


HISTOGRAM = Experiment(
    "adp/histogram",
    "Figure 5",
    "The logarithm of the ensemble diversity on test images",
    ENSEMBLES,
    (
        Claim(
            "The entropy alone makes members more diverse",
            "Section 4.3, Appendix B.3, Figure 5",
            Comparable(larger(_DIVERSITY, _ENTROPY, BASELINE, group_by_data)),
        ),
        Claim(
            "The determinant makes them more diverse still",
            "Appendix B.3, Figure 5",
            Comparable(larger(_DIVERSITY, ADP_RUNS, _ENTROPY, group_by_data)),
        ),
        Claim(
            "The entropy makes them more diverse than label smoothing with the same F_y does",
            "test images",
            larger(_DIVERSITY, _ENTROPY, _SMOOTHED, group_by_data),
            ours=True,
        ),
    ),
    lambda records: contender_table(records, _DIVERSITY),
    plot_histogram,
)


# ---- Figure 2 -----------------------------------------------------------------------------------


def plot_features(records: list[Record]) -> Plot:
    """t-SNE of each member's last hidden features, one colour a class, for the first seed."""
    groups = group_by_data(record for record in records if "tsne" in record["result"])
    first = next(iter(groups.values()), [])
    panels, columns = [], 1
    for runs in (BASELINE, ADP_RUNS):
        for row in runs.of(first):
            tsne = row["result"]["tsne"]
            labels, columns = np.asarray(tsne["labels"]), len(tsne["points"])
            for number, points in enumerate(np.asarray(tsne["points"])):
                series = []
                for label in np.unique(labels).tolist():
                    x, y = points[labels == label].T
                    series.append(Series(str(label), x, y, label, "points", legend=False))
                title = f"{data_title(row['cell']['data'])}, {runs.name}, net {number + 1}"
                panels.append(Panel("", "", series, title, ticks=False))
    return Plot(panels, "t-SNE of each member's features, by class", columns, (2.6, 2.6))


FEATURES = Experiment(
    "adp/features",
    "Figure 2",
    "The members' last hidden features",
    ENSEMBLES,
    (
        Claim(
            "Members trained with ADP have less similar features",
            "Section 4.2, Figure 2",
            Comparable(larger(_SIMILARITY, BASELINE, ADP_RUNS, group_by_data)),
        ),
    ),
    lambda records: contender_table(records, _SIMILARITY),
    plot_features,
)


# ---- both, of ResNet-20 -------------------------------------------------------------------------

RESNET20_MEMBERS = Experiment(
    "adp/resnet20-members",
    "Table 1, Figure 5",
    "Errors and diversity of ResNet-20 on clean test images",
    resnet20.STUDY,
    _error_claims("CIFAR-10", here=True),
    lambda records: contender_table(records, _MEMBER_ERROR, _ERROR, _DIVERSITY, _SIMILARITY),
    plot_histogram,
)
