"""Out-of-distribution detection: methods (Table 2), scores (Table 6) and baselines (Figure 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.ldr.contenders import METHOD_NAMES, SETTING, STUDY
from dissensus.papers.ldr.measuring import DETECTORS
from dissensus.papers.ldr.reading import (
    DATA_NAMES,
    Runs,
    accuracy,
    auroc,
    chosen,
    compare_sets,
    data_in,
    sets_in,
    shown,
)
from dissensus.papers.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BASELINES", "DETECTION", "SCORES"]

#: A method and the score it detects by.
Entry = tuple[str, str]

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


def _name(entry: Entry) -> str:
    return f"{METHOD_NAMES[entry[0]]} + {entry[1].replace('_', ' ').upper()}"


def _main_data(records: list[Record]) -> list[str]:
    """The data sets on which LDR and a deep ensemble were run."""
    found = data_in(records)
    return [d for d in found if chosen(records, d, "ldr") and chosen(records, d, "deep-ensemble")]


def beats(left: Entry, right: Entry, published: str) -> Callable[[list[Record]], Finding]:
    """A check that ``left`` has the larger AUROC than ``right``, on every unknown set."""

    def check(records: list[Record]) -> Finding:
        pairs = {}
        for data in _main_data(records):
            first, second = chosen(records, data, left[0]), chosen(records, data, right[0])
            for name in sets_in(first):
                pairs[f"{DATA_NAMES[data]} {name}"] = (
                    first,
                    auroc(name, left[1]),
                    second,
                    auroc(name, right[1]),
                )
        return compare_sets(pairs, (_name(left), _name(right)), "AUROC", published=published)

    return check


def _entries(records: list[Record], data: str) -> dict[Entry, Runs]:
    """Every method with either score on a data set; PDS says nothing of one model."""
    found = {}
    for method in _METHODS:
        runs = chosen(records, data, method)
        for score in ("bma", "pds"):
            if runs and not (method == "single" and score == "pds"):
                found[method, score] = runs
    return found


def _mean(runs: Runs, name: str, score: str) -> float:
    return float(np.mean([auroc(name, score)(record) for record in runs.values()]))


def _best_of_all(records: list[Record]) -> Finding:
    """On each unknown set: which method with which score has the highest mean AUROC."""
    winners, wins, total = [], 0, 0
    for data in _main_data(records):
        entries = _entries(records, data)
        for name in sets_in(entries["ldr", "pds"]):
            best = max(entries, key=lambda entry: _mean(entries[entry], name, entry[1]))
            ours = _mean(entries["ldr", "pds"], name, "pds")
            top = _mean(entries[best], name, best[1])
            winners.append(
                f"{DATA_NAMES[data]} {name}: {_name(best)} {top:.3f} (LDR + PDS {ours:.3f})"
            )
            wins += best == ("ldr", "pds")
            total += 1
    return Finding(
        "holds" if wins == total else "does not hold",
        f"best on {wins} of {total} sets; the best are {'; '.join(winners)}",
        "LDR + PDS 68.1, 89.4, 97.7, 94.1, the best of all rows of Table 2",
    )


def draw_methods(records: list[Record]) -> Figure:
    """AUROC of every method with PDS and with BMA, by unknown set."""
    from dissensus.plots.style import COLORS, label, new_figure

    sets = _main_data(records)
    figure, axes = new_figure(len(sets), 4, width=2.7, height=2.9, sharey="row")
    for row, data in zip(axes, sets, strict=True):
        entries = _entries(records, data)
        methods = list(dict.fromkeys(method for method, _ in entries))
        for panel, name in zip(row, sets_in(entries["ldr", "pds"]), strict=True):
            for (method, score), runs in entries.items():
                found = mean_interval([auroc(name, score)(record) for record in runs.values()])
                at = methods.index(method) + (0.15 if score == "pds" else -0.15)
                color = COLORS[1 if score == "pds" else 0]
                panel.errorbar(
                    found.mean,
                    at,
                    xerr=[[found.mean - max(found.low, 0)], [min(found.high, 1) - found.mean]]
                    if found.runs > 1
                    else None,
                    fmt="o",
                    color=color,
                    markersize=3.5,
                    label=score.upper() if method == "deep-ensemble" else None,
                )
            names = [METHOD_NAMES[method] for method in methods]
            panel.set_yticks(range(len(methods)), names, fontsize=7.0)
            label(panel, "AUROC", "", f"{DATA_NAMES[data]}: {name}")
    axes[0, 0].invert_yaxis()
    for row in axes[1:]:
        row[0].invert_yaxis()
    axes[0, 0].legend(fontsize=7.0, frameon=False)
    return figure


def table_methods(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Table 2, with test accuracy beside it."""
    rows = []
    for data in _main_data(records):
        for (method, score), runs in _entries(records, data).items():
            cells = [f"{name} {shown(runs, auroc(name, score))}" for name in sets_in(runs)]
            rows.append(
                [
                    DATA_NAMES[data],
                    METHOD_NAMES[method],
                    score.upper(),
                    shown(runs, accuracy("test"), "{:.1%}"),
                    *cells,
                ]
            )
    return ["data", "method", "score", "test accuracy", "AUROC", "", "", ""], rows


