"""Tables 2 and 3: white-box attacks, the paper's and strong ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dissensus.papers.adp.accuracies import brief, draw, table
from dissensus.papers.adp.ensembles import ENSEMBLES
from dissensus.papers.adp.judging import (
    FAMILIES,
    GRADIENT,
    Check,
    judged_over_data,
    of_families,
    parameter,
    standard_check,
    standard_eps,
    weak_check,
)
from dissensus.papers.adp.published import TABLE2, gains
from dissensus.papers.adp.reading import (
    Bits,
    by_seed,
    compared,
    data_in,
    kept_by,
    rows_of,
    standard_bits,
    title,
)
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparing import (
    CANNOT,
    all_of,
)

if TYPE_CHECKING:
    pass

__all__ = ["WHITE_BOX"]


# ---- checks -------------------------------------------------------------------------------------


def _overstated(which: int) -> Check:
    """ADP's gain under the paper's PGD against its gain in the worst case, on the same images."""

    def check(records: list[Record]) -> Finding:
        runs: dict[str, dict[str, dict[int, Bits]]] = {}
        for data in data_in(records):
            pair = [rows_of(records, data, name) for name in ("adp", "plain")]
            sizes = standard_eps(pair[0])
            if not sizes:
                continue
            eps = sizes[which]
            specs = [s for s in of_families(pair[0], ("pgd",), "weak") if parameter(s) == eps]
            weak = [by_seed(rows, kept_by(specs)) for rows in pair]
            strong = [by_seed(rows, standard_bits(eps)) for rows in pair]
            if all((*weak, *strong)):
                runs[data] = {
                    "weak": _difference(weak[0], weak[1], strong[0]),
                    "strong": _difference(strong[0], strong[1], strong[0]),
                }
        titles = ("under the paper's PGD", "in the worst case")
        quantity = "gain of ADP₂,₀.₅ over the baseline"
        return judged_over_data(runs, ("weak", "strong"), quantity, titles=titles)

    return check


def _difference(
    first: dict[int, Bits], second: dict[int, Bits], images: dict[int, Bits]
) -> dict[int, Bits]:
    """First minus second by seed, on the images that the strong attacks were tried on."""
    seeds = set(first) & set(second) & set(images)
    count = {seed: len(images[seed]) for seed in seeds}
    return {s: first[s][: count[s]] - second[s][: count[s]] for s in sorted(seeds)}


def _withstands(records: list[Record]) -> Finding:
    """Whether ADP keeps half of its clean accuracy at the larger ε, on every data set."""
    findings = {}
    for data in data_in(records):
        rows = rows_of(records, data, "adp")
        sizes = standard_eps(rows)
        if not sizes:
            continue
        left = by_seed(rows, standard_bits(sizes[-1]))
        half = {
            record["cell"]["seed"]: np.full(
                len(left[record["cell"]["seed"]]), (1 - record["result"]["clean"]["error"]) / 2
            )
            for record in rows
            if record["cell"]["seed"] in left
        }
        if left:
            names = ("ADP₂,₀.₅ in the worst case", "half of its clean accuracy")
            words = f"ε = {sizes[-1]:g}"
            findings[title(data)] = compared(left, half, names, words)
    return all_of(findings)


def _no_masking(records: list[Record]) -> Finding:
    """The checks that an attack must pass before its failure says anything about a network."""
    runs = [record["result"] for record in records if record["result"].get("standard")]
    if not runs:
        return Finding(CANNOT, "the standard protocol was not run")
    at_half = max(run["at_half"] for run in runs)
    zero = max(found["largest_zero_share"] for run in runs for found in run["standard"])
    nan = sum(found["nan_gradients"] for run in runs for found in run["standard"])
    after, before = 0, 0
    for run in runs:
        for found in run["standard"]:
            left = list(found["left"].values())
            after, before = after + left[-1], before + left[-2]
    sentence = (
        f"over {len(runs)} ensembles: at ε = 0.5 at most {at_half:.1%} are left, at most "
        f"{zero:.1%} of an attack's gradients are 0 and {nan} are not finite, and Square breaks "
        f"{before - after} of the {before} images that gradients left"
    )
    fine = at_half <= 0.05 and zero <= 0.1 and nan == 0 and before - after <= 0.02 * max(before, 50)
    return Finding("holds" if fine else "does not hold", sentence)


# ---- the experiment -----------------------------------------------------------------------------

_WEAK = "Section 4.3, Tables 2 and 3; the paper's attacks (historical, weak)"
_STRONG = "Section 4.3, Tables 2 and 3; standard protocol"
_OURS = "our question; standard protocol"
_MEAN = "accuracy, mean of FGSM, BIM, PGD and MIM"
#: The paper's data sets, and ours.
_SETS = ("mnist", "cifar10", "cifar100", "fashion_mnist", "digits")


def _printed(data: str) -> str | None:
    """Both printed accuracies, mean over the gradient attacks that the paper tried on ``data``."""
    rows = [row for name in GRADIENT for row in TABLE2.get(data, {}).get(name, {}).values()]
    if not rows:
        return None
    return f"{np.mean([row[0] for row in rows]):.1f} → {np.mean([row[-1] for row in rows]):.1f}"


WHITE_BOX = Experiment(
    "white-box",
    "adp",
    "Tables 2 and 3",
    "Accuracy under white-box attacks on the whole ensemble",
    ENSEMBLES,
    (
        *(
            Claim(
                f"{title(data)}: under FGSM, BIM, PGD and MIM, ADP₂,₀.₅ is more accurate than the "
                "baseline",
                _WEAK,
                weak_check("adp", "plain", GRADIENT, _MEAN, _printed(data), only=data),
            )
            for data in _SETS
        ),
        *(
            Claim(
                f"Under {FAMILIES[name]}, ADP₂,₀.₅ is more accurate than the baseline",
                _WEAK,
                weak_check(
                    "adp", "plain", (name,), f"accuracy under {FAMILIES[name]}", gains(name), "slow"
                ),
            )
            for name in ("jsma", "cw", "ead")
        ),
        Claim(
            "The entropy alone helps: ADP₂,₀ is more accurate than the baseline",
            _WEAK,
            weak_check(
                "adp-entropy",
                "plain",
                GRADIENT,
                _MEAN,
                f"PGD: {gains('pgd', 'adp-entropy')}",
            ),
        ),
        Claim(
            "The determinant helps beyond it: ADP₂,₀.₅ is more accurate than ADP₂,₀",
            _WEAK,
            weak_check(
                "adp",
                "adp-entropy",
                GRADIENT,
                _MEAN,
                f"PGD: {gains('pgd', 'adp', 'adp-entropy')}",
            ),
        ),
        *(
            Claim(
                f"{title(data)}: at the {size} ε, ADP₂,₀.₅ is more accurate than the baseline in "
                "the worst case",
                _STRONG,
                standard_check("adp", "plain", which, "worst case", data),
            )
            for data in _SETS
            for which, size in ((0, "smaller"), (-1, "larger"))
        ),
        Claim(
            "At the smaller ε, ADP₂,₀.₅ is more accurate than ADP₂,₀ in the worst case",
            _STRONG,
            standard_check("adp", "adp-entropy", 0, "worst case"),
        ),
        Claim(
            "ADP₂,₀.₅ withstands white-box attacks: at the larger ε it keeps at least half of its "
            "accuracy on clean images",
            _OURS,
            _withstands,
        ),
        Claim(
            "The paper's PGD overstates ADP's gain, at the smaller ε",
            _OURS,
            _overstated(0),
        ),
        Claim(
            "The paper's PGD overstates ADP's gain, at the larger ε",
            _OURS,
            _overstated(-1),
        ),
        Claim(
            "ADP₂,₀.₅ gains more than label smoothing with the F_y of Eq. 7, under the paper's "
            "attacks",
            "our question; the paper's attacks (historical, weak)",
            weak_check("adp", "smoothed", GRADIENT, _MEAN, None),
        ),
        Claim(
            "ADP₂,₀.₅ gains more than label smoothing with the F_y of Eq. 7, at the smaller ε",
            _OURS,
            standard_check("adp", "smoothed", 0, "worst case"),
        ),
        Claim(
            "A plain ensemble is more robust than a single network, at the smaller ε",
            _OURS,
            standard_check("plain", "single", 0, "worst case"),
        ),
        Claim(
            "The strong attacks can be trusted: no sign of masked gradients",
            "our check",
            _no_masking,
        ),
    ),
    draw,
    table,
    ENSEMBLE_SETTING,
    brief,
)
