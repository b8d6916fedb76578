"""Scores of features ``[rows, features]``: how far they lie from those of the training data.

A score of features is one dataclass. Its settings are ordinary fields, so that ``"knn:k=10"`` names
it; its tensors are fields made by :func:`fitted`, which :meth:`FeatureScore.fit` sets and files
hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from dissensus.tools.guards import check_finite
from dissensus.tools.specs import check_numbers, number

if TYPE_CHECKING:
    from dissensus.detection.logit_scores import LastLayers

#: Rows whose nearest neighbours are searched for at once.
_QUERIES = 1024

#: Numbers in one piece of a computation over many rows; a few such arrays are alive at a time.
_PIECE = 2**19


def fitted(axes: int) -> Any:
    """A field of a :class:`FeatureScore`: a tensor with so many axes that ``fit`` sets."""
    return field(init=False, repr=False, metadata={"axes": axes})


@dataclass(eq=False)
class FeatureScore(ABC):
    """A score of features ``[rows, features]``: higher means more out of distribution."""

    needs_layers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_numbers(self)

    @abstractmethod
    def fit(
        self, features: Tensor, targets: Tensor | None = None, layers: LastLayers | None = None
    ) -> Self:
        """Fit to training features, their labels ``[rows]`` and the members' last layers."""

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, ``[rows]``."""

    @property
    def is_fitted(self) -> bool:
        """Whether :meth:`fit` was called."""
        return all(hasattr(self, name) for name in self.axes())

    @classmethod
    def axes(cls) -> dict[str, int]:
        """The fitted tensors by name, and how many axes each has."""
        return {f.name: f.metadata["axes"] for f in fields(cls) if "axes" in f.metadata}


def check_features(features: Tensor, width: int | None = None) -> None:
    """Raise unless ``features`` is finite, floating ``[rows, features]``, and ``width`` wide."""
    if not isinstance(features, Tensor):
        raise ValueError(f"features must be a torch.Tensor, got {type(features).__name__}")
    shape = tuple(features.shape)
    if features.ndim != 2 or 0 in shape:
        hint = "; pass features.flatten(1)" if features.ndim > 2 else ""
        raise ValueError(f"features must be [rows, features], one or more, got {shape}{hint}")
    if not features.is_floating_point():
        raise ValueError(f"features must be floating point, got {features.dtype}")
    if width is not None and shape[1] != width:
        raise ValueError(f"features must be {width} wide, as those fitted on were, got {shape}")
    for part in pieces(features, shape[1]):
        check_finite(part.float() if part.element_size() < 4 else part, name="features")


def pieces(features: Tensor, width: int) -> Iterator[Tensor]:
    """Rows of ``features``, so few at a time that ``rows * width`` numbers are a piece."""
    yield from features.split(max(1, _PIECE // max(1, width)))


@dataclass(eq=False)
class Mahalanobis(FeatureScore):
    """Squared distance to the nearest class mean in units of the covariance (Lee et al., 2018).

    ``M(x) = min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c)`` with one covariance Σ for all classes (Equation 2,
    whose confidence is −M), all in float64. The covariance is shrunk to
    ``(1 − s) Σ + s (tr Σ / d) I``, so that it can be inverted where there are few rows for its
    ``d`` features. ``shrinkage`` is s, from 0 (not at all) to 1 (the Euclidean distance); None
    takes that of Ledoit and Wolf (2004), which goes to 0 as rows come in. Classes without rows are
    left out.

    Fitting finds ``means`` ``[classes, features]``, ``factor``, the lower Cholesky factor of the
    shrunk covariance, and ``shrunk``, which is s. It works through the rows in pieces; besides the
    features it needs a few ``d × d`` matrices.

    >>> square = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])    # Σ = I
    >>> two = torch.cat([square, square + torch.tensor([8.0, 0.0])])
    >>> distance = Mahalanobis(shrinkage=0.0).fit(two, torch.tensor([0] * 4 + [1] * 4))
    >>> distance(torch.tensor([[1.0, 1.0], [9.0, 3.0], [5.0, 1.0]]))
    tensor([ 0.,  4., 16.], dtype=torch.float64)
    """

    shrinkage: float | None = number(None, low=0, high=1)
    means: Tensor = fitted(2)
    factor: Tensor = fitted(2)
    shrunk: Tensor = fitted(0)

    def fit(
        self, features: Tensor, targets: Tensor | None = None, layers: LastLayers | None = None
    ) -> Self:
        """Class means and tied covariance of features and their labels ``[rows]``."""
        check_features(features)
        _, index = _check_labels(targets, features).unique(return_inverse=True)
        self.means = _class_means(features, index)
        self.factor, shrunk = _shrunk_factor(features, self.means, index, self.shrinkage)
        self.shrunk = self.means.new_tensor(shrunk)
        return self

    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, ``[rows]`` in float64."""
        classes, width = self.means.shape
        check_features(features, width)
        centre = self.means.mean(0)
        means = _whiten(self.factor, self.means - centre)
        scores = []
        for part in pieces(features, max(classes, width)):
            rows = _whiten(self.factor, part.to(self.means) - centre)
            squares = rows.square().sum(-1)[:, None] + means.square().sum(-1)
            scores.append((squares - 2 * rows @ means.T).clamp_min(0).amin(-1))
        return torch.cat(scores)


