"""Training in a single process, which holds all members, and its interruption by a signal.

``distributed.ProcessGroup`` does the same as one of several processes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Self, TypeVar

from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective
from dissensus.training.meters import Meter
from dissensus.training.predict import evaluate
from dissensus.training.recipe import CheckpointInterval, Recipe
from dissensus.training.run_folder import RunFolder, read_checkpoint
from dissensus.training.step import Trainer
from dissensus.training.stream import Stream

Callback = Callable[[dict[str, Any], Ensemble], bool | None]
T = TypeVar("T")


class Stopped(KeyboardInterrupt):
    """Training was interrupted after a step; what was done is saved if there is a run folder."""


class Interruption:
    """While entered, the first Ctrl-C or SIGTERM only sets ``wanted``; a second one interrupts.

    In a thread other than the main one signals cannot be caught, and ``wanted`` stays False.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True


class SingleProcess:
    """What the training loop needs from its process, where one process does everything."""

    rank, first, single = 0, True, True

    def __init__(self, ens: Ensemble) -> None:
        self.ens, self.members, self.execution = ens, ens.members, ens.execution

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        pass

    # ---- the loop -------------------------------------------------------------------------------

    def make_trainer(self, objective: Objective, recipe: Recipe) -> Trainer:
        return Trainer(self.ens, objective, recipe)

    def make_meter(self, objective: Objective) -> Meter:
        return Meter(self.ens.members, self.ens.combine)

    def should_resume(self, resume: bool, folder: RunFolder | None) -> bool:
        """Whether to resume the run in ``folder``."""
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

    def call(self, callbacks: Sequence[Callback], record: dict[str, Any]) -> bool:
        """Call back; return whether a callback ends training."""
        answers = [callback(record, self.ens) for callback in callbacks]
        return any(answers)

    # ---- exchanges ------------------------------------------------------------------------------

    def on_first(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which the first process alone does."""
        return work()

    def broadcast(self, value: T) -> T:
        """The first process's value, so that all decide by the same bits."""
        return self.on_first(lambda: value)

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of all members, in the first process."""
        return tensors

    # ---- checkpoints ----------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Weights and statistics of the members of this process."""
        return self.ens.state_dict()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.ens.load_state_dict(weights)

    def random_states(self) -> dict[str, Tensor]:
        """The random states of other processes, beside that of the stream."""
        return {}

    def load_checkpoint(self, folder: RunFolder) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and values of the checkpoint in ``folder``; None where there is none."""
        return read_checkpoint(folder.path)

    def finish(self, execution: str) -> None:
        """Leave the ensemble with its final weights; ``execution`` is what ``"tune"`` chose."""
        self.ens.eval()

    def description(self) -> dict[str, Any]:
        """What a run's record says about its processes."""
        return {}
