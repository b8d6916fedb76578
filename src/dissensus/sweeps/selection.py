"""Selection: the setting to use, from the errors of several settings on the same folds or repeats.

**The rule**, for ``beta="auto"``, sweeps and searches alike. With errors e_k(s) of setting s in
fold (or repeat) k of K:

1. A setting that :func:`~dissensus.diagnose` calls colluding in at least half of its folds counts
   only if its gain over the best other one is clear: the 95% interval of the paired difference,
   d̄ ± t · √((1/K + n_test/n_train) · s²(d)), lies above 0. The term n_test/n_train is there because
   folds share training rows (Nadeau and Bengio 2003, the corrected resampled t-test).
2. The best is the setting of the lowest mean error ē among those that count.
3. Of all with ē ≤ ē(best) + SE(best), SE = s(e(best)) / √K, the one of the smallest β is chosen:
   the one-standard-error rule (Breiman, Friedman, Olshen and Stone 1984, Section 3.4.3). Without β
   the best is chosen.

The standard error in 3 is that of the best one's mean, not that of the paired difference. All β
start from the same weights and their folds share rows, so a difference of a hundredth of the error
can have the same sign in all folds; it is then repeatable, but not worth a coupled ensemble. What
counts is whether a gain exceeds what is unknown about the error on new data. Whether two settings
can be distinguished is another question, which the paired interval of 1 answers (``indistinct``).

With a single repeat, and in a search, the rows of its validation data take the place of repeats: K
blocks of them. Their standard error leaves out the noise of training, so repeats say more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_SEVERITY = ("healthy", "suspicious", "colluding")


@dataclass(frozen=True)
class Selection:
    """The result of :func:`select_setting`, one entry for each setting; ``chosen`` is a position.

    ``means`` and ``standard_errors`` are of the errors, ``differences`` and ``difference_errors``
    of the paired differences to the best one that counts. ``status`` says in words what became of a
    setting, ``indistinct`` whether the paired interval cannot tell it from the best, ``reason`` why
    the chosen one was chosen.
    """

    chosen: int
    best: int
    means: tuple[float, ...]
    standard_errors: tuple[float, ...]
    differences: tuple[float, ...]
    difference_errors: tuple[float, ...]
    indistinct: tuple[bool, ...]
    status: tuple[str, ...]
    reason: str


def overall_verdict(words: Sequence[str]) -> str:
    """The median of the verdicts, without those "not judged"; of two, the worse one.

    >>> overall_verdict(["healthy", "colluding", "not judged", "colluding", "healthy"])
    'colluding'
    """
    judged = sorted((word for word in words if word in _SEVERITY), key=_SEVERITY.index)
    return judged[len(judged) // 2] if judged else "not judged"


def select_setting(
    errors: Sequence[Sequence[float]],
    *,
    betas: Sequence[float] | None = None,
    verdicts: Sequence[str] | None = None,
    overlap: float = 0.0,
) -> Selection:
    """Choose among settings by their ``errors`` ``[settings][folds]``; see the module for the rule.

    ``betas`` are in the order of the settings, ``verdicts`` one word each; ``overlap`` is
    n_test/n_train where folds share training rows. A setting with an error that is not finite has
    failed.

    >>> selection = select_setting([[0.30, 0.50], [0.29, 0.50], [0.90, 0.95]], betas=[0, 0.5, 1])
    >>> selection.best, selection.chosen, selection.reason
    (1, 0, 'the smallest beta within one standard error of the best')
    """
    means = tuple(statistics.fmean(row) if _finite(row) else math.inf for row in errors)
    places = [place for place, mean in enumerate(means) if math.isfinite(mean)]
    if not places:
        raise ValueError(f"all {len(means)} settings failed: none has an error that is finite")
    colluding = [word == "colluding" for word in verdicts or [""] * len(means)]

    def lowest(among: Sequence[int]) -> int:
        return min(among, key=lambda place: means[place])

    sound = [place for place in places if not colluding[place]] or places
    healthy = errors[lowest(sound)]
    counted = [
        place
        for place in places
        if place in sound or _difference(healthy, errors[place], overlap).low > 0
    ]
    best = lowest(counted)
    spreads = tuple(_standard_error(row) for row in errors)
    limit = means[best] + (0.0 if math.isnan(spreads[best]) else spreads[best])
    within = [place for place in counted if means[place] <= limit]
    chosen = best
    if betas is not None:
        chosen = min(within, key=lambda place: (betas[place], means[place]))
    paired = [_difference(row, errors[best], overlap) for row in errors]

    def status(place: int) -> str:
        if place == chosen:
            return "chosen"
        if place not in places:
            return "failed"
        if place not in counted:
            return "colluding, no clear gain"
        return "within one standard error" if place in within else "worse"

    reason = "the smallest beta within one standard error of the best"
    reason = "the lowest error" if chosen == best else reason
    return Selection(
        chosen,
        best,
        means,
        spreads,
        tuple(difference.mean for difference in paired),
        tuple(difference.error for difference in paired),
        tuple(place in counted and not paired[place].low > 0 for place in range(len(means))),
        tuple(map(status, range(len(means)))),
        reason if lowest(places) in counted else f"{reason} that does not collude",
    )


def select_among_records(settings: Sequence[Sequence[Mapping[str, Any]]]) -> Selection:
    """Choose among settings by the records of their repeats, each setting with the same ones."""
    results = [[record["result"] for record in records] for records in settings]
    parts = [[result.get("selection", {}) for result in repeats] for repeats in results]
    errors = [[result["val"]["ensemble_error"] for result in repeats] for repeats in results]
    overlap = 0.0
    if len(results[0]) > 1:
        shares = [
            result["val"].get("examples", 0) / result["selection"]["train_examples"]
            for result in results[0]
            if "selection" in result
        ]
        overlap = statistics.fmean(shares) if shares else 0.0
    elif len({len(part.get("errors", ())) for (part,) in parts}) == 1 and parts[0][0]:
        errors = [part["errors"] for (part,) in parts]
    betas = [_beta(records[0]) for records in settings]
    words = [
        overall_verdict([part.get("verdict", "not judged") for part in repeats])
        for repeats in parts
    ]
    values = [beta for beta in betas if beta is not None]
    every = values if len(values) == len(betas) else None
    return select_setting(errors, betas=every, verdicts=words, overlap=overlap)


def _beta(record: Mapping[str, Any]) -> float | None:
    """The β of ``augmented`` that a cell was trained with, if its grid or its search varies it."""
    cell = record["cell"]
    objective = str(cell.get("config", {}).get("training", {}).get("objective", ""))
    mixes = any(layer.partition(":")[0] == "augmented" for layer in objective.split("/"))
    return float(cell["point"]["beta"]) if mixes and "beta" in cell["point"] else None


class _Difference(NamedTuple):
    """The mean of paired differences, its standard error, and the lower end of its 95% interval."""

    mean: float
    error: float
    low: float


def _difference(first: Sequence[float], second: Sequence[float], overlap: float) -> _Difference:
    """``first − second``; of one pair the error is NaN and the lower end −∞."""
    if not (_finite(first) and _finite(second)):
        return _Difference(math.inf, math.nan, math.inf)
    differences = [a - b for a, b in zip(first, second, strict=True)]
    mean, count = statistics.fmean(differences), len(differences)
    if count == 1:
        return _Difference(mean, math.nan, -math.inf)
    from scipy.stats import t

    error = math.sqrt((1 / count + overlap) * statistics.variance(differences))
    return _Difference(mean, error, mean - float(t.ppf(0.975, count - 1)) * error)


def _finite(row: Sequence[float]) -> bool:
    return all(map(math.isfinite, row))


def _standard_error(row: Sequence[float]) -> float:
    several = len(row) > 1 and _finite(row)
    return statistics.stdev(row) / math.sqrt(len(row)) if several else math.nan
