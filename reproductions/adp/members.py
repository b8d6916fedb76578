"""Members on clean images: errors (Table 1), features (Figure 2), diversity (Figure 5)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dissensus.show import Panel, Plot, Series
from reproductions.adp.comparable import paper_experiment
from reproductions.adp.ensembles import (
    ADP_RUNS,
    BASELINE,
    ENSEMBLES,
    contenders_in,
    runs_of,
    style_of,
)
from reproductions.adp.measurements import EDGES
from reproductions.adp.published import TABLE1
from reproductions.old.base import Claim, Finding, Record, Table, join_cases
from reproductions.old.comparisons import (
    Larger,
    Quantity,
    Runs,
    at,
    data_title,
    group_by_data,
    interval_text,
    quantity_table,
)

_ENTROPY, _SMOOTHED = runs_of("adp-entropy"), runs_of("smoothed")
#: What a record says of members on clean images.
MEMBER_ERROR = Quantity("mean error of members", at("clean", "member_errors"), "{:.2%}")
ERROR = Quantity("error of the ensemble", at("clean", "error"), "{:.2%}")
DIVERSITY = Quantity("median log diversity", at("histogram", "quartiles", 1), "{:.2f}")
SIMILARITY = Quantity("similarity of members' features (linear CKA)", at("similarity"))


# ---- Table 1 ------------------------------------------------------------------------------------


def error_claims(
    compare: Callable[..., Callable[[list[Record]], Finding]] = Larger, beginning: str = ""
) -> tuple[Claim, ...]:
    """The claims of Table 1; ``compare`` makes a check as :class:`Larger` does."""
    return (
        Claim(
            f"{beginning}ADP₂,₀.₅ raises the error of individual members",
            "Section 4.2, Table 1",
            _error_larger(compare, MEMBER_ERROR, ADP_RUNS, BASELINE, slice(-1)),
        ),
        Claim(
            f"{beginning}ADP₂,₀.₅ lowers the error of the ensemble",
            "Section 4.2, Table 1",
            _error_larger(compare, ERROR, BASELINE, ADP_RUNS, slice(-1, None)),
        ),
    )


def _error_larger(
    compare: Callable[..., Callable[[list[Record]], Finding]],
    quantity: Quantity,
    first: Runs,
    second: Runs,
    columns: slice,
) -> Callable[[list[Record]], Finding]:
    """A check of an error, with the mean of these columns of Table 1 as what is published."""
    published, effects = {}, {}
    for data, rows in TABLE1.items():
        before, after = (float(np.mean(rows[name][columns])) for name in ("plain", "adp"))
        published[data_title(data)] = f"{before:.2f} → {after:.2f}"
        rise = (after - before) / 100
        effects[data_title(data)] = rise if first is ADP_RUNS else -rise
    return compare(quantity, first, second, group_by_data, join_cases(published), effects=effects)


def errors_table(records: list[Record]) -> Table:
    """Errors in %, measured and published."""
    rows = []
    for title, group in group_by_data(records).items():
        for runs in contenders_in(group):
            some = runs.of(group)
            shown = [
                interval_text([100 * value for value in quantity.values(some).values()], "{:.2f}")
                for quantity in (MEMBER_ERROR, ERROR)
            ]
            printed = TABLE1.get(group[0]["cell"]["data"], {}).get(runs.settings["contender"])
            beside = "–"
            if printed is not None:
                beside = f"{np.mean(printed[:-1]):.2f}, {printed[-1]:.2f}"
            rows.append([title, runs.name, *shown, beside])
    return ["data", "contender", "members, mean", "ensemble", "published: members, ensemble"], rows


ERRORS = paper_experiment(
    "adp/errors",
    "Table 1",
    "Error rates on clean test images",
    ENSEMBLES,
    error_claims(),
    None,
    errors_table,
)


# ---- Figure 5 -----------------------------------------------------------------------------------


def _quantity_table(records: list[Record], quantity: Quantity) -> Table:
    rows = {
        (title, runs.name): runs.of(group)
        for title, group in group_by_data(records).items()
        for runs in contenders_in(group)
        if quantity.values(runs.of(group))
    }
    return quantity_table(["data", "contender"], rows, [quantity])


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


HISTOGRAM = paper_experiment(
    "adp/histogram",
    "Figure 5",
    "The logarithm of the ensemble diversity on test images",
    ENSEMBLES,
    (
        Claim(
            "The entropy alone makes members more diverse: ADP₂,₀ has a higher diversity than the "
            "baseline",
            "Section 4.3, Appendix B.3, Figure 5",
            Larger(DIVERSITY, _ENTROPY, BASELINE, group_by_data),
        ),
        Claim(
            "The determinant makes them more diverse still: ADP₂,₀.₅ against ADP₂,₀",
            "Appendix B.3, Figure 5",
            Larger(DIVERSITY, ADP_RUNS, _ENTROPY, group_by_data),
        ),
        Claim(
            "Label smoothing with the F_y of Eq. 7 does not: ADP₂,₀ is more diverse",
            "our question",
            Larger(DIVERSITY, _ENTROPY, _SMOOTHED, group_by_data),
        ),
    ),
    plot_histogram,
    lambda records: _quantity_table(records, DIVERSITY),
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


FEATURES = paper_experiment(
    "adp/features",
    "Figure 2",
    "The members' last hidden features",
    ENSEMBLES,
    (
        Claim(
            "Members trained with ADP₂,₀.₅ have less similar feature distributions than the "
            "baseline's",
            "Section 4.2, Figure 2",
            Larger(SIMILARITY, BASELINE, ADP_RUNS, group_by_data),
        ),
    ),
    plot_features,
    lambda records: _quantity_table(records, SIMILARITY),
)