def brief(records: list[Record]) -> list[str]:
    """Mean AUROC over the unknown sets of each data set, for what a user would choose among."""
    entries: tuple[Entry, ...] = (
        ("deep-ensemble", "bma"),
        ("deep-ensemble", "pds"),
        ("ldr", "pds"),
        ("ldr-divdis", "pds"),
        ("a2d", "pds"),
    )
    sentences = []
    for data in _main_data(records):
        words = []
        for method, score in entries:
            runs = chosen(records, data, method)
            if runs:
                mean = float(np.mean([_mean(runs, name, score) for name in sets_in(runs)]))
                words.append(f"{_name((method, score))} {mean:.3f}")
        sentences.append(
            f"{DATA_NAMES[data]}, AUROC over all unknown sets: {', '.join(words)} (A2D had "
            "unlabelled data to disagree on, the others had none)."
        )
    return sentences


# ---- scores (Table 6) ---------------------------------------------------------------------------


def _best_score(method: str, published: str) -> Callable[[list[Record]], Finding]:
    """A check that PDS has the highest mean AUROC of all scores on every unknown set."""

    def check(records: list[Record]) -> Finding:
        wins, total, words = 0, 0, []
        for data in _main_data(records):
            runs = chosen(records, data, method)
            for name in sets_in(runs):
                found = {score: _mean(runs, name, score) for score in DETECTORS}
                best = max(found, key=lambda score: found[score])
                wins += best == "pds"
                total += 1
                words.append(
                    f"{DATA_NAMES[data]} {name} {best.replace('_', ' ')} {found[best]:.3f} "
                    f"(PDS {found['pds']:.3f})"
                )
        return Finding(
            "holds" if wins == total else "does not hold",
            f"PDS is best on {wins} of {total}: {'; '.join(words)}",
            published,
        )

    return check


