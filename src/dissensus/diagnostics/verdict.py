"""Healthy, suspicious or colluding: one table of thresholds, and the rule that reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dissensus.diagnostics.codependence import codependence
from dissensus.diagnostics.collusion import (
    SPACES,
    debiased_share,
    explosion,
    leftover_offset,
)
from dissensus.diagnostics.split import Split, smooth_loss

__all__ = ["ADVICE", "THRESHOLDS", "Thresholds", "Verdict", "judge"]


@dataclass(frozen=True)
class Thresholds:
    """The constants of the verdict, chosen on planted and trained ensembles (``calibrate``).

    Two signs are read; neither is an accuracy, and DIV / ERR alone is none, because good members
    with unrelated errors reach M − 1.

    *Offsets*, in each space the members can be averaged in: the share that constant offsets
    explain, their size ``share · DIV / ERR``, and what they leave in the ensemble. Networks trained
    independently on diabetes and digits had sizes below 0.05, also undertrained (where the share
    is up to 0.9) and overfit ones; jointly trained ones 0.1 to 10 (regressions, and averages of
    scores; averages of probabilities hardly collude on digits, 0.05).

    *Codependence index*: 1 at most for members that do not know each other under squared error.
    When scores are averaged, sure and independent members pass 1 too, as an average of scores is
    much like a vote: then the sign is never more than suspicious.

    Measured with 300 examples and 3 to 20 members (``python -m dissensus.diagnostics``): no false
    alarm in eight independent families; offsets of the size of the ensemble's error are called
    colluding in 91% and suspicious in 9%, larger ones colluding in 97 to 100%. One output and
    members that are independent but each biased beyond their other errors are called colluding in
    31%: a handful of numbers may cancel by chance. With 60 examples or fewer more of the collusion
    is only suspicious, and up to 17% of members that are nothing but noise are.
    """

    offset_share_suspicious: float = 0.1
    offset_size_suspicious: float = 0.1
    leftover_suspicious: float = 1.0  # of what unrelated offsets would leave in the ensemble
    offset_share_colluding: float = 0.15
    offset_size_colluding: float = 0.2
    leftover_colluding: float = 0.1
    leftover_colluding_many: float = 0.2  # with 3 or more free outputs chance is easier to tell
    index_suspicious: float = 1.5
    index_colluding: float = 2.0
    index_suspicious_scores: float = 3.0
    least_examples: int = 20  # fewer tell nothing


THRESHOLDS = Thresholds()

LEVELS = ("healthy", "suspicious", "colluding")

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
        """The verdict in plain words."""
        return f"Verdict: {self.word}. {' '.join(self.reasons)}"


def judge(
    judged: Split, offsets_from: Split | None = None, thresholds: Thresholds = THRESHOLDS
) -> Verdict:
    """The verdict on ``judged``, the test split where there is one.

    ``offsets_from`` is the training split, where offsets were made to cancel, so that what they
    leave is seen best; without it ``judged`` serves. The word is that of the strongest sign.

    What cannot be told from predictions: example-dependent collusion (``Σ_j c_j(x) = 0``) with a
    codependence index below 1 looks in every mean and correlation like independent members that
    share some error.

    >>> import torch
    >>> truth, offset = torch.linspace(-1, 1, 50)[:, None], torch.tensor([-3.0, 1.0, 2.0])
    >>> judge(Split.of((0.9 * truth + offset[:, None, None], truth))).word
    'colluding'
    """
    judged = _smooth(judged)
    source = judged if offsets_from is None else _smooth(offsets_from)
    hopeless = _cannot_judge(judged, thresholds)
    if hopeless:
        return Verdict("not judged", (hopeless,), ADVICE["not judged"])
    if bool((judged.outputs == judged.outputs[0]).all()):
        reason = "All members give the same outputs, as copies do: there is no diversity at all."
        advice = "Give each member its own initial weights; one member would do as well as these."
        return Verdict("suspicious", (reason,), advice)
    if _perfect(judged):
        reason = "No member makes an error that counts, so there is nothing to collude about."
        return Verdict("healthy", (reason,), ADVICE["healthy"])
    signs = [_index_sign(judged, thresholds)]
    signs += [_offset_sign(judged, source, space, thresholds) for space in _spaces(judged)]
    level = max(level for level, _ in signs)
    reasons = tuple(reason for own, reason in signs if own == level and own > 0)
    healthy = "Errors do not cancel more than independent members' can, and no large offsets do."
    return Verdict(LEVELS[level], reasons or (healthy,), ADVICE[LEVELS[level]])


def _smooth(split: Split) -> Split:
    """The same members judged by a loss without jumps."""
    way = "probability" if split.combine == "vote" else split.combine
    return replace(split, loss=smooth_loss(split.loss), combine=way)


def _cannot_judge(split: Split, thresholds: Thresholds) -> str:
    if split.members == 1:
        return "There is one member that counts; collusion takes two."
    if split.examples < thresholds.least_examples:
        return (
            f"To tell collusion from chance takes {thresholds.least_examples} examples at least, "
            f"got {split.examples}."
        )
    return ""


def _perfect(split: Split) -> bool:
    scale = float(split.targets.square().mean()) if split.regression else 1.0
    return explosion(split).member_error <= 1e-12 * max(scale, 1e-300)


def _spaces(split: Split) -> list[str]:
    if split.regression:
        return ["outputs"]
    if callable(split.loss):  # it knows one kind of prediction alone
        return ["score" if split.combine == "score" else "probability"]
    return ["score", "probability"]


def _index_sign(split: Split, thresholds: Thresholds) -> tuple[int, str]:
    index = codependence(split, fractions=()).index
    scores = split.combine == "score"
    least = thresholds.index_suspicious_scores if scores else thresholds.index_suspicious
    reason = (
        f"Members' errors cancel: without one of them ERR rises {index:.3g} times as much as if "
        "errors were unrelated."
    )
    if math.isnan(index) or index < least:
        return 0, ""
    return (1 if scores or index < thresholds.index_colluding else 2), reason


def _offset_sign(
    split: Split, source: Split, space: str, thresholds: Thresholds
) -> tuple[int, str]:
    split, source = (replace(part, combine=SPACES[space]) for part in (split, source))
    share, explosion_ratio = debiased_share(split, space).share, explosion(split).ratio
    size = share * explosion_ratio if share else 0.0
    if share < thresholds.offset_share_suspicious or size < thresholds.offset_size_suspicious:
        return 0, ""
    leftover = leftover_offset(source).leftover
    if leftover > thresholds.leftover_suspicious:
        return 0, ""
    free = source.outputs.shape[2] - (not source.regression)
    most = thresholds.leftover_colluding_many if free >= 3 else thresholds.leftover_colluding
    cancels = leftover <= most
    reason = (
        f"Constant shifts of the members' {_WORDS[space]} make up {share:.0%} of their spread, "
        f"{size:.3g} times the ensemble's error, and "
        + ("cancel in the average." if cancels else "do not cancel exactly.")
    )
    large = share >= thresholds.offset_share_colluding and size >= thresholds.offset_size_colluding
    return (2 if large and cancels else 1), reason


_WORDS = {"outputs": "outputs", "score": "scores", "probability": "probabilities"}
