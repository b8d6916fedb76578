"""The training loop: batch, outputs, objective, step, log, checkpoint; whichever the objective."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective, Terms, as_objective, name_objective
from dissensus.tools.progress import ProgressBar
from dissensus.training.batches import Augmentation, as_batches, as_tensors, split_weights
from dissensus.training.callbacks import Callback, ask, make_trackers, notify
from dissensus.training.distributed.ranks import Distributed
from dissensus.training.evaluation import Meter, evaluate
from dissensus.training.recipe import CheckpointInterval, Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.run_state import Checkpoints, History, RunState, run_config
from dissensus.training.step import Trainer, computes_bfloat16
from dissensus.training.stream import LabelledAugmentation, Stream, TrainingBatch


class NonFiniteLoss(ValueError):
    """The loss became NaN or infinite."""


class Stopped(KeyboardInterrupt):
    """Training was interrupted after a step; what was done is saved if there is a run folder."""


def fit(
    ens: Ensemble,
    train: Any,
    objective: Objective | Callable[..., Any] | str | None = None,
    *,
    val: Any = None,
    disagreement: Any = None,
    augment: Augmentation | LabelledAugmentation | None = None,
    callbacks: Sequence[Callback] = (),
    track: str | Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    progress: bool = True,
    distributed: bool | Distributed = False,
    recipe: Recipe | None = None,
    **settings: Any,
) -> History:
    """Train ``ens`` on ``(x, y)`` or a DataLoader; the settings are those of ``Recipe``.

    ``x`` and ``y`` are tensors or NumPy arrays; ``x`` may be a feature store's rows or
    ``data.Examples``, which are streamed from disk. In ``(x, y, weights)``, to train or validate
    on, each example has a weight: with weights whose mean is 1, a weight of 2 is the example twice
    and one of 0 leaves it out. ``objective`` is one of ``dissensus.objectives`` or its name, an
    objective of your own or its import path (``"my_file.py:Spread"``), or a function ``(logits,
    targets) -> loss`` of all members' outputs ``[members, batch, outputs]``.
    ``val`` chooses the best epoch, whose weights the ensemble has at the end. ``disagreement`` are
    unlabelled data for objectives that need them (A2D, DivDis), or ``"strangers"``: inputs made
    from each training batch (:class:`dissensus.strangers.Strangers`, or a function
    ``(x, generator) -> x`` of your own). ``augment(x, generator)`` changes
    each batch; one with ``labelled = True`` is called with ``(x, y, generator)`` and returns both
    (``robustness.AdversarialBatches``). A callback gets each epoch's record and the ensemble, and
    ends training by returning True; it may also have methods ``on_start(config)``,
    ``on_step(step, terms)`` and ``on_end(history)``. ``track`` names trackers of the metrics,
    ``"tensorboard"``, ``"mlflow"`` or ``"wandb"``. With ``out`` the run is kept in a
    folder (``config`` is added to its config.toml) and can go on from there after any interruption,
    with ``resume=True``, to the same bits as if nothing had happened.

    With ``distributed``, in each of the processes that ``torchrun`` has started, members (and, on a
    second axis, rows of each batch) are spread over these processes; see
    ``training.distributed``. All processes call ``fit`` with the same arguments and end with the
    same ensemble and history; the first alone shows progress, calls back and writes files.

    >>> from torch import nn
    >>> ens = Ensemble(lambda: nn.Linear(2, 2), members=3)
    >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    >>> history = fit(ens, (x, (x[:, 0] > 0).long()), epochs=3, progress=False)
    >>> len(history.epochs), history.column("train/accuracy")[-1] > 0.5
    (3, True)
    """
    if recipe is not None and settings:
        raise ValueError(f"give recipe= or settings, not both; got {sorted(settings)}")
    recipe, parsed = recipe or Recipe.of(settings), as_objective(objective)
    train, val, disagreement = map(as_tensors, (train, val, disagreement))
    if distributed:
        from dissensus.training.distributed.run import DistributedRun

        mesh = Distributed() if distributed is True else distributed
        run: Run = DistributedRun(ens, parsed, recipe, mesh)
    else:
        run = Run(ens, parsed, recipe)
    return run.fit(
        FitRequest(
            train,
            val,
            partial(Stream, train, parsed, disagreement, augment, recipe, ens.members),
            [*callbacks, *make_trackers(track, out)],
            out,
            run_config(ens, parsed, recipe, config or {}),
            resume,
            progress,
        )
    )


class FitRequest(NamedTuple):
    """What ``fit`` was asked for, beside the ensemble, the objective and the recipe."""

    train: Any
    val: Any
    make_stream: Callable[[torch.device], Stream]
    callbacks: Sequence[Callback]
    out: str | Path | None
    config: dict[str, Any]
    resume: bool
    progress: bool


class Run:
    """A training in one process. ``distributed.DistributedRun`` is the part of one of several."""

    stream: Stream  # of training batches
    checkpoints: Checkpoints
    trainer: Trainer
    callbacks: Sequence[Callback] = ()
    bar: ProgressBar

    def __init__(self, ens: Ensemble, objective: Objective, recipe: Recipe) -> None:
        self.ens, self.objective, self.recipe = ens, objective, recipe
        self.interruption = Interruption()
        self.interval = CheckpointInterval(recipe.checkpoint_every)
        self.clock = 0.0
        named = ens.named_parameters()  # which takes its time: once, not every epoch
        self.trained = {name: weights for name, weights in named if weights.requires_grad}

    def fit(self, request: FitRequest) -> History:
        """Train from the start or from the checkpoint in ``out``, to the end."""
        train, val, make_stream, self.callbacks, out, config, resume, progress = request
        self.steppers = [c.on_step for c in self.callbacks if hasattr(c, "on_step")]
        folder = self.open_folder(out)
        with nullcontext() if folder is None else folder.lock():
            self.stream = make_stream(self.ens.device)
            self.recipe.check_validation(val, self.ens.combine)
            if val is not None:  # what is wrong with them is said before training
                rows, cpu = split_weights(val)[0], torch.device("cpu")
                as_batches(
                    rows, self.recipe.batch_size, shuffle=False, device=cpu, what="validation"
                )
            _check_precision(self.ens, self.recipe)
            self.checkpoints = Checkpoints(self.ens, self.recipe, folder, self.stream, config)
            title, total = type(self.objective).__name__, self.recipe.epochs * len(self.stream)
            try:
                with torch.random.fork_rng(), self.interruption:
                    self.start(resume=resume)
                    with ProgressBar(title, total, show=progress) as self.bar:
                        notify(self.callbacks, "on_start", config)
                        self.train(train, val)
            except BaseException:
                notify(self.callbacks, "on_end", None)
                raise
            history = self.finish()
            notify(self.callbacks, "on_end", history)
            return history

    def start(self, *, resume: bool) -> None:
        """Bring back what there is, choose the execution, and make the trainer."""
        self.checkpoints.start(resume=resume)
        if self.ens.execution == "tune" and not self.state.execution:
            self.state.execution = self.tune()
        self.trainer = self.make_trainer()
        self.checkpoints.restore_trainer(self.trainer)

    # ---- the loop -------------------------------------------------------------------------------

    def train(self, train: Any, val: Any) -> None:
        """All epochs that are left: train, measure, choose the best, log, save."""
        recipe, state, bar = self.recipe, self.state, self.bar
        while not state.over(recipe):
            meter = self.train_epoch()
            record = self.measure(meter, train, val)
            _check_metrics(record)
            if state.add(record, recipe):
                self.checkpoints.keep_best()
            self.trainer.members.optimizer.advance("epoch", _scheduled_metric(record, recipe))
            metrics = _describe(record)
            bar.update(note=metrics)
            bar.log(f"{bar.title}: epoch {state.epoch}/{recipe.epochs}, {metrics}")
            self.stop_clock()
            if self.call_back(record):
                state.ended = "callback"
            self.checkpoints.save(self.trainer, record)

    def train_epoch(self) -> Meter:
        """The batches of an epoch that are left: batch, outputs, objective, step, log, save."""
        state, batches = self.state, len(self.stream)
        self.clock = time.perf_counter()
        if not self.ens.training:
            self.ens.train()
        meter, start = self.make_meter(), state.batch
        self.checkpoints.restore_meter(meter)
        for batch in self.batches():
            outputs, terms = self.step(batch)
            if state.epoch == state.batch == 0:
                meter.check(outputs, batch.y)
            meter.add(outputs, batch.y, terms.parts, batch.drawn, batch.weights)
            state.batch += 1
            self.bar.update(state.epoch * batches + state.batch)
            if self.stopping:
                break
            if self.checkpoint_due() and state.batch < batches:
                self.save_within_epoch(meter)
        if self.stopping:
            if state.batch > start:
                self.save_within_epoch(meter)
            raise self._stopped()
        self._check_weights()
        state.epoch, state.batch = state.epoch + 1, 0
        return meter

    def batches(self) -> Iterator[TrainingBatch]:
        """The batches of an epoch that are left; none where Ctrl-C also hit a loader's workers."""
        state, randomness = self.state, self.checkpoints.restore_randomness()
        try:
            yield from self.stream.epoch(state.epoch, state.batch, randomness)
        except RuntimeError:
            if not self.stopping:
                raise

    def step(self, batch: TrainingBatch) -> tuple[Tensor, Terms]:
        """Outputs, objective, gradients and update; in the first epoch with all checks."""
        trainer, state, batches = self.trainer, self.state, len(self.stream)
        scale = self.recipe.scale(state.epoch + state.batch / batches)
        outputs, terms = trainer.step(batch, set(state.frozen), scale, check=state.epoch == 0)
        if not math.isfinite(terms.loss):
            raise _non_finite(self.objective, terms, state)
        trainer.members.optimizer.advance("batch")
        for on_step in self.steppers:
            on_step(state.epoch * batches + state.batch + 1, terms)
        return outputs, terms

    def measure(self, meter: Meter, train: Any, val: Any) -> dict[str, Any]:
        """The record of an epoch: metrics of training and validation data."""
        record: dict[str, Any] = {"epoch": self.state.epoch, "train": meter.record()}
        if self.recipe.exact_train:
            record["train_exact"] = self.evaluate(train)
        if val is not None:
            record["val"] = self.evaluate(val)
        return record

    def save_within_epoch(self, meter: Meter) -> None:
        """Save in the middle of an epoch."""
        self._check_weights()
        self.stop_clock()
        self.checkpoints.save_within_epoch(self.trainer, meter)

    def finish(self) -> History:
        """Put the best weights in place and write what came out."""
        self.ens.objective = name_objective(self.objective)
        return self.checkpoints.finish()

    # ---- its parts ------------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        """The progress of the run."""
        return self.checkpoints.state

    @property
    def stopping(self) -> bool:
        """Whether to stop after the last step."""
        return self.interruption.wanted

    def open_folder(self, out: str | Path | None) -> RunFolder | None:
        """The folder of the run, if it is to have one."""
        return None if out is None else RunFolder(out)

    def make_trainer(self) -> Trainer:
        """What steps the members."""
        return Trainer(self.ens, self.objective, self.recipe)

    def make_meter(self) -> Meter:
        """The meter of an epoch."""
        return Meter(self.ens.members, self.ens.combine, own=self.stream.own_batches)

    def checkpoint_due(self) -> bool:
        """Whether to save within the epoch now."""
        return self.checkpoints.folder is not None and self.interval.due(self.state.batch)

    def tune(self) -> str:
        """Measure which execution is faster, and use it."""
        self.ens.tune(self.stream.first_inputs())
        return self.ens.execution

    def evaluate(self, data: Any) -> dict[str, Any]:
        """The metrics of a data set."""
        return evaluate(self.ens, data, self.recipe.batch_size)

    def call_back(self, record: dict[str, Any]) -> bool:
        """Call back after an epoch; whether a callback ends training."""
        return ask(self.callbacks, record, self.ens)

    def stop_clock(self) -> None:
        """Add the seconds since the last call to those of the run."""
        now = time.perf_counter()
        self.state.seconds, self.clock = self.state.seconds + now - self.clock, now

    def _stopped(self) -> Stopped:
        state, folder = self.state, self.checkpoints.folder
        text = (
            f"stopped in epoch {state.epoch + 1} after {state.batch} of {len(self.stream)} batches"
        )
        if folder is None:
            text += "; nothing was saved, as there is no run folder (out=…)"
        else:
            text += f"; saved, go on with resume=True (--resume) and out={folder.path}"
        self.bar.say(text[0].upper() + text[1:])
        return Stopped(text)

    def _check_weights(self) -> None:
        """Raise rather than replace a good checkpoint by weights that are not finite."""
        for name, weights in self.trained.items():
            # A sum is finite if its terms are, short of overflow, and is far cheaper to look at.
            if not math.isfinite(weights.detach().sum()) and not bool(weights.isfinite().all()):
                raise NonFiniteLoss(
                    f"{name} is not finite after epoch {self.state.epoch + 1}, batch "
                    f"{self.state.batch}, though the loss is; {_REMEDY}"
                )


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


