"""Verdicts (healthy, suspicious, colluding): one table of thresholds, and the rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from dissensus.diagnostics.collusion import (
    SPACES,
    Explosion,
    chance_to_cancel,
    debiased_share,
    explosion,
    leftover_offset,
)
from dissensus.diagnostics.members import Drop, codependence
from dissensus.diagnostics.split import Split
from dissensus.losses import errors
from dissensus.outputs import weighted_mean


@dataclass(frozen=True)
class Thresholds:
    """The constants of the verdict, chosen on planted and trained ensembles.

    Three signs are read; none is an accuracy, and DIV / ERR alone is none, because good members
    with unrelated errors reach M − 1.

    *Offsets* in the space where the ensemble averages: the share of the spread that constant
    offsets explain, their size ``share · DIV / ERR``, and the chance that independent offsets
    cancel as well (:func:`~.collusion.chance_to_cancel`). Networks trained independently had median
    sizes below 0.05 on test data, in averages of scores single ones up to 0.2 (bagged or unequal
    0.4), which do not cancel; jointly trained regressions and averages of scores 0.04 to 23.
    Members may be shifted apart in their scores by design (ADP), which is no collusion where
    probabilities are averaged: offsets of the other space count as suspicious at most, and only
    where there are large ones in the own space too. But where the other average is wrong at most
    ``other_average`` times as often, members were made for it, and offsets that cancel there count
    in full: LDR with λ = 5 and label smoothing (``results/ldr.md``, *published*) has single members
    that predict one class for almost everything, 79% wrong predictions in an average of
    probabilities and 41% in one of scores. For ADP the two averages are alike.

    The size decides, not the share. On digits (8 classes, 5 members) ADP has 63% of its spread in
    offsets that cancel, but they are 0.023 times ERR: members alone have an error of 0.29, the
    ensemble 0.28. Joint training has 45%, 9.6 times ERR: members alone 1.25, the ensemble 0.06.

    *Codependence index*: under squared error independent members, whatever else was done to them,
    have 1 at most in expectation, on training data as well, as their errors correlate in no other
    direction than upwards; 1 over the index is what errors leave in the ensemble, with a chance
    like that of the offsets. On training data it counts where DIV there is ``material`` for the
    error on test data. Cross-entropy has no such bound, and in an average of scores sure members
    pass 1: then the sign is never more than suspicious.

    *Need on training data*, where probabilities are averaged and both splits are given: what a
    member has learnt by itself it can do without the others, so that ERR rises less on training
    data when a fifth of the members is missing than on test data, and about as much for bagged
    members, which did not see all of it. Joint training leaves examples to single members and
    turns this round. There is no bound either: suspicious.

    Measured by ``python -m reproductions.diagnosis.verdict --trained`` on seeds that were not used
    to choose the constants; 3 to 20 members and 300 examples where planted, ten seeds where
    trained:

    - Independent: no planted family but the biased ones is ever called colluding, and 7% of the
      bagged suspicious. Of 230 ensembles of networks trained independently or with β = 0.5, also
      overfit, hardly trained, decayed, smoothed, bagged or unequal ones, one was suspicious
      (bagged) and none colluding.
    - Independent members that are each biased beyond their other errors: 3 to 5% colluding and 39
      to 43% suspicious. One number for each member does not say more.
    - Planted offsets that cancel: 99 to 100% colluding (two classes 62%, scores averaged as
      probabilities 81%, else suspicious); from
      one example to the next, 100% if large, 75% at least suspicious if small.
    - Networks trained jointly: averages of scores and regressions 90 to 100% found, nearly all as
      colluding, but diabetes at 60 epochs 80% as suspicious.
    - Networks trained jointly on the average of probabilities: all suspicious on made classes, half
      on breast cancer, 10 to 30% on digits, none on wine. Their DIV explodes on training data (on
      digits 4 to 7 times ERR, against 0.001), but there is next to no sign of it on test data: ERR
      is the same and a missing member costs little more. DIV on training data is no sign because
      forests and bagged members have as much.

    With few examples, or without training predictions, more of the collusion is only suspicious.
    """

    offset_share_suspicious: float = 0.1
    offset_size_suspicious: float = 0.1
    offset_share_colluding: float = 0.15
    offset_size_colluding: float = 0.2
    chance_suspicious: float = 0.5  # that independent offsets cancel as well as these
    chance_colluding: float = 0.05
    index_suspicious: float = 1.5
    index_colluding: float = 2.0
    index_suspicious_scores: float = 3.0
    other_average: float = 0.7  # of the wrong predictions: members made for another average
    material: float = 0.25  # DIV on training data, of the error on test data
    need_rise: float = 0.04  # of training ERR without a fifth of the members
    need_times: float = 2.0  # as large as the rise of test ERR
    least_examples: int = 20  # fewer tell nothing


#: The constants in use.
THRESHOLDS = Thresholds()

LEVELS = ("healthy", "suspicious", "colluding")

NOTICEABLE_SHARE = 0.3  # of the spread in offsets: a healthy verdict then says why they are no sign

NEED_FRACTION = 0.2  # the smallest of Section 6.1

#: What to do, by verdict.
ADVICE = {
    "healthy": "Nothing needs to be done about collusion.",
    "suspicious": (
        "Train the same ensemble independently (β = 0) and compare the two diagnoses; if this one "
        "was trained jointly, lower β."
    ),
    "colluding": (
        "Retrain the members independently (objective 'independent', β = 0), or lower β if they "
        "were trained jointly; do not prune members or use their disagreement as uncertainty."
    ),
    "not judged": "Diagnose at least two members on enough examples.",
}


@dataclass(frozen=True)
class Verdict:
    """``word`` is healthy, suspicious, colluding, or not judged; ``reasons`` say why."""

    word: str
    reasons: tuple[str, ...]
    advice: str

    @property
    def sentence(self) -> str:
        return f"Verdict: {self.word}. {' '.join(self.reasons)}"


def judge(
    judged: Split, offsets_from: Split | None = None, thresholds: Thresholds = THRESHOLDS
) -> Verdict:
    """The verdict on ``judged``, the test split where there is one.

    ``offsets_from`` is the training split: errors and offsets were made to cancel there, so that
    it is seen best there. Without it ``judged`` serves for the offsets, and nothing is compared.
    The word is that of the strongest sign.

    What cannot be told from predictions: example-dependent collusion (``Σ_j c_j(x) = 0``) with a
    codependence index below 1 looks in every mean and correlation like independent members that
    share some error.

    >>> import torch
    >>> truth, offset = torch.linspace(-1, 1, 50)[:, None], torch.tensor([-3.0, 1.0, 2.0])
    >>> judge(Split.of((0.9 * truth + offset[:, None, None], truth))).word
    'colluding'
    """
    judged = _with_smooth_loss(judged)
    train = None if offsets_from is None else _with_smooth_loss(offsets_from)
    obstacle = _obstacle(judged, thresholds)
    if obstacle:
        return Verdict("not judged", (obstacle,), ADVICE["not judged"])
    if bool((judged.outputs == judged.outputs[0]).all()):
        reason = "All members give the same outputs, as copies do: there is no diversity at all."
        advice = "Give each member its own initial weights; one member would do as well as these."
        return Verdict("suspicious", (reason,), advice)
    if _is_perfect(judged):
        reason = "No member makes an error that counts, so there is nothing to collude about."
        return Verdict("healthy", (reason,), ADVICE["healthy"])
    signs = [_index_sign(judged, thresholds), _offset_sign(judged, train or judged, thresholds)]
    if train is not None and train.examples >= thresholds.least_examples:
        signs += [_training_sign(judged, train, thresholds)]
    level = max(level for level, _ in signs)
    reasons = tuple(reason for strength, reason in signs if strength == level > 0)
    reasons = reasons or _healthy_reasons(judged, train or judged, thresholds)
    return Verdict(LEVELS[level], reasons, ADVICE[LEVELS[level]])


def _with_smooth_loss(split: Split) -> Split:
    """The same members judged by a loss without jumps: cross-entropy for the 0-1 loss."""
    way = "probability" if split.combine == "vote" else split.combine
    loss = "cross_entropy" if split.loss == "zero_one" else split.loss
    return replace(split, loss=loss, combine=way)


def _obstacle(split: Split, thresholds: Thresholds) -> str:
    if split.members == 1:
        return "There is one member that counts; collusion takes two."
    if split.examples < thresholds.least_examples:
        return (
            f"Separating collusion from chance takes {thresholds.least_examples} examples or more, "
            f"got {split.examples}."
        )
    return ""


def _is_perfect(split: Split) -> bool:
    scale = float(split.targets.square().mean()) if split.regression else 1.0
    return explosion(split).member_error <= 1e-12 * max(scale, 1e-300)


def _index_sign(split: Split, thresholds: Thresholds, where: str = "") -> tuple[int, str]:
    """Errors that cancel more than independent ones of as few directions do by chance."""
    index = codependence(split, fractions=()).index
    scores = split.combine == "score"
    least = thresholds.index_suspicious_scores if scores else thresholds.index_suspicious
    if math.isnan(index) or index < least:
        return 0, ""
    reason = (
        f"Members' errors{where} cancel: without one of them ERR rises {index:.3g} times as much "
        "as if errors were unrelated."
    )
    if split.loss not in ("mse", "brier") or scores:
        return 1, reason
    chance = _chance_of_index(split, index)
    if chance > thresholds.chance_suspicious:
        return 0, ""
    sure = index >= thresholds.index_colluding and chance <= thresholds.chance_colluding
    return (2 if sure else 1), reason


def _chance_of_index(split: Split, index: float) -> float:
    """The index is 1 over the leftover of whole predictions."""
    residuals, _ = split.residuals()
    flat = residuals.flatten(1)
    apart = split.shares.sqrt()[:, None] * (flat - weighted_mean(flat, split.weights))
    return chance_to_cancel(apart, float(split.shares.square().sum()), 1 / index)


def _offset_sign(split: Split, source: Split, thresholds: Thresholds) -> tuple[int, str]:
    """Constant offsets that cancel, in the space where the members are averaged.

    Those that cancel in the other space of a classifier count where there are large ones in its
    own too, and as suspicious at most: they may come from an average that is not the one judged.
    Where that other average is much the better one, the members were made for it, and they count
    as there.
    """
    large = _offsets_are_large(split, thresholds)
    own = _offsets_cancel(split, source, thresholds) if large else (0, "")
    if own[0] == 2 or split.regression or callable(split.loss):
        return own
    other = "probability" if split.combine == "score" else "score"
    there, source = replace(split, combine=other), replace(source, combine=other)
    better = _is_right_more_often(there, split, thresholds)
    if not (large or better) or not _offsets_are_large(there, thresholds):
        return own
    level, reason = _offsets_cancel(there, source, thresholds)
    level = level if better else min(level, 1)
    if level <= own[0]:
        return own
    if better:
        shares = [f"{_wrong(one).mean():.0%}" for one in (there, split)]
        reason += (
            f" This is in the average of {SPACES[other]}, which is wrong on {shares[0]} of the "
            f"examples, that of {SPACES[split.combine]} on {shares[1]}."
        )
    return level, reason


def _is_right_more_often(split: Split, other: Split, thresholds: Thresholds) -> bool:
    """Whether one average of the members is wrong far less often than another, beyond chance."""
    first, second = _wrong(split), _wrong(other)
    gained, lost = float((second > first).sum()), float((first > second).sum())
    beyond_chance = gained - lost > 3 * math.sqrt(gained + lost)  # a sign test, 3 deviations
    return beyond_chance and float(first.sum()) <= thresholds.other_average * float(second.sum())


def _wrong(split: Split) -> Tensor:
    """1 for each example that the ensemble gets wrong, 0 for the others, ``[batch]``."""
    way = split.combine
    return errors(split.outputs, split.labels(), "zero_one", way, split.shares).ensemble.double()


def _offsets_are_large(split: Split, thresholds: Thresholds, level: str = "suspicious") -> bool:
    share = debiased_share(split).share
    size = share * explosion(split).ratio if share else 0.0
    least_share: float = getattr(thresholds, f"offset_share_{level}")
    least_size: float = getattr(thresholds, f"offset_size_{level}")
    return share >= least_share and size >= least_size


def _offsets_cancel(split: Split, source: Split, thresholds: Thresholds) -> tuple[int, str]:
    left = leftover_offset(source)
    if left.chance > thresholds.chance_suspicious:
        return 0, ""
    offsets = debiased_share(split)
    size = offsets.share * explosion(split).ratio
    cancels = left.chance <= thresholds.chance_colluding
    how = "cancel" if cancels else "nearly cancel"
    reason = (
        f"Constant shifts of the members' {SPACES[offsets.space]} make up {offsets.share:.0%} of "
        f"their spread, {size:.3g} times the ensemble's error, and {how} in the average. "
        f"Independent shifts cancel as well in {left.chance:.1%} of cases. "
        f"{_alone(explosion(split))}"
    )
    large = _offsets_are_large(split, thresholds, "colluding")
    return (2 if large and cancels else 1), reason


def _healthy_reasons(split: Split, source: Split, thresholds: Thresholds) -> tuple[str, ...]:
    """Why nothing was found; why offsets are no sign, where they explain much of the spread."""
    nothing = "Errors do not cancel more than independent members' can, and no large offsets do."
    offsets, parts = debiased_share(split), explosion(split)
    if offsets.share < NOTICEABLE_SHARE:
        return (nothing,)
    size, least = offsets.share * parts.ratio, thresholds.offset_size_suspicious
    shifts = (
        f"Constant shifts make up {offsets.share:.0%} of the spread of the members' "
        f"{SPACES[offsets.space]}"
    )
    if size < least:
        small = f"but this spread is small: they are {size:.2g} times the ensemble's error"
        return nothing, f"{shifts}, {small}, and count from {least:g} on. {_alone(parts)}"
    chance = leftover_offset(source).chance
    return nothing, f"{shifts}, but independent ones cancel as well in {chance:.0%} of cases."


def _alone(parts: Explosion) -> str:
    return (
        f"Members alone have an error of {parts.member_error:.3g}, the ensemble "
        f"{parts.ensemble_error:.3g}."
    )


def _training_sign(judged: Split, train: Split, thresholds: Thresholds) -> tuple[int, str]:
    """Members that need each other where they were trained."""
    if train.loss in ("mse", "brier"):
        diversity, error = explosion(train).diversity, explosion(judged).ensemble_error
        enough = diversity >= thresholds.material * error
        return _index_sign(train, thresholds, " on training data") if enough else (0, "")
    if train.combine != "probability" or callable(train.loss):
        return 0, ""
    here, there = _without_a_fifth(train), _without_a_fifth(judged)
    least = max(thresholds.need_rise, thresholds.need_times * there.relative)
    if here.relative < least:
        return 0, ""
    return 1, (
        f"Members need each other on the data they were trained on: without {here.dropped} of "
        f"{train.members} ERR rises by {here.relative:.0%} there and by {there.relative:.0%} on "
        "test data, though what a member has learnt by itself it can do without the others."
    )


def _without_a_fifth(split: Split) -> Drop:
    fraction = max(NEED_FRACTION, 1 / split.members)
    return codependence(split, fractions=(fraction,)).drops[0]
