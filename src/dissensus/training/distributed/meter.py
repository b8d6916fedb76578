"""An epoch's figures where each rank has outputs of its own members only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dissensus.objectives import Objective
from dissensus.training.distributed.exchange import Exchange
from dissensus.training.layout import Layout
from dissensus.training.meters import Meter

__all__ = ["TeamMeter"]

_BATCHES = 64  # kept at most before they are gathered: as soon do all hear of a wish to stop


class TeamMeter(Meter):
    """As ``Meter``: from outputs that an objective has gathered, or gathering them by and by.

    Without an ``objective``, and for one that is not coupled, steps exchange nothing, and the
    outputs of many batches are gathered at once; the parts of the objective are found then.
    """

    def __init__(
        self, exchange: Exchange, layout: Layout, combine: str, objective: Objective | None
    ) -> None:
        super().__init__(layout.members, combine)
        self.exchange, self.layout, self.objective = exchange, layout, objective
        self.gathers = objective is None or not objective.coupled
        self.collected = 0  # of the batches kept, those whose outputs are of all members

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if self.gathers:
            rows = self.layout.share(len(targets)).of(self.exchange.rank)[1]
            targets = targets[rows.start : rows.stop]
        if len(outputs) and len(targets):
            super().check(outputs, targets)

    def _full(self) -> bool:
        if not self.gathers:
            return super()._full()
        if len(self.outputs) - self.collected >= _BATCHES:
            self.collect()
        # The outputs of all members, of which this rank may have few or none.
        width = self.exchange.width or 1
        return self._enough(len(self.outputs) * len(self.drawn[0]) * len(self.targets[0]) * width)

    def flush(self) -> None:
        """Judge what is kept, after gathering what is not."""
        self.collect()
        super().flush()
        self.collected = 0

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As one process has it."""
        self.collect()
        return super().state()

    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any], device: torch.device) -> None:
        """Go on from what :meth:`state` returned."""
        super().load(tensors, plain, device)
        self.collected = len(self.outputs)

    def collect(self) -> None:
        """Gather the outputs of batches that are not gathered yet."""
        start, self.collected = self.collected, len(self.outputs)
        if not self.gathers or start == len(self.outputs):
            return
        pieces, targets = self.outputs[start:], self.targets[start:]
        shares = [
            self.layout.share(len(y), drawn)
            for y, drawn in zip(targets, self.drawn[start:], strict=True)
        ]
        with torch.no_grad():
            kind = "evaluate" if self.objective is None else "figures"
            self.outputs[start:] = self.exchange.gather(pieces, shares, targets[-1], kind)
            if self.objective is not None:
                weights: list[Tensor | None] = [*self.weights[start:]] or [None] * len(targets)
                self.parts[start:] = [
                    (len(y), self._parts(self.objective, o, y, w))
                    for o, y, w in zip(self.outputs[start:], targets, weights, strict=True)
                ]

    def _parts(
        self, objective: Objective, outputs: Tensor, y: Tensor, weights: Tensor | None
    ) -> dict[str, Tensor]:
        if outputs.dtype in (torch.float16, torch.bfloat16):
            outputs = outputs.float()
        return objective.evaluate(outputs, y, example_weights=weights).parts
