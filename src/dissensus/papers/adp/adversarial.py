"""Table 4: adversarial training, alone and with ADP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dissensus.papers.adp.accuracies import clean_text
from dissensus.papers.adp.contenders import CONTENDERS
from dissensus.papers.adp.ensembles import ENSEMBLES, TRAINED
from dissensus.papers.adp.judging import (
    GRADIENT,
    attack_title,
    standard_check,
    standard_eps,
    weak_check,
)
from dissensus.papers.adp.published import TABLE4
from dissensus.papers.adp.reading import (
    accuracy_text,
    attack_names,
    data_in,
    kept_by,
    rows_of,
    standard_bits,
    title,
)
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Record

__all__ = ["ADVERSARIAL_TRAINING"]

_SHOWN = ("plain", "adp", *TRAINED)


def _mean(rows: Sequence[float]) -> float:
    return float(np.mean(rows))


def _published(smaller: str, larger: str) -> str:
    means = (_mean(TABLE4[smaller]), _mean(TABLE4[larger]))
    return f"CIFAR-10, mean of the four attacks: {means[0]:.1f} → {means[1]:.1f}"


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Accuracies in %, ours and Table 4's."""
    header = ["data", "attack", *(CONTENDERS[name].title for name in _SHOWN)]
    rows = []
    for data in data_in(records):
        if not rows_of(records, data, "pgd"):
            continue
        mine = [record for record in records if record["cell"]["data"] == data]
        clean = [clean_text(rows_of(mine, data, name)) for name in _SHOWN]
        rows.append([title(data), "none", *clean])
        for spec in attack_names(mine):
            read = kept_by([spec])
            cells = [accuracy_text(rows_of(mine, data, name), read) for name in _SHOWN]
            rows.append([title(data), attack_title(spec), *cells])
        for eps in standard_eps(mine):
            read = standard_bits(eps)
            cells = [accuracy_text(rows_of(mine, data, name), read) for name in _SHOWN]
            rows.append([title(data), f"**worst case, standard**, ε = {eps:g}", *cells])
    for place, name in enumerate(GRADIENT):
        eps = 0.04 if name == "fgsm" else 0.02
        cells = [f"{TABLE4[who][place]}" if who in TABLE4 else "–" for who in _SHOWN]
        rows.append(["published, CIFAR-10", f"{name.upper()}, ε = {eps:g}", *cells])
    return header, rows


_WEAK = "Section 4.3, Table 4; the paper's attacks (historical, weak)"
_STRONG = "Section 4.3, Table 4; standard protocol"
_QUANTITY = "accuracy, mean of FGSM, BIM, PGD and MIM"

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
            weak_check("fgsm-adp", "fgsm", GRADIENT, _QUANTITY, _published("fgsm", "fgsm-adp")),
        ),
        Claim(
            "ADP₂,₀.₅ adds to adversarial training on PGD",
            _WEAK,
            weak_check("pgd-adp", "pgd", GRADIENT, _QUANTITY, _published("pgd", "pgd-adp")),
        ),
        Claim(
            "Adversarial training on PGD adds to ADP₂,₀.₅",
            _WEAK,
            weak_check("pgd-adp", "adp", GRADIENT, _QUANTITY, None),
        ),
        Claim(
            "At the smaller ε, ADP₂,₀.₅ adds to adversarial training on PGD in the worst case",
            _STRONG,
            standard_check("pgd-adp", "pgd", 0, "worst case"),
        ),
        Claim(
            "At the larger ε, ADP₂,₀.₅ adds to adversarial training on PGD in the worst case",
            _STRONG,
            standard_check("pgd-adp", "pgd", -1, "worst case"),
        ),
        Claim(
            "At the larger ε, adversarial training on PGD alone is more robust than ADP₂,₀.₅ alone",
            "our question; standard protocol",
            standard_check("pgd", "adp", -1, "worst case"),
        ),
    ),
    None,
    table,
    ENSEMBLE_SETTING,
)
