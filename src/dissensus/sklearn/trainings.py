"""Trainings made from an estimator's parameters: objective, members, rows and recipe."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from torch import Tensor, nn

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
from dissensus.sklearn.rows import Rows, Standard, pad
from dissensus.training import History, Optimizer, Recipe, Training, predict
from dissensus.training.single_process import SingleProcess
from dissensus.training.stream import make_stream

Index = NDArray[np.int64]

#: Beyond so many rows, wider networks learn more, and a falling rate lets them settle.
_MANY_ROWS = 10_000
#: Epochs of a learning rate that falls.
_FALL = 40


def objective_of(asked: Any, loss: str) -> Objective:
    """The objective for ``loss``, from a name with settings or an object."""
    objective = parse(asked) if isinstance(asked, str) else asked
    if not isinstance(objective, Objective):
        raise ValueError(
            "objective must be a name such as 'ldr:strength=2' or an object of "
            f"dissensus.objectives, got {asked!r}"
        )
    if objective.needs_disagreement:
        raise ValueError(
            f"{type(objective).__name__} needs unlabelled data to disagree on, which fit(X, y) "
            "has not; objective='ldr' disagrees on the training data"
        )
    if loss == "gaussian" and not isinstance(objective, Gaussian):
        if type(objective) is not Independent:
            raise ValueError(
                "loss='gaussian' trains members independently, by objective='independent', got "
                f"{objective.spec()!r}"
            )
        return Gaussian()
    if isinstance(objective, LearnerDropout):
        return replace(objective, objective=objective_of(objective.objective, loss))
    if isinstance(objective, Interpolation) and loss == "mse" and objective.loss != "mse":
        return replace(objective, loss="mse", combine=None, label_smoothing=0.0)
    regression = loss in ("mse", "gaussian")
    if not _fits(objective, regression) and _fits(objective, not regression):
        here, there = ("classification", "regression")[:: -1 if regression else 1]
        raise ValueError(f"{objective.spec()!r} is an objective for {there}, and this is {here}")
    return objective


def _fits(objective: Objective, regression: bool) -> bool:
    """Whether the objective takes targets of a regression, or labels of a classification."""
    outputs = torch.zeros(2, 1, 4)
    targets = torch.zeros(1, dtype=torch.int64)
    if regression:
        targets = outputs[0, :, : 4 // outputs_each(objective)]
    try:
        objective.check(outputs, targets)
    except ValueError:
        return False
    return True


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
        raise ValueError(
            f"beta goes with objective='independent' or 'augmented', got {objective.spec()!r}; "
            "leave beta=None, and give an objective's own settings with its name: "
            "'adp:alpha=1,beta=0.5'"
        )
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
    """Members that trained apart, as one ensemble, the histories, and what was held out.

    ``settings`` are those of each member, where members have their own.
    """

    ens: Ensemble
    histories: list[History]
    held_out: HeldOut | None
    settings: list[dict[str, Any]] | None = None


def make_trainings(
    jobs: Sequence[Job], seed: int, params: dict[str, Any], start: Ensemble | None = None
) -> list[Training]:
    """Trainings that go side by side: their data sets are made of one length.

    All start from the same weights, those of ``start`` if it is given, and see rows in an order of
    the same seed. Jobs on the same rows share their tensors.
    """
    different = {id(job.rows): job for job in jobs}
    parts = [split_rows(job, seed, params) for job in different.values()]
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
            f"{ens.members} and {layers[:-1]}, got {members} and {widths}; set them back, or "
            "train anew with fit and warm_start=False"
        )
    copy = deepcopy(ens).float().requires_grad_(True).to(params["device"])
    copy.combine = job.combine
    return copy


def _widths(ens: Ensemble) -> list[int]:
    """The widths of the layers, the last one's included."""
    return [weight.shape[1] for weight in ens.parameters() if weight.ndim == 3]


def held_out_together(training: Training, job: Job) -> HeldOut | None:
    """What all members say of the rows that they have held out together."""
    if training.val is None or len(job.rows) < 2:
        return None
    x, y, *rest = (tensor.double().cpu() for tensor in training.val)
    weights = rest[0] if rest else None
    raw = predict(training.ens.cpu().double().eval(), x).outputs
    targets = y.long() if job.standard.y is None else job.standard.in_units(y)
    return HeldOut.of_all(job.standard.in_units(raw), targets, weights, job.standard.noise(raw))


