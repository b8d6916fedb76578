"""Trainings made from an estimator's parameters: objective, members, rows and recipe."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.data.encoder import Standard
from dissensus.ensemble import Ensemble
from dissensus.losses import natural_combination
from dissensus.models import table_mlp
from dissensus.objectives import (
    Augmented,
    Gaussian,
    Independent,
    LearnerDropout,
    Objective,
    parse,
)
from dissensus.objectives.interpolation import Interpolation
from dissensus.sklearn.held_out import HeldOut
from dissensus.sklearn.rows import Rows, common_split, member_outputs, pad, tensors
from dissensus.tools.specs import check_integer, check_number
from dissensus.training import History, Optimizer, Recipe, Training, fit_fleet
from dissensus.training.evaluation import Meter
from dissensus.training.step import Trainer
from dissensus.training.stream import Stream

#: Beyond so many rows, wider networks learn more, and a falling rate lets them settle.
_MANY_ROWS = 10_000
#: Epochs of a learning rate that falls.
_FALL = 40


def objective_of(asked: Any, loss: str) -> Objective:
    """The objective for ``loss``, from a name with settings or an object."""
    objective = parse(asked) if isinstance(asked, str) else asked
    if not isinstance(objective, Objective):
        raise ValueError(f"objective must be a name such as 'ldr:strength=2', got {asked!r}")
    if objective.needs_disagreement:
        name = type(objective).__name__
        raise ValueError(f"{name} needs unlabelled data; objective='ldr' disagrees on X itself")
    if loss == "gaussian" and not isinstance(objective, Gaussian):
        if type(objective) is not Independent:
            raise ValueError(f"loss='gaussian' goes with 'independent', got {objective.spec()!r}")
        return Gaussian()
    if isinstance(objective, LearnerDropout):
        return replace(objective, objective=objective_of(objective.objective, loss))
    if isinstance(objective, Interpolation) and loss == "mse" and objective.loss != "mse":
        return replace(objective, loss="mse", combine=None, label_smoothing=0.0)
    return objective


def outputs_each(objective: Objective) -> int:
    """How many outputs a member has for each target: Gaussian ones a mean and a variance."""
    return 2 if isinstance(objective, Gaussian) else 1


def combination(objective: Objective, loss: str) -> str:
    """How members are combined: as the objective says, else as suits the loss."""
    if isinstance(objective, LearnerDropout):
        return combination(objective.objective, loss)
    if isinstance(objective, Interpolation) and objective.combine is not None:
        return objective.combine
    return natural_combination(loss)


def with_beta(objective: Objective, beta: float) -> Augmented:
    """``Augmented(beta)`` in place of the plain ensemble, with that one's loss."""
    if not isinstance(objective, Independent | Augmented):
        raise ValueError(f"beta goes with objective='independent', got {objective.spec()!r}")
    return Augmented(
        beta=float(beta),
        loss=objective.loss,
        combine=objective.combine,
        label_smoothing=objective.label_smoothing,
    )


