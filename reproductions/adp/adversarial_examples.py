"""Adversarial examples: transfer among members (Figure 3), detection by diversity (Figure 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.show import Matrix, Panel, Plot, Series, Text
from reproductions.adp.accuracy import GRADIENT, attack_names
from reproductions.adp.comparable import paper_experiment
from reproductions.adp.ensembles import ADP_RUNS, BASELINE, ENSEMBLES, contenders_in, runs_of
from reproductions.adp.measurements import GRID
from reproductions.adp.settings import WEAK_PROTOCOL
from reproductions.old.base import CANNOT, Claim, Finding, Record, Table
from reproductions.old.comparisons import (
    Larger,
    Quantity,
    Runs,
    at,
    data_title,
    filter_records,
    group_by_data,
    interval_text,
)
from reproductions.old.statistics import larger_than

#: The paper has CIFAR-10; the others are ours.
_SETS = ("cifar10", "mnist", "fashion_mnist", "digits")


# ---- transfer (Figure 3) ------------------------------------------------------------------------

#: The two kinds of attack.
MODES = ("untargeted", "targeted")


def off_diagonal(matrix: Sequence[Sequence[float]]) -> float:
    """The mean over pairs of different members.

    >>> off_diagonal([[0.0, 0.5], [0.25, 0.0]])
    0.375
    """
    values = np.asarray(matrix, dtype=float)
    return float(values[~np.eye(len(values), dtype=bool)].mean())


def _transfer(name: str, keys: Sequence[str]) -> Quantity:
    """The mean over some attacks, ``"pgd targeted"``, of the mean over pairs of members."""

    def read(record: Record) -> float | None:
        matrices = record["result"].get("transfer", {})
        if any(key not in matrices for key in keys):
            return None
        return float(np.mean([off_diagonal(matrices[key]) for key in keys]))

    return Quantity(name, read, "{:.1%}")


def _long(records: Sequence[Record]) -> str:
    """``"pgd-50"``: the attack with more steps than the paper's."""
    names = attack_names(records, "transfer")
    return next((name.split()[0] for name in names if name.startswith("pgd-")), "pgd-50")


@dataclass(frozen=True)
class LessTransfer:
    """Checks that less transfers among ADP's members than among those of ``other``.

    The mean over ``attacks``, where ``"long"`` is the attack with more steps than the paper's, on
    the data set ``data``, or on all that there are. ``compare`` makes the check of the quantity,
    its larger and its smaller side.
    """

    mode: str
    attacks: Sequence[str]
    data: str | None = None
    other: Runs = BASELINE
    compare: Callable[[Quantity, Runs, Runs], Callable[[list[Record]], Finding]] = Larger

    def __call__(self, records: list[Record]) -> Finding:
        names = [_long(records) if attack == "long" else attack for attack in self.attacks]
        words = {
            "untargeted": "accuracy of other members",
            "targeted": "other members that predict the target",
        }[self.mode]
        tried = " and ".join(_attack_title(name) for name in names)
        quantity = _transfer(f"{words}, {tried}", [f"{name} {self.mode}" for name in names])
        sides = (ADP_RUNS, self.other) if self.mode == "untargeted" else (self.other, ADP_RUNS)
        some = records if self.data is None else filter_records(records, data=self.data)
        return self.compare(quantity, *sides)(some)


def transfer_brief(records: list[Record]) -> list[str]:
    """The share of targets that transfer, and the data sets on which ADP lowers it."""
    parts, lower = [], []
    quantity = _transfer("", ["pgd targeted"])
    for title, group in group_by_data(records).items():
        sides = [runs.of(group) for runs in (BASELINE, ADP_RUNS)]
        if all(quantity.values(side) for side in sides):
            before, after = (100 * quantity.mean(side) for side in sides)
            parts.append(f"{title} {before:.0f} → {after:.0f}")
        if _falls(records, group[0]["cell"]["data"]):
            lower.append(title)
    if not parts:
        return []
    words = f" **ADP reduces transfer between members** ({', '.join(lower)})." if lower else ""
    return [
        "Targets that transfer from one member to another (PGD), in %, baseline → ADP₂,₀.₅: "
        f"{', '.join(parts)}.{words} That is diversity, not robustness: an attacker of the "
        "ensemble sees all members."
    ]


