"""Members of ResNet-20 on all of CIFAR-10: Table 1 and Figures 3 to 5 in the authors' regime.

One run for each contender: intervals are over images, and findings are about these networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reproductions.adp.adversarial_examples import (
    DETECTED,
    DETECTION_PROTOCOLS,
    MODES,
    TRANSFER_PROTOCOLS,
    TRANSFER_TEXTS,
    LessTransfer,
    detection_table,
    plot_detection,
    plot_transfer,
    transfer_table,
)
from reproductions.adp.comparable import paper_experiment
from reproductions.adp.ensembles import ADP_RUNS, contenders_in, runs_of
from reproductions.adp.members import (
    DIVERSITY,
    ERROR,
    MEMBER_ERROR,
    SIMILARITY,
    error_claims,
    plot_histogram,
)
from reproductions.adp.resnet20 import STUDY
from reproductions.adp.settings import WEAK_PROTOCOL
from reproductions.old.base import Claim, Finding, Record, Table
from reproductions.old.comparisons import all_of, quantity_table
from reproductions.old.per_image import SharesInTheseRuns
from reproductions.old.statistics import Effect, Estimate, judge_within

_HERE = "In these runs, "


# ---- Table 1 and Figure 5 -----------------------------------------------------------------------


def members_table(records: list[Record]) -> Table:
    """Errors on clean images, diversity with the true label, and how alike features are."""
    rows = {(runs.name,): runs.of(records) for runs in contenders_in(records)}
    return quantity_table(["contender"], rows, [MEMBER_ERROR, ERROR, DIVERSITY, SIMILARITY])


MEMBERS = paper_experiment(
    "adp/resnet20-members",
    "Table 1, Figure 5",
    "Errors and diversity of ResNet-20 on clean test images",
    STUDY,
    error_claims(
        partial(
            SharesInTheseRuns, images=lambda record: int(record["result"]["clean"]["examples"])
        ),
        _HERE,
    ),
    plot_histogram,
    members_table,
)


# ---- Figure 3 -----------------------------------------------------------------------------------

_compare = partial(SharesInTheseRuns, images=lambda record: record["cell"]["transfer"]["images"])

TRANSFER = paper_experiment(
    "adp/resnet20-transfer",
    "Figure 3",
    "Transfer of adversarial examples among ResNet-20 members",
    STUDY,
    (
        *(
            Claim(
                f"{_HERE}{TRANSFER_TEXTS[mode]}{words}",
                f"Section 4.4, Figure 3; {protocol}",
                LessTransfer(mode, attacks, compare=_compare),
            )
            for attacks, words, protocol in TRANSFER_PROTOCOLS
            for mode in MODES
        ),
        Claim(
            f"{_HERE}the determinant matters: targeted, examples transfer less than with label "
            "smoothing",
            f"our question; {WEAK_PROTOCOL}",
            LessTransfer("targeted", ("pgd", "mim"), other=runs_of("smoothed"), compare=_compare),
        ),
    ),
    plot_transfer,
    transfer_table,
)


# ---- Figure 4 -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AboveChanceHere:
    """Checks that ensemble diversity has an AUROC above ½ under each attack, in each run of ADP.

    The interval is the bootstrap over the images of a run.
    """

    attacks: Sequence[str]

    def __call__(self, records: list[Record]) -> Finding:
        return all_of(
            {
                f"{DETECTED[attack]}, seed {row['cell']['seed']}": _above_half(
                    row["result"]["detection"][attack]
                )
                for row in ADP_RUNS.of(records)
                for attack in self.attacks
            }
        )


def _above_half(measured: Mapping[str, Any]) -> Finding:
    value, (low, high) = measured["auroc"]["ensemble_diversity"], measured["interval"]
    auroc = Estimate(value, low, high, measured["fooled"])
    effect = Effect("AUROC", auroc, "{:.3f}")
    shown = f"{effect.quantity} {effect} over {auroc.runs} examples"
    judged = judge_within(auroc, low=0.5)
    return Finding(judged.verdict, shown, effects={"": effect}, chance=judged.chance)


DETECTION = paper_experiment(
    "adp/resnet20-detection",
    "Figure 4",
    "Ensemble diversity of ResNet-20 members as a detector of adversarial examples",
    STUDY,
    tuple(
        Claim(f"{_HERE}{words}", f"Section 4.5, Figure 4; {protocol}", AboveChanceHere(attacks))
        for attacks, words, protocol in DETECTION_PROTOCOLS
    ),
    plot_detection,
    detection_table,
)
