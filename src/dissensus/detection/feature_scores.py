"""Scores that are fitted to training data, by name and settings: ``"vim"``, ``"knn:k=10"``.

Each entry of ``FITTED_SCORES`` holds the settings of one score and fits it to training features.
``"combined:score=mutual_information,distance=mahalanobis+knn"`` combines a score of the members'
outputs with scores of their features. :class:`FittedDistances` fits and computes several scores of
the same features at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from dissensus.detection.distance_files import Distance, read_distances
from dissensus.detection.distances import Mahalanobis, NearestNeighbours
from dissensus.detection.last_layer import LastLayer
from dissensus.detection.member_features import MemberFeatures
from dissensus.detection.react import ReAct
from dissensus.detection.tail_scale import TailScale
from dissensus.detection.vim import ViM
from dissensus.scores import SCORES, NamedScore, parse
from dissensus.tools.files import read_safetensors
from dissensus.tools.guards import guarded
from dissensus.tools.specs import check_name, check_numbers, number, parse_spec, spec_of, split_spec

#: Scores of features by the kind that their files name.
DISTANCES: dict[str, type[Distance]] = {
    each.kind: each for each in (Mahalanobis, NearestNeighbours, ViM, ReAct)
}

#: From inputs ``[batch, …]`` to features ``[batch, width]``.
Features = Callable[[Tensor], Tensor]


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
class Combined:
    """A score of outputs and one or more of features: the harmonic mean of their p-values.

    See :func:`combine_tails`. They fail on different inputs: members may agree on what is far from
    all training data, and a distance may miss what lies between two classes. Without ``score``, the
    default one of the ensemble is taken. ``distance`` joins names by ``+``.

    The default was settled on Fashion-MNIST against KMNIST and SVHN, and on five tables
    (``results/strangers.md``): Mahalanobis distances are the best part on tables, and nearest
    neighbours see the images that these miss.
    """

    score: str | None = None
    distance: str = "mahalanobis+knn"

    def __post_init__(self) -> None:
        if self.score is not None:
            parse(self.score)
        known = [name for name in FITTED_SCORES if name != "combined"]
        for name in self.distances:
            if split_spec(name)[0] not in known:
                raise ValueError(
                    f"combined: distance must be one of {', '.join(known)}, or several joined by "
                    f"+, got {self.distance!r}"
                )
            parse_score(name)

    @property
    def distances(self) -> list[str]:
        """The scores of features by name."""
        return self.distance.split("+")

    @property
    def outputs_score(self) -> NamedScore:
        """The score of outputs; call :meth:`resolve` first."""
        return parse(self.score or "mutual_information")

    def resolve(self, default: str) -> Combined:
        """The same with the score ``default`` if it has none."""
        return replace(self, score=self.score or default)

    def fit_scales(self, parts: Sequence[Tensor]) -> tuple[TailScale, ...]:
        """The scales of all parts, from their values ``[rows]`` for validation data."""
        names = [str(self.score), *self.distances]
        return tuple(map(TailScale.fit, parts, names))


#: Scores that are fitted to training data.
FITTED_SCORES: dict[str, type[Any]] = {
    "mahalanobis": MahalanobisFit,
    "relative_mahalanobis": RelativeMahalanobisFit,
    "knn": NeighboursFit,
    "vim": ViMFit,
    "react": ReActFit,
    "combined": Combined,
}


def combine_tails(parts: Sequence[Tensor], scales: Sequence[TailScale]) -> Tensor:
    """Minus the log of the weighted harmonic mean of p-values (Wilson, 2019), ``[rows]``.

    ``log Σ_i w_i / p_i = log Σ_i w_i e^{t_i}`` with ``t = −log p`` of each :class:`TailScale`. It
    is a smooth maximum: an input that one part calls rare is rare, and one that all call rare a
    little more so. Scores of one input depend on each other, which this mean allows for; the sum
    of the t (Fisher) takes them as independent. ``parts`` are a score of outputs and distances; the
    first distance has the weight ½, the others share the other half.

    >>> scale = TailScale.fit(torch.arange(101.0))
    >>> common, rare = torch.tensor([50.0]), torch.tensor([90.0])         # p = ½, p = 0.1
    >>> combine_tails([rare, common], [scale] * 2)                        # log ½ (10 + 2)
    tensor([1.7918], dtype=torch.float64)
    >>> combine_tails([rare, common, common], [scale] * 3)                # log ¼ (10 + 2 · 2 + 2)
    tensor([1.3863], dtype=torch.float64)
    """
    device = parts[0].device
    tails = torch.stack([scale(part).to(device) for part, scale in zip(parts, scales, strict=True)])
    weights = tails.new_full((len(tails), 1), 0.5 / (len(tails) - 1))
    weights[1] = 0.5
    return (tails + weights.log()).logsumexp(0)


@dataclass(frozen=True, eq=False)
class FittedDistances:
    """Scores of the same features by name, fitted to training data in one pass.

    ``features`` turns inputs into features; None takes the inputs themselves.
    """

    features: Features | None = None
    distances: dict[str, Distance] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        recipes: Mapping[str, FeatureScore],
        train: Iterable[tuple[Tensor, Tensor | None]],
        features: Features | None,
    ) -> Self:
        """Fit all ``recipes`` to batches of inputs and labels."""
        fitted, values, labels = cls(features), [], []
        layer = None
        for x, y in train:
            values.append(fitted.features_of(x))
            labels += [] if y is None else [y]
            if layer is None and isinstance(features, MemberFeatures):
                layer = partial(features.last_layer, x)
        if not values:
            raise ValueError("there is nothing to fit to: the training data held no batches")
        targets = torch.cat(labels) if labels else None
        known = TrainingFeatures(torch.cat(values), targets, layer)
        fitted.distances.update({name: recipe.fit(known) for name, recipe in recipes.items()})
        return fitted

    def features_of(self, x: Tensor) -> Tensor:
        """Features of inputs, ``[batch, width]``."""
        return x.flatten(1) if self.features is None else self.features(x)

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        """Every score of each input, ``[batch]``."""
        if not self.distances:
            return {}
        features = self.features_of(x)
        return {name: distance(features) for name, distance in self.distances.items()}


@guarded
def is_fitted(text: str) -> bool:
    """Whether ``text`` names a score that is fitted to training data.

    >>> is_fitted("knn:k=10"), is_fitted("pds")
    (True, False)
    """
    return split_spec(text)[0] in FITTED_SCORES


def parse_score(text: str) -> Any:
    """The score that ``text`` names: a :class:`NamedScore` of outputs, or an entry to be fitted.

    >>> parse_score("combined:distance=vim+knn:k=10")
    Combined(score=None, distance='vim+knn:k=10')
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


def recipes_of(score: object) -> dict[str, FeatureScore]:
    """What a score has to fit to training features, by name; nothing for a score of outputs."""
    if isinstance(score, Combined):
        return {name: parse_score(name) for name in score.distances}
    return {str(score_spec(score)): score} if isinstance(score, FeatureScore) else {}


def load_distances(path: str | Path) -> list[Distance]:
    """Read fitted scores of features of any kind."""
    kinds = read_safetensors(path)[1].get("kind", "").split("+")
    if unknown := [kind for kind in kinds if kind not in DISTANCES]:
        raise ValueError(f"{path} holds no score of features: its kind is {unknown[0]!r}")
    return read_distances(path, [DISTANCES[kind] for kind in kinds])
