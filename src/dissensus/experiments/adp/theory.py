"""Theorems 1 and 2 and Corollary 1: ADP's best predictions for one example, found by search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dissensus.diversity import DETERMINANT_FLOOR
from dissensus.experiments.adp.minimising import Best, minimised
from dissensus.experiments.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.objectives import ADP, alpha_for, target_probability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "THEORY", "corollary_loss", "corollary_solution"]

#: How far a searched minimum may be from the stated one; probabilities that tend to 0 along
#: logits without end are not there yet when the search stops.
CLOSE = 1e-3

#: Members and classes: (3, 10) and (5, 1000) are the paper's.
_DIVIDING = ((2, 5), (3, 10), (4, 21), (5, 101))
_NOT_DIVIDING = ((4, 10), (5, 10), (4, 20), (4, 50), (4, 100))
_WEIGHTS = ((2.0, 0.5), (1.0, 0.1), (4.0, 2.0))


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """One cell for each theorem, number of members and classes, and pair of α and β."""
    starts = options.get("starts", {"smoke": 3, "cpu": 10, "paper": 50}[scale])
    sizes = _DIVIDING[:2] if scale == "smoke" else _DIVIDING
    others = _NOT_DIVIDING[1:2] if scale == "smoke" else _NOT_DIVIDING
    plans = [
        *[("theorem1", k, n, 0.0, beta) for k, n in sizes for beta in (0.1, 0.5, 2.0)],
        *[("theorem2", k, n, alpha, 0.0) for k, n in sizes for alpha, _ in _WEIGHTS],
        *[("corollary1", k, n, *weights) for k, n in sizes for weights in _WEIGHTS],
        *[("not-dividing", k, n, 2.0, 0.5) for k, n in others],
    ]
    return [
        {
            "name": f"{part}-members={k}-classes={n}-alpha={alpha:g}-beta={beta:g}",
            "part": part,
            "members": k,
            "classes": n,
            "alpha": alpha,
            "beta": beta,
            "starts": starts,
            "seed": 0,
        }
        for part, k, n, alpha, beta in plans
    ]


def run(cell: Cell) -> dict[str, Any]:
    """Search, and say what is found beside what the paper says."""
    members, classes = cell["members"], cell["classes"]
    alpha, beta = cell["alpha"], cell["beta"]
    best = minimised(ADP(alpha, beta), members, classes, starts=cell["starts"], seed=cell["seed"])
    wrong = best.mean[1:]
    result = {
        "loss": best.loss,
        "losses": sorted(best.losses),
        "label": best.probs[:, 0].tolist(),
        "wrong_low": float(wrong.min()),
        "wrong_high": float(wrong.max()),
        "log_diversity": best.log_diversity,
        "shared": _shared(best),
    }
    if alpha:
        stated = target_probability(alpha, members, classes)
        result |= {"stated_label": stated, "stated_wrong": (1 - stated) / (classes - 1)}
        if (classes - 1) % members == 0 and beta:
            result["stated_loss"] = corollary_loss(alpha, beta, members, classes)
    return result


def _shared(best: Best) -> float:
    """The largest wrong-class probability that two members have in common; 0 if orthogonal."""
    ordered = np.sort(best.probs[:, 1:], axis=0)
    return float(ordered[-2].max())


def corollary_solution(members: int, classes: int, label: float) -> np.ndarray[Any, Any]:
    """Eq. 8 with the first classes to the first member: ``[members, classes]``, the label at 0."""
    each, rest = divmod(classes - 1, members)
    if rest:
        raise ValueError(f"{members} members do not divide {classes} − 1 classes")
    probs = np.zeros((members, classes))
    probs[:, 0] = label
    for member in range(members):
        start = 1 + member * each
        probs[member, start : start + each] = members * (1 - label) / (classes - 1)
    return probs


def corollary_loss(alpha: float, beta: float, members: int, classes: int) -> float:
    """ADP's loss at Eq. 8, with the floor that training adds to the determinant."""
    label = target_probability(alpha, members, classes)
    mean = corollary_solution(members, classes, label).mean(0)
    entropy = float(-(mean * np.log(mean)).sum())
    log_det = members * math.log1p(DETERMINANT_FLOOR)
    return -members * math.log(label) - alpha * entropy - beta * log_det


THEORY = Study(
    "theory",
    cells,
    run,
    jobs=1,
    options={"starts": "how many random starts each search has"},
    cost={"smoke": "5 s", "cpu": "1 min", "paper": "5 min"},
)