def _falls(records: list[Record], data: str) -> bool:
    """Whether transfer falls in both modes, under the paper's attacks and under the longer one."""
    return all(
        LessTransfer(mode, attacks, data)(records).verdict == "holds"
        for mode in MODES
        for attacks in (("pgd", "mim"), ("long",))
    )


def _attack_title(name: str) -> str:
    kind, _, steps = name.partition("-")
    return f"{kind.upper()} of {steps} steps" if steps else kind.upper()


def plot_transfer(records: list[Record]) -> Plot:
    """The matrices of PGD, mean over seeds; high is good untargeted, low is good targeted."""
    panels: list[Matrix | Text] = []
    for title, group in group_by_data(r for r in records if "transfer" in r["result"]).items():
        for mode in MODES:
            for runs in (BASELINE, ADP_RUNS):
                matrices = [row["result"]["transfer"][f"pgd {mode}"] for row in runs.of(group)]
                name = f"{title}, {runs.name}, {mode}"
                mean = np.mean(matrices, axis=0) if matrices else None
                panels.append(Text() if mean is None else Matrix(name, mean, y="made for member"))
    return Plot(panels, "Transfer of PGD among the members", columns=4)


def transfer_table(records: list[Record]) -> Table:
    """Means over pairs of different members, in %."""
    keys = attack_names(records, "transfer")
    rows = []
    for title, group in group_by_data(records).items():
        for runs in contenders_in(group):
            values = [_transfer(key, [key]).values(runs.of(group)).values() for key in keys]
            if values and all(values):
                shown = [interval_text([100 * v for v in column], "{:.0f}") for column in values]
                rows.append([title, runs.name, *shown])
    return ["data", "contender", *map(_header, keys)], rows


def _header(key: str) -> str:
    attack, mode = key.split()
    what = {"untargeted": "accuracy", "targeted": "targets hit"}[mode]
    return f"{_attack_title(attack)}, {mode}: {what}"


#: What the paper claims of each mode, and the attacks that it is tried with: names, words, source.
TRANSFER_TEXTS = {
    "untargeted": "ADP's members stay more accurate on examples made for another member",
    "targeted": "ADP's members follow the target of another member less often",
}
TRANSFER_PROTOCOLS = (
    (("pgd", "mim"), "", WEAK_PROTOCOL),
    (("long",), ", under PGD with more steps, which crosses the ball", "strong attack"),
)


def _again(data: str, experiment: str, words: str) -> tuple[str, str] | None:
    """Where ResNet-20 on all of CIFAR-10 is asked the same."""
    return (experiment, f"In these runs, {words}") if data == "cifar10" else None


TRANSFER = paper_experiment(
    "adp/transfer",
    "Figure 3",
    "Transfer of adversarial examples among the members of an ensemble",
    ENSEMBLES,
    (
        *(
            Claim(
                f"{data_title(data)}: {TRANSFER_TEXTS[mode]}{words}",
                f"Section 4.4, Figure 3; {protocol}",
                LessTransfer(mode, attacks, data),
                _again(data, "resnet20-transfer", f"{TRANSFER_TEXTS[mode]}{words}"),
            )
            for attacks, words, protocol in TRANSFER_PROTOCOLS
            for data in _SETS
            for mode in MODES
        ),
        *(
            Claim(
                f"{data_title(data)}: the determinant matters: targeted, examples transfer less "
                "than with label smoothing",
                f"our question; {WEAK_PROTOCOL}",
                LessTransfer("targeted", ("pgd", "mim"), data, runs_of("smoothed")),
            )
            for data in ("mnist", "fashion_mnist", "digits")
        ),
    ),
    plot_transfer,
    transfer_table,
    transfer_brief,
)


# ---- detection (Figure 4) -----------------------------------------------------------------------