@dataclass(eq=False)
class RelativeMahalanobis(Mahalanobis):
    """The same minus the distance to one Gaussian of all classes (Ren et al., 2021).

    ``min_c M_c(x) − M_0(x)`` removes what every class has in common and is better for near OOD
    data. The covariance of the Gaussian around all features is Σ plus that of the class means:
    without shrinkage the covariance of all features, and with it never smaller than Σ. Shrunk by
    itself it can be, and then inputs that are far away in a direction of little variance have *low*
    scores.
    """

    background_mean: Tensor = fitted(1)
    background_factor: Tensor = fitted(2)

    def fit(
        self, features: Tensor, targets: Tensor | None = None, layers: LastLayers | None = None
    ) -> Self:
        """The same, and mean and covariance of all features."""
        super().fit(features, targets)
        count = _check_labels(targets, features).unique(return_counts=True)[1]
        share = count.to(self.means)[:, None] / len(features)
        self.background_mean = (share * self.means).sum(0)
        between = share.sqrt() * (self.means - self.background_mean)
        # Σ_0 = Σ + Σ_c (n_c / n) δ_c δ_cᵀ
        covariance = self.factor @ self.factor.T + between.T @ between
        self.background_factor = torch.linalg.cholesky(covariance)
        return self

    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, ``[rows]`` in float64."""
        nearest, apart = super().__call__(features), []
        for part in pieces(features, max(self.means.shape)):
            rows = part.to(self.means) - self.background_mean
            apart.append(_whiten(self.background_factor, rows).square().sum(-1))
        return nearest - torch.cat(apart)


def _check_labels(targets: Tensor | None, features: Tensor) -> Tensor:
    """Integer labels ``[rows]`` on the device of the features."""
    rows = len(features)
    if targets is None:
        raise ValueError("mahalanobis needs labels; pass training data as (x, y)")
    if not isinstance(targets, Tensor) or tuple(targets.shape) != (rows,):
        got = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise ValueError(f"targets must be integer labels [rows] = ({rows},), got {got}")
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(f"targets must be integer labels, got {targets.dtype}")
    return targets.to(features.device)


def _class_means(features: Tensor, index: Tensor) -> Tensor:
    counts = index.bincount()
    totals = features.new_zeros(len(counts), features.shape[1], dtype=torch.float64)
    for part, labels in _with_labels(features, index):
        totals.index_add_(0, labels, part)
    return totals / counts[:, None]


def _shrunk_factor(
    features: Tensor, means: Tensor, index: Tensor, shrinkage: float | None
) -> tuple[Tensor, float]:
    """The Cholesky factor of the shrunk covariance around ``means[index]``, and the shrinkage."""
    rows, width = features.shape
    covariance = means.new_zeros(width, width)
    fourth = 0.0  # Σ_i ‖x_i − μ‖⁴
    for part, labels in _with_labels(features, index):
        apart = part - means[labels]
        covariance.addmm_(apart.T, apart, alpha=1 / rows)
        fourth += float(apart.square().sum(-1).square().sum())
    variance = float(covariance.diagonal().mean())
    if not variance > 0:
        raise ValueError("features do not differ within any class; fit on more examples of a class")
    used = _ledoit_wolf(covariance, fourth, rows) if shrinkage is None else float(shrinkage)
    covariance.mul_(1 - used).diagonal().add_(used * variance)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed):
        raise ValueError(f"no covariance can be inverted with shrinkage={used:.3g}; raise it")
    return factor, used


def _ledoit_wolf(covariance: Tensor, fourth: float, rows: int) -> float:
    """The shrinkage that minimises the expected squared error (Ledoit and Wolf, 2004).

    ``Σ_jk Σ_i x_ij² x_ik² = Σ_i ‖x_i‖⁴`` saves the products of squares that the formula asks for.
    """
    width = len(covariance)
    squares = float(covariance.square().sum())
    noise = (fourth / rows - squares) / (rows * width)
    spread = squares / width - float(covariance.diagonal().mean()) ** 2
    noise = min(noise, spread)
    return noise / spread if noise > 0 else 0.0


def _with_labels(features: Tensor, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of the rows in float64, and which mean each belongs to."""
    width = features.shape[1]
    for part, labels in zip(pieces(features, width), pieces(index, width), strict=True):
        yield part.double(), labels


