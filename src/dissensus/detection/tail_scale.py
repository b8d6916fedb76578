"""Tail scales: scores of different kinds, comparable by how rare each is among known inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dissensus.tools.files import check_types
from dissensus.tools.guards import check_finite

#: Where the exponential tail begins: the share of known inputs below.
_BODY = 0.9

#: Levels of the quantiles below that.
_LEVELS = np.linspace(0, _BODY, 91)

#: The fewest validation rows; ten rows make a tail.
_FEWEST = 20


@dataclass(frozen=True)
class TailScale:
    """``t(s) = −log P(S > s)``, S being the score of a known input.

    A known input has ``t ~ Exp(1)`` whatever the score, so that sums and thresholds of several
    scores mean the same for each. Below the 90% quantile q, P is that of the validation data,
    interpolated between ``quantiles``. Above, it is an exponential tail with the same mean
    ``excess`` over q, ``P(S > s) = 0.1 · exp(−(s − q) / excess)``: an empirical distribution would
    call everything beyond the validation data equally rare. Median and MAD would not do: mutual
    information is nearly 0 for most known inputs and large for a few, and in units of its MAD
    these few would be rarer than any distance.

    >>> scale = TailScale.fit(torch.arange(101.0))               # q = 90, mean excess 5.5
    >>> scale(torch.tensor([50.0, 90.0, 101.0]))                 # log 2, log 10, log 10 + 11 / 5.5
    tensor([0.6931, 2.3026, 4.3026], dtype=torch.float64)
    """

    quantiles: tuple[float, ...]
    excess: float

    @classmethod
    def fit(cls, scores: Tensor, name: str = "the score") -> Self:
        """The scale of validation scores ``[rows]``; ``name`` is the score's in errors."""
        check_finite(scores, name=name)
        if scores.ndim != 1 or len(scores) < _FEWEST:
            raise ValueError(f"a combination needs {_FEWEST} validation rows, got {len(scores)}")
        values = scores.detach().double().cpu().numpy()
        quantiles = np.quantile(values, _LEVELS)
        above = values[values > quantiles[-1]] - quantiles[-1]
        excess = float(above.mean()) if len(above) else float(np.ptp(quantiles))
        if not excess > 0:
            raise ValueError(
                f"{name} is {values[0]:g} for all validation rows; choose a score that varies"
            )
        return cls(tuple(map(float, quantiles)), excess)

    def __call__(self, scores: Tensor) -> Tensor:
        """t of each score, in float64; 0 for what lies below all validation scores."""
        check_finite(scores, name="scores")
        scores = scores.double().contiguous()
        edges = scores.new_tensor(self.quantiles)
        levels = scores.new_tensor(_LEVELS)
        above = torch.searchsorted(edges, scores, right=True).clamp(1, len(edges) - 1)
        low, high = edges[above - 1], edges[above]
        inside = (scores - low) / (high - low)
        part = torch.where(high > low, inside, (scores >= low).double()).clamp(0, 1)
        body = levels[above - 1] + part * (levels[above] - levels[above - 1])
        tail = (scores - edges[-1]).clamp_min(0) / self.excess
        return tail - torch.log1p(-body)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"quantiles": list(self.quantiles), "excess": self.excess}

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Back from :meth:`to_dict`."""
        check_types(values, {"quantiles": [float], "excess": float}, "a tail scale")
        quantiles, excess = values["quantiles"], values["excess"]
        if len(quantiles) != len(_LEVELS) or quantiles != sorted(quantiles) or not excess > 0:
            raise ValueError(
                f"a tail scale holds {len(_LEVELS)} rising quantiles and a mean excess above 0"
            )
        return cls(tuple(map(float, quantiles)), float(excess))


def combine_tails(parts: Sequence[Tensor], scales: Sequence[TailScale]) -> Tensor:
    """Minus the log of the weighted harmonic mean of p-values (Wilson, 2019), ``[rows]``.

    ``log Σ_i w_i / p_i = log Σ_i w_i e^{t_i}`` with ``t = −log p`` of each :class:`TailScale`. It
    is a smooth maximum: an input that one part calls rare is rare, and an input that all call rare
    a little more so. Scores of one input depend on each other, which this mean allows for; the sum
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
