"""The training loop: batch, outputs, objective, step, log; whichever the objective."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dissensus.ensemble import Ensemble
from dissensus.objectives import Independent, Objective, Terms, parse
from dissensus.progress import ProgressBar
from dissensus.training.alone import Alone, Callback
from dissensus.training.batches import Augmentation, Batches, as_batches, split_weights
from dissensus.training.interruption import Interruption, Stopped
from dissensus.training.layout import Distributed
from dissensus.training.pacing import Pace
from dissensus.training.recipe import Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.saving import Saver
from dissensus.training.state import History, RunState, select
from dissensus.training.steps import Trainer
from dissensus.training.stream import Batch, LabelledAugmentation, Stream

if TYPE_CHECKING:
    from dissensus.training.distributed import Team, TeamTrainer

__all__ = ["NonFiniteLoss", "fit"]


class NonFiniteLoss(ValueError):
    """The loss became NaN or infinite."""


def fit(
    ens: Ensemble,
    train: Any,
    objective: Objective | str | None = None,
    *,
    val: Any = None,
    disagreement: Any = None,
    augment: Augmentation | LabelledAugmentation | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    progress: bool = True,
    distributed: bool | Distributed = False,
    recipe: Recipe | None = None,
    **settings: Any,
) -> History:
    """Train ``ens`` on ``(x, y)`` tensors or a DataLoader; the settings are those of ``Recipe``.

    ``x`` may be a feature store's rows or ``data.Examples``, which are streamed from disk. Tensors
    ``(x, y, weights)``, to train or validate on, have a weight for each example: with weights whose
    mean is 1, a weight of 2 is the example twice and one of 0 leaves it out.
    ``val`` chooses the best epoch, whose weights the ensemble has at the end. ``disagreement`` are
    unlabelled data for objectives that need them (A2D, DivDis). ``augment(x, generator)`` changes
    each batch; one with ``labelled = True`` is called with ``(x, y, generator)`` and returns both
    (``robustness.AdversarialBatches``). A callback gets each epoch's record and the ensemble, and
    ends training by returning True. With ``out`` the run is kept in a folder (``config`` is added
    to its config.toml) and can go on from there after any interruption, with ``resume=True``, to
    the same bits as if nothing had happened.

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
    parsed = parse(objective) if isinstance(objective, str) else objective or Independent()
    folder = None if out is None else RunFolder(out)
    with _team(ens, distributed) as team:
        stream = _stream(team, train, parsed, disagreement, augment, chosen)
        _check_selection(ens, val, chosen)
        saver = team.saver(parsed, chosen, folder, stream)
        with torch.random.fork_rng(), Interruption() as interruption:
            resume = team.resuming(resume, folder)
            saver.start(config or {}, resume=resume)
            if (not resume or saver.fresh) and ens.execution == "tune":
                saver.state.execution = team.tune(stream)
            trainer = team.trainer(parsed, chosen)
            saver.restore_trainer(trainer)
            total = chosen.epochs * len(stream)
            show = progress and team.first
            with ProgressBar(type(parsed).__name__, total, show=show) as bar:
                _loop(team, stream, trainer, saver, interruption, bar, train, val, callbacks)
        return saver.finish()


def _team(ens: Ensemble, distributed: bool | Distributed) -> Alone | Team:
    if not distributed:
        return Alone(ens)
    from dissensus.training.distributed import Team

    return Team(ens, Distributed() if distributed is True else distributed)


def _loop(
    team: Alone | Team,
    stream: Stream,
    trainer: Trainer | TeamTrainer,
    saver: Saver,
    interruption: Interruption,
    bar: ProgressBar,
    train: Any,
    val: Any,
    callbacks: Sequence[Callback],
) -> None:
    """All epochs that are left."""
    state, recipe, ens = saver.state, trainer.recipe, team.ens
    pace = Pace(recipe.checkpoint_every)
    while not state.over(recipe):
        started = time.perf_counter()
        ens.train()
        meter = saver.restore_meter()
        start = state.batch
        batches = stream.epoch(state.epoch, start, saver.saved_randomness())
        while (batch := _next(batches, interruption, team)) is not None:
            outputs, terms = _step(trainer, batch, state, len(stream))
            if state.epoch == state.batch == 0:
                meter.check(outputs, batch.y)
            meter.add(outputs, batch.y, terms.parts, batch.drawn, batch.weights)
            state.batch += 1
            bar.update(state.epoch * len(stream) + state.batch)
            if team.stopping(interruption):
                break
            if team.pausing(pace, state.batch) and state.batch < len(stream):
                _check_weights(ens, state)
                now = time.perf_counter()
                state.seconds, started = state.seconds + now - started, now
                saver.save_amid(trainer, meter)
        if team.stopping(interruption):
            state.seconds += time.perf_counter() - started
            if state.batch > start:
                _check_weights(ens, state)
                saver.save_amid(trainer, meter)
            raise _stopped(saver, len(stream), bar)
        _check_weights(ens, state)
        state.epoch, state.batch = state.epoch + 1, 0
        record: dict[str, Any] = {"epoch": state.epoch, "train": meter.record()}
        team.settle()
        if recipe.exact_train:
            record["train_exact"] = team.evaluate(train, recipe.batch_size)
        if val is not None:
            record["val"] = team.evaluate(val, recipe.batch_size)
        record = team.agreed(record)
        _check_figures(record)
        if select(state, record, recipe):
            saver.keep_best()
        state.seconds += time.perf_counter() - started
        state.epochs.append(record)
        metrics = _describe(record)
        bar.update(note=metrics)
        bar.log(f"{bar.title}: epoch {record['epoch']}/{recipe.epochs}, {metrics}")
        if team.called(callbacks, record):
            state.ended = "callback"
        saver.save(trainer, record)


