"""What one attack did, example by example."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dissensus.detection import Estimate
from dissensus.robustness.base import Attack

__all__ = ["Outcome", "share"]

#: The 97.5% quantile of the normal distribution.
_Z = 1.959963984540054


def share(count: int, total: int) -> Estimate:
    """``count / total`` with Wilson's 95% interval (1927), which is fair near 0 and 1 too.

    >>> print(share(0, 100))
    0.000 [0.000, 0.037]
    """
    if total < 1:
        raise ValueError(f"a share needs at least one example, got {total}")
    p, z2 = count / total, _Z**2
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z / (1 + z2 / total) * math.sqrt(p * (1 - p) / total + z2 / (4 * total**2))
    low = 0.0 if count == 0 else centre - half
    high = 1.0 if count == total else centre + half
    return Estimate(p, low=low, high=high)


@dataclass(frozen=True)
class Outcome:
    """The result of one attack, evaluated anew: nothing is taken from the attack's own word.

    ``success`` ``[batch]`` says whether the attack got what it wants (a wrong class, or the
    target), ``broken`` whether the prediction is wrong; an example that was wrong from the start is
    both, unchanged. ``distances`` has L∞, L2, L1 and L0 of each change. ``gradients`` is how often
    each example's gradient was taken, ``zero_gradients`` and ``nan_gradients`` how often it was 0
    or not finite, ``queries`` how often outputs alone were looked at. ``step`` and ``restart`` are
    when an attack that stops early was through, −1 where it was not.
    """

    attack: Attack
    adversarial: Tensor
    labels: Tensor
    targets: Tensor | None
    clean_predictions: Tensor
    predictions: Tensor
    success: Tensor
    distances: Mapping[str, Tensor]
    gradients: Tensor
    zero_gradients: Tensor
    nan_gradients: Tensor
    queries: Tensor
    step: Tensor
    restart: Tensor
    seconds: float = field(compare=False, default=0.0)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def broken(self) -> Tensor:
        """Whether the prediction for the changed input is wrong, bool ``[batch]``."""
        return self.predictions != self.labels

    @property
    def accuracy(self) -> Estimate:
        """The share that is still predicted rightly, with Wilson's interval."""
        return share(int((~self.broken).sum()), len(self))

    @property
    def clean_accuracy(self) -> Estimate:
        """The share that was predicted rightly before."""
        return share(int((self.clean_predictions == self.labels).sum()), len(self))

    @property
    def success_rate(self) -> Estimate:
        """The share of examples where the attack got what it wants."""
        return share(int(self.success.sum()), len(self))

    @property
    def moved(self) -> Tensor:
        """Examples that were right and that the attack broke: those whose distance means much."""
        return self.broken & (self.clean_predictions == self.labels)

    def distortion(self, norm: str) -> float | None:
        """The mean distance of the examples that the attack broke; None if there are none."""
        chosen = self.moved
        return float(self.distances[norm][chosen].mean()) if bool(chosen.any()) else None

    @property
    def zero_share(self) -> float:
        """The share of gradients that were exactly 0."""
        total = int(self.gradients.sum())
        return int(self.zero_gradients.sum()) / total if total else 0.0

    def within(self, norm: str, eps: float) -> Tensor:
        """Broken examples whose change is at most ``eps`` in ``norm``, bool ``[batch]``."""
        return self.broken & (self.distances[norm] <= eps * (1 + 1e-5) + 1e-6)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record; the inputs themselves are left out."""
        accuracy = self.accuracy
        return {
            "attack": self.attack.spec(),
            "examples": len(self),
            "accuracy": accuracy.value,
            "interval": [accuracy.low, accuracy.high],
            "success_rate": self.success_rate.value,
            "distortion": {norm: self.distortion(norm) for norm in self.distances},
            "gradients": int(self.gradients.sum()),
            "zero_gradients": int(self.zero_gradients.sum()),
            "nan_gradients": int(self.nan_gradients.sum()),
            "queries": int(self.queries.sum()),
            "seconds": round(self.seconds, 3),
        }
