"""The state of a run: its history, its progress, the best epoch so far, and its checkpoints."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import with_prefix, without_prefix
from dissensus.objectives import Objective
from dissensus.tools.tabular import Tabular
from dissensus.training.evaluation import Meter
from dissensus.training.recipe import SELECTIONS, Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.step import Trainer
from dissensus.training.stream import Stream


@dataclass(repr=False)
class History(Tabular):
    """A finished run: one record for each epoch, the best epoch, and how training ended."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    ended: str = "epochs"
    seconds: float = 0.0
    execution: str = ""

    def column(self, name: str) -> list[Any]:
        """One metric over all epochs, such as ``"val/accuracy"`` or ``"train/diversity"``."""
        part, _, key = name.partition("/")
        return [record[part][key] for record in self.epochs]

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each epoch; columns such as ``val/accuracy``, those of members last."""
        return [flatten(record) for record in self.epochs]

    def headline(self) -> str:
        """How many epochs, which one is the best, and how it ended."""
        ended = "" if self.ended == "epochs" else f", ended by {self.ended}"
        return f"{len(self.epochs)} epochs, best epoch: {self.best_epoch}{ended}"


def flatten(record: dict[str, Any]) -> dict[str, Any]:
    """An epoch's values by name: ``val/accuracy``, of a member ``val/per_member_error/0``."""
    values: dict[str, Any] = {}
    members: dict[str, Any] = {}
    for part, metrics in record.items():
        for key, value in metrics.items() if isinstance(metrics, dict) else [("", metrics)]:
            name = f"{part}/{key}" if key else part
            if isinstance(value, list):
                members |= {f"{name}/{member}": own for member, own in enumerate(value)}
            else:
                values[name] = value
    return values | members


@dataclass
class RunState:
    """The progress of a run in plain values: what a checkpoint holds beside tensors."""

    epoch: int = 0  # epochs that are done
    batch: int = 0  # batches of the next one that are done
    best_epoch: int = 0
    best_value: float | None = None
    member_best: list[float] = field(default_factory=list)
    member_best_epoch: list[int] = field(default_factory=list)
    frozen: list[int] = field(default_factory=list)
    ended: str = ""  # "epochs", "patience" or "callback" once it is over
    seconds: float = 0.0
    execution: str = ""  # what "tune" chose
    epochs: list[dict[str, Any]] = field(default_factory=list)  # kept in metrics.jsonl
    meter: dict[str, Any] | None = None  # of an epoch that was interrupted

    def plain(self) -> dict[str, Any]:
        """All but the epochs' records, which have a file of their own that only grows."""
        return {name: value for name, value in vars(self).items() if name != "epochs"}

    def over(self, recipe: Recipe) -> bool:
        """Whether training is over."""
        return self.epoch >= recipe.epochs or self.ended in ("patience", "callback")

    def resume(self, recipe: Recipe) -> None:
        """Continue a run that had ended, if the recipe now allows more epochs or patience."""
        waited = self.epoch - self.best_epoch
        all_frozen = 0 < len(self.member_best) == len(self.frozen)
        patient = not all_frozen and (recipe.patience is None or waited < recipe.patience)
        if self.ended == "epochs" or (self.ended == "patience" and patient):
            self.ended = ""

    def add(self, record: dict[str, Any], recipe: Recipe) -> bool:
        """Add an epoch; whether it is the best so far. Notes frozen members, and how it ends."""
        better = self._select(record.get("val"), recipe)
        self.epochs.append(record)
        if self.epoch >= recipe.epochs and not self.ended:
            self.ended = "epochs"
        return better

    def _select(self, metrics: dict[str, Any] | None, recipe: Recipe) -> bool:
        if metrics is not None:
            self._freeze(metrics["per_member_error"], recipe)
        if metrics is None or recipe.select_by == "last":
            self.best_epoch = self.epoch
            return False  # the last weights, which the ensemble has, are the ones to keep
        value, best = metrics[recipe.select_by], self.best_value
        if best is None or (value > best if SELECTIONS[recipe.select_by] else value < best):
            self.best_value, self.best_epoch = value, self.epoch
            return True
        if recipe.patience and self.epoch - self.best_epoch >= recipe.patience:
            self.ended = "patience"
        return False

    def _freeze(self, errors: list[float], recipe: Recipe) -> None:
        """Freeze members whose own error stopped falling, for good (adp, Algorithm 1)."""
        self.member_best = self.member_best or [math.inf] * len(errors)
        self.member_best_epoch = self.member_best_epoch or [0] * len(errors)
        for member, error in enumerate(errors):
            if error < self.member_best[member]:
                self.member_best[member], self.member_best_epoch[member] = error, self.epoch
            elif (
                recipe.freeze_patience
                and member not in self.frozen
                and self.epoch - self.member_best_epoch[member] >= recipe.freeze_patience
            ):
                self.frozen.append(member)
        if len(self.frozen) == len(errors):
            self.ended = "patience"

    def history(self, execution: str) -> History:
        return History(
            self.epochs, self.best_epoch, self.ended or "epochs", self.seconds, execution
        )


# ---- checkpoints --------------------------------------------------------------------------------


