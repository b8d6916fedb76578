"""Variants of the ensembles: adversarial training (Table 4) and five members (Table 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproductions.adp.accuracy import (
    GRADIENT,
    PLACES,
    MoreRight,
    accuracy_table,
    weak,
    worst_case,
)
from reproductions.adp.comparable import paper_experiment
from reproductions.adp.ensembles import (
    ADP_RUNS,
    BASELINE,
    ENSEMBLES,
    PAIR,
    TRAINED,
    run,
    runs_of,
)
from reproductions.adp.published import TABLE4, TABLE5
from reproductions.adp.settings import (
    AUTHORS,
    CIFAR10_WEAK,
    CPU_DIGITS,
    FEW_STEPS,
    MNIST_WEAK,
    MORE_STEPS,
    SMOKE,
    WEAK_PROTOCOL,
    standard,
)
from reproductions.cells import seed_study
from reproductions.old.base import Claim, Record, Table
from reproductions.old.comparisons import filter_records

# ---- adversarial training (Table 4) -------------------------------------------------------------

_SHOWN = (*PAIR, *TRAINED)


def _published(attack: str) -> str:
    means = [float(np.mean(TABLE4[name])) for name in (attack, f"{attack}-adp")]
    return f"CIFAR-10, mean of the four attacks: {means[0]:.1f} → {means[1]:.1f}"


def adversarial_table(records: list[Record]) -> Table:
    """Accuracies in %, ours and Table 4's."""
    trained = {record["cell"]["data"] for record in filter_records(records, contender="pgd")}
    header, rows = accuracy_table([r for r in records if r["cell"]["data"] in trained], _SHOWN)
    for place, name in enumerate(GRADIENT):
        eps = 0.04 if name == "fgsm" else 0.02
        cells = [f"{TABLE4[who][place]}" if who in TABLE4 else "–" for who in _SHOWN]
        rows.append(["published, CIFAR-10", f"{name.upper()}, ε = {eps:g}", *cells])
    return header, rows


_TABLE_4_WEAK = f"Section 4.3, Table 4; {WEAK_PROTOCOL}"
_PGD, _PGD_ADP = runs_of("pgd"), runs_of("pgd-adp")

ADVERSARIAL_TRAINING = paper_experiment(
    "adp/adversarial-training",
    "Table 4",
    "Adversarial training alone and together with ADP",
    ENSEMBLES,
    (
        *(
            Claim(
                f"ADP₂,₀.₅ adds to adversarial training on {attack.upper()}",
                _TABLE_4_WEAK,
                MoreRight(
                    runs_of(f"{attack}-adp"), runs_of(attack), weak(GRADIENT), _published(attack)
                ),
            )
            for attack in ("fgsm", "pgd")
        ),
        Claim(
            "Adversarial training on PGD adds to ADP₂,₀.₅",
            _TABLE_4_WEAK,
            MoreRight(_PGD_ADP, ADP_RUNS, weak(GRADIENT)),
        ),
        *(
            Claim(
                f"At the {size} ε, ADP₂,₀.₅ adds to adversarial training on PGD in the worst case",
                "Section 4.3, Table 4; standard protocol",
                MoreRight(_PGD_ADP, _PGD, worst_case(place)),
            )
            for place, size in PLACES
        ),
        Claim(
            "At the larger ε, adversarial training on PGD alone is more robust than ADP₂,₀.₅ alone",
            "our question; standard protocol",
            MoreRight(_PGD, ADP_RUNS, worst_case(-1)),
        ),
    ),
    None,
    adversarial_table,
)


# ---- five members (Table 5) ---------------------------------------------------------------------


_FIVE: dict[str, dict[str, Any]] = {
    "smoke": {**SMOKE, "attacks": MNIST_WEAK, "standard": standard((0.1,), 20, **FEW_STEPS)},
    "cpu": {**CPU_DIGITS, "attacks": MNIST_WEAK, "standard": standard((0.1, 0.15), 40)},
    "paper": {
        **AUTHORS,
        "attacks": CIFAR10_WEAK,
        "slow_attacks": [
            "cw:c=0.01,searches=1,confidence=0.1",
            "ead:c=1.0,searches=1,confidence=0.1",
        ],
        "standard": standard((0.01, 0.02), 1000, **MORE_STEPS),
    },
}

FIVE_STUDY = seed_study(
    "five-members",
    {
        scale: {name: {**settings, "contender": name, "members": 5} for name in PAIR}
        for scale, settings in _FIVE.items()
    },
    run,
    seeds=(2, 10, 3),
    cost=("10 s", "25 min", "GPU days"),
)


def five_table(records: list[Record]) -> Table:
    """Accuracies in %, ours and Table 5's."""
    header, rows = accuracy_table(records, PAIR)
    for name, printed in TABLE5.items():
        rows.append(["published, CIFAR-10", name.upper(), *(f"{value}" for value in printed)])
    return header, rows


FIVE_MEMBERS = paper_experiment(
    "adp/five-members",
    "Table 5",
    "Five members on ten classes, where K does not divide L − 1",
    FIVE_STUDY,
    (
        *(
            Claim(
                f"Under {name.upper()}, ADP₂,₀.₅ is more accurate than the baseline",
                f"Section 4.6, Table 5; {WEAK_PROTOCOL}",
                MoreRight(
                    ADP_RUNS, BASELINE, weak((name,)), "CIFAR-10 {} → {}".format(*TABLE5[name])
                ),
            )
            for name in GRADIENT
        ),
        *(
            Claim(
                f"At the {size} ε, ADP₂,₀.₅ is more accurate than the baseline in the worst case",
                "Section 4.6, Table 5; standard protocol",
                MoreRight(ADP_RUNS, BASELINE, worst_case(place)),
            )
            for place, size in PLACES
        ),
    ),
    None,
    five_table,
)
