"""Nearest-neighbour distance: of features to their k-th neighbour in the training data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from dissensus.detection.distance import check_features, pieces, read_distance, write_distance

__all__ = ["NearestNeighbours"]


@dataclass(frozen=True, eq=False, repr=False)
class NearestNeighbours:
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
            [_prepared(part, normalize) for part in pieces(features, features.shape[1])]
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
            self._scored(_prepared(part.to(self.features.device), self.normalize))
            for part in features.split(_QUERIES)
        ]
        return torch.cat(scores)

    def _scored(self, queries: Tensor) -> Tensor:
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

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, replacing ``path`` atomically."""
        settings = {"k": self.k, "normalize": self.normalize}
        write_distance(path, "nearest_neighbours", {"features": self.features}, settings)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote."""
        tensors, settings = read_distance(path, "nearest_neighbours", {"features": 2})
        return cls(tensors["features"], int(settings["k"]), bool(settings["normalize"]))


#: Rows scored at once.
_QUERIES = 1024


def _prepared(features: Tensor, normalize: bool) -> Tensor:
    features = features.float()
    return torch.nn.functional.normalize(features, dim=-1) if normalize else features
