"""Last layers: the linear maps from each member's features to its logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from dissensus.detection.distances import check_features, pieces
from dissensus.tools.guards import check_finite


@dataclass(frozen=True, eq=False)
class LastLayer:
    """``l = W x + b`` of each member: ``weight`` ``[members, classes, width]``, ``bias``.

    Features are ``[rows, members · width]``, those of the members side by side, or ``[rows,
    width]`` where all members see the same ones, as linear heads on one backbone do.

    >>> layer = LastLayer.of(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))          # one network, no bias
    >>> layer.logits(0, torch.tensor([[3.0, 4.0]]))
    tensor([[3., 8.]])
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> Self:
        """The layer with these weights; ``[classes, width]`` and ``[classes]`` for one network."""
        weight = weight.detach()
        weight = weight[None] if weight.ndim == 2 else weight
        bias = torch.zeros_like(weight[..., 0]) if bias is None else bias.detach()
        bias = bias[None] if bias.ndim == 1 else bias
        if weight.ndim != 3 or bias.shape != weight.shape[:2]:
            raise ValueError(
                "a last layer has weights [members, classes, width] and a bias [members, classes], "
                f"got {tuple(weight.shape)} and {tuple(bias.shape)}"
            )
        check_finite(weight, name="weight")
        check_finite(bias, name="bias")
        return cls(weight, bias)

    @property
    def members(self) -> int:
        """How many members there are."""
        return len(self.weight)

    @property
    def width(self) -> int:
        """How many features each member has."""
        return self.weight.shape[-1]

    def double(self) -> LastLayer:
        """The same in float64."""
        return LastLayer(self.weight.double(), self.bias.double())

    def logits(self, member: int, features: Tensor) -> Tensor:
        """``W x + b`` of one member and its own features ``[rows, width]``."""
        return features @ self.weight[member].T + self.bias[member]

    def check(self, features: Tensor) -> None:
        """Raise unless ``features`` are finite and as wide as the layer's input."""
        check_features(features)
        wide = self.members * self.width
        if features.shape[1] not in (self.width, wide):
            raise ValueError(
                f"features must be {wide} wide, the inputs of {self.members} last layers side by "
                f"side, or {self.width} if members share them, got {tuple(features.shape)}"
            )

    def parts(self, features: Tensor, member: int) -> Iterator[Tensor]:
        """The features of one member, some rows at a time, in float64."""
        start = member * self.width if features.shape[1] > self.width else 0
        for part in pieces(features, self.width):
            yield part[:, start : start + self.width].to(self.weight.device, torch.float64)