def _next(batches: Iterator[Batch], interruption: Interruption, team: Alone | Team) -> Batch | None:
    """The next batch; None at the end, or where the Ctrl-C also hit a loader's workers."""
    try:
        return next(batches, None)
    except RuntimeError:
        if interruption.wanted and team.alone:
            return None
        raise


def _step(
    trainer: Trainer | TeamTrainer, batch: Batch, state: RunState, batches: int
) -> tuple[Any, Terms]:
    recipe = trainer.recipe
    scale = recipe.schedule(state.epoch + state.batch / batches, recipe.epochs)  # type: ignore[operator]
    # In the first epoch every example passes the objective's checks, later ones go without.
    outputs, terms = trainer.step(batch, set(state.frozen), scale, check=state.epoch == 0)
    if not math.isfinite(terms.loss.detach()):
        raise _non_finite(trainer, outputs, terms, state)
    return outputs, terms


def _stream(
    team: Alone | Team,
    train: Any,
    objective: Objective,
    disagreement: Any,
    augment: Augmentation | LabelledAugmentation | None,
    recipe: Recipe,
) -> Stream:
    """The batches to train on; says before any work what does not fit together."""
    name, size = type(objective).__name__, recipe.batch_size
    device, members = team.ens.device, team.members
    if objective.needs_disagreement and disagreement is None:
        raise ValueError(f"{name} needs disagreement=, unlabelled data to disagree on")
    if disagreement is not None and not objective.needs_disagreement:
        raise ValueError(f"{name} takes no disagreement data; leave disagreement=None")
    objective.sample_members(members, torch.Generator())  # raises if it cannot draw that many
    train, weights = split_weights(train)
    if weights is not None and augment is not None:
        raise ValueError("augment may change which examples there are; train without weights")
    batches = as_batches(train, size, shuffle=True, device=device)
    extra: Batches | None = None
    if disagreement is not None:
        extra = as_batches(disagreement, size, shuffle=True, device=device, labelled=False)
    for source, what in ((batches, "training"), (extra, "disagreement")):
        if source is not None and len(source) == 0:
            raise ValueError(f"the {what} data are empty, got 0 batches")
    weights = None if weights is None else weights.to(device)
    return Stream(
        batches, extra, objective, members, device, augment, recipe.seed, weights, rank=team.rank
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


def _check_weights(ens: Ensemble, state: RunState) -> None:
    """Raise rather than save weights that are not finite over a checkpoint whose weights are."""
    for name, parameter in ens.named_parameters():
        if not parameter.requires_grad:
            continue
        if hasattr(parameter, "to_local"):  # split over processes
            parameter = parameter.to_local()
        # A sum is finite if its terms are, short of overflow, and is far cheaper to look at.
        if not math.isfinite(parameter.detach().sum()) and not bool(parameter.isfinite().all()):
            raise NonFiniteLoss(
                f"{name} is not finite after epoch {state.epoch + 1}, batch {state.batch}, though "
                "the loss is; the last checkpoint is from before it. Lower the learning rate or "
                "clip gradients (clip=1.0)"
            )


def _check_figures(record: dict[str, Any]) -> None:
    """Raise where evaluation did not give numbers to choose an epoch by."""
    for part in ("train_exact", "val"):
        error = record.get(part, {}).get("member_error", 0.0)
        if not math.isfinite(error):
            raise NonFiniteLoss(
                f"the error on {part} data is {error} after epoch {record['epoch']}, though the "
                "weights are finite; the last checkpoint is from before it. Look for NaN or very "
                "large values in these data"
            )


def _non_finite(
    trainer: Trainer | TeamTrainer, outputs: Any, terms: Terms, state: RunState
) -> NonFiniteLoss:
    bad = [name for name, part in terms.parts.items() if not math.isfinite(part.detach())]
    cause = f" (not finite: {', '.join(bad)})" if bad else ""
    name, loss = type(trainer.objective).__name__, float(terms.loss.detach())
    return NonFiniteLoss(
        f"{trainer.where(outputs)}the loss of {name} is {loss} at epoch {state.epoch + 1}, batch "
        f"{state.batch + 1}{cause}; a checkpoint, if there is one, is from before it. Lower the "
        "learning rate, clip gradients (clip=1.0), or look at the batch"
    )


def _describe(record: dict[str, Any]) -> str:
    """The key metrics of an epoch in one line."""
    parts = []
    for name in ("train", "val"):
        metrics = record.get(name)
        if metrics is None:
            continue
        text = f"{name} error {metrics['ensemble_error']:.4f}"
        if "accuracy" in metrics:
            text += f", accuracy {metrics['accuracy']:.1%}"
        parts.append(text)
    return "; ".join(parts)


def _stopped(saver: Saver, batches: int, bar: ProgressBar) -> Stopped:
    state = saver.state
    text = f"stopped in epoch {state.epoch + 1} after {state.batch} of {batches} batches"
    if saver.folder is None:
        text += "; nothing was saved, as there is no run folder (out=…)"
    else:
        text += f"; saved, go on with resume=True (--resume) and out={saver.folder.path}"
    bar.say(text[0].upper() + text[1:])
    return Stopped(text)
