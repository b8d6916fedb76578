"""Forward passes: batches of inputs with everything that several scores share, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dissensus.detection.feature_scores import FeatureScore
from dissensus.outputs import check_outputs
from dissensus.scores import Logits
from dissensus.tools.modules import eval_mode

T = TypeVar("T")

#: From inputs ``[batch, …]`` to features ``[batch, width]``, or to members' outputs.
Function = Callable[[Tensor], Tensor]


class ForwardPass:
    """A batch of inputs ``x`` and, with labels, ``y``: outputs and features, each computed once.

    Modules run in eval mode and without gradients, and get their training mode back.
    """

    def __init__(self, x: Tensor, y: Tensor | None = None) -> None:
        self.x, self.y = x, y
        self._computed: dict[Any, Any] = {}

    def outputs(self, members: Function, space: str = "logits") -> Tensor:
        """What ``members`` return, ``[members, batch, outputs]``, checked."""
        return self._once(("outputs", members, space), lambda: self._run_members(members, space))

    def scored(self, members: Function, space: str = "logits") -> Logits:
        """The logits of ``members`` with the quantities that scores share."""
        outputs = self.outputs(members, space)
        return self._once(("scored", members, space), lambda: Logits(outputs, None, space))

    def features(self, source: Function | None) -> Tensor:
        """Features of the inputs, ``[batch, width]``; without a ``source`` the inputs."""
        return self._once(("features", source), lambda: self._run_source(source))

    def distance(self, score: FeatureScore, source: Function | None) -> Tensor:
        """A score of features, ``[batch]``."""
        return self._once((score, source), lambda: score(self.features(source)))

    def _once(self, key: Any, compute: Callable[[], T]) -> T:
        if key not in self._computed:
            self._computed[key] = compute()
        value: T = self._computed[key]
        return value

    def _run_members(self, members: Function, space: str) -> Tensor:
        with torch.no_grad(), eval_mode(members):
            outputs = members(self.x)
        check_outputs(outputs, finite=space != "log_probs")
        if outputs.shape[1] != len(self.x):
            raise ValueError(
                f"ens must return [members, {len(self.x)}, outputs], got {tuple(outputs.shape)}"
            )
        return outputs

    def _run_source(self, source: Function | None) -> Tensor:
        if source is None:
            return self.x.flatten(1)
        with torch.no_grad():
            return source(self.x)


def forward_passes(
    data: Tensor | Iterable[Any], batch_size: int, device: torch.device | None = None
) -> Iterator[ForwardPass]:
    """Passes of at most ``batch_size`` inputs each, on ``device``.

    ``data`` is a tensor, an ``(x, y)`` tuple, a DataLoader or another iterable of batches ``x`` or
    ``(x, y)``.
    """
    if isinstance(data, Dataset):
        raise ValueError("data must come in batches, got a Dataset; pass DataLoader(data, 256)")
    whole = isinstance(data, Tensor) or (
        isinstance(data, tuple) and len(data) == 2 and all(isinstance(d, Tensor) for d in data)
    )
    for batch in [data] if whole else data:
        parts = batch if isinstance(batch, (tuple, list)) and batch else [batch]
        x, y = parts[0], parts[1] if len(parts) > 1 else None
        if not isinstance(x, Tensor) or x.ndim == 0:
            raise ValueError(f"data must be a tensor, (x, y) or batches, got {type(x).__name__}")
        for start in range(0, len(x), batch_size):
            own = slice(start, start + batch_size)
            part = x[own] if device is None else x[own].to(device)
            yield ForwardPass(part, y[own] if isinstance(y, Tensor) else None)