def table_scores(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Table 6, for LDR and for a deep ensemble."""
    rows = []
    for data in _main_data(records):
        for method in ("ldr", "deep-ensemble"):
            runs = chosen(records, data, method)
            for score in DETECTORS:
                cells = [f"{name} {shown(runs, auroc(name, score))}" for name in sets_in(runs)]
                rows.append(
                    [DATA_NAMES[data], METHOD_NAMES[method], score.replace("_", " "), *cells]
                )
    return ["data", "method", "score", "AUROC", "", "", ""], rows


# ---- baselines (Figure 4) -----------------------------------------------------------------------

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
    ),
}


def _rivals(records: list[Record], data: str) -> dict[Entry, Runs]:
    found = {("ldr", "pds"): chosen(records, data, "ldr")}
    for method, scores in _RIVALS.items():
        runs = chosen(records, data, method)
        found |= {(method, score): runs for score in scores if runs}
    return found


def _with_baselines(records: list[Record]) -> list[str]:
    return [data for data in _main_data(records) if chosen(records, data, "distances")]


def _state_of_the_art(records: list[Record]) -> Finding:
    """LDR + PDS against the best of the baselines under strong corruption."""
    wins, words = 0, []
    data_sets = _with_baselines(records)
    for data in data_sets:
        found = {
            entry: _mean(runs, "corrupt5", entry[1])
            for entry, runs in _rivals(records, data).items()
        }
        best = max(found, key=lambda entry: found[entry])
        wins += best == ("ldr", "pds")
        words.append(
            f"{DATA_NAMES[data]}: {_name(best)} {found[best]:.3f} (LDR + PDS "
            f"{found['ldr', 'pds']:.3f})"
        )
    return Finding(
        "holds" if data_sets and wins == len(data_sets) else "does not hold",
        f"the best on strong corruption: {'; '.join(words)}",
        "LDR + PDS first of the methods in Figure 4 (ImageNet-C, severity 5)",
    )


def draw_baselines(records: list[Record]) -> Figure:
    """Figure 4: AUROC under strong corruption, and on average over all unknown sets."""
    from dissensus.plots.style import COLORS, label, new_figure

    data_sets = _with_baselines(records)
    figure, axes = new_figure(1, len(data_sets), width=5.0, height=4.4)
    for panel, data in zip(axes[0], data_sets, strict=True):
        entries = _rivals(records, data)
        names = sets_in(next(iter(entries.values())))
        for number, (entry, runs) in enumerate(entries.items()):
            strong = _mean(runs, "corrupt5", entry[1])
            overall = float(np.mean([_mean(runs, name, entry[1]) for name in names]))
            panel.barh(
                number - 0.2,
                strong,
                0.38,
                color=COLORS[0],
                label="strong corruption" if not number else None,
            )
            panel.barh(
                number + 0.2,
                overall,
                0.38,
                color=COLORS[4],
                label="mean of all sets" if not number else None,
            )
        panel.set_yticks(range(len(entries)), [_name(entry) for entry in entries], fontsize=7.0)
        panel.set_xlim(0.4, 1.0)
        panel.invert_yaxis()
        label(panel, "AUROC", "", DATA_NAMES[data])
    axes[0, 0].legend(fontsize=7.0, frameon=False, loc="lower right")
    return figure


def table_baselines(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """AUROC of each baseline on each unknown set."""
    rows = []
    for data in _with_baselines(records):
        for (method, score), runs in _rivals(records, data).items():
            cells = [f"{name} {shown(runs, auroc(name, score))}" for name in sets_in(runs)]
            rows.append([DATA_NAMES[data], METHOD_NAMES[method], score.replace("_", " "), *cells])
    return ["data", "method", "score", "AUROC", "", "", ""], rows


# ---- experiments --------------------------------------------------------------------------------

DETECTION = Experiment(
    "detection",
    "ldr",
    "Table 2",
    "Detecting unknown inputs by averaged confidence (BMA) and by disagreement (PDS)",
    STUDY,
    (
        Claim(
            "LDR with PDS detects better than a deep ensemble with BMA",
            "Section 4.3, Table 2",
            beats(
                ("ldr", "pds"),
                ("deep-ensemble", "bma"),
                "68.1/89.4/97.7/94.1 and 61.9/83.5/95.8/91.1",
            ),
        ),
        Claim(
            "LDR with PDS detects better than a deep ensemble with PDS",
            "Section 4.3, Table 2",
            beats(
                ("ldr", "pds"),
                ("deep-ensemble", "pds"),
                "68.1/89.4/97.7/94.1 and 56.5/62.5/59.2/58.9",
            ),
        ),
        Claim(
            "LDR with DivDis's pair term and PDS detects better than a deep ensemble with PDS",
            "Section 3.2 (our question: the pair term is exchangeable)",
            beats(("ldr-divdis", "pds"), ("deep-ensemble", "pds"), "not published"),
        ),
        Claim(
            "LDR with PDS is the best of all methods and both scores",
            "Section 4.3, Table 2",
            _best_of_all,
        ),
        Claim(
            "For a deep ensemble, BMA detects better than PDS: its members are too much alike",
            "Section 4.3, Table 2",
            beats(
                ("deep-ensemble", "bma"),
                ("deep-ensemble", "pds"),
                "61.9/83.5/95.8/91.1 and 56.5/62.5/59.2/58.9",
            ),
        ),
        Claim(
            "Diverse hyperparameters raise the AUROC of PDS",
            "Section 4.3, Table 2",
            beats(
                ("diverse-hyperparameters", "pds"),
                ("deep-ensemble", "pds"),
                "64.3/84.9/92.6/88.9 and 56.5/62.5/59.2/58.9",
            ),
        ),
        Claim(
            "LDR with PDS detects better than A2D with PDS, which has disagreement data",
            "Section 4.3, Table 2",
            beats(("ldr", "pds"), ("a2d", "pds"), "68.1/89.4/97.7/94.1 and 59.9/85.0/97.1/93.9"),
        ),
    ),
    draw_methods,
    table_methods,
    SETTING,
    brief,
)

SCORES = Experiment(
    "scores",
    "ldr",
    "Table 6",
    "Which score detects best, for an LDR ensemble and for a deep ensemble",
    STUDY,
    (
        Claim(
            "For an LDR ensemble, PDS is the best of the scores",
            "Section A.8, Table 6",
            _best_score("ldr", "PDS 68.1/89.4/97.7/94.1, best on all four"),
        ),
        Claim(
            "For a deep ensemble, PDS is the best of the scores",
            "Section A.8 (our question)",
            _best_score("deep-ensemble", "not published"),
        ),
    ),
    None,
    table_scores,
    SETTING,
)

BASELINES = Experiment(
    "baselines",
    "ldr",
    "Figure 4",
    "LDR with PDS beside dropout passes, snapshots, temperature, energy and distances of features",
    STUDY,
    (
        Claim(
            "LDR with PDS is first among the baselines under strong corruption",
            "Section 4.3, Figure 4",
            _state_of_the_art,
        ),
    ),
    draw_baselines,
    table_baselines,
    SETTING,
)