def batch_size(asked: int | str, rows: int) -> int:
    """The number of rows in a batch; ``"auto"``: a sixteenth of the rows, from 32 to 256.

    >>> [batch_size("auto", rows) for rows in (20, 1000, 2500, 100_000)]
    [20, 62, 156, 256]
    """
    if asked == "auto":
        return min(max(rows // 16, 32), 256, rows)
    return min(check_integer("batch_size", asked), rows)


@dataclass(frozen=True, eq=False)
class Job:
    """One ensemble to train on ``rows``, which ``standard`` turns into tensors.

    Its members have so many ``outputs`` and are combined by ``combine``.
    """

    rows: Rows
    objective: Objective
    standard: Standard
    outputs: int
    combine: str


class TrainedMembers(NamedTuple):
    """Members as one ensemble, the histories of their trainings, and their held-out predictions."""

    ens: Ensemble
    histories: list[History]
    held_out: HeldOut | None


def train_together(
    job: Job, seed: int, params: dict[str, Any], start: Ensemble | None
) -> TrainedMembers:
    """Train all members as one ensemble, on from ``start`` if it is given."""
    (training,) = make_trainings([job], seed, params, start)
    histories = fit_fleet([training], progress=False)
    ens = training.ens.cpu().double().eval()
    if training.val is None or len(job.rows) < 2:
        return TrainedMembers(ens, histories, None)
    x, y, *rest = (tensor.double().cpu() for tensor in training.val)
    raw, standard = member_outputs(ens, x), job.standard
    targets = y.long() if standard.y is None else standard.in_units(y)
    weights = rest[0] if rest else None
    held_out = HeldOut.of_all(standard.in_units(raw), targets, weights, standard.noise(raw))
    return TrainedMembers(ens, histories, held_out)


def make_trainings(
    jobs: Sequence[Job], seed: int, params: dict[str, Any], start: Ensemble | None = None
) -> list[Training]:
    """Trainings that go side by side: their data sets are made of one length.

    All start from the same weights, those of ``start`` if it is given, and see rows in an order of
    the same seed. Jobs on the same rows share their tensors.
    """
    different = {id(job.rows): job for job in jobs}
    parts = [_split(job, seed, params) for job in different.values()]
    sides = [_place(side, params["device"]) for side in zip(*parts, strict=True)]
    data = dict(zip(different, zip(*sides, strict=True), strict=True))
    inputs = sides[0][0][0]
    ens = (
        make_ensemble(inputs.shape[1], jobs[0], params["n_estimators"], seed, params)
        if start is None
        else _copy_to_train(start, jobs[0], params)
    )
    recipe = make_recipe(len(inputs), seed, params)
    trainings = []
    for job in jobs:
        train, val = data[id(job.rows)]
        trainings.append(Training(deepcopy(ens), train, job.objective, val, recipe))
    return trainings


def _place(parts: Sequence[Any], device: torch.device) -> Sequence[Any]:
    """Data sets of one length on the device; None where there are none."""
    if parts[0] is None:
        return parts
    return [tuple(tensor.to(device) for tensor in part) for part in pad(parts)]


def settle(params: dict[str, Any], rows: int, start: Ensemble | None = None) -> dict[str, Any]:
    """The parameters with what ``"auto"`` means for so many rows, and on from ``start``.

    Hidden layers are two of 64 and the learning rate is constant. With many rows, layers are two of
    128 and, where training stops early, the rate falls along a cosine of 40 epochs.
    """
    many = rows > _MANY_ROWS
    settled: dict[str, Any] = {}
    if _is_auto(params["hidden_layer_sizes"]):
        sizes = (128, 128) if many else (64, 64)
        settled["hidden_layer_sizes"] = sizes if start is None else tuple(_widths(start)[:-1])
    if _is_auto(params["schedule"]):
        falls = many and params["early_stopping"]
        settled["schedule"] = "cosine" if falls else "constant"
        epochs = check_integer("max_iter", params["max_iter"])
        settled["max_iter"] = min(epochs, _FALL) if falls else epochs
    return params | settled


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def hidden_sizes(params: dict[str, Any]) -> list[int]:
    """The sizes of the hidden layers; one number is one layer."""
    asked = params["hidden_layer_sizes"]
    sizes = [asked] if isinstance(asked, Integral | str) else asked
    return [check_integer("hidden_layer_sizes", width) for width in sizes]


def make_ensemble(
    inputs: int, job: Job, members: int, seed: int, params: dict[str, Any]
) -> Ensemble:
    """New members, on the device that is asked for."""
    members, widths = check_integer("n_estimators", members), hidden_sizes(params)

    def member() -> nn.Module:
        return table_mlp((inputs,), job.outputs, hidden=widths)

    ens = Ensemble(member, members, seed, job.combine, sharing=params["sharing"])
    return ens.to(params["device"])


def _copy_to_train(ens: Ensemble, job: Job, params: dict[str, Any]) -> Ensemble:
    """A copy that can be trained further; raises if it has other members than are asked for."""
    layers = _widths(ens)
    members, widths = params["n_estimators"], hidden_sizes(params)
    if (ens.members, layers) != (members, [*widths, job.outputs]):
        raise ValueError(
            "to train further, n_estimators and hidden_layer_sizes must stay as they were, "
            f"{ens.members} and {layers[:-1]}, got {members} and {widths}"
        )
    copy = deepcopy(ens).float().requires_grad_(True).to(params["device"])
    copy.combine = job.combine
    return copy


def _widths(ens: Ensemble) -> list[int]:
    """The widths of the layers, the last one's included."""
    return [weight.shape[1] for weight in ens.parameters() if weight.ndim == 3]


def train_once(
    training: Training, number: int, moments: dict[str, Tensor] | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One pass over the rows, the ``number``-th; its record, and the optimiser's moments after it.

    ``moments`` are those of the pass before: with new ones for each pass, Adam would step by the
    sign of the gradient alone.
    """
    ens, objective, recipe = training.ens, training.objective, training.recipe
    assert isinstance(objective, Objective)
    trainer = Trainer(ens, objective, recipe)
    if moments is not None:
        trainer.members.optimizer.load(moments)
    stream = Stream(training.train, objective, None, None, recipe, ens.members, ens.device)
    meter = Meter(ens.members, ens.combine, own=stream.own_batches)
    with torch.random.fork_rng():
        ens.train()
        for batch in stream.epoch(number):
            outputs, terms = trainer.step(batch, set(), 1.0, check=True)
            loss = float(terms.loss)
            if not np.isfinite(loss):
                raise ValueError(f"the loss is {loss}; lower the learning rate")
            meter.add(outputs, batch.y, terms.parts, batch.drawn, batch.weights)
    return {"epoch": 1, "train": meter.record()}, trainer.members.optimizer.state()


def _split(job: Job, seed: int, params: dict[str, Any]) -> tuple[Any, Any]:
    """Tensors to train on and, for early stopping, to validate on."""
    share = validation_share(params)
    if not params["early_stopping"]:
        return tensors(job.standard, job.rows), None
    if len(job.rows) < 2:  # nothing can be held out, and one row is no risk to fit too well
        return (only := tensors(job.standard, job.rows)), only
    train, val = common_split(job.rows, share, seed)
    return tensors(job.standard, train), tensors(job.standard, val)


def validation_share(params: dict[str, Any]) -> float:
    """The share of rows that all members hold out together."""
    share = params["validation_fraction"]
    return check_number("validation_fraction", share, 0.0, above=0.0, below=1.0)


def make_recipe(rows: int, seed: int, params: dict[str, Any]) -> Recipe:
    """How to train on so many rows."""
    patience = params["n_iter_no_change"]
    return Recipe(
        epochs=check_integer("max_iter", params["max_iter"]),
        batch_size=batch_size(params["batch_size"], rows),
        optimizer=Optimizer(
            "adamw",
            lr=check_number("learning_rate_init", params["learning_rate_init"], 0.0),
            weight_decay=check_number("alpha", params["alpha"], 0.0),
        ),
        schedule=params["schedule"],
        patience=check_integer("n_iter_no_change", patience) if params["early_stopping"] else None,
        shuffle=params["shuffle"],
        bootstrap=bool(params["bootstrap"]),
        seed=seed,
    )