def _whiten(factor: Tensor, features: Tensor) -> Tensor:
    """``L⁻¹ x`` of each row."""
    solved: Tensor = torch.linalg.solve_triangular(factor, features.T, upper=False)
    return solved.T


@dataclass(eq=False)
class NearestNeighbours(FeatureScore):
    """Distance to the k-th nearest training row (Sun et al., 2022).

    ``‖z − z_(k)‖`` with ``z = x / ‖x‖`` where ``normalize`` is set, which that paper found to
    matter most; else ``z = x``. Without ``k`` it is 50, or the number of rows if there are fewer. A
    training row is its own nearest neighbour.

    Neighbours are found exactly, through matrix products of pieces, so that memory does not grow
    with either set; time grows with their product. Large training sets may be thinned: the paper
    uses 1% of ImageNet with k = 10 and the whole of CIFAR-10 with k = 50.

    >>> knn = NearestNeighbours(k=2, normalize=False).fit(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> knn(torch.tensor([[0.0], [10.0]]))
    tensor([1., 9.])
    """

    k: int | None = number(None, low=1)
    normalize: bool = True
    reference: Tensor = fitted(2)

    def fit(
        self, features: Tensor, targets: Tensor | None = None, layers: LastLayers | None = None
    ) -> Self:
        """Keep the training features, in float32."""
        check_features(features)
        if self.k is not None and self.k > len(features):
            raise ValueError(f"k must be at most the number of rows, {len(features)}, got {self.k}")
        parts = pieces(features, features.shape[1])
        self.reference = torch.cat([self._prepare(part) for part in parts])
        return self

    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, ``[rows]`` in float32."""
        check_features(features, self.reference.shape[1])
        queries = (self._prepare(p.to(self.reference.device)) for p in features.split(_QUERIES))
        return torch.cat([self._score(part) for part in queries])

    def _prepare(self, features: Tensor) -> Tensor:
        features = features.float()
        return torch.nn.functional.normalize(features, dim=-1) if self.normalize else features

    def _score(self, queries: Tensor) -> Tensor:
        """The k-th smallest distance, from the best k of each piece of the training rows."""
        k = min(50, len(self.reference)) if self.k is None else self.k
        nearest = queries.new_empty(len(queries), 0)
        index = torch.empty(len(queries), 0, dtype=torch.long, device=queries.device)
        start = 0
        for part in pieces(self.reference, max(len(queries), queries.shape[1])):
            squares = part.square().sum(-1) - 2 * queries @ part.T  # ‖q‖² changes no order
            best, where = squares.topk(min(k, len(part)), -1, largest=False, sorted=False)
            nearest = torch.cat([nearest, best], -1)
            index = torch.cat([index, where + start], -1)
            start += len(part)
            if nearest.shape[1] > k:
                nearest, order = nearest.topk(k, -1, largest=False, sorted=False)
                index = index.gather(-1, order)
        last = index.gather(-1, nearest.argmax(-1, keepdim=True)).squeeze(-1)
        # The difference itself: expanding the square loses half of the digits near a neighbour.
        distance: Tensor = torch.linalg.vector_norm(queries - self.reference[last], dim=-1)
        return distance
