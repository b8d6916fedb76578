"""Adversarial examples: transfer among members (Figure 3), detection by diversity (Figure 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import eq
from typing import Any

import numpy as np

from reproductions.adp import resnet20
from reproductions.adp.accuracy import GRADIENT, Comparable, attack_names, contender_table, on
from reproductions.adp.ensembles import ADP_RUNS, BASELINE, ENSEMBLES, runs_of
from reproductions.adp.measurements import GRID
from reproductions.adp.members import in_these_runs
from reproductions.comparisons import (
    Groups,
    Larger,
    Quantity,
    Runs,
    Within,
    at,
    data_title,
    group_by_data,
    larger,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Matrix, Panel, Plot, Series, Text
from reproductions.statistics import Estimate
from reproductions.study import Record

#: The paper has CIFAR-10; the others are ours.
_SETS = ("cifar10", "mnist", "fashion_mnist", "digits")


# ---- transfer (Figure 3) ------------------------------------------------------------------------

#: The two kinds of attack, and what the paper claims of each.
_MODES = {
    "untargeted": "ADP's members stay more accurate on examples made for another member",
    "targeted": "ADP's members follow the target of another member less often",
}
#: The paper's attacks, and a longer PGD that can cross the ball.
_LENGTHS = {"": False, ", longer PGD": True}


def off_diagonal(matrix: Sequence[Sequence[float]]) -> float:
    """The mean over pairs of different members.

    >>> off_diagonal([[0.0, 0.5], [0.25, 0.0]])
    0.375
    """
    values = np.asarray(matrix, dtype=float)
    return float(values[~np.eye(len(values), dtype=bool)].mean())


def _transfer(name: str, wanted: Callable[[str], bool]) -> Quantity:
    """The mean over pairs of members and over ``wanted`` attacks such as ``"pgd targeted"``."""

    def read(record: Record) -> float | None:
        matrices = record["result"].get("transfer", {}).items()
        means = [off_diagonal(matrix) for key, matrix in matrices if wanted(key)]
        return float(np.mean(means)) if means else None

    return Quantity(name, read, "{:.1%}")


def _less_transfer(mode: str, longer: bool, groups: Groups, other: Runs = BASELINE) -> Larger:
    """A check that less transfers among ADP's members than among those of ``other``."""
    words = {"untargeted": "accuracy of other members", "targeted": "targets hit on other members"}
    sides = (ADP_RUNS, other) if mode == "untargeted" else (other, ADP_RUNS)

    def wanted(key: str) -> bool:
        attack, kind = key.split()
        return kind == mode and ("-" in attack) == longer  # "pgd-50" has 50 steps, "pgd" ten

    return larger(_transfer(words[mode], wanted), *sides, groups)


def plot_transfer(records: list[Record]) -> Plot:
    """The matrices of PGD, mean over seeds; high is good untargeted, low is good targeted."""
    panels: list[Matrix | Text] = []
    for title, group in group_by_data(r for r in records if "transfer" in r["result"]).items():
        for mode in _MODES:
            for runs in (BASELINE, ADP_RUNS):
                matrices = [row["result"]["transfer"][f"pgd {mode}"] for row in runs.of(group)]
                name = f"{title}, {runs.name}, {mode}"
                mean = np.mean(matrices, axis=0) if matrices else None
                panels.append(Text() if mean is None else Matrix(name, mean, y="made for member"))
    return Plot(panels, "Transfer of PGD among the members", columns=4)


def transfer_table(records: list[Record]) -> Table:
    """Means over pairs of different members: the accuracy, or the targets that were hit."""
    keys = attack_names(records, "transfer")
    columns = [_transfer(key, partial(eq, key)) for key in keys]
    return contender_table(records, *columns) if keys else Table(["data", "contender"], [], 2)


TRANSFER = Experiment(
    "adp/transfer",
    "Figure 3",
    "Transfer of adversarial examples among the members of an ensemble",
    ENSEMBLES,
    (
        *(
            Claim(
                f"{data_title(data)}: {text}{words}",
                "Section 4.4, Figure 3",
                Comparable(_less_transfer(mode, longer, on(data))),
                ours=longer or data != "cifar10",
                again="resnet20-transfer" if data == "cifar10" else "",
            )
            for words, longer in _LENGTHS.items()
            for data in _SETS
            for mode, text in _MODES.items()
        ),
        *(
            Claim(
                f"{data_title(data)}: targeted, examples transfer less than with label smoothing",
                "paper's attacks",
                _less_transfer("targeted", False, on(data), runs_of("smoothed")),
                ours=True,
            )
            for data in ("mnist", "fashion_mnist", "digits")
        ),
    ),
    transfer_table,
    plot_transfer,
)


def _images(record: Record) -> int:
    transfer = record["cell"]["transfer"]
    return int(transfer["images"]) if transfer else 1


RESNET20_TRANSFER = Experiment(
    "adp/resnet20-transfer",
    "Figure 3",
    "Transfer of adversarial examples among ResNet-20 members",
    resnet20.STUDY,
    (
        *(
            Claim(
                f"{text}{words}",
                "Section 4.4, Figure 3",
                in_these_runs(_less_transfer(mode, longer, group_by_data), _images),
                ours=longer,
            )
            for words, longer in _LENGTHS.items()
            for mode, text in _MODES.items()
        ),
        Claim(
            "Targeted, examples transfer less than with label smoothing",
            "paper's attacks",
            in_these_runs(
                _less_transfer("targeted", False, group_by_data, runs_of("smoothed")), _images
            ),
            ours=True,
        ),
    ),
    transfer_table,
    plot_transfer,
)


