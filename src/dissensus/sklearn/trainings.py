"""Trainings made from an estimator's parameters, and the choice of β by cross-validation.

All folds and all β train side by side as one fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold, check_cv, train_test_split
from torch import Tensor, nn

from dissensus.diagnostics import Split
from dissensus.diagnostics import judge as verdict_of
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
from dissensus.sklearn.rows import Floats, Rows, Standard, pad
from dissensus.sweeps.selection import Selection, overall_verdict, select_setting
from dissensus.training import Optimizer, Recipe, Training, fit_fleet
from dissensus.training.meters import judge
from dissensus.training.single_process import SingleProcess
from dissensus.training.stream import make_stream

__all__ = [
    "Job",
    "batch_size",
    "check_integer",
    "combination",
    "cv_results",
    "equal_folds",
    "folds",
    "hidden_sizes",
    "judge_folds",
    "make_ensemble",
    "make_recipe",
    "make_trainings",
    "objective_of",
    "outputs_each",
    "split_rows",
    "train_once",
    "validation_share",
    "with_beta",
]

Index = NDArray[np.int64]


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
    """One ensemble to train on ``rows``, which ``standard`` turns into tensors."""

    rows: Rows
    objective: Objective
    standard: Standard


def make_trainings(
    jobs: Sequence[Job],
    outputs: int,
    combine: str,
    seed: int,
    params: dict[str, Any],
    start: Ensemble | None = None,
) -> list[Training]:
    """Trainings that go side by side: their data sets are made of one length.

    All start from the same weights, those of ``start`` if it is given, and see rows in an order of
    the same seed.
    """
    parts = [split_rows(job, seed, params) for job in jobs]
    train = pad([part for part, _ in parts])
    val = [part for _, part in parts if part is not None]
    recipe = make_recipe(len(train[0][0]), seed, params)
    members, device = check_integer("n_estimators", params["n_estimators"]), params["device"]
    widths = hidden_sizes(params)
    if start is None:
        ens = make_ensemble(train[0][0].shape[1], outputs, members, combine, seed, params)
    else:
        ens = _copy_to_train(start, members, [*widths, outputs])
        ens.combine = combine
        ens = ens.to(device)

    def there(part: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(tensor.to(device) for tensor in part)

    held_out = [there(part) for part in pad(val)] if val else [None] * len(jobs)
    return [
        Training(deepcopy(ens), there(part), job.objective, held, recipe)
        for job, part, held in zip(jobs, train, held_out, strict=True)
    ]


def hidden_sizes(params: dict[str, Any]) -> list[int]:
    """The sizes of the hidden layers; one number is one layer."""
    hidden = params["hidden_layer_sizes"]
    sizes = [hidden] if isinstance(hidden, Integral) else hidden
    return [check_integer("hidden_layer_sizes", width) for width in sizes]


def make_ensemble(
    inputs: int, outputs: int, members: int, combine: str, seed: int, params: dict[str, Any]
) -> Ensemble:
    """New members, on the device that is asked for."""
    widths, sharing = hidden_sizes(params), params["sharing"]

    def member() -> nn.Module:
        return table_mlp((inputs,), outputs, hidden=widths)

    return Ensemble(member, members, seed, combine, sharing=sharing).to(params["device"])


def _copy_to_train(ens: Ensemble, members: int, widths: list[int]) -> Ensemble:
    """A copy that can be trained further; raises if it has other members than are asked for."""
    layers = [weight.shape[1] for weight in ens.parameters() if weight.ndim == 3]
    if (ens.members, layers) != (members, widths):
        raise ValueError(
            "to train further, n_estimators and hidden_layer_sizes must stay as they were, "
            f"{ens.members} and {layers[:-1]}, got {members} and {widths[:-1]}; set them back, or "
            "train anew with fit and warm_start=False"
        )
    return deepcopy(ens).float().requires_grad_(True)


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


# ---- the choice of β ---------------------------------------------------------------------------


def folds(rows: Rows, original: Rows, cv: Any, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to train and rows to judge on, for each fold.

    A number makes that many folds of the merged ``rows``, shuffled, with the classes in proportion
    where they are large enough. A splitter, or pairs of indices, split the ``original`` rows.
    """
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        return [(rows.pick(a), rows.pick(b)) for a, b in equal_folds(rows, int(cv), seed)]
    classifier = original.y.ndim == 1
    labels = original.y if classifier else original.y[:, 0]
    pairs: Iterable[tuple[Index, Index]] = check_cv(cv, labels, classifier=classifier).split(
        original.x, labels
    )
    splits = []
    for train, test in pairs:
        parts = [original.pick(np.asarray(index)) for index in (train, test)]
        if not all(part.weights.any() for part in parts):
            raise ValueError("cv left no row of a weight above zero on one side of a split")
        splits.append(tuple(Rows.of(part.x, part.y, part.weights) for part in parts))
    return splits  # type: ignore[return-value]


