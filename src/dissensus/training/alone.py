"""What the training loop asks of its surroundings, where one process does everything.

``distributed.Team`` answers the same questions for one of several processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective
from dissensus.training.batches import split_weights
from dissensus.training.interruption import Interruption
from dissensus.training.meters import Meter, check_task
from dissensus.training.pacing import Pace
from dissensus.training.predict import outputs_of
from dissensus.training.recipe import Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.saving import Saver
from dissensus.training.steps import Trainer, make_trainer
from dissensus.training.stream import Stream

__all__ = ["Alone", "Callback", "evaluate"]

Callback = Callable[[dict[str, Any], Ensemble], bool | None]


class Alone:
    """One process with all members."""

    rank, first, alone = 0, True, True

    def __init__(self, ens: Ensemble) -> None:
        self.ens, self.members = ens, ens.members

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def resuming(self, resume: bool, folder: RunFolder | None) -> bool:
        """Whether to go on with the run in ``folder``."""
        return resume

    def saver(
        self, objective: Objective, recipe: Recipe, folder: RunFolder | None, stream: Stream
    ) -> Saver:
        """What keeps the run."""
        return Saver(self.ens, objective, recipe, folder, stream)

    def trainer(self, objective: Objective, recipe: Recipe) -> Trainer:
        """What makes the steps."""
        return make_trainer(self.ens, objective, recipe)

    def tune(self, stream: Stream) -> str:
        """Measure which execution is faster, and use it."""
        self.ens.tune(stream.first_inputs())
        return self.ens.execution

    def stopping(self, interruption: Interruption) -> bool:
        """Whether to stop after the step that was made."""
        return interruption.wanted

    def pausing(self, pace: Pace, batch: int) -> bool:
        """Whether to save amid the epoch, after so many batches of it."""
        return pace.due(batch)

    def settle(self) -> None:
        """Called between training and evaluating."""

    def evaluate(self, data: Any, batch_size: int) -> dict[str, Any]:
        """The figures of a data set."""
        return evaluate(self.ens, data, batch_size)

    def agreed(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record of an epoch that all decisions are made by."""
        return record

    def called(self, callbacks: Sequence[Callback], record: dict[str, Any]) -> bool:
        """Call back; whether a callback ends training."""
        answers = [callback(record, self.ens) for callback in callbacks]
        return any(answers)


def evaluate(ens: Ensemble, data: Any, batch_size: int) -> dict[str, Any]:
    """The figures of a data set in evaluation mode, as in an epoch's record.

    Judged as it is run, so that outputs are never all in memory.
    """
    meter, first = Meter(ens.members, ens.combine), True
    data, weights = split_weights(data)
    begin = 0
    for outputs, targets in outputs_of(ens, data, max(batch_size, 1024)):
        if targets is None:
            raise ValueError("validation data must be (x, y), got x alone")
        if first:
            check_task(outputs, targets, ens.combine)
        first = False
        own = None if weights is None else weights[begin : begin + len(targets)].cpu()
        meter.add(outputs, targets, {}, None, own)
        begin += len(targets)
    if first:
        raise ValueError("the validation data are empty, got 0 batches")
    return meter.record()
