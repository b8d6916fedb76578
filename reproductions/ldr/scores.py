"""Scores and baselines of detection: Table 6 and Figure 4."""

from __future__ import annotations

from collections.abc import Mapping

from reproductions.comparisons import (
    Larger,
    Sides,
    data_title,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot, Series
from reproductions.ldr.contenders import STUDY, contender_title
from reproductions.ldr.detection import main_data
from reproductions.ldr.measurements import DETECTORS
from reproductions.ldr.records import (
    UNKNOWN,
    BestOfAll,
    Entry,
    auroc,
    auroc_by,
    choose_runs,
    data_with,
    entry_title,
    mean_auroc,
    quantity_on,
    unknown_sets,
)
from reproductions.study import Record

_HEADER = ["data", "method", "score", *UNKNOWN]


def _row(data: str, entry: Entry, runs: list[Record]) -> list[str]:
    method, score = entry
    cells = quantity_on(unknown_sets(runs), auroc_by(score), runs)
    return [data_title(data), contender_title(method), score.replace("_", " "), *cells]


# ---- scores (Table 6) ---------------------------------------------------------------------------


def _best_score(method: str) -> BestOfAll:
    """A check that PDS is the best of all scores, where LDR and a deep ensemble were run."""

    def entries(records: list[Record], data: str) -> dict[Entry, list[Record]]:
        runs = choose_runs(records, data, method) if data in main_data(records) else []
        return {(method, score): runs for score in DETECTORS} if runs else {}

    return BestOfAll((method, "pds"), entries)


def scores_table(records: list[Record]) -> Table:
    """Table 6, for LDR and for a deep ensemble."""
    rows = [
        _row(data, (method, score), choose_runs(records, data, method))
        for data in main_data(records)
        for method in ("ldr", "deep-ensemble")
        for score in DETECTORS
    ]
    return Table(_HEADER, rows, labels=3)


SCORES = Experiment(
    "ldr/scores",
    "Table 6",
    "Which score detects best, for an LDR ensemble and for a deep ensemble",
    STUDY,
    (
        Claim(
            "For an LDR ensemble, PDS is the best of the scores",
            "Section A.8, Table 6",
            _best_score("ldr"),
            "best on all four sets",
        ),
        Claim(
            "For a deep ensemble, PDS is the best of the scores",
            "Section A.8",
            _best_score("deep-ensemble"),
            ours=True,
        ),
    ),
    scores_table,
)


# ---- baselines (Figure 4) -----------------------------------------------------------------------

_OURS: Entry = ("ldr", "pds")
#: What LDR + PDS is compared with, and the scores each may detect by.
_RIVALS: Mapping[str, tuple[str, ...]] = {
    "deep-ensemble": ("bma", "pds", "mutual_information"),
    "dropout": ("bma", "pds"),
    "snapshots": ("bma", "pds"),
    "distances": (
        "bma",
        "energy",
        "max_logit",
        "tempered_bma",
        "mahalanobis",
        "relative_mahalanobis",
        "nearest_neighbours",
        "raw_mahalanobis",
        "raw_relative_mahalanobis",
        "raw_nearest_neighbours",
    ),
}


def _rivals(records: list[Record]) -> dict[str, dict[Entry, list[Record]]]:
    """By data set with baselines: LDR + PDS and what it is compared with."""
    entries = [_OURS, *((method, score) for method, by in _RIVALS.items() for score in by)]
    return {
        data: {
            entry: runs
            for entry in entries
            if (runs := choose_runs(records, data, entry[0])) and _has_score(runs, entry[1])
        }
        for data in data_with(records, "ldr", "deep-ensemble", "distances")
    }


def _has_score(runs: list[Record], score: str) -> bool:
    """Distances of a backbone's own features (``raw_``) are there for feature rows alone."""
    return all(score in one for run in runs for one in run["result"]["auroc"].values())


_DISTANCES = ("mahalanobis", "relative_mahalanobis", "nearest_neighbours")


def _distances_of_layers(records: list[Record]) -> Sides:
    """The mean AUROC of each distance, of trained features and of the backbone's."""
    pairs = {}
    for data in data_with(records, "distances"):
        runs = choose_runs(records, data, "distances")
        for score in _DISTANCES:
            if _has_score(runs, f"raw_{score}"):
                sides = mean_auroc(score).values(runs), mean_auroc(f"raw_{score}").values(runs)
                pairs[f"{data_title(data)}, {score.replace('_', ' ')}"] = sides
    return pairs


def plot_baselines(records: list[Record]) -> Plot:
    """Figure 4: AUROC under strong corruption, and on average over all unknown sets."""
    panels = []
    for data, entries in _rivals(records).items():
        names = [entry_title(entry) for entry in entries]
        strong = [
            auroc("corrupt5", score).estimate(runs).mean for (_, score), runs in entries.items()
        ]
        overall = [mean_auroc(score).estimate(runs).mean for (_, score), runs in entries.items()]
        bars = [
            Series("strong corruption", names, strong, 0, "bars"),
            Series("mean of all sets", names, overall, 4, "bars"),
        ]
        title = data_title(data)
        panels.append(Panel("", "AUROC", bars, title, y_range=(0.4, 1.0), horizontal=True))
    return Plot(panels, "AUROC of LDR + PDS and of the baselines", len(panels) or 1, (5.0, 4.4))


def baselines_table(records: list[Record]) -> Table:
    """AUROC of each baseline on each unknown set."""
    rows = [
        _row(data, entry, runs)
        for data, entries in _rivals(records).items()
        for entry, runs in entries.items()
    ]
    return Table(_HEADER, rows, labels=3)


BASELINES = Experiment(
    "ldr/baselines",
    "Figure 4",
    "LDR with PDS beside dropout passes, snapshots, temperature, energy and distances of features",
    STUDY,
    (
        Claim(
            "LDR with PDS is first among the baselines under strong corruption",
            "Section 4.3, Figure 4",
            BestOfAll(
                _OURS,
                lambda records, data: _rivals(records).get(data, {}),
                lambda runs: ["corrupt5"],
            ),
            "first of the methods in Figure 4",
        ),
        Claim(
            "Distances detect better on features before the last trained layer than the backbone's",
            "Section 4.3, Figure 4",
            Larger("mean AUROC", ("last layer's", "backbone's"), _distances_of_layers),
            ours=True,
        ),
    ),
    baselines_table,
    plot_baselines,
)