def equal_folds(rows: Rows, count: int, seed: int) -> list[tuple[Index, Index]]:
    """Rows to train on and rows to hold out, shuffled, classes in proportion where they can be."""
    if not 2 <= count <= len(rows):
        raise ValueError(
            f"beta='auto' needs cv of at least 2 and no more than there are different rows, got "
            f"cv={count} and n_samples = {len(rows)}; with few rows, give beta a number"
        )
    strata = rows.y.ndim == 1 and np.unique(rows.y, return_counts=True)[1].min() >= count
    kind = StratifiedKFold if strata else KFold
    splitter = kind(count, shuffle=True, random_state=seed)
    return list(splitter.split(rows.x, rows.y if strata else None))


def judge_folds(
    trainings: Sequence[Training], held_out: Sequence[tuple[Tensor, ...]], progress: bool
) -> tuple[Floats, list[str]]:
    """Train all; the ensemble's error of each on its held-out rows, and its verdict there."""
    histories = fit_fleet(trainings, progress=progress, keep_failed=True)
    errors, verdicts = np.full(len(trainings), np.inf), ["not judged"] * len(trainings)
    for place, (training, history) in enumerate(zip(trainings, histories, strict=True)):
        if history.ended.startswith("failed"):
            continue
        ens = training.ens
        x, y, *weights = (tensor.to(ens.device) for tensor in held_out[place])
        with ens.evaluating(), torch.no_grad():
            outputs, train = ens(x), ens(training.train[0])
        metrics = judge(outputs, y, ens.combine, *weights)
        count = float(weights[0].sum()) if weights else len(x)
        errors[place] = float(metrics["ensemble_error"]) / count
        if np.isfinite(errors[place]):
            test = Split.of((outputs, y), combine=ens.combine)
            seen = Split.of((train, training.train[1]), combine=ens.combine)
            verdicts[place] = verdict_of(test, seen).word
    return errors, verdicts


def cv_results(
    betas: Sequence[float], errors: Floats, verdicts: Sequence[str], overlap: float
) -> tuple[dict[str, Any], Selection]:
    """Errors ``[β, folds]`` in the form of ``GridSearchCV.cv_results_``, and the choice of β.

    Scores are minus the errors, so that higher is better. ``se_test_score`` is the standard error
    of the mean, ``difference`` and ``se_difference`` are of the paired differences of errors to the
    best, ``verdict`` is over folds, and ``status`` says what the rule of
    :mod:`dissensus.sweeps.selection` made of each β.
    """
    words = np.array(verdicts).reshape(errors.shape)
    overall = [overall_verdict(row.tolist()) for row in words]
    found = select_setting(errors.tolist(), betas=betas, verdicts=overall, overlap=overlap)
    scores = -errors
    mean = scores.mean(1)
    with np.errstate(invalid="ignore"):  # a β whose training failed has an infinite error
        spread = scores.std(1)
    ranks = np.argsort(np.argsort(-mean, kind="stable"), kind="stable") + 1
    folds = range(scores.shape[1])
    return {
        "param_beta": np.array(betas, dtype=np.float64),
        "params": [{"beta": float(beta)} for beta in betas],
        **{f"split{fold}_test_score": scores[:, fold] for fold in folds},
        "mean_test_score": mean,
        "std_test_score": spread,
        "rank_test_score": ranks.astype(np.int32),
        "se_test_score": np.array(found.standard_errors),
        "difference": np.array(found.differences),
        "se_difference": np.array(found.difference_errors),
        **{f"split{fold}_verdict": words[:, fold] for fold in folds},
        "verdict": np.array(overall),
        "status": np.array(found.status),
    }, found
