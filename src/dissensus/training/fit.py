"""The training loop: batch, outputs, objective, step, log; whichever the objective."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective, Terms, as_objective
from dissensus.tools.files import lock_folder
from dissensus.tools.progress import ProgressBar
from dissensus.training.batches import Augmentation, as_batches, as_tensors, split_weights
from dissensus.training.callbacks import Hooks
from dissensus.training.checkpoints import Checkpoints
from dissensus.training.history import History, RunState, select
from dissensus.training.layout import Distributed
from dissensus.training.meters import Meter
from dissensus.training.recipe import CheckpointInterval, Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.single_process import Callback, Interruption, SingleProcess, Stopped
from dissensus.training.step import Trainer, computes_bfloat16
from dissensus.training.stream import Batch, LabelledAugmentation, Stream, make_stream
from dissensus.training.trackers import make_trackers


class NonFiniteLoss(ValueError):
    """The loss became NaN or infinite."""


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
    chosen = Recipe.of(settings) if recipe is None else recipe
    parsed = as_objective(objective)
    folder = None if out is None else RunFolder(out)
    train, val, disagreement = map(as_tensors, (train, val, disagreement))
    if distributed and chosen.own_batches:
        raise ValueError(
            "shuffle='members' and bootstrap=True do not work across processes, which share the "
            "rows of each batch; leave out distributed"
        )
    callbacks = [*callbacks, *make_trackers(track, out)]
    with _start_process(ens, distributed) as process, _lock(folder, process):
        holder = process.members, process.ens.device, process.rank
        stream = make_stream(train, parsed, disagreement, augment, chosen, *holder)
        _check_selection(ens, val, chosen)
        _check_precision(ens, chosen)
        checkpoints = Checkpoints(process, parsed, chosen, folder, stream)
        hooks = Hooks(callbacks, first=process.first)
        with hooks, torch.random.fork_rng(), Interruption() as interruption:
            resume = process.should_resume(resume, folder)
            checkpoints.start(config or {}, resume=resume)
            if (not resume or checkpoints.fresh) and ens.execution == "tune":
                checkpoints.state.execution = process.tune(stream)
            trainer = process.make_trainer(parsed, chosen)
            checkpoints.restore_trainer(trainer)
            title, total = type(parsed).__name__, chosen.epochs * len(stream)
            with ProgressBar(title, total, show=progress and process.first) as bar:
                run = _Run(process, stream, trainer, checkpoints, interruption, bar, hooks)
                hooks.start(checkpoints.config(config or {}))
                _train(run, train, val, callbacks)
        ens.objective = name_objective(parsed)
        history = checkpoints.finish()
        hooks.end(history)
        return history


def name_objective(objective: Objective) -> str:
    """The text that names an objective; for one that is in no registry, the name of its class."""
    try:
        return objective.spec()
    except ValueError:
        return type(objective).__name__


def _start_process(ens: Ensemble, distributed: bool | Distributed) -> SingleProcess:
    if not distributed:
        return SingleProcess(ens)
    if ens.sharing:
        raise ValueError(
            "members with sharing='adapters' cannot be spread over processes, as they share "
            "weights; leave out distributed, or use sharing=None"
        )
    from dissensus.training.distributed import ProcessGroup

    return ProcessGroup(ens, Distributed() if distributed is True else distributed)


def _lock(folder: RunFolder | None, process: SingleProcess) -> AbstractContextManager[None]:
    """No other process may write to the folder of the run."""
    return nullcontext() if folder is None else lock_folder(folder.path, process.on_first)


# ---- the loop -----------------------------------------------------------------------------------


@dataclass
class _Run:
    """All that takes part in a run."""

    process: SingleProcess
    stream: Stream
    trainer: Trainer
    checkpoints: Checkpoints
    interruption: Interruption
    bar: ProgressBar
    hooks: Hooks
    interval: CheckpointInterval | None = None  # None: there is no folder to save to
    clock: float = 0.0

    def __post_init__(self) -> None:
        self.state, self.batches = self.checkpoints.state, len(self.stream)
        named = self.process.ens.named_parameters()  # which takes its time: once, not every epoch
        self.trained = {name: weights for name, weights in named if weights.requires_grad}
        if self.checkpoints.folder is not None:
            self.interval = CheckpointInterval(self.trainer.recipe.checkpoint_every)

    def stop_clock(self) -> None:
        """Add the seconds since the last call to those of the run."""
        now = time.perf_counter()
        self.state.seconds, self.clock = self.state.seconds + now - self.clock, now


def _train(run: _Run, train: Any, val: Any, callbacks: Sequence[Callback]) -> None:
    """All epochs that are left: train, evaluate, choose the best, log, save."""
    process, recipe, state, bar = run.process, run.trainer.recipe, run.state, run.bar
    while not state.over(recipe):
        meter = _train_epoch(run)
        record: dict[str, Any] = {"epoch": state.epoch, "train": meter.record()}
        process.synchronize_statistics()
        if recipe.exact_train:
            record["train_exact"] = process.evaluate(train, recipe.batch_size)
        if val is not None:
            record["val"] = process.evaluate(val, recipe.batch_size)
        record = process.broadcast(record)
        _check_metrics(record)
        if select(state, record, recipe):
            run.checkpoints.keep_best()
        state.epochs.append(record)
        run.trainer.members.advance("epoch", _scheduled_metric(record, recipe))
        metrics = _describe(record)
        bar.update(note=metrics)
        bar.log(f"{bar.title}: epoch {state.epoch}/{recipe.epochs}, {metrics}")
        run.stop_clock()
        if process.call(callbacks, record):
            state.ended = "callback"
        run.checkpoints.save(run.trainer, record)


def _train_epoch(run: _Run) -> Meter:
    """The batches of an epoch that are left: batch, outputs, objective, step, log."""
    process, state, interruption, interval = run.process, run.state, run.interruption, run.interval
    run.clock = time.perf_counter()
    if not process.ens.training:
        process.ens.train()
    meter, start, batches = run.checkpoints.restore_meter(), state.batch, run.batches
    for batch in _batches(run):
        outputs, terms = _step(run, batch)
        if state.epoch == state.batch == 0:
            meter.check(outputs, batch.y)
        meter.add(outputs, batch.y, terms.parts, batch.drawn, batch.weights)
        state.batch += 1
        run.bar.update(state.epoch * batches + state.batch)
        if process.should_stop(interruption):
            break
        due = interval is not None and process.should_save(interval, state.batch)
        if due and state.batch < batches:
            _save(run, meter)
    if process.should_stop(interruption):
        if state.batch > start:
            _save(run, meter)
        raise _stopped(run)
    _check_weights(run)
    state.epoch, state.batch = state.epoch + 1, 0
    return meter


def _step(run: _Run, batch: Batch) -> tuple[Tensor, Terms]:
    """Outputs, objective, gradients and update; in the first epoch with all checks."""
    trainer, state = run.trainer, run.state
    scale = trainer.recipe.scale(state.epoch + state.batch / run.batches)
    outputs, terms = trainer.step(batch, set(state.frozen), scale, check=state.epoch == 0)
    if not math.isfinite(terms.loss):
        raise _non_finite(trainer, outputs, terms, state)
    trainer.members.advance("batch")
    if run.hooks.steppers:
        run.hooks.step(state.epoch * run.batches + state.batch + 1, terms)
    return outputs, terms


def _batches(run: _Run) -> Iterator[Batch]:
    """The batches of an epoch that are left; none where Ctrl-C also hit a loader's workers."""
    state = run.state
    try:
        yield from run.stream.epoch(state.epoch, state.batch, run.checkpoints.restore_randomness())
    except RuntimeError:
        if not (run.interruption.wanted and run.process.single):
            raise


