"""Scores that are fitted to training data, by name and settings: ``"vim"``, ``"knn:k=10"``.

Each entry of ``FITTED_SCORES`` holds the settings of one score and fits it to training features.
``"combined:score=mutual_information,distance=knn"`` combines a score of the members' outputs with
one of their features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dissensus.detection.distances import Mahalanobis, NearestNeighbours
from dissensus.detection.last_layer import LastLayer
from dissensus.detection.react import ReAct
from dissensus.detection.tail_scale import TailScale
from dissensus.detection.vim import ViM
from dissensus.files import read_safetensors
from dissensus.guards import guarded
from dissensus.scores import SCORES, NamedScore, parse
from dissensus.specs import check_name, check_numbers, number, parse_spec, spec_of, split_spec

#: The scales of a score and of a distance that are combined.
Scales = tuple[TailScale, TailScale]

#: A fitted score of features.
Distance = Mahalanobis | NearestNeighbours | ViM | ReAct

#: Scores of features by the kind that their files name.
DISTANCES: dict[str, type[Distance]] = {
    "mahalanobis": Mahalanobis,
    "nearest_neighbours": NearestNeighbours,
    "vim": ViM,
    "react": ReAct,
}


class TrainingFeatures(NamedTuple):
    """What scores are fitted to: features ``[rows, features]``, labels ``[rows]``, last layers."""

    features: Tensor
    targets: Tensor | None = None
    layer: Callable[[], LastLayer] | None = None

    def labels(self, name: str) -> Tensor:
        """The labels, for a score that needs them."""
        if self.targets is None:
            raise ValueError(f"{name} needs labels; pass training data as (x, y)")
        return self.targets

    def last_layer(self, name: str) -> LastLayer:
        """The last layers, for a score that needs them."""
        if self.layer is None:
            raise ValueError(
                f"{name} needs the last linear layer of each member and the features that go into "
                "it; leave features= (--features) out, or name 'penultimate'"
            )
        return self.layer()


@dataclass(frozen=True)
class FeatureScore(ABC):
    """The settings of a score of features, checked on construction."""

    def __post_init__(self) -> None:
        check_numbers(self)

    @abstractmethod
    def fit(self, train: TrainingFeatures) -> Distance:
        """The score, fitted to training features."""


@dataclass(frozen=True)
class MahalanobisFit(FeatureScore):
    """Squared distance to the nearest class mean in units of the covariance (Lee et al., 2018)."""

    shrinkage: float | None = number(None, low=0, high=1)

    def fit(self, train: TrainingFeatures) -> Distance:
        labels = train.labels("mahalanobis")
        return Mahalanobis.fit(train.features, labels, shrinkage=self.shrinkage)


@dataclass(frozen=True)
class RelativeMahalanobisFit(MahalanobisFit):
    """The same minus the distance to one Gaussian of all classes (Ren et al., 2021)."""

    def fit(self, train: TrainingFeatures) -> Distance:
        labels = train.labels("relative_mahalanobis")
        return Mahalanobis.fit(train.features, labels, shrinkage=self.shrinkage, relative=True)


@dataclass(frozen=True)
class NeighboursFit(FeatureScore):
    """Distance to the k-th nearest training row (Sun et al., 2022).

    Without ``k`` it is 50, or the number of rows if there are fewer.
    """

    k: int | None = number(None, low=1)
    normalize: bool = True

    def fit(self, train: TrainingFeatures) -> Distance:
        k = min(50, len(train.features)) if self.k is None else self.k
        return NearestNeighbours.fit(train.features, k=k, normalize=self.normalize)


@dataclass(frozen=True)
class ViMFit(FeatureScore):
    """Virtual logit: features outside the principal subspace, against the energy (Wang, 2022)."""

    dimension: int | None = number(None, low=1)

    def fit(self, train: TrainingFeatures) -> Distance:
        return ViM.fit(train.features, train.last_layer("vim"), dimension=self.dimension)


@dataclass(frozen=True)
class ReActFit(FeatureScore):
    """Energy of the logits of clipped features (Sun et al., 2021)."""

    quantile: float = number(0.9, above=0, high=1)

    def fit(self, train: TrainingFeatures) -> Distance:
        return ReAct.fit(train.features, train.last_layer("react"), quantile=self.quantile)


@dataclass(frozen=True)
class Combined(FeatureScore):
    """A score of outputs and one of features: the harmonic mean of their p-values.

    See :func:`combine_tails`. The two fail on different inputs: members may agree on what is far
    from all training data, and a distance may miss what lies between two classes. Without
    ``score``, the default one of the ensemble is taken.
    """

    score: str | None = None
    distance: str = "relative_mahalanobis"

    def __post_init__(self) -> None:
        if self.score is not None:
            parse(self.score)
        if not is_fitted(self.distance) or isinstance(parse_score(self.distance), Combined):
            known = ", ".join(name for name in FITTED_SCORES if name != "combined")
            raise ValueError(f"combined: distance must be one of {known}, got {self.distance!r}")

    def resolve(self, default: str) -> Combined:
        """The same with the score ``default`` if it has none."""
        return replace(self, score=self.score or default)

    @property
    def outputs_score(self) -> NamedScore:
        """The score of outputs; call :meth:`resolve` first."""
        return parse(self.score or "mutual_information")

    @property
    def feature_score(self) -> FeatureScore:
        """The score of features, to be fitted."""
        chosen: FeatureScore = parse_score(self.distance)
        return chosen

    def fit(self, train: TrainingFeatures) -> Distance:
        """Fit the score of features."""
        return self.feature_score.fit(train)

    def fit_scales(self, scores: Tensor, distances: Tensor) -> Scales:
        """The scales of both, from their values ``[rows]`` for validation data."""
        return TailScale.fit(scores, str(self.score)), TailScale.fit(distances, self.distance)


#: Scores that are fitted to training data.
FITTED_SCORES: dict[str, type[Any]] = {
    "mahalanobis": MahalanobisFit,
    "relative_mahalanobis": RelativeMahalanobisFit,
    "knn": NeighboursFit,
    "vim": ViMFit,
    "react": ReActFit,
    "combined": Combined,
}


def combine_tails(score: Tensor, distance: Tensor, scales: Scales) -> Tensor:
    """Minus the log of the harmonic mean of two p-values (Wilson, 2019), ``[rows]``.

    ``log ½ (1/p₁ + 1/p₂) = log ½ (e^{t₁} + e^{t₂})`` with ``t = −log p`` of each
    :class:`TailScale`. It is a smooth maximum: an input that one of the two calls rare is rare, and
    one that both call rare a little more so. Scores of one input depend on each other, which
    this mean allows for. The sum of the t (Fisher) takes them as independent: on digits, it was
    0.04 of AUROC worse where members agree on a far input, and 0.01 better on held-out classes.

    >>> scale = TailScale.fit(torch.arange(101.0))
    >>> combine_tails(torch.tensor([90.0]), torch.tensor([50.0]), (scale, scale))  # log ½ (10 + 2)
    tensor([1.7918], dtype=torch.float64)
    """
    first, second = scales[0](score), scales[1](distance).to(score.device)
    return torch.logaddexp(first, second) - math.log(2)


@guarded
def is_fitted(text: str) -> bool:
    """Whether ``text`` names a score that is fitted to training data.

    >>> is_fitted("knn:k=10"), is_fitted("pds")
    (True, False)
    """
    return split_spec(text)[0] in FITTED_SCORES


def parse_score(text: str) -> Any:
    """The score that ``text`` names: a :class:`NamedScore` of outputs, or an entry to be fitted.

    >>> parse_score("combined:distance=knn:k=10")
    Combined(score=None, distance='knn:k=10')
    """
    check_name(split_spec(text)[0], [*SCORES, *FITTED_SCORES], "score")
    return parse_spec(text, FITTED_SCORES, "score of features") if is_fitted(text) else parse(text)


def score_spec(score: object) -> str | None:
    """The text that :func:`parse_score` turns back into ``score``; None for other functions.

    A fitted object has the name of its kind.
    """
    if isinstance(score, NamedScore):
        return str(score)
    if type(score) in FITTED_SCORES.values():
        return spec_of(score, FITTED_SCORES, "score of features")
    return next((name for name, kind in DISTANCES.items() if isinstance(score, kind)), None)


def load_distance(path: str | Path) -> Distance:
    """Read a fitted score of features of any kind."""
    kind = read_safetensors(path)[1].get("kind", "")
    if kind not in DISTANCES:
        raise ValueError(f"{path} holds no score of features: its kind is {kind!r}")
    return DISTANCES[kind].load(path)
