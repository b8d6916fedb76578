"""The history of a training run, its state, the choice of the best epoch, and its curves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dissensus.tools.tabular import Tabular
from dissensus.training.recipe import SELECTIONS, Recipe


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

    def history(self, execution: str) -> History:
        return History(
            self.epochs, self.best_epoch, self.ended or "epochs", self.seconds, execution
        )


def select(state: RunState, record: dict[str, Any], recipe: Recipe) -> bool:
    """Whether the last epoch is the best so far; notes patience and frozen members in ``state``."""
    metrics = record.get("val")
    if metrics is not None:
        _freeze(state, metrics["per_member_error"], recipe)
    if metrics is None or recipe.select_by == "last":
        state.best_epoch = state.epoch
        return False  # the last weights, which the ensemble has, are the ones to keep
    value, best = metrics[recipe.select_by], state.best_value
    if best is None or (value > best if SELECTIONS[recipe.select_by] else value < best):
        state.best_value, state.best_epoch = value, state.epoch
        return True
    if recipe.patience and state.epoch - state.best_epoch >= recipe.patience:
        state.ended = "patience"
    return False


def _freeze(state: RunState, errors: list[float], recipe: Recipe) -> None:
    """Freeze members whose own error stopped falling, for good (adp, Algorithm 1)."""
    state.member_best = state.member_best or [math.inf] * len(errors)
    state.member_best_epoch = state.member_best_epoch or [0] * len(errors)
    for member, error in enumerate(errors):
        if error < state.member_best[member]:
            state.member_best[member], state.member_best_epoch[member] = error, state.epoch
        elif (
            recipe.freeze_patience
            and member not in state.frozen
            and state.epoch - state.member_best_epoch[member] >= recipe.freeze_patience
        ):
            state.frozen.append(member)
    if len(state.frozen) == len(errors):
        state.ended = "patience"
