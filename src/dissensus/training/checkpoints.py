"""Checkpoints of a run: weights, the best weights, moments, random numbers and metrics.

They are kept in memory and, where there is a run folder, on disk, from which a run resumes.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from dissensus.objectives import Objective
from dissensus.training.history import History, RunState
from dissensus.training.meters import Meter
from dissensus.training.recipe import Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.single_process import SingleProcess
from dissensus.training.step import Trainer
from dissensus.training.stream import Stream


class Checkpoints:
    """The state of a run, in memory and, where there is a folder, on disk.

    Of several processes the first writes, and the folder has to be one that all can read.
    """

    def __init__(
        self,
        process: SingleProcess,
        objective: Objective,
        recipe: Recipe,
        folder: RunFolder | None,
        stream: Stream,
    ) -> None:
        self.process, self.objective, self.recipe = process, objective, recipe
        self.folder, self.stream = folder, stream
        self.state = RunState()
        self.best: dict[str, Tensor] = {}
        self.restored: dict[str, Tensor] = {}
        self.fresh = True

    # ---- starting and going on ------------------------------------------------------------------

    def start(self, config: dict[str, Any], *, resume: bool) -> None:
        """Open the folder; with ``resume``, bring back what its checkpoint holds."""
        if self.folder is None:
            if resume:
                raise ValueError("resume=True needs out=, the folder of the run to go on with")
            return
        folder, process = self.folder, self.process
        settings, needed = self.config(config), self._bytes_needed()
        process.on_first(lambda: folder.start(settings, needed, resume=resume))
        damage = process.on_first(folder.mend_checkpoint) if resume else ""
        if damage and process.first:
            warnings.warn(damage, stacklevel=3)
        checkpoint = process.load_checkpoint(folder) if resume else None
        if checkpoint is None:
            process.on_first(lambda: folder.keep_epochs(0))
            return
        self.restored, values = checkpoint
        state, self.fresh = RunState(**values), False
        state.epochs = process.on_first(lambda: folder.keep_epochs(state.epoch))
        try:
            process.load_weights(_with_prefix(self.restored, "model."))
        except RuntimeError as error:
            raise ValueError(
                f"the checkpoint in {folder.path} is of another ensemble: {error}"
            ) from error
        self.best = _with_prefix(self.restored, "best.")
        if not self.best and state.best_value is not None:  # the checkpoint's own are the best
            self.best = _with_prefix(self.restored, "model.")
        if state.execution:
            process.ens.execution = state.execution
        state.resume(self.recipe)
        self.state = state

    def restore_trainer(self, trainer: Trainer) -> None:
        """Bring back moments and step counts."""
        if self.restored:
            try:
                trainer.load(_with_prefix(self.restored, "optimizer."))
            except KeyError as error:
                raise ValueError(f"the checkpoint lacks the tensor {error}") from error

    def restore_meter(self) -> Meter:
        """The meter of the epoch that begins, or of the one that was interrupted."""
        meter, device = self.process.make_meter(self.objective), self.process.ens.device
        meter.own = self.stream.own_batches
        if self.state.meter is not None:
            meter.load(_with_prefix(self.restored, "meter."), self.state.meter, device)
            self.state.meter = None
        return meter

    def restore_randomness(self) -> dict[str, Tensor] | None:
        """The random numbers of the epoch that was interrupted; None at the start of one."""
        saved = _with_prefix(self.restored, "random.") if self.state.batch else {}
        self.restored = {}  # used once
        return saved or None

    # ---- saving ---------------------------------------------------------------------------------

    def keep_best(self) -> None:
        """Remember the weights of now."""
        self.best = {name: t.detach().clone() for name, t in self.process.weights().items()}

    def save(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Save after an epoch."""
        if self.state.epoch >= self.recipe.epochs and not self.state.ended:
            self.state.ended = "epochs"
        self._write(trainer, {}, record)

    def save_within_epoch(self, trainer: Trainer, meter: Meter) -> None:
        """Save in the middle of an epoch, with its metrics and random numbers so far."""
        if self.folder is None:
            return
        tensors, self.state.meter = meter.state()
        randomness = self.stream.randomness() | self.process.random_states()
        self._write(trainer, _prefixed("meter.", tensors) | _prefixed("random.", randomness))
        self.state.meter = None  # the epoch goes on with the meter that it has

    def _write(
        self, trainer: Trainer, extra: dict[str, Tensor], record: dict[str, Any] | None = None
    ) -> None:
        if self.folder is None:
            return
        tensors = _prefixed("model.", self.process.weights())
        if record is None or self.state.best_epoch < self.state.epoch:  # else they are the same
            tensors |= _prefixed("best.", self.best)
        tensors = self.process.gather(tensors | _prefixed("optimizer.", trainer.state()))
        if not self.process.first:
            return
        if record is not None:
            self.folder.append(record)
        self.folder.save(tensors | extra, self.state.plain())

    def finish(self) -> History:
        """Put the best weights in place and write what came out."""
        state = self.state
        if self.best:
            self.process.load_weights(self.best)
        self.process.finish(state.execution)
        history = state.history(self.process.ens.resolved_execution())
        if self.folder is not None and self.process.first:
            self.folder.finish(
                {
                    "kind": "run",
                    "objective": self.objective.spec(),
                    "members": self.process.members,
                    "seed": self.recipe.seed,
                    "epochs": state.epoch,
                    "best_epoch": state.best_epoch,
                    "ended": history.ended,
                    "seconds": state.seconds,
                    "execution": history.execution,
                    "best": state.epochs[state.best_epoch - 1] if state.epochs else {},
                    **self.process.description(),
                }
            )
        return history

    # ---- the folder -----------------------------------------------------------------------------

    def config(self, extra: dict[str, Any]) -> dict[str, Any]:
        """What was asked, for ``config.toml``."""
        ensemble = {
            **extra.get("ensemble", {}),
            "members": self.process.members,
            "combine": self.process.ens.combine,
            "execution": self.process.execution,
            **({"sharing": self.process.ens.sharing} if self.process.ens.sharing else {}),
        }
        training = {"objective": self.objective.spec(), **self.recipe.plain()}
        # Their place is the last, whether extra has them or not: a resumed run keeps its bytes.
        rest = {name: extra[name] for name in extra if name not in ("ensemble", "training")}
        return {**rest, "ensemble": ensemble, "training": training}

    def _bytes_needed(self) -> int:
        """About what three checkpoints take: weights, best weights and two moments, each time."""
        sizes = [
            int(t.numel()) * int(t.element_size()) for t in self.process.ens.state_dict().values()
        ]
        return 12 * sum(sizes) + 2**20


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}