# ---- detection (Figure 4) -----------------------------------------------------------------------

#: The attacks that are to be detected, by the name in a record.
_DETECTED = {**{name: name.upper() for name in GRADIENT}, "disguised": "PGD in disguise"}
#: The paper's claim and ours, with the attacks that they are tried with.
_PROTOCOLS = {
    "diversity separates adversarial examples from clean ones": GRADIENT,
    "it does so, too, for an attack that keeps the diversity high": ("disguised",),
}


def _auroc(*attacks: str, score: str = "ensemble_diversity", name: str = "") -> Quantity:
    """The AUROC of a score, mean over attacks."""

    def read(record: Record) -> float | None:
        aurocs = [at("detection", attack, "auroc", score)(record) for attack in attacks]
        known = [auroc for auroc in aurocs if auroc is not None]
        return float(np.mean(known)) if len(known) == len(attacks) else None

    return Quantity(name or f"AUROC, {', '.join(_DETECTED[one] for one in attacks)}", read)


def _above_chance(attacks: Sequence[str], data: str) -> Larger:
    """A check that the AUROC on ADP's ensembles, mean over ``attacks``, is larger than ½."""
    return larger(
        _auroc(*attacks),
        Runs("ensemble diversity", ADP_RUNS.settings),
        Runs("chance", ADP_RUNS.settings),
        on(data),
        against=Quantity("chance", lambda _: 0.5),
    )


def plot_detection(records: list[Record]) -> Plot:
    """ROC curves on ADP's ensembles, mean over seeds."""
    panels = []
    for title, group in group_by_data(r for r in records if "detection" in r["result"]).items():
        rows = ADP_RUNS.of(group)
        series = [Series("chance", [0.0, 1.0], [0.0, 1.0], "muted", markers=False)]
        for number, (attack, name) in enumerate(_DETECTED.items() if rows else ()):
            curve = np.mean([row["result"]["detection"][attack]["roc"] for row in rows], axis=0)
            dash: Any = "dashed" if attack == "disguised" else "solid"
            words = f"{name}, AUROC {_auroc(attack).estimate(rows).mean:.2f}"
            series.append(Series(words, GRID, curve, number, dash=dash, markers=False))
        axes = ("false positive rate", "true positive rate")
        panels.append(Panel(*axes, series, title, legend="lower right"))
    alt = "ROC curves of ensemble diversity as a detector of adversarial examples"
    return Plot(panels, alt, len(panels) or 1, (3.8, 3.4))


def detection_table(records: list[Record]) -> Table:
    """AUROC of ensemble diversity under each attack, and of the entropy under PGD."""
    entropy = _auroc("pgd", score="entropy", name="AUROC of the entropy, PGD")
    return contender_table(records, *map(_auroc, _DETECTED), entropy)


DETECTION = Experiment(
    "adp/detection",
    "Figure 4",
    "Ensemble diversity as a detector of adversarial examples",
    ENSEMBLES,
    (
        *(
            Claim(
                f"{data_title(data)}: {words}",
                "Section 4.5, Figure 4",
                Comparable(_above_chance(attacks, data)),
                ours=attacks != GRADIENT or data != "cifar10",
                again="resnet20-detection" if data == "cifar10" else "",
            )
            for words, attacks in _PROTOCOLS.items()
            for data in _SETS
        ),
        Claim(
            "Diversity detects PGD better on ADP's ensembles than on the baseline's",
            "paper's attacks",
            larger(_auroc("pgd"), ADP_RUNS, BASELINE, group_by_data),
            ours=True,
        ),
        Claim(
            "Diversity detects PGD better than the entropy of the ensemble's prediction",
            "paper's attacks",
            larger(
                _auroc("pgd"),
                Runs("ensemble diversity", ADP_RUNS.settings),
                Runs("entropy", ADP_RUNS.settings),
                group_by_data,
                against=_auroc("pgd", score="entropy"),
            ),
            ours=True,
        ),
    ),
    detection_table,
    plot_detection,
)


def _above_half(attacks: Sequence[str]) -> Within:
    """A check that the AUROC is above ½ under each attack, in each run of ADP.

    The interval is the bootstrap over the images of a run.
    """

    def numbers(records: list[Record]) -> dict[str, Estimate]:
        cases = {}
        for row in ADP_RUNS.of(records):
            for attack in attacks if "detection" in row["result"] else ():
                found = row["result"]["detection"][attack]
                value, (low, high) = found["auroc"]["ensemble_diversity"], found["interval"]
                auroc = Estimate(value, low, high, found["fooled"])
                cases[f"{_DETECTED[attack]}, seed {row['cell']['seed']}"] = auroc
        return cases

    return Within("AUROC", numbers, low=0.5, form="{:.3f}")


RESNET20_DETECTION = Experiment(
    "adp/resnet20-detection",
    "Figure 4",
    "Ensemble diversity of ResNet-20 members as a detector of adversarial examples",
    resnet20.STUDY,
    tuple(
        Claim(
            words[0].upper() + words[1:],
            "Section 4.5, Figure 4",
            _above_half(attacks),
            ours=attacks != GRADIENT,
        )
        for words, attacks in _PROTOCOLS.items()
    ),
    detection_table,
    plot_detection,
)
