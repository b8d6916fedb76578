"""Distance scores: how far features ``[rows, features]`` lie from those of the training data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from dissensus.detection.distance_files import Distance, State
from dissensus.tools.guards import check_finite

#: Numbers in one piece of a computation over many rows; a few such arrays are alive at a time.
_PIECE = 2**19

#: Rows whose nearest neighbours are searched for at once.
_QUERIES = 1024


@dataclass(frozen=True, eq=False, repr=False)
class Mahalanobis(Distance):
    """Squared Mahalanobis distance of features to the nearest class mean, all in float64.

    ``M(x) = min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c)`` with one covariance Σ for all classes (Lee et al.,
    2018, Equation 2, whose confidence is −M). With ``relative=True`` the distance to a single
    Gaussian around all features is taken off, ``min_c M_c(x) − M_0(x)`` (Ren et al., 2021), which
    removes what every class has in common and is better for near OOD data. The covariance of that
    Gaussian is Σ plus that of the class means: without shrinkage the covariance of all features,
    and with it never smaller than Σ. Shrunk by itself it can be, and then inputs that are far away
    in a direction of little variance have *low* scores.

    Made by :meth:`fit`. Called with features ``[rows, features]``, gives ``[rows]``; higher means
    more out of distribution. ``means`` is ``[classes, features]``; ``factor`` the lower Cholesky
    factor of the shrunk covariance and ``shrinkage`` how much it was shrunk; ``background_*`` the
    same of the single Gaussian.

    >>> square = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])    # Σ = I
    >>> two = torch.cat([square, square + torch.tensor([8.0, 0.0])])
    >>> distance = Mahalanobis.fit(two, torch.tensor([0] * 4 + [1] * 4), shrinkage=0.0)
    >>> distance(torch.tensor([[1.0, 1.0], [9.0, 3.0], [5.0, 1.0]]))
    tensor([ 0.,  4., 16.], dtype=torch.float64)
    """

    kind = "mahalanobis"
    axes: ClassVar = {"means": 2, "factor": 2}
    optional: ClassVar = {"background_mean": 1, "background_factor": 2}

    means: Tensor
    factor: Tensor
    shrinkage: float
    background_mean: Tensor | None = None
    background_factor: Tensor | None = None

    @classmethod
    def fit(
        cls,
        features: Tensor,
        targets: Tensor,
        *,
        shrinkage: float | None = None,
        relative: bool = False,
    ) -> Self:
        """Class means and tied covariance of training features and their labels ``[rows]``.

        The covariance is shrunk to ``(1 − s) Σ + s (tr Σ / d) I``, so that it can be inverted where
        there are few rows for its ``d`` features. ``shrinkage`` is s, from 0 (not at all) to 1 (the
        Euclidean distance); None takes the one of Ledoit and Wolf (2004), which goes to 0 as rows
        come in. Classes without rows are left out. Works through the rows in pieces; besides the
        features it needs a few ``d × d`` matrices.
        """
        check_features(features)
        _check_labels(targets, len(features))
        if shrinkage is not None and not 0 <= shrinkage <= 1:
            raise ValueError(f"shrinkage must lie from 0 to 1, or be None, got {shrinkage!r}")
        targets = targets.to(features.device)
        labels, index = targets.unique(return_inverse=True)
        means = _class_means(features, index, len(labels))
        factor, used = _shrunk_factor(features, means, index, shrinkage)
        if not relative:
            return cls(means, factor, used)
        share = index.bincount(minlength=len(labels)).to(means)[:, None] / len(index)
        mean = (share * means).sum(0)
        between = share.sqrt() * (means - mean)
        covariance = factor @ factor.T + between.T @ between  # Σ_0 = Σ + Σ_c (n_c / n) δ_c δ_cᵀ
        return cls(means, factor, used, mean, torch.linalg.cholesky(covariance))

    @property
    def relative(self) -> bool:
        """Whether the distance to the single Gaussian is taken off."""
        return self.background_mean is not None

    def __repr__(self) -> str:
        classes, width = self.means.shape
        return (
            f"Mahalanobis({classes} classes, {width} features, shrinkage={self.shrinkage:.3g}, "
            f"relative={self.relative})"
        )

    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, ``[rows]`` in float64."""
        classes, width = self.means.shape
        check_features(features, width)
        whitened_means = _whiten(self.factor, self.means - self._centre)
        scores = [
            self._score(part.to(self.means), whitened_means)
            for part in pieces(features, max(classes, width))
        ]
        return torch.cat(scores)

    @property
    def _centre(self) -> Tensor:
        return self.means.mean(0)

    def _score(self, features: Tensor, whitened_means: Tensor) -> Tensor:
        rows = _whiten(self.factor, features - self._centre)
        squares = rows.square().sum(-1)[:, None] + whitened_means.square().sum(-1)
        nearest = (squares - 2 * rows @ whitened_means.T).clamp_min(0).amin(-1)
        if self.background_mean is None or self.background_factor is None:
            return nearest
        apart = _whiten(self.background_factor, features - self.background_mean)
        return nearest - apart.square().sum(-1)

    def state(self) -> State:
        tensors = {"means": self.means, "factor": self.factor}
        if self.background_mean is not None and self.background_factor is not None:
            tensors |= {"background_mean": self.background_mean}
            tensors |= {"background_factor": self.background_factor}
        return tensors, {"shrinkage": self.shrinkage, "relative": self.relative}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Self:
        return cls(shrinkage=float(settings["shrinkage"]), **tensors)


def _check_labels(targets: Tensor, rows: int) -> None:
    if not isinstance(targets, Tensor) or tuple(targets.shape) != (rows,):
        got = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise ValueError(f"targets must be integer labels [rows] = ({rows},), got {got}")
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(f"targets must be integer labels, got {targets.dtype}")


