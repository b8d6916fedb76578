"""Figure 4: adversarial inputs told from clean ones by ensemble diversity, and in disguise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dissensus.papers.adp.contenders import CONTENDERS
from dissensus.papers.adp.ensembles import ENSEMBLES
from dissensus.papers.adp.measuring import GRID
from dissensus.papers.adp.reading import data_in, rows_of, title
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparing import (
    CANNOT,
    all_of,
    compare_values,
    paired,
)
from dissensus.papers.statistics import larger_than, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DETECTION"]

ATTACKS = ("fgsm", "bim", "pgd", "mim")
_NAMES = {**{name: name.upper() for name in ATTACKS}, "disguised": "PGD in disguise"}


def _auroc(
    rows: Sequence[Record], attack: str, score: str = "ensemble_diversity"
) -> dict[int, float]:
    found = {}
    for row in rows:
        measured = row["result"].get("detection", {}).get(attack, {}).get("auroc", {})
        if score in measured:
            found[row["cell"]["seed"]] = float(measured[score])
    return found


def _above_chance(attacks: Sequence[str], data: str) -> Callable[[list[Record]], Finding]:
    """The AUROC on ADP's ensembles, mean over ``attacks``, against ½."""

    def check(records: list[Record]) -> Finding:
        found = [_auroc(rows_of(records, data, "adp"), attack) for attack in attacks]
        seeds = sorted(set.intersection(*(set(one) for one in found)))
        if not seeds:
            return Finding(CANNOT, f"no runs on {title(data)}")
        values = [float(np.mean([one[seed] for one in found])) for seed in seeds]
        tried = ", ".join(_NAMES[attack] for attack in attacks)
        names = ("ensemble diversity", "chance")
        return larger_than(values, 0.5, names, f"AUROC, {tried}", form="{:.3f}")

    return check


def _better_on_adp(records: list[Record]) -> Finding:
    """The detector on ADP's ensemble against the same detector on the baseline's."""
    findings = {}
    for data in data_in(records):
        values = [_auroc(rows_of(records, data, who), "pgd") for who in ("adp", "plain")]
        if all(values):
            titles = (CONTENDERS["adp"].title, CONTENDERS["plain"].title)
            pair = paired(*values)
            findings[title(data)] = compare_values(*pair, titles, "AUROC under PGD", "{:.3f}")
    return all_of(findings)


def _better_than(score: str, words: str) -> Callable[[list[Record]], Finding]:
    """Ensemble diversity against another score of the same ADP ensemble."""

    def check(records: list[Record]) -> Finding:
        findings = {}
        for data in data_in(records):
            rows = rows_of(records, data, "adp")
            values = [_auroc(rows, "pgd"), _auroc(rows, "pgd", score)]
            if all(values):
                names = ("ensemble diversity", words)
                pair = paired(*values)
                findings[title(data)] = compare_values(*pair, names, "AUROC under PGD", "{:.3f}")
        return all_of(findings)

    return check


def brief(records: list[Record]) -> list[str]:
    """The detector against attacks that do not know of it, and against one that does."""
    parts = []
    for data in data_in(records):
        rows = rows_of(records, data, "adp")
        values = [list(_auroc(rows, attack).values()) for attack in ("pgd", "disguised")]
        if all(values):
            before, after = (float(np.mean(one)) for one in values)
            parts.append(f"{title(data)} {before:.2f} → {after:.2f}")
    return [
        "Ensemble diversity as a detector on ADP₂,₀.₅'s ensembles, AUROC under PGD → under PGD "
        f"that hides from it: {', '.join(parts)}."
    ][: len(parts)]


def draw(records: list[Record]) -> Figure:
    """ROC curves on ADP's ensembles, mean over seeds."""
    from dissensus.plots.style import add_line, label, new_figure

    chosen = [record for record in records if "detection" in record["result"]]
    sets = data_in(chosen)
    figure, axes = new_figure(1, max(1, len(sets)), width=3.8, height=3.4)
    for panel, data in zip(axes[0], sets, strict=True):
        rows = rows_of(chosen, data, "adp")
        for number, attack in enumerate((*ATTACKS, "disguised") if rows else ()):
            curve = np.mean([row["result"]["detection"][attack]["roc"] for row in rows], axis=0)
            value = float(np.mean(list(_auroc(rows, attack).values())))
            name = f"{_NAMES[attack]}, AUROC {value:.2f}"
            style = "--" if attack == "disguised" else "-"
            add_line(panel, GRID, curve, number, name=name, markers=False, linestyle=style)
        panel.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, label="chance")
        label(panel, "false positive rate", "true positive rate", title(data))
        panel.legend(loc="lower right", fontsize=7.0, framealpha=0.9, edgecolor="none")
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """AUROC of every score on ADP's ensembles, and of ensemble diversity on the baseline's."""
    header = ["data", "ensemble", "score", *(_NAMES[name] for name in (*ATTACKS, "disguised"))]
    rows = []
    for data in data_in(records):
        for who in ("plain", "adp"):
            found = rows_of(records, data, who)
            scores = list(
                dict.fromkeys(
                    score
                    for row in found
                    for score in row["result"].get("detection", {}).get("pgd", {}).get("auroc", {})
                )
            )
            for score in scores if who == "adp" else scores[-1:]:
                cells = []
                for attack in (*ATTACKS, "disguised"):
                    values = list(_auroc(found, attack, score).values())
                    cells.append(mean_interval(values).shown("{:.2f}") if values else "–")
                rows.append([title(data), CONTENDERS[who].title, score.replace("_", " "), *cells])
    return header, rows


_SETS = ("cifar10", "mnist", "fashion_mnist", "digits")
_PROTOCOLS = (
    (
        ATTACKS,
        "on ensembles trained with ADP₂,₀.₅, ensemble diversity tells adversarial examples from "
        "clean ones",
        "the paper's attacks (historical, weak)",
    ),
    (("disguised",), "it still does when the attack also keeps it high", "adaptive attack"),
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
                f"{title(data)}: {words}",
                f"Section 4.5, Figure 4; {protocol}",
                _above_chance(attacks, data),
            )
            for attacks, words, protocol in _PROTOCOLS
            for data in _SETS
        ),
        Claim(
            "It needs ADP: on the baseline's ensemble the same detector is worse",
            "our question; the paper's attacks (historical, weak)",
            _better_on_adp,
        ),
        Claim(
            "It is better than the entropy of the ensemble's prediction",
            "our question; the paper's attacks (historical, weak)",
            _better_than("entropy", "entropy"),
        ),
    ),
    draw,
    table,
    {
        **ENSEMBLE_SETTING,
        "cpu": ENSEMBLE_SETTING["cpu"]
        + " Detection: ε = 0.3 on MNIST and digits and 0.12 on Fashion-MNIST, so that nearly all "
        "are misclassified; 120 images a seed (paper: 1,000 of CIFAR-10), the diversity taken with "
        "the predicted label, and against an attack that raises it once it is through (100 steps).",
    },
    brief,
)
