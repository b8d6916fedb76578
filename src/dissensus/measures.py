"""Measures of scores: AUROC, AUPR, FPR95, ROC curves, thresholds, and which of several is the best.

**OOD is the positive class and higher scores mean OOD.** :func:`evaluate` measures a score on
in-distribution (ID) and out-of-distribution (OOD) examples, :func:`threshold_at` turns ID
validation scores into a threshold, so that examples of one score are on one side of it, and
:func:`among_best` marks results that cannot be told apart from the best one. Everything here is a
function of numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit
from torch import Tensor

from dissensus.tools.guards import formula, guarded
from dissensus.tools.tabular import Tabular

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

#: More would only take long: 10,000 replicates give the ends of an interval to three digits.
_MOST_REPLICATES = 1_000_000

#: The 97.5% quantile of the normal distribution.
_Z = 1.959963984540054

#: The rule of :func:`among_best` in words.
MARKED = (
    "not distinguishable from the best of its column: the 95% interval of the difference, "
    "corrected for the number of pairs, contains 0. Nothing is marked where nothing can be told "
    "apart."
)


class Estimate(float):
    """A number with a confidence interval; a float in every other respect.

    >>> auroc = Estimate(0.913, low=0.901, high=0.924)
    >>> print(auroc), auroc > 0.9, f"{auroc:.1%}"
    0.913 [0.901, 0.924]
    (None, True, '91.3%')
    """

    low: float
    high: float

    def __new__(cls, value: float, low: float = math.nan, high: float = math.nan) -> Self:
        self = super().__new__(cls, value)
        self.low, self.high = float(low), float(high)
        return self

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high

    @property
    def value(self) -> float:
        """The number alone."""
        return float(self)

    def __str__(self) -> str:
        bare = f"{float(self):.3f}"
        return bare if math.isnan(self.low) else f"{bare} [{self.low:.3f}, {self.high:.3f}]"

    def __repr__(self) -> str:
        return f"Estimate({float(self)!r}, low={self.low!r}, high={self.high!r})"


@guarded
def proportion(count: int, total: int) -> Estimate:
    """``count / total`` with Wilson's 95% interval (1927), which is fair near 0 and 1 too.

    >>> print(proportion(0, 100))
    0.000 [0.000, 0.037]
    """
    if total < 1:
        raise ValueError(f"a proportion needs at least one example, got {total}")
    p, z2 = count / total, _Z**2
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z / (1 + z2 / total) * math.sqrt(p * (1 - p) / total + z2 / (4 * total**2))
    low = 0.0 if count == 0 else centre - half
    high = 1.0 if count == total else centre + half
    return Estimate(p, low=low, high=high)


@dataclass(frozen=True, repr=False)
class Detection(Tabular):
    """What :func:`evaluate` measured; OOD is the positive class.

    ``aupr_in`` and ``aupr_out`` depend on how many examples there are of each kind (a score that
    knows nothing gets ``id_count / (id_count + ood_count)`` and the rest), ``auroc`` and ``fpr95``
    do not: compare AUPRs only between tests of the same make-up.
    """

    auroc: Estimate
    aupr_in: Estimate
    aupr_out: Estimate
    fpr95: Estimate
    id_count: int
    ood_count: int
    confidence: float

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each measure, with its interval."""
        return [
            {"measure": name, "value": value.value, "low": value.low, "high": value.high}
            for name, value in self._measures().items()
        ]

    def headline(self) -> str:
        """AUROC with its interval, and the counts."""
        return f"AUROC {self.auroc}, {self._counts()}"

    def summary(self) -> str:
        """Five lines to read: the counts, then each measure with its interval."""
        lines = (f"{name:<9}{value!s}" for name, value in self._measures().items())
        return "\n".join([f"{self._counts()} (OOD is positive)", *lines])

    def _counts(self) -> str:
        return f"{self.id_count} ID and {self.ood_count} OOD examples"

    def _measures(self) -> dict[str, Estimate]:
        names = {"AUROC": self.auroc, "AUPR in": self.aupr_in, "AUPR out": self.aupr_out}
        return names | {"FPR95": self.fpr95}


class _RocPoints(NamedTuple):
    false_positive_rate: Tensor
    true_positive_rate: Tensor
    thresholds: Tensor