def train_once(
    training: Training, number: int, moments: dict[str, Tensor] | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One pass over the rows, the ``number``-th; its record, and the optimiser's moments after it.

    ``moments`` are those of the pass before: with new ones for each pass, Adam would step by the
    sign of the gradient alone.
    """
    ens, objective, recipe = training.ens, training.objective, training.recipe
    assert isinstance(objective, Objective)
    process = SingleProcess(ens)
    trainer, meter = process.make_trainer(objective, recipe), process.make_meter(objective)
    if moments is not None:
        trainer.load(moments)
    stream = make_stream(training.train, objective, None, None, recipe, ens.members, ens.device)
    meter.own = stream.own_batches
    with torch.random.fork_rng():
        ens.train()
        for batch in stream.epoch(number):
            outputs, terms = trainer.step(batch, set(), 1.0, check=True)
            loss = float(terms.loss)
            if not np.isfinite(loss):
                raise ValueError(
                    f"the loss is {loss} in pass {number + 1}; lower the learning rate"
                )
            meter.add(outputs, batch.y, terms.parts, batch.drawn, batch.weights)
    return {"epoch": 1, "train": meter.record()}, trainer.state()


def split_rows(job: Job, seed: int, params: dict[str, Any]) -> tuple[Any, Any]:
    """Tensors to train on and, for early stopping, to validate on."""
    rows, share = job.rows, validation_share(params)
    if not params["early_stopping"]:
        return job.standard.tensors(rows), None
    if len(rows) < 2:  # nothing can be held out, and one row is no risk to fit too well
        return (only := job.standard.tensors(rows)), only
    held = min(max(round(share * len(rows)), 1), len(rows) - 1)
    train, val = train_test_split(
        np.arange(len(rows)), test_size=held, random_state=seed, stratify=_strata(rows, held)
    )
    # In the order of all rows, so that what is trained on is the same whatever the shuffle.
    return tuple(job.standard.tensors(rows.pick(np.sort(index))) for index in (train, val))  # type: ignore[return-value]


def equal_folds(rows: Rows, count: int, seed: int) -> list[tuple[Index, Index]]:
    """Rows to train on and rows to hold out, shuffled, classes in proportion where they can be."""
    strata = rows.y.ndim == 1 and np.unique(rows.y, return_counts=True)[1].min() >= count
    kind = StratifiedKFold if strata else KFold
    splitter = kind(count, shuffle=True, random_state=seed)
    return list(splitter.split(rows.x, rows.y if strata else None))


def validation_share(params: dict[str, Any]) -> float:
    """The share of rows that all members hold out together."""
    share = _number("validation_fraction", params["validation_fraction"])
    if not 0 < share < 1:
        raise ValueError(f"validation_fraction must lie between 0 and 1, got {share!r}")
    return share


def _strata(rows: Rows, held: int) -> NDArray[Any] | None:
    """The labels, where every class has rows for both sides of a split."""
    if rows.y.ndim == 2:
        return None
    counts = np.unique(rows.y, return_counts=True)[1]
    fits = counts.min() >= 2 and len(counts) <= min(held, len(rows) - held)
    return rows.y if fits else None


def make_recipe(rows: int, seed: int, params: dict[str, Any]) -> Recipe:
    """How to train on so many rows."""
    patience = params["n_iter_no_change"]
    return Recipe(
        epochs=check_integer("max_iter", params["max_iter"]),
        batch_size=batch_size(params["batch_size"], rows),
        optimizer=Optimizer(
            "adamw",
            lr=_number("learning_rate_init", params["learning_rate_init"]),
            weight_decay=_number("alpha", params["alpha"]),
        ),
        schedule=params["schedule"],
        patience=check_integer("n_iter_no_change", patience) if params["early_stopping"] else None,
        shuffle=params["shuffle"],
        bootstrap=bool(params["bootstrap"]),
        seed=seed,
    )


def check_integer(name: str, value: Any) -> int:
    """``value`` as an int; raises unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or not 0 <= float(value) < np.inf:
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
    return float(value)
