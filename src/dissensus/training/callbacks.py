"""Callbacks of ``fit``, and those that track the metrics of each epoch: TensorBoard, MLflow, W&B.

A callback is a function of each epoch's record and the ensemble, and may have further methods.
``fit(..., track="tensorboard")`` and ``--track tensorboard`` name them. Each uses its package's own
settings (``MLFLOW_TRACKING_URI``, ``WANDB_MODE``, …). A resumed run continues its curves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dissensus.ensemble import Ensemble
from dissensus.tools.files import read_json, write_text
from dissensus.tools.records import TRACKING
from dissensus.tools.specs import check_name
from dissensus.training.run_state import History, flatten

Callback = Callable[[dict[str, Any], Ensemble], bool | None]


def notify(callbacks: Iterable[Any], hook: str, *given: Any) -> None:
    """Call an optional method of callbacks.

    ``on_start(config)`` is called before the first step, and ``on_end(history)`` at the end, with
    None if training failed; ``fit`` calls ``on_step(step, terms)`` itself, after each step.
    """
    for callback in callbacks:
        if hasattr(callback, hook):
            getattr(callback, hook)(*given)


def ask(callbacks: Sequence[Callback], record: dict[str, Any], ens: Ensemble) -> bool:
    """Call all of them with an epoch's record; whether one ends training."""
    answers = [callback(record, ens) for callback in callbacks]
    return any(answers)


# ---- trackers -----------------------------------------------------------------------------------


class Tracker:
    """The base of trackers; ``folder`` is where files go, None for the package's default."""

    module, package = "", ""

    def __init__(self, folder: str | Path | None = None) -> None:
        try:
            self.library: Any = import_module(self.module)
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__} needs {self.package}; pip install {self.package}"
            ) from error
        self.folder = None if folder is None else Path(folder)

    def _stored_id(self) -> str | None:
        """The tracker's name for the run in the folder, to continue with."""
        if self.folder is None or not (self.folder / TRACKING).is_file():
            return None
        stored = read_json(self.folder / TRACKING, {self.module: str | None})
        return stored.get(self.module)  # type: ignore[no-any-return]

    def _store_id(self, name: str) -> None:
        if self.folder is not None:
            file = self.folder / TRACKING
            known = read_json(file, {}) if file.is_file() else {}
            write_text(file, json.dumps({**known, self.module: name}) + "\n")


class TensorBoard(Tracker):
    """Event files of TensorBoard in ``folder``, by default where torch writes them.

    Each metric becomes a curve such as ``val/accuracy``, each member's ``val/per_member_error/0``.
    """

    module, package = "torch.utils.tensorboard", "tensorboard"
    _writer: Any = None

    def __call__(self, record: dict[str, Any], ens: Ensemble) -> None:
        epoch = record["epoch"]
        if self._writer is None:
            folder = None if self.folder is None else str(self.folder)
            # An epoch that a kill made run twice is drawn once.
            self._writer = self.library.SummaryWriter(folder, purge_step=epoch)
        for name, value in _curves(record):
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def on_end(self, history: History | None) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Tracker):
    """A run of MLflow, at its tracking URI and in its experiment of the moment."""

    module, package = "mlflow", "mlflow"

    def on_start(self, config: dict[str, Any]) -> None:
        """Open the run and log the settings."""
        stored, name = self._stored_id(), self.folder and self.folder.name
        self.run = self.library.start_run(run_id=stored, run_name=None if stored else name)
        self._store_id(self.run.info.run_id)
        if stored is None:
            self.library.log_params(dict(_settings(config)))

    def __call__(self, record: dict[str, Any], ens: Ensemble) -> None:
        self.library.log_metrics(dict(_curves(record)), step=record["epoch"])

    def on_end(self, history: History | None) -> None:
        self.library.end_run("FAILED" if history is None else "FINISHED")


class WandB(Tracker):
    """A run of Weights & Biases, in the project of ``WANDB_PROJECT`` or ``dissensus``."""

    module, package = "wandb", "wandb"

    def on_start(self, config: dict[str, Any]) -> None:
        """Open the run with the settings as its config."""
        self.run = self.library.init(
            project=os.environ.get("WANDB_PROJECT", "dissensus"),
            name=None if self.folder is None else self.folder.name,
            dir=None if self.folder is None else str(self.folder),
            config=dict(_settings(config)),
            id=self._stored_id(),
            resume="allow",
        )
        self._store_id(self.run.id)

    def __call__(self, record: dict[str, Any], ens: Ensemble) -> None:
        self.run.log(dict(_curves(record)), step=record["epoch"])

    def on_end(self, history: History | None) -> None:
        self.run.finish(exit_code=1 if history is None else 0)


#: Trackers by name.
TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def make_trackers(names: str | Sequence[str], out: str | Path | None) -> list[Any]:
    """The trackers of these names for a run in ``out``."""
    trackers = []
    for name in [names] if isinstance(names, str) else names:
        check_name(name, TRACKERS, "tracker")
        own = Path(out) / name if out is not None and name == "tensorboard" else out
        trackers.append(TRACKERS[name](own))
    return trackers


def _curves(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Every metric of an epoch by name; those of members with their numbers."""
    for name, value in flatten(record).items():
        if "/" in name and value is not None:  # None: a member that no batch of the epoch used
            yield name, float(value)


def _settings(config: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{above}{name}.")
        else:
            yield above + name, value