# ---- names, checks and messages -----------------------------------------------------------------

_REMEDY = (
    "a checkpoint, if there is one, is from before it. Lower the learning rate or clip gradients "
    "(clip=1.0)"
)


def _check_precision(ens: Ensemble, recipe: Recipe) -> None:
    """Warn of bfloat16 where it would be emulated."""
    if recipe.amp and not computes_bfloat16(ens.device):
        warnings.warn(
            "this processor has no instructions for bfloat16 and emulates them, which makes "
            "training many times slower; leave out amp",
            stacklevel=4,
        )


def _check_metrics(record: dict[str, Any]) -> None:
    """Raise where evaluation did not give numbers to choose an epoch by."""
    for part in ("train_exact", "val"):
        error = record.get(part, {}).get("member_error", 0.0)
        if not math.isfinite(error):
            raise NonFiniteLoss(
                f"the error on {part} data is {error} at epoch {record['epoch']}; look at them"
            )


def _non_finite(objective: Objective, terms: Terms, state: RunState) -> NonFiniteLoss:
    bad = [name for name, part in terms.parts.items() if not math.isfinite(part)]
    cause = f" (not finite: {', '.join(bad)})" if bad else ""
    return NonFiniteLoss(
        f"the loss of {type(objective).__name__} is {float(terms.loss)} at epoch "
        f"{state.epoch + 1}, batch {state.batch + 1}{cause}; {_REMEDY}, or look at the batch"
    )


def _error(metrics: dict[str, Any]) -> float:
    """ERR; or mean ERR, where members were trained on examples of their own."""
    error: float = metrics.get("ensemble_error", metrics["member_error"])
    return error


def _scheduled_metric(record: dict[str, Any], recipe: Recipe) -> float:
    """What a scheduler that watches a metric gets: that of validation data, or training error."""
    name = "ensemble_error" if recipe.select_by == "last" else recipe.select_by
    return float(record["val"][name] if "val" in record else _error(record["train"]))


def _describe(record: dict[str, Any]) -> str:
    """The key metrics of an epoch in one line."""
    parts = []
    for name in ("train", "val"):
        metrics = record.get(name)
        if metrics is None:
            continue
        text = f"{name} error {_error(metrics):.4f}"
        if "accuracy" in metrics:
            text += f", accuracy {metrics['accuracy']:.1%}"
        parts.append(text)
    return "; ".join(parts)