#: The attacks that are to be detected, by the name in a record.
DETECTED = {**{name: name.upper() for name in GRADIENT}, "disguised": "PGD in disguise"}


def _auroc(attack: str, score: str = "ensemble_diversity", form: str = "{:.3f}") -> Quantity:
    return Quantity(
        f"AUROC under {DETECTED[attack]}", at("detection", attack, "auroc", score), form
    )


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
        tried = ", ".join(DETECTED[attack] for attack in self.attacks)
        names = ("ensemble diversity", "chance")
        return larger_than(means, 0.5, names, f"AUROC, {tried}", form="{:.3f}")


def detection_brief(records: list[Record]) -> list[str]:
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


def plot_detection(records: list[Record]) -> Plot:
    """ROC curves on ADP's ensembles, mean over seeds."""
    panels = []
    for title, group in group_by_data(r for r in records if "detection" in r["result"]).items():
        rows = ADP_RUNS.of(group)
        series = [Series("chance", [0.0, 1.0], [0.0, 1.0], "muted", markers=False)]
        for number, (attack, name) in enumerate(DETECTED.items() if rows else ()):
            curve = np.mean([row["result"]["detection"][attack]["roc"] for row in rows], axis=0)
            dash: Any = "dashed" if attack == "disguised" else "solid"
            words = f"{name}, AUROC {_auroc(attack).mean(rows):.2f}"
            series.append(Series(words, GRID, curve, number, dash=dash, markers=False))
        axes = ("false positive rate", "true positive rate")
        panels.append(Panel(*axes, series, title, legend="lower right"))
    alt = "ROC curves of ensemble diversity as a detector of adversarial examples"
    return Plot(panels, alt, len(panels) or 1, (3.8, 3.4))


def detection_table(records: list[Record]) -> Table:
    """AUROC of every score on ADP's ensembles, and of ensemble diversity on the baseline's."""
    rows = []
    for title, group in group_by_data(records).items():
        for runs in (BASELINE, ADP_RUNS):
            some = [run for run in runs.of(group) if "detection" in run["result"]]
            scores = list(
                dict.fromkeys(s for run in some for s in run["result"]["detection"]["pgd"]["auroc"])
            )
            for score in scores if runs is ADP_RUNS else scores[-1:]:
                shown = [_auroc(attack, score, "{:.2f}").text(some) for attack in DETECTED]
                rows.append([title, runs.name, score.replace("_", " "), *shown])
    return ["data", "ensemble", "score", *DETECTED.values()], rows


#: The paper's claim and ours, with the attacks that they are tried with: names, words, source.
DETECTION_PROTOCOLS = (
    (
        GRADIENT,
        "on ensembles trained with ADP₂,₀.₅, ensemble diversity separates adversarial examples "
        "from clean ones",
        WEAK_PROTOCOL,
    ),
    (
        ("disguised",),
        "it still does under an attack that keeps the diversity high",
        "adaptive attack",
    ),
)

DETECTION = paper_experiment(
    "adp/detection",
    "Figure 4",
    "Ensemble diversity as a detector of adversarial examples",
    ENSEMBLES,
    (
        *(
            Claim(
                f"{data_title(data)}: {words}",
                f"Section 4.5, Figure 4; {protocol}",
                AboveChance(attacks, data),
                _again(data, "resnet20-detection", words),
            )
            for attacks, words, protocol in DETECTION_PROTOCOLS
            for data in _SETS
        ),
        Claim(
            "It needs ADP: on the baseline's ensemble the same detector is worse",
            f"our question; {WEAK_PROTOCOL}",
            Larger(_auroc("pgd"), ADP_RUNS, BASELINE, group_by_data),
        ),
        Claim(
            "It is better than the entropy of the ensemble's prediction",
            f"our question; {WEAK_PROTOCOL}",
            Larger(
                _auroc("pgd"),
                Runs("ensemble diversity", ADP_RUNS.settings),
                Runs("entropy", ADP_RUNS.settings),
                group_by_data,
                against=_auroc("pgd", "entropy"),
            ),
        ),
    ),
    plot_detection,
    detection_table,
    detection_brief,
)