class RocCurve(_RocPoints, Tabular):
    """Points of a ROC curve, from (0, 0) at an infinite threshold to (1, 1); float64 tensors."""

    __slots__ = ()
    __repr__ = Tabular.__repr__  # not that of a tuple

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each point."""
        columns = {name: values.tolist() for name, values in self._asdict().items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def headline(self) -> str:
        """The area under it, and how many points it has."""
        area = float(torch.trapezoid(self.true_positive_rate, self.false_positive_rate))
        return f"AUROC {area:.3f}, {len(self.thresholds)} points"


@guarded
def evaluate(
    id_scores: Tensor | NDArray[Any],
    ood_scores: Tensor | NDArray[Any],
    *,
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Detection:
    """AUROC, AUPR and FPR95 of a score, each with a bootstrap interval.

    OOD is the positive class and higher scores mean OOD. With ``s`` a score:

    - ``auroc``: ``P(s_ood > s_id) + ½ P(s_ood = s_id)``;
    - ``aupr_out``: average precision with OOD as the positive class; ``aupr_in``: average precision
      with ID as the positive class and the scores negated. Both are scikit-learn's
      ``average_precision_score``. (OpenOOD integrates the same curves by the trapezoidal rule,
      which interpolates too optimistically.)
    - ``fpr95``: the share of ID examples with ``s ≥ t`` (false alarms), where t is the highest
      score at which at least 95% of the OOD examples have ``s ≥ t`` (are detected). This is
      OpenOOD's definition since its pull request 174. ODIN and much work after it take ID as the
      positive class and ask for the share of OOD examples accepted where at least 95% of the ID
      examples are: that is ``evaluate(-ood_scores, -id_scores).fpr95``. The two differ; neither
      bounds the other.

    The intervals are percentiles of ``bootstrap`` replicates in which ID and OOD examples are
    resampled apart from each other (0 leaves the intervals out). They cover what other test
    examples could have given, not other trainings, and shrink to a point at perfect separation,
    which a larger sample might break. A seed gives the same intervals everywhere.

    ``id_scores`` is ``[batch]``, ``ood_scores`` is ``[batch]`` of any other length.

    >>> measured = evaluate(torch.tensor([0.1, 0.2, 0.3, 0.6]), torch.tensor([0.3, 0.7, 0.8]))
    >>> measured.auroc.value                      # (10 + ½·1 tie) of 12 pairs
    0.875
    >>> measured.fpr95.value                      # all OOD have s ≥ 0.3, and so have 2 of 4 ID
    0.5
    """
    inliers, outliers = _as_scores(id_scores, "id_scores"), _as_scores(ood_scores, "ood_scores")
    if isinstance(bootstrap, bool) or not isinstance(bootstrap, int) or bootstrap < 0:
        raise ValueError(f"bootstrap must be a number of replicates, 0 or more, got {bootstrap!r}")
    if bootstrap > _MOST_REPLICATES:
        raise ValueError(f"bootstrap must be at most {_MOST_REPLICATES}, got {bootstrap}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, as 0.95 does, got {confidence!r}")
    _, id_groups, ood_groups = _groups(inliers, outliers)
    distinct = int(max(id_groups.max(), ood_groups.max())) + 1
    values = _measures(
        np.bincount(id_groups, minlength=distinct)[None],
        np.bincount(ood_groups, minlength=distinct)[None],
    )[:, 0]
    low = high = np.full(len(values), math.nan)
    if bootstrap:
        replicates = _replicates(id_groups, ood_groups, distinct, bootstrap, seed)
        low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2], axis=1)
    auroc, aupr_in, aupr_out, fpr95 = map(Estimate, values, low, high)
    return Detection(
        auroc, aupr_in, aupr_out, fpr95, inliers.size, outliers.size, float(confidence)
    )


@formula
def roc_curve(id_scores: Tensor | NDArray[Any], ood_scores: Tensor | NDArray[Any]) -> RocCurve:
    """The ROC curve, OOD positive: one point for each distinct score, ``s ≥ threshold`` is flagged.

    No point is dropped (scikit-learn's ``drop_intermediate=False``).

    >>> roc_curve(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])).true_positive_rate
    tensor([0.0000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """
    inliers, outliers = _as_scores(id_scores, "id_scores"), _as_scores(ood_scores, "ood_scores")
    values, id_groups, ood_groups = _groups(inliers, outliers)
    flagged_id = np.bincount(id_groups, minlength=values.size).cumsum()
    flagged_ood = np.bincount(ood_groups, minlength=values.size).cumsum()
    return RocCurve(
        torch.from_numpy(np.r_[0.0, flagged_id / inliers.size]),
        torch.from_numpy(np.r_[0.0, flagged_ood / outliers.size]),
        torch.from_numpy(np.r_[math.inf, values]),
    )


@guarded
def threshold_at(id_scores: Tensor | NDArray[Any], accept: float = 0.95) -> float:
    """The smallest threshold at which at least the share ``accept`` of ID examples is accepted.

    Accepted means ``score ≤ threshold``. The threshold is one of the scores given; ties can only
    make it accept more, never less. The scores must come from validation data that neither trained
    the ensemble nor will test it.

    >>> threshold_at(torch.tensor([4.0, 1.0, 3.0, 2.0]), accept=0.75)
    3.0
    """
    scores = _as_scores(id_scores, "id_scores")
    if not 0 < accept <= 1:
        raise ValueError(
            f"accept is the share of ID examples to accept, above 0 and at most 1, got {accept!r}"
        )
    rank = _smallest_count(scores.size, accept)
    return float(np.partition(scores, rank - 1)[rank - 1])


def _as_scores(scores: Tensor | NDArray[Any], name: str) -> Floats:
    """Return a float64 copy of one-dimensional, non-empty, finite scores, or raise."""
    array = scores.detach().double().cpu().numpy() if isinstance(scores, Tensor) else scores
    array = np.array(array, dtype=np.float64)
    if array.ndim != 1:
        hint = f"; pass {name}.reshape(-1)" if array.ndim == 2 and 1 in array.shape else ""
        raise ValueError(
            f"{name} must be [batch], one score for each example, got {array.shape}{hint}"
        )
    if array.size == 0:
        raise ValueError(f"{name} must hold at least one score, got none; check how it was split")
    bad = int((~np.isfinite(array)).sum())
    if bad:
        raise ValueError(f"{name} must be finite, got {bad} NaN or infinite of {array.size} scores")
    return array


def _smallest_count(total: int, share: float) -> int:
    """The smallest k with ``k / total >= share``; ``ceil(share * total)`` errs by rounding."""
    count = max(1, math.ceil(share * total) - 1)
    while count / total < share:
        count += 1
    return count


def _groups(inliers: Floats, outliers: Floats) -> tuple[Floats, Counts, Counts]:
    """Distinct scores, highest first, and the index among them of each ID and OOD example."""
    values, index = np.unique(-np.concatenate([inliers, outliers]), return_inverse=True)
    return -values, index[: inliers.size], index[inliers.size :]


def _measures(id_counts: Counts, ood_counts: Counts) -> Floats:
    """AUROC, AUPR in, AUPR out and FPR95, ``[4, replicates]``, from counts at each distinct score.

    Both counts are ``[replicates, distinct]``, highest score first; a count may be 0.
    """
    flagged_id, flagged_ood = id_counts.cumsum(1), ood_counts.cumsum(1)  # at s ≥ this score
    ids, oods = int(flagged_id[0, -1]), int(flagged_ood[0, -1])
    accepted_id, accepted_ood = ids - flagged_id + id_counts, oods - flagged_ood + ood_counts
    # For an ID example, OOD examples above it count 1 and those beside it ½: integers up to here.
    auroc = (id_counts * (2 * flagged_ood - ood_counts)).sum(1) / (2 * ids * oods)
    precision_in = accepted_id / np.maximum(accepted_id + accepted_ood, 1)
    precision_out = flagged_ood / np.maximum(flagged_id + flagged_ood, 1)
    aupr_in = (id_counts * precision_in).sum(1) / ids
    aupr_out = (ood_counts * precision_out).sum(1) / oods
    threshold = (flagged_ood >= _smallest_count(oods, 0.95)).argmax(1)
    fpr95 = flagged_id[np.arange(len(flagged_id)), threshold] / ids
    return np.stack([auroc, aupr_in, aupr_out, fpr95])


_CHUNK = 2**20  # entries of one array of counts; about ten such arrays are alive at a time


def _replicates(
    id_groups: Counts, ood_groups: Counts, distinct: int, bootstrap: int, seed: int
) -> Floats:
    """The measures of ``bootstrap`` stratified resamples, ``[4, bootstrap]``.

    A resample is only counted at each distinct score, so nothing is sorted again. Each side has
    a random stream of its own, which makes the result independent of the chunk size.
    """
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2)]
    rows = max(1, _CHUNK // max(distinct, id_groups.size, ood_groups.size))
    chunks = []
    for start in range(0, bootstrap, rows):
        size = min(rows, bootstrap - start)
        counts = [
            _resampled_counts(groups, distinct, size, stream)
            for groups, stream in zip((id_groups, ood_groups), streams, strict=True)
        ]
        chunks.append(_measures(*counts))
    return np.concatenate(chunks, axis=1)


def _resampled_counts(
    groups: Counts, distinct: int, rows: int, stream: np.random.Generator
) -> Counts:
    """Draw ``rows`` samples of all ``groups`` with replacement; count each group, by row."""
    drawn = groups[stream.integers(groups.size, size=(rows, groups.size))]
    drawn += np.arange(0, rows * distinct, distinct)[:, None]
    return np.bincount(drawn.reshape(-1), minlength=rows * distinct).reshape(rows, distinct)


# ---- comparison ---------------------------------------------------------------------------------


def among_best(
    estimates: Sequence[Estimate],
    parts: Sequence[Floats | None] | None = None,
    *,
    highest: bool = True,
    pairs: int | None = None,
) -> list[bool]:
    """Which estimates are the best or not distinguishable from it; none if all are.

    Estimate i is marked unless the interval of its difference from the best, b, excludes 0:
    ``|b − i| > c · s``. The best is itself chosen from the k estimates, so c is for all pairs at
    once: the quantile of ``1 − 0.025 / pairs`` (Bonferroni), with ``k (k − 1) / 2`` pairs unless
    more are compared in all.

    - ``parts`` are the values of single examples, or of repeats, whose mean the estimate is. Then
      ``s = sd(parts_b − parts_i) / √n``, with the t distribution: a paired comparison, as the n
      examples are the same. If they are not, their differences have the right variance as well.
    - Otherwise the 95% intervals give the difference's (MOVER; Zou and Donner 2008):
      ``s = √((b − low_b)² + (high_i − i)²) / 1.96``, the facing ends of the two. This ignores that
      the examples are the same, so it marks rather too many.

    Without either, nothing can be told apart.

    >>> attacks = [Estimate(0.48, 0.41, 0.55), Estimate(0.475, 0.41, 0.54), Estimate(0.2, 0.1, 0.3)]
    >>> among_best(attacks), among_best(attacks[:2])
    ([True, True, False], [False, False])
    """
    if len(estimates) < 2:
        return [False] * len(estimates)
    tail = 0.025 / (pairs or len(estimates) * (len(estimates) - 1) // 2)
    values = [estimate.value for estimate in estimates]
    best = values.index(max(values) if highest else min(values))
    given = parts or [None] * len(estimates)
    marks = []
    for place, estimate in enumerate(estimates):
        margin = _paired_margin(given[best], given[place], tail)
        if margin is None:
            ends = (estimates[best], estimate) if highest else (estimate, estimates[best])
            margin = _margin(*ends, tail)
        # An unknown margin is NaN, which is never exceeded.
        marks.append(place == best or not abs(values[best] - values[place]) > margin)
    return [False] * len(marks) if all(marks) else marks


def _paired_margin(one: Floats | None, other: Floats | None, tail: float) -> float | None:
    if one is None or other is None or len(one) != len(other) or len(one) < 2:
        return None
    deviation = float(np.std(one - other, ddof=1)) / math.sqrt(len(one))
    return float(stdtrit(len(one) - 1, 1 - tail)) * deviation


def _margin(upper: Estimate, lower: Estimate, tail: float) -> float:
    facing = math.hypot(upper.value - upper.low, lower.high - lower.value)
    return float(ndtri(1 - tail) / ndtri(0.975)) * facing
