"""Training in a single process, which holds all members.

``distributed.ProcessGroup`` is the counterpart with the same methods for one of several processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective
from dissensus.training.checkpoints import Checkpoints
from dissensus.training.interruption import Interruption
from dissensus.training.predict import evaluate
from dissensus.training.recipe import CheckpointInterval, Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.step import Trainer
from dissensus.training.stream import Stream

__all__ = ["Callback", "SingleProcess"]

Callback = Callable[[dict[str, Any], Ensemble], bool | None]


class SingleProcess:
    """What the training loop needs from its surroundings, where one process does everything."""

    rank, first, single = 0, True, True

    def __init__(self, ens: Ensemble) -> None:
        self.ens, self.members = ens, ens.members

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def make_checkpoints(
        self, objective: Objective, recipe: Recipe, folder: RunFolder | None, stream: Stream
    ) -> Checkpoints:
        """What keeps the state of the run."""
        return Checkpoints(self.ens, objective, recipe, folder, stream)

    def make_trainer(self, objective: Objective, recipe: Recipe) -> Trainer:
        """What makes the steps."""
        return Trainer(self.ens, objective, recipe)

    def should_resume(self, resume: bool, folder: RunFolder | None) -> bool:
        """Whether to go on with the run in ``folder``."""
        return resume

    def should_stop(self, interruption: Interruption) -> bool:
        """Whether to stop after the last step."""
        return interruption.wanted

    def should_save(self, interval: CheckpointInterval, batch: int) -> bool:
        """Whether to save in the middle of an epoch, after so many batches of it."""
        return interval.due(batch)

    def tune(self, stream: Stream) -> str:
        """Measure which execution is faster, and use it."""
        self.ens.tune(stream.first_inputs())
        return self.ens.execution

    def synchronize_statistics(self) -> None:
        """Make running statistics equal where several processes hold the same member."""

    def evaluate(self, data: Any, batch_size: int) -> dict[str, Any]:
        """The metrics of a data set."""
        return evaluate(self.ens, data, batch_size)

    def broadcast(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record of an epoch that all processes decide by."""
        return record

    def call(self, callbacks: Sequence[Callback], record: dict[str, Any]) -> bool:
        """Call back; whether a callback ends training."""
        answers = [callback(record, self.ens) for callback in callbacks]
        return any(answers)
