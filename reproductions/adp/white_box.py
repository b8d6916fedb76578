"""White-box attacks on whole ensembles: Tables 2 and 3, adversarial training, five members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reproductions.adp.accuracy import (
    GRADIENT,
    SIZES,
    accuracy_claim,
    accuracy_estimate,
    accuracy_table,
    gains,
    keeps_half,
    on,
    pgd_at,
    standard_eps,
    under,
    worst_case,
    worst_case_at,
)
from reproductions.adp.ensembles import (
    ADP_RUNS,
    BASELINE,
    ENSEMBLES,
    PAIR,
    TRAINED,
    run,
    runs_of,
    style_of,
)
from reproductions.adp.published import TABLE4, TABLE5, published_changes
from reproductions.adp.settings import (
    AUTHORS,
    CIFAR10_WEAK,
    CPU_DIGITS,
    FEW_STEPS,
    MNIST_WEAK,
    MORE_STEPS,
    SMOKE,
    standard,
)
from reproductions.cells import seed_study
from reproductions.comparisons import (
    BySeed,
    Finding,
    Larger,
    cell_values,
    data_title,
    exact,
    filter_records,
    group_by_data,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot, Series, curve_series
from reproductions.statistics import CANNOT
from reproductions.study import Record

_ENTROPY, _SMOOTHED, _SINGLE = map(runs_of, ("adp-entropy", "smoothed", "single"))
_FOUR, _WORST = under(*GRADIENT), worst_case("smaller")
_SMOOTHER = "ADP is more accurate than label smoothing"
_ENSEMBLE = "The baseline is more accurate than a single network"


# ---- checks -------------------------------------------------------------------------------------


def _overstated(size: str) -> Larger:
    """A check that ADP gains more under the paper's PGD than in the worst case, image by image."""

    def pairs(records: list[Record]) -> dict[str, tuple[BySeed, BySeed]]:
        cases: dict[str, tuple[BySeed, BySeed]] = {}
        for title, group in group_by_data(records).items():
            strict, lenient = (gains(group, one) for one in (worst_case(size), pgd_at(size)))
            same = {seed: lenient[seed][: len(strict[seed])] for seed in strict if seed in lenient}
            if same:
                cases[title] = (same, strict)
        return cases

    names = ("under the paper's PGD", "in the worst case")
    return Larger(f"gain of ADP, {size} ε", names, pairs, "{:.1%}", share=True)


def no_masking(records: list[Record]) -> Finding:
    """The checks that an attack must pass before its failure says anything about a network."""
    runs = [record["result"] for record in records if record["result"].get("standard")]
    if not runs:
        return Finding(CANNOT)
    entries = [entry for one in runs for entry in one["standard"]]
    at_half = max(one["at_half"] for one in runs)
    zero = max(entry["largest_zero_share"] for entry in entries)
    nan = sum(entry["nan_gradients"] for entry in entries)
    before, after = (
        sum(list(entry["left"].values())[place] for entry in entries) for place in (-2, -1)
    )
    measured = (
        f"at ε = 0.5 {at_half:.1%} left; gradients 0 in {zero:.1%}, not finite {nan}; "
        f"Square breaks {before - after} of {before}"
    )
    fine = at_half <= 0.05 and zero <= 0.1 and nan == 0 and before - after <= 0.02 * max(before, 50)
    return exact(fine, measured)


# ---- figure and table ---------------------------------------------------------------------------


def plot(records: list[Record]) -> Plot:
    """Accuracy against ε: the paper's PGD beside one that crosses the ball, and the worst case."""
    panels = []
    for title, group in group_by_data(r for r in records if "curve" in r["result"]).items():
        series: list[Series] = []
        for runs in (BASELINE, ADP_RUNS):
            rows = runs.of(group)
            series += _accuracy_series(runs.name, rows, style_of(runs)) if rows else []
        panels.append(Panel("ε (L∞)", "accuracy", series, title, y_range=(-0.03, 1.03)))
    alt = "Accuracy of the baseline and of ADP against ε, under weak and strong attacks"
    return Plot(panels, alt, len(panels) or 1, (4.4, 3.4))


def _accuracy_series(name: str, rows: list[Record], style: int) -> list[Series]:
    """Two curves over ε, and points of the worst case."""
    eps = rows[0]["cell"]["curve"]["eps"]
    lenient, strict = (
        [row["result"]["curve"][kind] for row in rows] for kind in ("weak", "strong")
    )
    sizes = standard_eps(rows[0])
    worst = [accuracy_estimate(rows, worst_case_at(size)) for size in sizes]
    means = [estimate.mean for estimate in worst if estimate is not None]
    mean = np.mean(lenient, axis=0)
    return [
        Series(f"{name}, paper's PGD", eps, mean, style, dash="dashed", markers=False),
        curve_series(f"{name}, PGD-40", eps, strict, style, limits=(0.0, 1.0)),
        Series(f"{name}, worst case", sizes, means, style, "points"),
    ]


# ---- Tables 2 and 3 -----------------------------------------------------------------------------

#: The paper's data sets, with the experiments on larger networks; and ours.
_PAPERS = {"mnist": "mnist", "cifar10": "resnet20", "cifar100": ""}
_SETS = (*_PAPERS, "fashion_mnist", "digits")
_TABLES = "Section 4.3, Tables 2 and 3"


