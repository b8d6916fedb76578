"""Adversarial training, alone and with ADP: Table 4."""

from __future__ import annotations

import numpy as np

from dissensus.papers.adp.accuracy import (
    GRADIENT,
    MoreRight,
    accuracy_header,
    accuracy_rows,
    weak,
    worst_case,
)
from dissensus.papers.adp.ensembles import ADP_RUNS, ENSEMBLES, PAIR, TRAINED, runs_of
from dissensus.papers.adp.published import TABLE4
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Record
from dissensus.papers.comparisons import filter_records

__all__ = ["ADVERSARIAL_TRAINING"]

_SHOWN = (*PAIR, *TRAINED)


def _published(before: str, after: str) -> str:
    means = [float(np.mean(TABLE4[name])) for name in (before, after)]
    return f"CIFAR-10, mean of the four attacks: {means[0]:.1f} → {means[1]:.1f}"


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Accuracies in %, ours and Table 4's."""
    trained = {record["cell"]["data"] for record in filter_records(records, contender="pgd")}
    rows = accuracy_rows([r for r in records if r["cell"]["data"] in trained], _SHOWN)
    for place, name in enumerate(GRADIENT):
        eps = 0.04 if name == "fgsm" else 0.02
        cells = [f"{TABLE4[who][place]}" if who in TABLE4 else "–" for who in _SHOWN]
        rows.append(["published, CIFAR-10", f"{name.upper()}, ε = {eps:g}", *cells])
    return accuracy_header(_SHOWN), rows


_WEAK = "Section 4.3, Table 4; the paper's attacks (historical, weak)"
_STRONG = "Section 4.3, Table 4; standard protocol"
_MEAN = "accuracy, mean of FGSM, BIM, PGD and MIM"
_FGSM, _FGSM_ADP, _PGD, _PGD_ADP = map(runs_of, TRAINED)

ADVERSARIAL_TRAINING = Experiment(
    "adversarial-training",
    "adp",
    "Table 4",
    "Adversarial training alone and together with ADP",
    ENSEMBLES,
    (
        Claim(
            "ADP₂,₀.₅ adds to adversarial training on FGSM",
            _WEAK,
            MoreRight(_FGSM_ADP, _FGSM, weak(GRADIENT), _MEAN, _published("fgsm", "fgsm-adp")),
        ),
        Claim(
            "ADP₂,₀.₅ adds to adversarial training on PGD",
            _WEAK,
            MoreRight(_PGD_ADP, _PGD, weak(GRADIENT), _MEAN, _published("pgd", "pgd-adp")),
        ),
        Claim(
            "Adversarial training on PGD adds to ADP₂,₀.₅",
            _WEAK,
            MoreRight(_PGD_ADP, ADP_RUNS, weak(GRADIENT), _MEAN),
        ),
        Claim(
            "At the smaller ε, ADP₂,₀.₅ adds to adversarial training on PGD in the worst case",
            _STRONG,
            MoreRight(_PGD_ADP, _PGD, worst_case(0), "worst case"),
        ),
        Claim(
            "At the larger ε, ADP₂,₀.₅ adds to adversarial training on PGD in the worst case",
            _STRONG,
            MoreRight(_PGD_ADP, _PGD, worst_case(-1), "worst case"),
        ),
        Claim(
            "At the larger ε, adversarial training on PGD alone is more robust than ADP₂,₀.₅ alone",
            "our question; standard protocol",
            MoreRight(_PGD, ADP_RUNS, worst_case(-1), "worst case"),
        ),
    ),
    None,
    table,
    ENSEMBLE_SETTING,
)
