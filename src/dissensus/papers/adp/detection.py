"""Detection of adversarial inputs by ensemble diversity, disguised ones too: Figure 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.papers.adp.ensembles import ADP_RUNS, BASELINE, ENSEMBLES
from dissensus.papers.adp.measurements import GRID
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparisons import (
    CANNOT,
    Larger,
    Quantity,
    Runs,
    at,
    data_title,
    filter_records,
    group_by_data,
)
from dissensus.papers.statistics import larger_than
from dissensus.plots import Panel, Plot, Series

__all__ = ["DETECTION", "brief"]

ATTACKS = ("fgsm", "bim", "pgd", "mim")
_NAMES = {**{name: name.upper() for name in ATTACKS}, "disguised": "PGD in disguise"}


def _auroc(attack: str, score: str = "ensemble_diversity", form: str = "{:.3f}") -> Quantity:
    return Quantity(f"AUROC under {_NAMES[attack]}", at("detection", attack, "auroc", score), form)


@dataclass(frozen=True)
class AboveChance:
    """Checks that the AUROC on ADP's ensembles, mean over ``attacks``, is larger than ½."""

    attacks: Sequence[str]
    data: str

    def __call__(self, records: list[Record]) -> Finding:
        runs = ADP_RUNS.of(filter_records(records, data=self.data))
        aurocs = [_auroc(attack).values(runs) for attack in self.attacks]
        seeds = sorted(set.intersection(*map(set, aurocs)))
        if not seeds:
            return Finding(CANNOT, f"no runs on {data_title(self.data)}")
        means = [float(np.mean([auroc[seed] for auroc in aurocs])) for seed in seeds]
        tried = ", ".join(_NAMES[attack] for attack in self.attacks)
        names = ("ensemble diversity", "chance")
        return larger_than(means, 0.5, names, f"AUROC, {tried}", form="{:.3f}")


def brief(records: list[Record]) -> list[str]:
    """The detector against attacks that do not know about it, and against one that does."""
    parts = []
    for title, group in group_by_data(records).items():
        runs = ADP_RUNS.of(group)
        pair = [_auroc(attack) for attack in ("pgd", "disguised")]
        if all(auroc.values(runs) for auroc in pair):
            parts.append(f"{title} {pair[0].mean(runs):.2f} → {pair[1].mean(runs):.2f}")
    return [
        "Ensemble diversity as a detector on ADP₂,₀.₅'s ensembles, AUROC under PGD → under PGD "
        f"that hides from it: {', '.join(parts)}."
    ][: len(parts)]


def plot(records: list[Record]) -> Plot:
    """ROC curves on ADP's ensembles, mean over seeds."""
    panels = []
    for title, group in group_by_data(r for r in records if "detection" in r["result"]).items():
        rows = ADP_RUNS.of(group)
        series = [Series("chance", [0.0, 1.0], [0.0, 1.0], "muted", markers=False)]
        for number, (attack, name) in enumerate(_NAMES.items() if rows else ()):
            curve = np.mean([row["result"]["detection"][attack]["roc"] for row in rows], axis=0)
            dash: Any = "dashed" if attack == "disguised" else "solid"
            words = f"{name}, AUROC {_auroc(attack).mean(rows):.2f}"
            series.append(Series(words, GRID, curve, number, dash=dash, markers=False))
        axes = ("false positive rate", "true positive rate")
        panels.append(Panel(*axes, series, title, legend="lower right"))
    alt = "ROC curves of ensemble diversity as a detector of adversarial examples"
    return Plot(panels, alt, len(panels) or 1, (3.8, 3.4))


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """AUROC of every score on ADP's ensembles, and of ensemble diversity on the baseline's."""
    rows = []
    for title, group in group_by_data(records).items():
        for runs in (BASELINE, ADP_RUNS):
            some = [run for run in runs.of(group) if "detection" in run["result"]]
            scores = list(
                dict.fromkeys(s for run in some for s in run["result"]["detection"]["pgd"]["auroc"])
            )
            for score in scores if runs is ADP_RUNS else scores[-1:]:
                shown = [
                    _auroc(attack, score, "{:.2f}").text(some) for attack in (*ATTACKS, "disguised")
                ]
                rows.append([title, runs.name, score.replace("_", " "), *shown])
    return ["data", "ensemble", "score", *_NAMES.values()], rows


_SETS = ("cifar10", "mnist", "fashion_mnist", "digits")
_PROTOCOLS = (
    (
        ATTACKS,
        "on ensembles trained with ADP₂,₀.₅, ensemble diversity separates adversarial examples "
        "from "
        "clean ones",
        "the paper's attacks (historical, weak)",
    ),
    (
        ("disguised",),
        "it still does under an attack that keeps the diversity high",
        "adaptive attack",
    ),
)

DETECTION = Experiment(
    "detection",
    "adp",
    "Figure 4",
    "Ensemble diversity as a detector of adversarial examples",
    ENSEMBLES,
    (
        *(
            Claim(
                f"{data_title(data)}: {words}",
                f"Section 4.5, Figure 4; {protocol}",
                AboveChance(attacks, data),
            )
            for attacks, words, protocol in _PROTOCOLS
            for data in _SETS
        ),
        Claim(
            "It needs ADP: on the baseline's ensemble the same detector is worse",
            "our question; the paper's attacks (historical, weak)",
            Larger(_auroc("pgd"), ADP_RUNS, BASELINE, group_by_data),
        ),
        Claim(
            "It is better than the entropy of the ensemble's prediction",
            "our question; the paper's attacks (historical, weak)",
            Larger(
                _auroc("pgd"),
                Runs("ensemble diversity", ADP_RUNS.settings),
                Runs("entropy", ADP_RUNS.settings),
                group_by_data,
                against=_auroc("pgd", "entropy"),
            ),
        ),
    ),
    plot,
    table,
    {
        **ENSEMBLE_SETTING,
        "cpu": ENSEMBLE_SETTING["cpu"]
        + " Detection: ε = 0.3 on MNIST and digits and 0.12 on Fashion-MNIST, so that nearly all "
        "are misclassified; 120 images per seed (paper: 1,000 of CIFAR-10), the diversity taken "
        "with "
        "the predicted label, and against an attack that raises it once it is through (100 steps).",
    },
    brief,
)
