"""ViM, virtual-logit matching: features outside the principal subspace, against the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from dissensus.detection.distance_files import Distance, State
from dissensus.detection.last_layer import LastLayer


@dataclass(frozen=True, eq=False, repr=False)
class ViM(Distance):
    """The log-odds of a virtual class made of what the training features do not span.

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

    Made by :meth:`fit`. Called with features, gives ``[rows]`` in float64; higher means more out of
    distribution. ``origin`` is ``[members, width]``, ``principal`` ``[members, width, D]``,
    ``alpha`` ``[members]``.

    >>> layer = LastLayer.of(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> train = torch.tensor([[4.0, 1.0], [-4.0, 1.0]])          # largest logits 4, residuals 1
    >>> vim = ViM.fit(train, layer)
    >>> vim.alpha, vim(torch.tensor([[0.0, 3.0]]))               # 4 · 3 − log 2
    (tensor([4.], dtype=torch.float64), tensor([11.3069], dtype=torch.float64))
    """

    kind = "vim"
    axes: ClassVar = {"weight": 3, "bias": 2, "origin": 2, "principal": 3, "alpha": 1}

    layer: LastLayer
    origin: Tensor
    principal: Tensor
    alpha: Tensor

    @classmethod
    def fit(cls, features: Tensor, layer: LastLayer, *, dimension: int | None = None) -> Self:
        """Origin, subspace and α of training features; labels are not needed.

        ``dimension`` is D; None takes the authors' rule for the width of the features: 1000 from
        2048, 512 from 768, else half of it. Where the training features span no more than that
        many dimensions (dead units, fewer rows than features), half of what they span is taken.
        """
        layer.check(features)
        layer = layer.double()
        origin = -(torch.linalg.pinv(layer.weight) @ layer.bias[..., None]).squeeze(-1)
        spectra = [_spectrum(features, layer, origin, m) for m in range(layer.members)]
        rank = min(_rank(values) for values, _ in spectra)
        size = _choose_dimension(layer.width, rank, dimension)
        principal = torch.stack([vectors[:, layer.width - size :] for _, vectors in spectra])
        alpha = [
            _alpha(features, layer, origin, principal, member) for member in range(layer.members)
        ]
        return cls(layer, origin, principal, torch.stack(alpha))

    def __repr__(self) -> str:
        members, width, dimension = self.principal.shape
        return f"ViM({members} members, {width} features, dimension={dimension})"

    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, ``[rows]`` in float64."""
        self.layer.check(features)
        members = range(self.layer.members)
        return torch.stack([self._score(features, member) for member in members]).mean(0)

    def _score(self, features: Tensor, member: int) -> Tensor:
        origin, principal = self.origin[member], self.principal[member]
        return torch.cat(
            [
                self.alpha[member] * _residual_norm(x, origin, principal)
                - self.layer.logits(member, x).logsumexp(-1)
                for x in self.layer.parts(features, member)
            ]
        )

    def state(self) -> State:
        tensors = {"weight": self.layer.weight, "bias": self.layer.bias, "origin": self.origin}
        return tensors | {"principal": self.principal, "alpha": self.alpha}, {}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Self:
        return cls(LastLayer.of(tensors.pop("weight"), tensors.pop("bias")), **tensors)


def _residual_norm(x: Tensor, origin: Tensor, principal: Tensor) -> Tensor:
    z = x - origin
    norm: Tensor = torch.linalg.vector_norm(z - (z @ principal) @ principal.T, dim=-1)
    return norm


def _spectrum(
    features: Tensor, layer: LastLayer, origin: Tensor, member: int
) -> tuple[Tensor, Tensor]:
    """Eigenvalues of ``ZᵀZ`` in rising order, and the eigenvectors."""
    products = origin.new_zeros(layer.width, layer.width)
    for x in layer.parts(features, member):
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
        if isinstance(dimension, bool) or not 1 <= dimension < rank:
            raise ValueError(
                f"dimension must leave something of the {rank} dimensions that the training "
                f"features span: from 1 to {rank - 1}, got {dimension!r}"
            )
        return dimension
    size = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    return size if size < rank else rank // 2


def _alpha(
    features: Tensor, layer: LastLayer, origin: Tensor, principal: Tensor, member: int
) -> Tensor:
    largest = residuals = origin.new_zeros(())
    for x in layer.parts(features, member):
        largest = largest + layer.logits(member, x).amax(-1).sum()
        residuals = residuals + _residual_norm(x, origin[member], principal[member]).sum()
    if not residuals > 0:
        raise ValueError(
            "the training features are all the same point, so no subspace can be fitted to them; "
            "fit on the features of real training data"
        )
    if not largest > 0:
        raise ValueError(
            f"the largest logits of member {member} are {largest / len(features):.3g} on average; "
            "ViM scales residuals by them and needs logits that rise above 0: train the members "
            "first, or choose another score"
        )
    return largest / residuals
