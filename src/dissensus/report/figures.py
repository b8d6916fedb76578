"""Every figure of the page by its name: how it is made, and which command would fill it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dissensus.report.figure import Figure
from dissensus.report.figures_attacks import epsilon, steps
from dissensus.report.figures_collusion import codependence, debiased, training
from dissensus.report.figures_members import diversity, matrices
from dissensus.report.figures_sweep import beta_sweep
from dissensus.report.figures_unknown import histograms, roc
from dissensus.report.found import Contents

__all__ = ["FIGURES", "FigureKind"]

_OOD = "`dissensus ood RUN --ood corrupt:5`, or --ood with data of your own"
_ATTACK = "`dissensus attack RUN --standard --eps 0.1`"


class FigureKind(NamedTuple):
    """A figure: what makes it of the contents, what it shows, and what it needs."""

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
    "codependence": FigureKind(
        codependence, "the rise of ERR without random members", "`dissensus diagnose RUN`"
    ),
    "debiased-share": FigureKind(
        debiased, "the part of the spread that offsets explain", "`dissensus diagnose RUN`"
    ),
    "training": FigureKind(training, "ERR, mean ERR and DIV after each epoch", "`dissensus train`"),
    "members": FigureKind(
        matrices,
        "disagreement, error correlation and attack transfer of pairs",
        "`dissensus diagnose RUN`",
    ),
    "ensemble-diversity": FigureKind(
        diversity,
        "the histogram of ADP's ensemble diversity",
        "a run with test predictions, `dissensus train`, of fewer members than classes",
    ),
    "roc": FigureKind(roc, "ROC curves of the scores", _OOD),
    "score-histograms": FigureKind(histograms, "scores of known and unknown inputs", _OOD),
    "accuracy-epsilon": FigureKind(epsilon, "accuracy against ε", _ATTACK),
    "accuracy-steps": FigureKind(steps, "accuracy against steps and restarts", _ATTACK),
}