def _class_means(features: Tensor, index: Tensor, classes: int) -> Tensor:
    width = features.shape[1]
    totals = features.new_zeros(classes, width, dtype=torch.float64)
    for part, labels in _with_labels(features, index):
        totals.index_add_(0, labels, part)
    return totals / index.bincount(minlength=classes)[:, None]


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
        raise ValueError(
            "features do not differ within any class, so no distance can be scaled by their "
            "spread; fit on more than one example of a class"
        )
    used = _ledoit_wolf(covariance, fourth, rows) if shrinkage is None else float(shrinkage)
    covariance.mul_(1 - used).diagonal().add_(used * variance)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed):
        raise ValueError(
            f"the covariance of {width} features of {rows} rows cannot be inverted with "
            f"shrinkage={used:.3g}; raise it, or leave it out"
        )
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


@dataclass(frozen=True, eq=False, repr=False)
class NearestNeighbours(Distance):
    """Distance to the k-th nearest training feature, ``‖z − z_(k)‖`` (Sun et al., 2022).

    ``z = x / ‖x‖`` with ``normalize``, which that paper found to matter most; else ``z = x``.
    Made by :meth:`fit`. Called with features ``[rows, features]``, gives ``[rows]`` in float32;
    higher means more out of distribution. A training row is its own nearest neighbour.

    Neighbours are found exactly, through matrix products of pieces, so that memory does not grow
    with either set; time grows with their product. Large training sets may be thinned: the paper
    uses 1% of ImageNet with k = 10 and the whole of CIFAR-10 with k = 50.

    >>> distance = NearestNeighbours.fit(torch.tensor([[0.0], [1.0], [3.0]]), k=2, normalize=False)
    >>> distance(torch.tensor([[0.0], [10.0]]))
    tensor([1., 9.])
    """

    kind = "nearest_neighbours"
    axes: ClassVar = {"features": 2}

    features: Tensor
    k: int
    normalize: bool

    @classmethod
    def fit(cls, features: Tensor, *, k: int = 50, normalize: bool = True) -> Self:
        """Keep the training features, in float32; ``k`` may be as large as their number."""
        check_features(features)
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= len(features):
            raise ValueError(
                f"k must be a whole number from 1 to the {len(features)} rows, got {k!r}"
            )
        reference = torch.cat(
            [_prepare(part, normalize) for part in pieces(features, features.shape[1])]
        )
        return cls(reference, k, normalize)

    def __repr__(self) -> str:
        rows, width = self.features.shape
        return (
            f"NearestNeighbours({rows} rows, {width} features, k={self.k}, "
            f"normalize={self.normalize})"
        )

    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, ``[rows]`` in float32."""
        check_features(features, self.features.shape[1])
        scores = [
            self._score(_prepare(part.to(self.features.device), self.normalize))
            for part in features.split(_QUERIES)
        ]
        return torch.cat(scores)

    def _score(self, queries: Tensor) -> Tensor:
        """The k-th smallest distance, from the best k of each piece of the training rows."""
        nearest = queries.new_empty(len(queries), 0)
        index = torch.empty(len(queries), 0, dtype=torch.long, device=queries.device)
        start = 0
        for part in pieces(self.features, max(len(queries), queries.shape[1])):
            squares = part.square().sum(-1) - 2 * queries @ part.T  # ‖q‖² changes no order
            best, where = squares.topk(min(self.k, len(part)), -1, largest=False, sorted=False)
            nearest = torch.cat([nearest, best], -1)
            index = torch.cat([index, where + start], -1)
            start += len(part)
            if nearest.shape[1] > self.k:
                nearest, order = nearest.topk(self.k, -1, largest=False, sorted=False)
                index = index.gather(-1, order)
        last = index.gather(-1, nearest.argmax(-1, keepdim=True)).squeeze(-1)
        # The difference itself: expanding the square loses half of the digits near a neighbour.
        distance: Tensor = torch.linalg.vector_norm(queries - self.features[last], dim=-1)
        return distance

    def state(self) -> State:
        return {"features": self.features}, {"k": self.k, "normalize": self.normalize}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Self:
        return cls(tensors["features"], int(settings["k"]), bool(settings["normalize"]))


def _prepare(features: Tensor, normalize: bool) -> Tensor:
    features = features.float()
    return torch.nn.functional.normalize(features, dim=-1) if normalize else features


# ---- features ------------------------------------------------------------------------------------


def check_features(features: Tensor, width: int | None = None) -> None:
    """Raise unless ``features`` is finite, floating ``[rows, features]``, and ``width`` wide."""
    if not isinstance(features, Tensor):
        raise ValueError(
            f"features must be a torch.Tensor [rows, features], got {type(features).__name__}; "
            "convert them with torch.as_tensor"
        )
    shape = tuple(features.shape)
    if features.ndim != 2:
        hint = "; pass features.flatten(1)" if features.ndim > 2 else ""
        raise ValueError(f"features must be [rows, features], got {shape}{hint}")
    if 0 in shape:
        raise ValueError(f"features must hold at least one row and one feature, got {shape}")
    if not features.is_floating_point():
        raise ValueError(
            f"features must be floating point, got {features.dtype}; pass features.float()"
        )
    if width is not None and shape[1] != width:
        raise ValueError(f"features must be {width} wide, as those fitted on were, got {shape}")
    for part in pieces(features, shape[1]):
        check_finite(part.float() if part.element_size() < 4 else part, name="features")


def pieces(features: Tensor, width: int) -> Iterator[Tensor]:
    """Rows of ``features``, so few at a time that ``rows * width`` numbers are a piece."""
    yield from features.split(max(1, _PIECE // max(1, width)))