def _save(run: _Run, meter: Meter) -> None:
    """Save in the middle of an epoch."""
    _check_weights(run)
    run.stop_clock()
    run.checkpoints.save_within_epoch(run.trainer, meter)


def _stopped(run: _Run) -> Stopped:
    state, folder, batches = run.state, run.checkpoints.folder, run.batches
    text = f"stopped in epoch {state.epoch + 1} after {state.batch} of {batches} batches"
    if folder is None:
        text += "; nothing was saved, as there is no run folder (out=…)"
    else:
        text += f"; saved, go on with resume=True (--resume) and out={folder.path}"
    run.bar.say(text[0].upper() + text[1:])
    return Stopped(text)


def _scheduled_metric(record: dict[str, Any], recipe: Recipe) -> float:
    """What a scheduler that watches a metric gets: that of validation data, or training error."""
    name = "ensemble_error" if recipe.select_by == "last" else recipe.select_by
    return float(record["val"][name] if "val" in record else _error(record["train"]))


# ---- checks and messages ------------------------------------------------------------------------


def _check_precision(ens: Ensemble, recipe: Recipe) -> None:
    """Warn of bfloat16 where it would be emulated."""
    if recipe.amp and not computes_bfloat16(ens.device):
        warnings.warn(
            "this processor has no instructions for bfloat16 and emulates them, which makes "
            "training many times slower; leave out amp",
            stacklevel=3,
        )


