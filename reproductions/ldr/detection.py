"""Detection of unknown inputs: methods (Table 2), scores (Table 6) and baselines (Figure 4)."""

from __future__ import annotations

from reproductions.comparisons import Larger, Sides, data_title
from reproductions.experiment import Claim, Experiment
from reproductions.figures import Panel, Plot, Series
from reproductions.ldr.contenders import STUDY, contender_title
from reproductions.ldr.measurements import DETECTORS
from reproductions.ldr.records import (
    BestOfAll,
    Entry,
    auroc,
    choose_runs,
    data_with,
    detects_better,
    entry_title,
    has_score,
    mean_auroc,
    runs_of_entries,
    tabulate,
    unknown_sets,
)
from reproductions.study import Record

#: The data sets that are compared are those on which both were run.
_MAIN = ("ldr", "deep-ensemble")
_LDR, _PLAIN_BMA, _PLAIN_PDS = ("ldr", "pds"), ("deep-ensemble", "bma"), ("deep-ensemble", "pds")


# ---- methods (Table 2) --------------------------------------------------------------------------

_METHODS = (
    "single",
    "deep-ensemble",
    "diverse-hyperparameters",
    "divdis",
    "a2d",
    "a2d-sequential",
    "ldr",
    "ldr-divdis",
    "ldr-all",
    "ldr-same-epochs",
)
#: Every method with either score; PDS says nothing of one model.
_ENTRIES: list[Entry] = [
    (method, score)
    for method in _METHODS
    for score in ("bma", "pds")
    if (method, score) != ("single", "pds")
]


def plot_methods(records: list[Record]) -> Plot:
    """AUROC of every method with PDS and with BMA, by unknown set."""
    panels = []
    for data in data_with(records, *_MAIN):
        entries = runs_of_entries(records, data, _ENTRIES)
        for part in unknown_sets(entries[_LDR]):
            series = []
            for number, score in enumerate(("bma", "pds")):
                runs = {contender_title(m): entries[m, by] for m, by in entries if by == score}
                points = auroc(part, score).series(
                    score.upper(), list(runs), runs.values(), number, "points", limits=(0.0, 1.0)
                )
                series.append(points)
            title = f"{data_title(data)}: {part}"
            panels.append(Panel("", "AUROC", series, title, horizontal=True))
    alt = "AUROC of each method by averaged confidence (BMA) and by disagreement (PDS)"
    return Plot(panels, alt, columns=4, size=(2.9, 2.9))


_TABLE_2 = "Section 4.3, Table 2"
_OURS, _BMA, _PDS = (
    *("68.1/89.4/97.7/94.1", "61.9/83.5/95.8/91.1"),
    "56.5/62.5/59.2/58.9",
)

DETECTION = Experiment(
    "ldr/detection",
    "Table 2",
    "Detecting unknown inputs by averaged confidence (BMA) and by disagreement (PDS)",
    STUDY,
    (
        detects_better(_LDR, _PLAIN_BMA, _TABLE_2, f"{_OURS} > {_BMA}"),
        detects_better(_LDR, _PLAIN_PDS, _TABLE_2, f"{_OURS} > {_PDS}"),
        detects_better(("ldr-divdis", "pds"), _PLAIN_PDS, "Section 3.2", ours=True),
        Claim(
            "LDR + PDS is the best of all methods and both scores",
            _TABLE_2,
            BestOfAll(_LDR, _ENTRIES, _MAIN),
            "best of all rows of Table 2",
        ),
        detects_better(_PLAIN_BMA, _PLAIN_PDS, _TABLE_2, f"{_BMA} > {_PDS}"),
        detects_better(
            ("diverse-hyperparameters", "pds"),
            _PLAIN_PDS,
            _TABLE_2,
            f"64.3/84.9/92.6/88.9 > {_PDS}",
        ),
        detects_better(_LDR, ("a2d", "pds"), _TABLE_2, f"{_OURS} > 59.9/85.0/97.1/93.9"),
    ),
    tabulate(_ENTRIES, *_MAIN),
    plot_methods,
)


