"""Scores of the members' features and last layers: ViM, ReAct."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.detection.distances import FeatureScore, check_features, fitted, pieces
from dissensus.tools.guards import check_finite
from dissensus.tools.specs import number


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


@dataclass(eq=False)
class _LayerScore(FeatureScore):
    """A score of features and the logits that the last layers give for them."""

    needs_layers: ClassVar = True

    weight: Tensor = fitted(3)
    bias: Tensor = fitted(2)

    @property
    def layers(self) -> LastLayers:
        """The members' last layers."""
        return LastLayers(self.weight, self.bias)

    def _keep(self, features: Tensor, layers: LastLayers | None) -> LastLayers:
        if layers is None:
            raise ValueError("vim and react need penultimate features; leave features= out")
        layers.check(features)
        self.weight, self.bias = layers.weight, layers.bias
        return layers

    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, the mean over members: ``[rows]`` in float64."""
        self.layers.check(features)
        members = range(self.layers.members)
        return torch.stack([self._score(features, member) for member in members]).mean(0)

    def _score(self, features: Tensor, member: int) -> Tensor:
        raise NotImplementedError


@dataclass(eq=False)
class ViM(_LayerScore):
    """Virtual logit: features outside the principal subspace, against the energy (Wang, 2022).

    Wang et al. (2022), *ViM: Out-Of-Distribution with Virtual-logit Matching*. Features x enter the
    last layer, ``l = W x + b``:

    - the origin is where all logits vanish, ``o = −W⁺ b``, and ``z = x − o``;
    - the principal subspace P is spanned by the D leading eigenvectors of ``ZᵀZ``; the residual
      ``r = z − P Pᵀ z`` is what lies outside;
    - the virtual logit is ``l₀ = α ‖r‖`` with ``α = Σ_i max_c l_c(x_i) / Σ_i ‖r_i‖`` over the
      training rows, which gives it the size of an ordinary largest logit;
    - the paper's score is its share in the softmax, ``p₀ = e^{l₀} / (e^{l₀} + Σ_c e^{l_c})``.

    This is ``log p₀ / (1 − p₀) = α ‖r‖ − log Σ_c e^{l_c}``, which orders inputs as p₀ does and does
    not round to 1.

    The score of an ensemble is the mean over its members, each with its own o, P and α. Members'
    features have no axes in common, so that one subspace for all would mean little; their virtual
    logits all have the size of a logit and can be averaged, as the energy is.

    ``dimension`` is D; None takes the authors' rule for the width of the features: 1000 from 2048,
    512 from 768, else half of it. Where the training features span no more than that many
    dimensions (dead units, fewer rows than features), half of what they span is taken.

    Fitting finds ``origin`` ``[members, width]``, ``principal`` ``[members, width, D]`` and
    ``alpha`` ``[members]``.

    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> train = torch.tensor([[4.0, 1.0], [-4.0, 1.0]])          # largest logits 4, residuals 1
    >>> vim = ViM().fit(train, layers=LastLayers.of([layer]))
    >>> vim.alpha, vim(torch.tensor([[0.0, 3.0]]))               # 4 · 3 − log 2
    (tensor([4.], dtype=torch.float64), tensor([11.3069], dtype=torch.float64))
    """

    dimension: int | None = number(None, low=1)
    origin: Tensor = fitted(2)
    principal: Tensor = fitted(3)
    alpha: Tensor = fitted(1)

    def fit(
        self, features: Tensor, targets: Tensor | None = None, layers: LastLayers | None = None
    ) -> Self:
        """Origin, subspace and α of training features; labels are not needed."""
        layers = self._keep(features, layers)
        self.origin = -(torch.linalg.pinv(layers.weight) @ layers.bias[..., None]).squeeze(-1)
        spectra = [_spectrum(features, layers, self.origin, m) for m in range(layers.members)]
        rank = min(_rank(values) for values, _ in spectra)
        size = _choose_dimension(layers.width, rank, self.dimension)
        self.principal = torch.stack([vectors[:, layers.width - size :] for _, vectors in spectra])
        self.alpha = torch.stack(
            [self._alpha(features, member) for member in range(layers.members)]
        )
        return self

    def _score(self, features: Tensor, member: int) -> Tensor:
        return torch.cat(
            [
                self.alpha[member] * self._residual_norm(member, x)
                - self.layers.logits(member, x).logsumexp(-1)
                for x in self.layers.parts(features, member)
            ]
        )

    def _residual_norm(self, member: int, x: Tensor) -> Tensor:
        z, principal = x - self.origin[member], self.principal[member]
        norm: Tensor = torch.linalg.vector_norm(z - (z @ principal) @ principal.T, dim=-1)
        return norm

    def _alpha(self, features: Tensor, member: int) -> Tensor:
        """``Σ_i max_c l_c(x_i) / Σ_i ‖r_i‖``."""
        largest = residuals = self.origin.new_zeros(())
        for x in self.layers.parts(features, member):
            largest = largest + self.layers.logits(member, x).amax(-1).sum()
            residuals = residuals + self._residual_norm(member, x).sum()
        if not residuals > 0:
            raise ValueError("the training features are all the same point; vim needs real data")
        if not largest > 0:
            raise ValueError(
                f"vim needs logits that rise above 0, those of member {member} do not; train first"
            )
        return largest / residuals


def _spectrum(
    features: Tensor, layers: LastLayers, origin: Tensor, member: int
) -> tuple[Tensor, Tensor]:
    """Eigenvalues of ``ZᵀZ`` in rising order, and the eigenvectors."""
    products = origin.new_zeros(layers.width, layers.width)
    for x in layers.parts(features, member):
        z = x - origin[member]
        products.addmm_(z.T, z)
    values, vectors = torch.linalg.eigh(products)
    return values, vectors


def _rank(values: Tensor) -> int:
    """How many eigenvalues are more than rounding."""
    least = values[-1] * len(values) * torch.finfo(values.dtype).eps
    return int((values > least).sum())


def _choose_dimension(width: int, rank: int, dimension: int | None) -> int:
    if dimension is not None:
        if dimension >= rank:
            raise ValueError(f"dimension must be from 1 to {rank - 1}, got {dimension!r}")
        return dimension
    size = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    return size if size < rank else rank // 2


@dataclass(eq=False)
class ReAct(_LayerScore):
    """Energy of the logits of clipped features (Sun et al., 2021).

    ``−log Σ_c e^{l_c}`` with ``l = W min(x, c) + b``; *ReAct: Out-of-distribution Detection With
    Rectified Activations*. Unknown inputs often excite a few units far more than any known input
    does, which raises the logits and hides them from the energy. c is one number for each network,
    the ``quantile`` of all activations of the training data. The score of an ensemble is the mean
    over its members, as the energy is, each clipped at its own c. Fitting finds ``clip``, which is
    c, ``[members]``.

    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.eye(2))
    >>> train = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    >>> react = ReAct(quantile=1.0).fit(train, layers=LastLayers.of([layer]))
    >>> react(torch.tensor([[9.0, 3.0]]))                        # −log(e³ + e³)
    tensor([-3.6931], dtype=torch.float64)
    """

    quantile: float = number(0.9, above=0, high=1)
    clip: Tensor = fitted(1)

    def fit(
        self, features: Tensor, targets: Tensor | None = None, layers: LastLayers | None = None
    ) -> Self:
        """Take c from training features; labels are not needed."""
        layers = self._keep(features, layers)
        own = (torch.cat(list(layers.parts(features, m))) for m in range(layers.members))
        clip = [np.quantile(values.cpu().numpy(), self.quantile) for values in own]
        self.clip = layers.weight.new_tensor(clip)
        return self

    def _score(self, features: Tensor, member: int) -> Tensor:
        clipped = (x.minimum(self.clip[member]) for x in self.layers.parts(features, member))
        return torch.cat([-self.layers.logits(member, x).logsumexp(-1) for x in clipped])
