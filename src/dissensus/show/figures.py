"""Figures of the report by name: the function, the content, and the command that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dissensus.show.collusion_figures import beta_sweep, codependence, debiased_share
from dissensus.show.contents import Contents
from dissensus.show.figure import Figure
from dissensus.show.member_figures import ensemble_diversity, pairs_of_members, training
from dissensus.show.safety_figures import (
    accuracy_epsilon,
    accuracy_steps,
    roc,
    score_histograms,
)

_OOD = "`dissensus ood RUN --ood corrupt:5`, or --ood with data of your own"
_ATTACK = "`dissensus attack RUN --standard --eps 0.1`"
_DIAGNOSE = "`dissensus diagnose RUN`"


class FigureKind(NamedTuple):
    """How to make a figure from the contents, what it shows, and the command that it needs."""

    make: Callable[[Contents], Figure | None]
    what: str
    needs: str


#: Every figure of the report, and of `dissensus figure`, by name.
FIGURES: dict[str, FigureKind] = {
    "beta-sweep": FigureKind(
        beta_sweep,
        "ERR, mean ERR, DIV and accuracy along β, with bands",
        "`dissensus sweep --objective augmented --grid beta=0:1:0.1 --repeats 3`",
    ),
    "codependence": FigureKind(codependence, "the rise of ERR without random members", _DIAGNOSE),
    "debiased-share": FigureKind(
        debiased_share, "the part of the spread that offsets explain", _DIAGNOSE
    ),
    "training": FigureKind(training, "ERR, mean ERR and DIV after each epoch", "`dissensus train`"),
    "members": FigureKind(
        pairs_of_members, "disagreement, error correlation and attack transfer of pairs", _DIAGNOSE
    ),
    "ensemble-diversity": FigureKind(
        ensemble_diversity,
        "the histogram of ADP's ensemble diversity",
        "a run with test predictions, `dissensus train`, of fewer members than classes",
    ),
    "roc": FigureKind(roc, "ROC curves of the scores", _OOD),
    "score-histograms": FigureKind(score_histograms, "scores of known and unknown inputs", _OOD),
    "accuracy-epsilon": FigureKind(accuracy_epsilon, "accuracy against ε", _ATTACK),
    "accuracy-steps": FigureKind(accuracy_steps, "accuracy against steps and restarts", _ATTACK),
}
