"""Out-of-distribution detection by averaged confidence (BMA) and by disagreement (PDS): Table 2."""

from __future__ import annotations

from reproductions.comparisons import data_title
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot
from reproductions.ldr.contenders import STUDY, contender_title
from reproductions.ldr.records import (
    BestOfAll,
    Entry,
    auroc,
    choose_runs,
    data_with,
    detection_table,
    detects_better,
    unknown_sets,
)
from reproductions.study import Record

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
_SCORES = ("bma", "pds")
_PLAIN_BMA, _PLAIN_PDS = ("deep-ensemble", "bma"), ("deep-ensemble", "pds")
_LDR, _LDR_DIVDIS, _A2D = ("ldr", "pds"), ("ldr-divdis", "pds"), ("a2d", "pds")


def main_data(records: list[Record]) -> list[str]:
    """The data sets on which LDR and a deep ensemble were run."""
    return data_with(records, "ldr", "deep-ensemble")


def _entries(records: list[Record], data: str) -> dict[Entry, list[Record]]:
    """Every method with either score on a data set; PDS says nothing of one model."""
    entries: dict[Entry, list[Record]] = {}
    for method in _METHODS:
        runs = choose_runs(records, data, method)
        for score in _SCORES:
            if runs and (method, score) != ("single", "pds"):
                entries[method, score] = runs
    return entries


def plot(records: list[Record]) -> Plot:
    """AUROC of every method with PDS and with BMA, by unknown set."""
    panels = []
    for data in main_data(records):
        entries = _entries(records, data)
        for part in unknown_sets(entries["ldr", "pds"]):
            series = []
            for number, score in enumerate(_SCORES):
                runs = {
                    contender_title(m): some for (m, by), some in entries.items() if by == score
                }
                points = auroc(part, score).series(
                    score.upper(), list(runs), runs.values(), number, "points", limits=(0.0, 1.0)
                )
                series.append(points)
            title = f"{data_title(data)}: {part}"
            panels.append(Panel("", "AUROC", series, title, horizontal=True))
    alt = "AUROC of each method by averaged confidence (BMA) and by disagreement (PDS)"
    return Plot(panels, alt, columns=4, size=(2.9, 2.9))


def table(records: list[Record]) -> Table:
    """Table 2, with test accuracy beside it."""
    return detection_table(
        (data, entry, runs)
        for data in main_data(records)
        for entry, runs in _entries(records, data).items()
    )


_TABLE_2 = "Section 4.3, Table 2"

DETECTION = Experiment(
    "ldr/detection",
    "Table 2",
    "Detecting unknown inputs by averaged confidence (BMA) and by disagreement (PDS)",
    STUDY,
    (
        Claim(
            "LDR with PDS detects better than a deep ensemble with BMA",
            _TABLE_2,
            detects_better(_LDR, _PLAIN_BMA),
            "68.1/89.4/97.7/94.1 > 61.9/83.5/95.8/91.1",
        ),
        Claim(
            "LDR with PDS detects better than a deep ensemble with PDS",
            _TABLE_2,
            detects_better(_LDR, _PLAIN_PDS),
            "68.1/89.4/97.7/94.1 > 56.5/62.5/59.2/58.9",
        ),
        Claim(
            "LDR with DivDis's pair term and PDS detects better than a deep ensemble with PDS",
            "Section 3.2",
            detects_better(_LDR_DIVDIS, _PLAIN_PDS),
            ours=True,
        ),
        Claim(
            "LDR with PDS is the best of all methods and both scores",
            _TABLE_2,
            BestOfAll(_LDR, _entries),
            "best of all rows of Table 2",
        ),
        Claim(
            "For a deep ensemble, BMA detects better than PDS",
            _TABLE_2,
            detects_better(_PLAIN_BMA, _PLAIN_PDS),
            "61.9/83.5/95.8/91.1 > 56.5/62.5/59.2/58.9",
        ),
        Claim(
            "Diverse hyperparameters raise the AUROC of PDS",
            _TABLE_2,
            detects_better(("diverse-hyperparameters", "pds"), _PLAIN_PDS),
            "64.3/84.9/92.6/88.9 > 56.5/62.5/59.2/58.9",
        ),
        Claim(
            "LDR with PDS detects better than A2D with PDS, which has disagreement data",
            _TABLE_2,
            detects_better(_LDR, _A2D),
            "68.1/89.4/97.7/94.1 > 59.9/85.0/97.1/93.9",
        ),
    ),
    table,
    plot,
)
