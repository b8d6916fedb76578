"""ReAct, rectified activations: the energy after clipping features that are unusually large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from dissensus.detection.distance_files import Distance, State
from dissensus.detection.last_layer import LastLayer


@dataclass(frozen=True, eq=False, repr=False)
class ReAct(Distance):
    """``−log Σ_c e^{l_c}`` with ``l = W min(x, c) + b``.

    Sun et al. (2021), *ReAct: Out-of-distribution Detection With Rectified Activations*. Unknown
    inputs often excite a few units far more than any known input does, which raises the logits and
    hides them from the energy. c is one number for each network, a quantile of all activations of
    the training data. The score of an ensemble is the mean over its members, as the energy is,
    each clipped at its own c.

    Made by :meth:`fit`. Called with features, gives ``[rows]`` in float64; higher means more out of
    distribution. ``clip`` is c, ``[members]``.

    >>> layer = LastLayer.of(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> react = ReAct.fit(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), layer, quantile=1.0)
    >>> react(torch.tensor([[9.0, 3.0]]))                        # −log(e³ + e³)
    tensor([-3.6931], dtype=torch.float64)
    """

    kind = "react"
    axes: ClassVar = {"weight": 3, "bias": 2, "clip": 1}

    layer: LastLayer
    clip: Tensor

    @classmethod
    def fit(cls, features: Tensor, layer: LastLayer, *, quantile: float = 0.9) -> Self:
        """Take c from training features; labels are not needed."""
        layer.check(features)
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile must be above 0 and at most 1, got {quantile!r}")
        layer = layer.double()
        clip = [
            np.quantile(torch.cat(list(layer.parts(features, member))).cpu().numpy(), quantile)
            for member in range(layer.members)
        ]
        return cls(layer, torch.tensor(clip, dtype=torch.float64, device=layer.weight.device))

    def __repr__(self) -> str:
        return f"ReAct({self.layer.members} members, {self.layer.width} features)"

    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, ``[rows]`` in float64."""
        self.layer.check(features)
        members = range(self.layer.members)
        return torch.stack([self._score(features, member) for member in members]).mean(0)

    def _score(self, features: Tensor, member: int) -> Tensor:
        clipped = (x.minimum(self.clip[member]) for x in self.layer.parts(features, member))
        return torch.cat([-self.layer.logits(member, x).logsumexp(-1) for x in clipped])

    def state(self) -> State:
        return {"weight": self.layer.weight, "bias": self.layer.bias, "clip": self.clip}, {}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Self:
        return cls(LastLayer.of(tensors["weight"], tensors["bias"]), tensors["clip"])
