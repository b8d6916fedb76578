"""Five members on ten classes, where Corollary 1 does not apply (5 ∤ 9): Table 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dissensus.papers.adp.accuracy import (
    GRADIENT,
    MoreRight,
    accuracy_header,
    accuracy_rows,
    weak,
    worst_case,
)
from dissensus.papers.adp.ensembles import ADP_RUNS, BASELINE, PAIR, run
from dissensus.papers.adp.published import TABLE5
from dissensus.papers.adp.settings import (
    CIFAR10_WEAK,
    CPU_DIGITS,
    DIGITS_WEAK,
    FEW_STEPS,
    PAPER,
    SMOKE,
    STRONG,
    standard,
)
from dissensus.papers.base import Cell, Claim, Experiment, Record, Study
from dissensus.papers.cells import SEEDS_OPTION, make_cell, seeds_of

__all__ = ["FIVE_MEMBERS", "STUDY", "cells"]


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The baseline and ADP with five members, for each seed."""
    settings: dict[str, Any] = {
        "smoke": {**SMOKE, "attacks": DIGITS_WEAK, "standard": standard((0.1,), 20, **FEW_STEPS)},
        "cpu": {**CPU_DIGITS, "attacks": DIGITS_WEAK, "standard": standard((0.1, 0.15), 40)},
        "paper": {
            **PAPER,
            "attacks": CIFAR10_WEAK,
            "slow_attacks": [
                "cw:c=0.01,searches=1,confidence=0.1",
                "ead:c=1.0,searches=1,confidence=0.1",
            ],
            "standard": standard((0.01, 0.02), 1000, autoattack_steps=100, queries=5000),
        },
    }[scale]
    return [
        make_cell(f"{contender}-seed={seed}", settings, contender=contender, members=5, seed=seed)
        for seed in seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 3}[scale])
        for contender in PAIR
    ]


STUDY = Study(
    "five-members",
    cells,
    run,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "10 s", "cpu": "10 min", "paper": "GPU days"},
)


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Accuracies in %, ours and Table 5's."""
    rows = accuracy_rows(records, PAIR)
    for name, printed in TABLE5.items():
        rows.append(["published, CIFAR-10", name.upper(), *(f"{value}" for value in printed)])
    return accuracy_header(PAIR), rows


_WEAK = "Section 4.6, Table 5; the paper's attacks (historical, weak)"
_STRONG = "Section 4.6, Table 5; standard protocol"

FIVE_MEMBERS = Experiment(
    "five-members",
    "adp",
    "Table 5",
    "Five members on ten classes, where K does not divide L − 1",
    STUDY,
    (
        *(
            Claim(
                f"Under {name.upper()}, ADP₂,₀.₅ is more accurate than the baseline",
                _WEAK,
                MoreRight(
                    ADP_RUNS,
                    BASELINE,
                    weak((name,)),
                    f"accuracy under {name.upper()}",
                    "CIFAR-10 {} → {}".format(*TABLE5[name]),
                ),
            )
            for name in GRADIENT
        ),
        *(
            Claim(
                f"At the {size} ε, ADP₂,₀.₅ is more accurate than the baseline in the worst case",
                _STRONG,
                MoreRight(ADP_RUNS, BASELINE, worst_case(place), "worst case"),
            )
            for place, size in ((0, "smaller"), (-1, "larger"))
        ),
    ),
    None,
    table,
    {
        "smoke": (
            "300 digits of scikit-learn, a tiny CNN, 8 epochs, 2 seeds: too small for any claim."
        ),
        "cpu": (
            "Scikit-learn's digits in place of CIFAR-10, the CNN and schedule of the other "
            "ensembles on digits, five members, 3 seeds; the paper's attacks on 200 test images "
            "per "
            "seed. "
            f"{STRONG}; on 40 test images per seed. C&W and EAD of Table 5 were not run."
        ),
        "paper": (
            "CIFAR-10 whole, five ResNet-20, the paper's schedule and 3 seeds; all attacks of "
            "Table 5 and the standard protocol on 1,000 images."
        ),
    },
)
