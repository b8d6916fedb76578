"""Checkpoints of a run: weights, the best weights, moments, random numbers and metrics.

They are kept in memory and, where there is a run folder, on disk, from which a run resumes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective
from dissensus.training.history import History, RunState
from dissensus.training.meters import Meter
from dissensus.training.recipe import Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.step import Trainer
from dissensus.training.stream import Stream

__all__ = ["Checkpoints"]


class Checkpoints:
    """The state of a run, in memory and, where there is a folder, on disk."""

    def __init__(
        self,
        ens: Ensemble,
        objective: Objective,
        recipe: Recipe,
        folder: RunFolder | None,
        stream: Stream,
    ) -> None:
        self.ens, self.objective, self.recipe = ens, objective, recipe
        self.folder, self.stream = folder, stream
        self.members, self.execution = ens.members, ens.execution
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
        self._open(config, resume=resume)
        checkpoint = self._load() if resume else None
        if checkpoint is None:
            self._epochs(0)
            return
        self.restored, values = checkpoint
        self.state, self.fresh = RunState(**values), False
        self.state.epochs = self._epochs(self.state.epoch)
        try:
            self._put_weights(_with_prefix(self.restored, "model."))
        except RuntimeError as error:
            raise ValueError(
                f"the checkpoint in {self.folder.path} is of another ensemble: {error}"
            ) from error
        self.best = _with_prefix(self.restored, "best.")
        if self.state.execution:
            self.ens.execution = self.state.execution
        self.state.resume(self.recipe)

    def _open(self, config: dict[str, Any], *, resume: bool) -> None:
        assert self.folder is not None
        self.folder.start(self._config(config), self._bytes_needed(), resume=resume)

    def _load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        assert self.folder is not None
        return self.folder.load()

    def _epochs(self, epochs: int) -> list[dict[str, Any]]:
        """The records of so many epochs, the only ones that the folder keeps."""
        assert self.folder is not None
        return self.folder.keep_epochs(epochs)

    def restore_trainer(self, trainer: Trainer) -> None:
        """Bring back moments and step counts."""
        if self.restored:
            trainer.load(_with_prefix(self.restored, "optimizer."))

    def restore_meter(self) -> Meter:
        """The meter of the epoch that begins, or of the one that was interrupted."""
        meter = self._meter()
        if self.state.meter is not None:
            meter.load(_with_prefix(self.restored, "meter."), self.state.meter, self.ens.device)
            self.state.meter = None
        return meter

    def _weights(self) -> dict[str, Tensor]:
        return self.ens.state_dict()

    def _put_weights(self, weights: dict[str, Tensor]) -> None:
        self.ens.load_state_dict(weights)

    def _meter(self) -> Meter:
        return Meter(self.ens.members, self.ens.combine)

    def restore_randomness(self) -> dict[str, Tensor] | None:
        """The random numbers of the epoch that was interrupted; None at the start of one."""
        saved = _with_prefix(self.restored, "random.") if self.state.batch else {}
        self.restored = {}  # used once
        return saved or None

    # ---- saving ---------------------------------------------------------------------------------

    def keep_best(self) -> None:
        """Remember the weights of now."""
        self.best = {name: t.detach().clone() for name, t in self._weights().items()}

    def save(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Save after an epoch."""
        state = self.state
        if state.epoch >= self.recipe.epochs and not state.ended:
            state.ended = "epochs"
        self._write(trainer, {}, record)

    def save_within_epoch(self, trainer: Trainer, meter: Meter) -> None:
        """Save in the middle of an epoch, with its figures and random numbers so far."""
        if self.folder is not None:
            self._write(trainer, self._within_epoch(meter))
            self.state.meter = None  # the epoch goes on with the meter that it has

    def _within_epoch(self, meter: Meter) -> dict[str, Tensor]:
        meter_tensors, self.state.meter = meter.state()
        tensors = {f"meter.{name}": tensor for name, tensor in meter_tensors.items()}
        randomness = self.stream.randomness()
        return tensors | {f"random.{name}": tensor for name, tensor in randomness.items()}

    def _write(self, trainer: Trainer, extra: dict[str, Tensor], record: Any = None) -> None:
        if self.folder is None:
            return
        if record is not None:
            self.folder.append(record)
        self.folder.save(self._tensors(trainer) | extra, self.state.plain())

    def finish(self) -> History:
        """Put the best weights in place and write what came out."""
        state = self.state
        if self.best:
            self._put_weights(self.best)
        self.ens.eval()
        history = state.history(self.ens.resolved_execution())
        if self.folder is not None:
            self._record(history)
        return history

    def _record(self, history: History, **more: Any) -> None:
        """Write what came out."""
        state = self.state
        assert self.folder is not None
        self.folder.finish(
            {
                "kind": "run",
                "objective": self.objective.spec(),
                "members": self.members,
                "seed": self.recipe.seed,
                "epochs": state.epoch,
                "best_epoch": state.best_epoch,
                "ended": history.ended,
                "seconds": state.seconds,
                "execution": history.execution,
                "best": state.epochs[state.best_epoch - 1] if state.epochs else {},
                **more,
            }
        )

    def _tensors(self, trainer: Trainer) -> dict[str, Tensor]:
        tensors = {f"model.{name}": tensor for name, tensor in self._weights().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        return tensors | {f"optimizer.{name}": t for name, t in trainer.state().items()}

    def _config(self, extra: dict[str, Any]) -> dict[str, Any]:
        """What was asked, for ``config.toml``."""
        ensemble = {
            **extra.get("ensemble", {}),
            "members": self.members,
            "combine": self.ens.combine,
            "execution": self.execution,
        }
        training = {"objective": self.objective.spec(), **self.recipe.plain()}
        return {**extra, "ensemble": ensemble, "training": training}

    def _bytes_needed(self) -> int:
        """About what two checkpoints take: weights, best weights and two moments, twice."""
        sizes = [int(t.numel()) * int(t.element_size()) for t in self.ens.state_dict().values()]
        return 8 * sum(sizes) + 2**20


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