def run_config(
    ens: Ensemble, objective: Objective, recipe: Recipe, extra: dict[str, Any]
) -> dict[str, Any]:
    """What was asked, for ``config.toml``; ``extra`` are further sections and settings."""
    ensemble = {
        **extra.get("ensemble", {}),
        "members": ens.members,
        "combine": ens.combine,
        "execution": ens.execution,
        **({"sharing": ens.sharing} if ens.sharing else {}),
    }
    training = {"objective": objective.spec(), **recipe.plain()}
    # Their place is the last, whether extra has them or not: a resumed run keeps its bytes.
    rest = {name: extra[name] for name in extra if name not in ("ensemble", "training")}
    return {**rest, "ensemble": ensemble, "training": training}


class Checkpoints:
    """The state of a run, in memory and, where there is a folder, on disk."""

    def __init__(
        self,
        ens: Ensemble,
        recipe: Recipe,
        folder: RunFolder | None,
        stream: Stream,
        config: dict[str, Any],
    ) -> None:
        self.ens, self.recipe, self.folder = ens, recipe, folder
        self.stream, self.config = stream, config
        self.state = RunState()
        self.best: dict[str, Tensor] = {}
        self.restored: dict[str, Tensor] = {}

    # ---- starting and going on ------------------------------------------------------------------

    def start(self, *, resume: bool) -> None:
        """Open the folder; with ``resume``, bring back what its checkpoint holds."""
        if self.folder is None:
            if resume:
                raise ValueError("resume=True needs out=, the folder of the run to go on with")
            return
        if damage := self.folder.start(self.config, self._bytes_needed(), resume=resume):
            warnings.warn(damage, stacklevel=4)
        checkpoint = self.folder.read() if resume else None
        if checkpoint is None:
            self.folder.keep_epochs(0)
            return
        self.restored, values = checkpoint
        state = RunState(**values)
        state.epochs = self.folder.keep_epochs(state.epoch)
        try:
            self.ens.load_state_dict(without_prefix("model.", self.restored))
        except RuntimeError as error:
            where = self.folder.path
            raise ValueError(
                f"the checkpoint in {where} is of another ensemble: {error}"
            ) from error
        self.best = without_prefix("best.", self.restored)
        if not self.best and state.best_value is not None:  # the checkpoint's own are the best
            self.best = without_prefix("model.", self.restored)
        if state.execution:
            self.ens.execution = state.execution
        state.resume(self.recipe)
        self.state = state

    def restore_trainer(self, trainer: Trainer) -> None:
        """Bring back moments and step counts."""
        if self.restored:
            try:
                trainer.members.optimizer.load(without_prefix("optimizer.", self.restored))
            except KeyError as error:
                raise ValueError(f"the checkpoint lacks the tensor {error}") from error

    def restore_meter(self, meter: Meter) -> None:
        """Bring back what the meter had seen of an epoch that was interrupted."""
        if self.state.meter is not None:
            meter.load(without_prefix("meter.", self.restored), self.state.meter, self.ens.device)
            self.state.meter = None

    def restore_randomness(self) -> dict[str, Tensor] | None:
        """The random numbers of the epoch that was interrupted; None at the start of one."""
        saved = without_prefix("random.", self.restored) if self.state.batch else {}
        self.restored = {}  # used once
        return saved or None

    # ---- saving ---------------------------------------------------------------------------------

    def keep_best(self) -> None:
        """Remember the weights of now."""
        self.best = {name: t.detach().clone() for name, t in self.ens.state_dict().items()}

    def save(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Save after an epoch."""
        if self.folder is not None:
            self.folder.append(record)
            # Where the epoch is the best, the best weights are those of the model.
            best = self.best if self.state.best_epoch < self.state.epoch else {}
            self._write(self.folder, trainer, with_prefix("best.", best))

    def save_within_epoch(self, trainer: Trainer, meter: Meter) -> None:
        """Save in the middle of an epoch, with its metrics and random numbers so far."""
        if self.folder is not None:
            tensors, self.state.meter = meter.state()
            more = with_prefix("best.", self.best) | with_prefix("meter.", tensors)
            self._write(
                self.folder, trainer, more | with_prefix("random.", self.stream.randomness())
            )
            self.state.meter = None  # the epoch goes on with the meter that it has

    def _write(self, folder: RunFolder, trainer: Trainer, more: dict[str, Tensor]) -> None:
        model = with_prefix("model.", self.ens.state_dict())
        optimizer = with_prefix("optimizer.", trainer.members.optimizer.state())
        folder.save(model | optimizer | more, self.state.plain())

    def finish(self) -> History:
        """Put the best weights in place and write what came out."""
        state = self.state
        if self.best:
            self.ens.load_state_dict(self.best)
        self.ens.eval()
        history = state.history(self.ens.resolved_execution())
        if self.folder is not None:
            self.folder.finish(
                {
                    "kind": "run",
                    "objective": self.config["training"]["objective"],
                    "members": self.config["ensemble"]["members"],
                    "seed": self.recipe.seed,
                    "epochs": state.epoch,
                    "best_epoch": state.best_epoch,
                    "ended": history.ended,
                    "seconds": state.seconds,
                    "execution": history.execution,
                    "best": state.epochs[state.best_epoch - 1] if state.epochs else {},
                }
            )
        return history

    def _bytes_needed(self) -> int:
        """About what three checkpoints take: weights, best weights and two moments, each time."""
        return 12 * sum(int(t.nbytes) for t in self.ens.state_dict().values()) + 2**20