# ---- scores (Table 6) ---------------------------------------------------------------------------


def _scores_of(method: str) -> list[Entry]:
    return [(method, score) for score in DETECTORS]


SCORES = Experiment(
    "ldr/scores",
    "Table 6",
    "Which score detects best, for an LDR ensemble and for a deep ensemble",
    STUDY,
    (
        Claim(
            "For an LDR ensemble, PDS is the best of the scores",
            "Section A.8, Table 6",
            BestOfAll(_LDR, _scores_of("ldr"), _MAIN),
            "best on all four sets",
        ),
        Claim(
            "For a deep ensemble, PDS is the best of the scores",
            "Section A.8",
            BestOfAll(_PLAIN_PDS, _scores_of("deep-ensemble"), _MAIN),
            ours=True,
        ),
    ),
    tabulate([*_scores_of("ldr"), *_scores_of("deep-ensemble")], *_MAIN),
)


# ---- baselines (Figure 4) -----------------------------------------------------------------------

_DISTANCES = ("mahalanobis", "relative_mahalanobis", "nearest_neighbours")
#: LDR + PDS and what it is compared with: the scores that each method may detect by.
_BASELINES: list[Entry] = [
    (method, score)
    for method, scores in {
        "ldr": ("pds",),
        "deep-ensemble": ("bma", "pds", "mutual_information"),
        "dropout": ("bma", "pds"),
        "snapshots": ("bma", "pds"),
        "distances": (
            *("bma", "energy", "max_logit", "tempered_bma"),
            *_DISTANCES,
            *(f"raw_{score}" for score in _DISTANCES),
        ),
    }.items()
    for score in scores
]
_WITH_BASELINES = (*_MAIN, "distances")


def _distances_of_layers(records: list[Record]) -> Sides:
    """The mean AUROC of each distance, of trained features and of the backbone's."""
    pairs = {}
    for data in data_with(records, "distances"):
        runs = choose_runs(records, data, "distances")
        for score in _DISTANCES:
            if has_score(runs, f"raw_{score}"):
                sides = mean_auroc(score).values(runs), mean_auroc(f"raw_{score}").values(runs)
                pairs[f"{data_title(data)}, {score.replace('_', ' ')}"] = sides
    return pairs


def plot_baselines(records: list[Record]) -> Plot:
    """Figure 4: AUROC under strong corruption, and on average over all unknown sets."""
    panels = []
    for data in data_with(records, *_WITH_BASELINES):
        runs = runs_of_entries(records, data, _BASELINES)
        names = [entry_title(entry) for entry in runs]
        strong = [auroc("corrupt5", one[1]).estimate(runs[one]).mean for one in runs]
        overall = [mean_auroc(one[1]).estimate(runs[one]).mean for one in runs]
        bars = [
            Series("strong corruption", names, strong, 0, "bars"),
            Series("mean of all sets", names, overall, 4, "bars"),
        ]
        title = data_title(data)
        panels.append(Panel("", "AUROC", bars, title, y_range=(0.4, 1.0), horizontal=True))
    return Plot(panels, "AUROC of LDR + PDS and of the baselines", len(panels) or 1, (5.0, 4.4))


BASELINES = Experiment(
    "ldr/baselines",
    "Figure 4",
    "LDR with PDS beside dropout passes, snapshots, temperature, energy and distances of features",
    STUDY,
    (
        Claim(
            "LDR with PDS is first among the baselines under strong corruption",
            "Section 4.3, Figure 4",
            BestOfAll(_LDR, _BASELINES, _WITH_BASELINES, lambda runs: ["corrupt5"]),
            "first of the methods in Figure 4",
        ),
        Claim(
            "Distances detect better on features before the last trained layer than the backbone's",
            "Section 4.3, Figure 4",
            Larger("mean AUROC", ("last layer's", "backbone's"), _distances_of_layers),
            ours=True,
        ),
    ),
    tabulate(_BASELINES, *_WITH_BASELINES),
    plot_baselines,
)
