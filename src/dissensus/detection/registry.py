"""Scores by name: ``"bma:temperature=2"`` of outputs, ``"knn:k=10"`` of features, "combined".

``FITTED_SCORES`` are those that are fitted to training data, and :func:`default_score` says which
score detects best, by how an ensemble was trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from dissensus.detection.distances import (
    FeatureScore,
    Mahalanobis,
    NearestNeighbours,
    RelativeMahalanobis,
)
from dissensus.detection.logit_scores import ReAct, ViM
from dissensus.detection.tail_scale import TailScale, combine_tails
from dissensus.scores import SCORES, NamedScore, parse
from dissensus.tools.guards import guarded
from dissensus.tools.specs import check_name, parse_spec, spec_of, split_spec


@dataclass(eq=False)
class Combined:
    """A score of outputs and one or more of features: the harmonic mean of their p-values.

    See :func:`combine_tails`. They fail on different inputs: members may agree on what is far from
    all training data, and a distance may miss what lies between two classes. Without ``score``, the
    default one of the ensemble is taken. ``distance`` joins names by ``+``.

    The default was settled on Fashion-MNIST against KMNIST and SVHN, and on five tables
    (``results/strangers.md``): Mahalanobis distances are the best part on tables, and nearest
    neighbours see the images that these miss.

    Fitting finds the ``scales`` of all parts.
    """

    score: str | None = None
    distance: str = "mahalanobis+knn"
    scales: tuple[TailScale, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        self.parts()

    def parts(self) -> list[NamedScore | FeatureScore]:
        """A score of outputs, and the scores of features, to be fitted."""
        scores = [parse_score(name) for name in self.distance.split("+")]
        if not all(isinstance(score, FeatureScore) for score in scores):
            raise ValueError(f"combined: distance must name scores of features: {self.distance!r}")
        return [parse(self.score or "mutual_information"), *scores]

    def resolve(self, default: str) -> Combined:
        """The same with the score ``default`` if it has none."""
        return replace(self, score=self.score or default)

    def fit(self, values: list[Tensor]) -> Self:
        """Find the scales of all parts by their values ``[rows]`` for validation data."""
        names = [str(self.score), *self.distance.split("+")]
        self.scales = tuple(map(TailScale.fit, values, names))
        return self

    def __call__(self, values: list[Tensor]) -> Tensor:
        """The score of each row, from the values ``[rows]`` of all parts."""
        if not self.scales:
            raise ValueError("combined has no scales yet; call .fit(val, train=train) first")
        return combine_tails(values, self.scales)


#: Scores that are fitted to training data.
FITTED_SCORES: dict[str, type[Any]] = {
    "mahalanobis": Mahalanobis,
    "relative_mahalanobis": RelativeMahalanobis,
    "knn": NearestNeighbours,
    "vim": ViM,
    "react": ReAct,
    "combined": Combined,
}

#: What a detector can score by: a score of outputs, a score of features, or both.
Score = NamedScore | FeatureScore | Combined | Callable[..., Tensor]


@guarded
def is_fitted(text: str) -> bool:
    """Whether ``text`` names a score that is fitted to training data.

    >>> is_fitted("knn:k=10"), is_fitted("pds")
    (True, False)
    """
    return split_spec(text)[0] in FITTED_SCORES


def parse_score(text: str) -> Any:
    """The score that ``text`` names.

    >>> parse_score("combined:distance=vim+knn:k=10")
    Combined(score=None, distance='vim+knn:k=10')
    """
    check_name(split_spec(text)[0], [*SCORES, *FITTED_SCORES], "score")
    return parse_spec(text, FITTED_SCORES, "score of features") if is_fitted(text) else parse(text)


def score_spec(score: object) -> str | None:
    """The text that :func:`parse_score` turns back into ``score``; None for other functions."""
    if isinstance(score, NamedScore):
        return str(score)
    if type(score) in FITTED_SCORES.values():
        return spec_of(score, FITTED_SCORES, "score of features")
    return None


# ---- the usual scores ---------------------------------------------------------------------------

#: The scores that are compared unless others are asked for.
DEFAULT_SCORES = (
    *("mutual_information", "pds", "bma", "max_softmax", "entropy", "mean_entropy", "energy"),
    *("max_logit", "confidence", "disagreement", "mahalanobis", "knn"),
)

#: Every score of a classifier; ``fit`` is the temperature that suits the validation data best.
ALL_SCORES = (
    *DEFAULT_SCORES,
    *("unique", "ensemble_diversity", "relative_mahalanobis", "vim", "react", "combined"),
    *("bma:temperature=fit", "pds:temperature=fit", "energy:temperature=fit"),
)

#: Objectives whose members, on unknown inputs, are less diverse than independent ones.
_AGREEING = ("ldr", "divdis")


@guarded
def default_score(trained: Any = None, space: str = "logits") -> str:
    """The score that detects unknown inputs best, by how an ensemble was trained.

    Mean AUROC over data sets and unknown sets, in the record ``results/ldr/contenders.json`` (five
    members; every strength above 0; ``tests/detection/test_default_score.py`` recomputes it):

    ================  ==================  =========  =======  =====
    trained by        mutual_information  energy     entropy  pds
    ================  ==================  =========  =======  =====
    independent       **0.790**           0.763      0.749    0.780
    a2d               **0.871**           0.521      0.745    0.865
    ldr, divdis term  **0.787**           0.695      0.737    0.781
    ldr, a2d term     0.682               **0.776**  0.762    0.689
    divdis            0.731               **0.834**  0.830    0.740
    one network       –                   **0.749**  0.712    –
    ================  ==================  =========  =======  =====

    Other objectives have no such record and take the score of independent members. ``trained`` is
    an ensemble, which knows its objective if :func:`dissensus.fit` trained it or
    :func:`dissensus.load` read it from a run; or an objective; or the text that names one. Where
    nothing is known, the ensemble counts as one of independent members. Probabilities have no
    energy: where ``space`` is not ``"logits"``, entropy takes its place.

    >>> default_score(), default_score("ldr:strength=2"), default_score("ldr:regularizer=divdis")
    ('mutual_information', 'energy', 'mutual_information')
    """
    if getattr(trained, "combine", None) == "mean":
        return "variance"
    best_of_one = "energy" if space == "logits" else "entropy"
    if getattr(trained, "members", None) == 1:
        return best_of_one
    objective = getattr(trained, "objective", trained)  # that of an ensemble, or of a wrapper
    if isinstance(objective, str):
        name, _, settings = objective.lower().rpartition("/")[2].partition(":")
        term = dict(pair.partition("=")[::2] for pair in settings.split(",")).get("regularizer")
    else:
        name, term = type(objective).__name__.lower(), getattr(objective, "regularizer", None)
    agreeing = name in _AGREEING and term in (None, "a2d")
    return best_of_one if agreeing else "mutual_information"