WHITE_BOX = Experiment(
    "adp/white-box",
    "Tables 2 and 3",
    "Accuracy under white-box attacks on the whole ensemble",
    ENSEMBLES,
    (
        *(
            accuracy_claim(
                f"{data_title(data)}: ADP is more accurate than the baseline, paper's attacks",
                (ADP_RUNS, BASELINE),
                _FOUR,
                on(data),
                where=_TABLES if data in _PAPERS else "",
                changes=published_changes(GRADIENT, data=data),
                again=_PAPERS.get(data, ""),
            )
            for data in _SETS
        ),
        accuracy_claim(
            "The entropy alone helps: ADP₂,₀ is more accurate than the baseline",
            (_ENTROPY, BASELINE),
            _FOUR,
            where=_TABLES,
            changes=published_changes(GRADIENT, "adp-entropy"),
            again="resnet20",
        ),
        accuracy_claim(
            "The determinant helps beyond it: ADP is more accurate than ADP₂,₀",
            (ADP_RUNS, _ENTROPY),
            _FOUR,
            where=_TABLES,
            changes=published_changes(GRADIENT, "adp", "adp-entropy"),
            again="resnet20",
        ),
        *(
            accuracy_claim(
                f"{data_title(data)}: ADP is more accurate than the baseline, worst case, {size} ε",
                (ADP_RUNS, BASELINE),
                worst_case(size),
                on(data),
                again=_PAPERS.get(data, "") if size == "smaller" else "",
            )
            for data in _SETS
            for size in SIZES
        ),
        accuracy_claim(
            "ADP is more accurate than ADP₂,₀, worst case, smaller ε",
            (ADP_RUNS, _ENTROPY),
            _WORST,
            again="resnet20",
        ),
        Claim(
            "ADP keeps half of its clean accuracy in the worst case at the larger ε",
            "worst case",
            keeps_half(),
            ours=True,
            again="resnet20",
        ),
        *(
            Claim(
                f"The paper's PGD overstates ADP's gain, {size} ε",
                "worst case",
                _overstated(size),
                ours=True,
            )
            for size in SIZES
        ),
        *(
            accuracy_claim(text, sides, quantity, any_networks=True, again=again)
            for text, sides, quantity, again in (
                (f"{_SMOOTHER}, paper's attacks", (ADP_RUNS, _SMOOTHED), _FOUR, "resnet20"),
                (f"{_SMOOTHER}, worst case", (ADP_RUNS, _SMOOTHED), _WORST, "resnet20"),
                (f"{_ENSEMBLE}, worst case", (BASELINE, _SINGLE), _WORST, ""),
            )
        ),
        Claim("No sign of masked gradients", "strong attacks", no_masking, ours=True),
    ),
    accuracy_table,
    plot,
)


# ---- adversarial training (Table 4) -------------------------------------------------------------

_FGSM, _FGSM_ADP, _PGD, _PGD_ADP = map(runs_of, TRAINED)


def adversarial_table(records: list[Record]) -> Table:
    """Accuracies in % on the data sets with adversarial training."""
    trained = cell_values(filter_records(records, contender="pgd"), "data")
    return accuracy_table([record for record in records if record["cell"]["data"] in trained])


def _table_4(attack: str) -> dict[str, tuple[float, float]]:
    before, after = (float(np.mean(TABLE4[name])) for name in (attack, f"{attack}-adp"))
    return {"CIFAR-10": (before, after)}


ADVERSARIAL_TRAINING = Experiment(
    "adp/adversarial-training",
    "Table 4",
    "Adversarial training alone and together with ADP",
    ENSEMBLES,
    (
        *(
            accuracy_claim(text, sides, _FOUR, where="Section 4.3, Table 4", changes=changes)
            for text, sides, changes in (
                ("ADP adds to adversarial training on FGSM", (_FGSM_ADP, _FGSM), _table_4("fgsm")),
                ("ADP adds to adversarial training on PGD", (_PGD_ADP, _PGD), _table_4("pgd")),
                ("Adversarial training on PGD adds to ADP", (_PGD_ADP, ADP_RUNS), None),
            )
        ),
        *(
            accuracy_claim(f"{text}, worst case, {size} ε", sides, worst_case(size))
            for text, sides, size in (
                ("ADP adds to training on PGD", (_PGD_ADP, _PGD), "smaller"),
                ("ADP adds to training on PGD", (_PGD_ADP, _PGD), "larger"),
                ("Training on PGD beats ADP", (_PGD, ADP_RUNS), "larger"),
            )
        ),
    ),
    adversarial_table,
)


# ---- five members (Table 5) ---------------------------------------------------------------------

_FIVE: Mapping[str, Mapping[str, Any]] = {
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


FIVE_MEMBERS = Experiment(
    "adp/five-members",
    "Table 5",
    "Five members on ten classes, where K does not divide L − 1",
    FIVE_STUDY,
    (
        *(
            accuracy_claim(
                f"ADP is more accurate than the baseline under {name.upper()}",
                (ADP_RUNS, BASELINE),
                under(name),
                where="Section 4.6, Table 5",
                changes={"CIFAR-10": TABLE5[name]},
            )
            for name in GRADIENT
        ),
        *(
            accuracy_claim(
                f"ADP is more accurate than the baseline in the worst case, {size} ε",
                (ADP_RUNS, BASELINE),
                worst_case(size),
            )
            for size in SIZES
        ),
    ),
    accuracy_table,
)
