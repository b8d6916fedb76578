"""Theory of ADP: Theorems 1 and 2 and Corollary 1, its best predictions found by search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dissensus.diversity import DETERMINANT_FLOOR
from dissensus.objectives import ADP, alpha_for, target_probability
from reproductions.cells import count_option
from reproductions.comparisons import Finding, exact, filter_records
from reproductions.exact import Minimum, minimize_objective
from reproductions.experiment import Claim, Experiment, Table
from reproductions.statistics import CANNOT
from reproductions.study import Cell, Record, Study

#: How far a searched minimum may be from the stated one; probabilities that tend to 0 along
#: logits without end are not there yet when the search stops.
CLOSE = 1e-3

_STARTS = {"smoke": 3, "cpu": 10, "paper": 50}
#: Members and classes: (3, 10) and (5, 1000) are the paper's.
_DIVIDING: tuple[tuple[int, int], ...] = ((2, 5), (3, 10), (4, 21), (5, 101))
_NOT_DIVIDING: tuple[tuple[int, int], ...] = ((4, 10), (5, 10), (4, 20), (4, 50), (4, 100))
_WEIGHTS: tuple[tuple[float, float], ...] = ((2.0, 0.5), (1.0, 0.1), (4.0, 2.0))


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """One cell for each theorem, number of members and classes, and pair of α and β."""
    starts = count_option(options, "starts", _STARTS[scale])
    sizes, others, weights = _DIVIDING, _NOT_DIVIDING, _WEIGHTS
    if scale == "smoke":
        sizes, others, weights = _DIVIDING[:2], _NOT_DIVIDING[1:2], _WEIGHTS[:1]
    plans = [
        *[("theorem1", k, n, 0.0, beta) for k, n in sizes for _, beta in weights],
        *[("theorem2", k, n, alpha, 0.0) for k, n in sizes for alpha, _ in weights],
        *[("corollary1", k, n, *pair) for k, n in sizes for pair in weights],
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
    """The minimum that the search finds, beside what the paper states."""
    members, classes = cell["members"], cell["classes"]
    alpha, beta = cell["alpha"], cell["beta"]
    best = minimize_objective(
        ADP(alpha, beta), members, classes, starts=cell["starts"], seed=cell["seed"]
    )
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


def _shared(best: Minimum) -> float:
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


# ---- claims -------------------------------------------------------------------------------------


def _one_hot(records: list[Record]) -> Finding:
    least = min(min(row["result"]["label"]) for row in filter_records(records, part="theorem1"))
    return exact(least > 1 - CLOSE, f"F_y at least {least:.6f}")


def _from_equation_7(result: Mapping[str, Any]) -> float:
    """The largest distance of a member's F_y from Eq. 7."""
    return float(max(abs(value - result["stated_label"]) for value in result["label"]))


def _smoothing(records: list[Record]) -> Finding:
    results = [row["result"] for row in filter_records(records, part="theorem2")]
    away = max(
        max(
            _from_equation_7(result),
            abs(result["wrong_low"] - result["stated_wrong"]),
            abs(result["wrong_high"] - result["stated_wrong"]),
        )
        for result in results
    )
    return exact(away < CLOSE, f"within {away:.1e}")


def _example(records: list[Record]) -> Finding:
    alpha = alpha_for(0.9, members=5, classes=1000)
    return exact(abs(alpha - 0.61) < 0.005, f"α = {alpha:.3f}")


def _orthogonal(records: list[Record]) -> Finding:
    """No search goes below the stated minimum, and in half of the settings some reach it."""
    rows = filter_records(records, part="corollary1")
    away = [row["result"]["loss"] - row["result"]["stated_loss"] for row in rows]
    reached = [row["result"]["shared"] for row, one in zip(rows, away, strict=True) if one < 1e-6]
    shared = max(reached, default=math.inf)
    fine = min(away) > -1e-6 and len(reached) >= len(rows) / 2 and shared < CLOSE
    return exact(fine, f"reached in {len(reached)} of {len(rows)}, shared at most {shared:.1e}")


def _other_minima(records: list[Record]) -> Finding:
    results = [row["result"] for row in filter_records(records, part="corollary1")]
    ends = [loss - result["stated_loss"] < 1e-5 for result in results for loss in result["losses"]]
    return exact(all(ends), f"{sum(ends)} of {len(ends)} searches")


def _approximately(records: list[Record]) -> Finding:
    """The distance of F_y from Eq. 7 where K does not divide L − 1, with more and more classes."""
    rows = filter_records(records, part="not-dividing", members=4)
    away = {row["cell"]["classes"]: _from_equation_7(row["result"]) for row in rows}
    if len(away) < 2:
        return Finding(CANNOT, "one number of classes")
    measured = ", ".join(f"L = {classes}: {away[classes]:.4f}" for classes in sorted(away))
    return exact(max(one for classes, one in away.items() if classes >= 20) < 0.02, measured)


# ---- table --------------------------------------------------------------------------------------


def table(records: list[Record]) -> Table:
    """Every search beside what the paper states."""
    labels = ["part", "K", "L", "α", "β"]
    header = [*labels, "members' F_y", "Eq. 7", "log diversity", "loss", "Eq. 8"]
    rows = []
    for record in records:
        cell, result = record["cell"], record["result"]
        low, high = min(result["label"]), max(result["label"])
        label = f"{low:.4f}" if high - low < 5e-5 else f"{low:.4f} to {high:.4f}"
        stated = result.get("stated_label")
        loss = result.get("stated_loss")
        rows.append(
            [
                cell["part"],
                *(f"{cell[key]:g}" for key in ("members", "classes", "alpha", "beta")),
                label,
                "–" if stated is None else f"{stated:.4f}",
                f"{result['log_diversity']:.1e}",
                f"{result['loss']:.5f}",
                "–" if loss is None else f"{loss:.5f}",
            ]
        )
    return Table(header, rows, len(labels))


EXPERIMENT = Experiment(
    "adp/theory",
    "Theorems 1 and 2, Corollary 1",
    "ADP's best predictions for one example",
    THEORY,
    (
        Claim(
            "Without the entropy (α = 0) the best predictions are one-hot", "Theorem 1", _one_hot
        ),
        Claim(
            "With the entropy alone (β = 0), F_y is that of Eq. 7 and wrong classes are uniform",
            "Theorem 2",
            _smoothing,
        ),
        Claim(
            "Five members, 1,000 classes and F_y = 0.9 need α ≈ 0.61",
            "Section 3.3, below Theorem 2",
            _example,
            "α ≈ 0.61",
        ),
        Claim(
            "If K divides L − 1, the best predictions are Eq. 8: orthogonal on wrong classes",
            "Corollary 1",
            _orthogonal,
        ),
        Claim(
            "Every search ends in Eq. 8: it is the only minimum", "search", _other_minima, ours=True
        ),
        Claim(
            "If K does not divide L − 1, Eq. 7 holds approximately (within 0.02 for L ≥ 20)",
            "Section 3.3, below Corollary 1",
            _approximately,
        ),
    ),
    table,
)