def _check_selection(ens: Ensemble, val: Any, recipe: Recipe) -> None:
    """Say before training what the choice of epochs lacks."""
    if val is None and (recipe.patience or recipe.freeze_patience):
        raise ValueError("patience and freeze_patience need validation data, val=")
    if recipe.select_by == "accuracy" and ens.combine == "mean":
        raise ValueError("select_by='accuracy' is not known in regression (combine='mean')")
    if val is not None:
        device = torch.device("cpu")
        as_batches(
            split_weights(val)[0],
            recipe.batch_size,
            shuffle=False,
            device=device,
            what="validation",
        )


def _check_weights(run: _Run) -> None:
    """Raise rather than save weights that are not finite over a checkpoint whose weights are."""
    for name, parameter in run.trained.items():
        # Of weights that are split over processes, the part that is here.
        weights = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        # A sum is finite if its terms are, short of overflow, and is far cheaper to look at.
        if not math.isfinite(weights.detach().sum()) and not bool(weights.isfinite().all()):
            epoch, batch = run.state.epoch + 1, run.state.batch
            raise NonFiniteLoss(
                f"{name} is not finite after epoch {epoch}, batch {batch}, though "
                "the loss is; the last checkpoint is from before it. Lower the learning rate or "
                "clip gradients (clip=1.0)"
            )


def _check_metrics(record: dict[str, Any]) -> None:
    """Raise where evaluation did not give numbers to choose an epoch by."""
    for part in ("train_exact", "val"):
        error = record.get(part, {}).get("member_error", 0.0)
        if not math.isfinite(error):
            raise NonFiniteLoss(
                f"the error on {part} data is {error} after epoch {record['epoch']}, though the "
                "weights are finite; the last checkpoint is from before it. Look for NaN or very "
                "large values in these data"
            )


def _non_finite(trainer: Trainer, outputs: Tensor, terms: Terms, state: RunState) -> NonFiniteLoss:
    bad = [name for name, part in terms.parts.items() if not math.isfinite(part)]
    cause = f" (not finite: {', '.join(bad)})" if bad else ""
    name, loss = type(trainer.objective).__name__, float(terms.loss)
    return NonFiniteLoss(
        f"{trainer.locate(outputs)}the loss of {name} is {loss} at epoch {state.epoch + 1}, batch "
        f"{state.batch + 1}{cause}; a checkpoint, if there is one, is from before it. Lower the "
        "learning rate, clip gradients (clip=1.0), or look at the batch"
    )


def _error(metrics: dict[str, Any]) -> float:
    """ERR; or mean ERR, where members were trained on examples of their own."""
    error: float = metrics.get("ensemble_error", metrics["member_error"])
    return error


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
