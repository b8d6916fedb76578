"""Scores of features: settings that are checked, and after fitting the tensors they found.

A score of features is one dataclass. Its settings are ordinary fields, so that ``"knn:k=10"`` names
it; its tensors are fields made by :func:`fitted`, which :meth:`FeatureScore.fit` sets and files
hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from dissensus.tools.guards import check_finite
from dissensus.tools.specs import check_numbers

#: Numbers in one piece of a computation over many rows; a few such arrays are alive at a time.
_PIECE = 2**19


def fitted(axes: int) -> Any:
    """A field of a :class:`FeatureScore`: a tensor with so many axes that ``fit`` sets."""
    return field(init=False, repr=False, metadata={"axes": axes})


@dataclass(eq=False)
class FeatureScore(ABC):
    """A score of features ``[rows, features]``: higher means more out of distribution."""

    needs_labels: ClassVar[bool] = False
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


# ---- features ------------------------------------------------------------------------------------


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


# ---- last layers ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LastLayers:
    """``l = W x + b`` of each member: ``weight`` ``[members, classes, width]``, ``bias``.

    Features are ``[rows, members · width]``, those of the members side by side, or ``[rows,
    width]`` where all members see the same ones, as linear heads on one backbone do.

    >>> layers = LastLayers.of([nn.Linear(2, 3), nn.Linear(2, 3)])
    >>> layers.logits(0, torch.zeros(5, 2, dtype=torch.float64)).shape
    torch.Size([5, 3])
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, layers: Sequence[nn.Linear]) -> Self:
        """The last layers of all members, in float64."""
        shapes = [tuple(layer.weight.shape) for layer in layers]
        if len(set(shapes)) > 1:
            raise ValueError(f"vim and react need last layers of one shape, got {shapes}")
        weights = torch.stack([layer.weight.detach().double() for layer in layers])
        zeros = weights.new_zeros(shapes[0][0])
        biases = [zeros if layer.bias is None else layer.bias.detach() for layer in layers]
        check_finite(weights, name="the weights of the last layers")
        return cls(weights, torch.stack([bias.to(weights) for bias in biases]))

    @property
    def members(self) -> int:
        """How many members there are."""
        return len(self.weight)

    @property
    def width(self) -> int:
        """How many features each member has."""
        return self.weight.shape[-1]

    def logits(self, member: int, features: Tensor) -> Tensor:
        """``W x + b`` of one member and its own features ``[rows, width]``."""
        return features @ self.weight[member].T + self.bias[member]

    def check(self, features: Tensor) -> None:
        """Raise unless ``features`` are finite and as wide as the layers' input."""
        check_features(features)
        wide = self.members * self.width
        if features.shape[1] not in (self.width, wide):
            raise ValueError(
                f"features must be {wide} wide, or {self.width} if shared, got {features.shape[1]}"
            )

    def parts(self, features: Tensor, member: int) -> Iterator[Tensor]:
        """The features of one member, some rows at a time, in float64."""
        start = member * self.width if features.shape[1] > self.width else 0
        for part in pieces(features, self.width):
            yield part[:, start : start + self.width].to(self.weight)
