"""Trainings made from an estimator's parameters, and the choice of β by cross-validation.

All folds and all β train side by side as one fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold, check_cv, train_test_split
from torch import Tensor

from dissensus.diagnostics import Split
from dissensus.diagnostics import judge as verdict_of
from dissensus.ensemble import Ensemble
from dissensus.losses import natural_combination
from dissensus.models import mlp
from dissensus.objectives import Augmented, Independent, LearnerDropout, Objective, parse
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
    "combination",
    "cv_results",
    "folds",
    "judge_folds",
    "make_trainings",
    "objective_of",
    "train_once",
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
    if isinstance(objective, LearnerDropout):
        return replace(objective, objective=objective_of(objective.objective, loss))
    if isinstance(objective, Interpolation) and loss == "mse" and objective.loss != "mse":
        return replace(objective, loss="mse", combine=None, label_smoothing=0.0)
    regression = loss == "mse"
    if not _fits(objective, regression) and _fits(objective, not regression):
        here, there = ("classification", "regression")[:: -1 if regression else 1]
        raise ValueError(f"{objective.spec()!r} is an objective for {there}, and this is {here}")
    return objective


def _fits(objective: Objective, regression: bool) -> bool:
    """Whether the objective takes targets of a regression, or labels of a classification."""
    outputs = torch.zeros(2, 1, 4)
    targets = outputs[0] if regression else torch.zeros(1, dtype=torch.int64)
    try:
        objective.check(outputs, targets)
    except ValueError:
        return False
    return True


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
    """The number of rows in a batch; ``"auto"``: 64, for many rows more, up to 512.

    >>> [batch_size("auto", rows) for rows in (40, 1000, 10_000, 100_000)]
    [40, 64, 156, 512]
    """
    if asked == "auto":
        return min(max(rows // 64, 64), 512, rows)
    return min(_integer("batch_size", asked), rows)


class Job:
    """One ensemble to train on ``rows``, standardised by their own mean and deviation.

    ``standard`` is given where an ensemble trains further: as its first rows were standardised.
    """

    def __init__(
        self,
        rows: Rows,
        scaled: NDArray[np.bool_],
        objective: Objective,
        standard: Standard | None = None,
    ) -> None:
        self.rows, self.objective = rows, objective
        self.standard = Standard.fit(rows, scaled) if standard is None else standard


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
    members = _integer("n_estimators", params["n_estimators"])
    hidden = params["hidden_layer_sizes"]
    widths = [
        _integer("hidden_layer_sizes", width)
        for width in ([hidden] if isinstance(hidden, Integral) else hidden)
    ]
    parts = [_parts(job, seed, params) for job in jobs]
    train = pad([part for part, _ in parts])
    val = [part for _, part in parts if part is not None]
    recipe = _recipe(len(train[0][0]), seed, params)
    columns, device = train[0][0].shape[1], params["device"]

    if start is None:
        ens = Ensemble(lambda: mlp((columns,), outputs, hidden=widths), members, seed, combine)
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


def _parts(job: Job, seed: int, params: dict[str, Any]) -> tuple[Any, Any]:
    """Tensors to train on and, for early stopping, to validate on."""
    rows = job.rows
    if not params["early_stopping"]:
        return job.standard.tensors(rows), None
    share = _number("validation_fraction", params["validation_fraction"])
    if not 0 < share < 1:
        raise ValueError(f"validation_fraction must lie between 0 and 1, got {share!r}")
    if len(rows) < 2:  # nothing can be held out, and one row is no risk to fit too well
        return job.standard.tensors(rows), job.standard.tensors(rows)
    held = min(max(round(share * len(rows)), 1), len(rows) - 1)
    train, val = train_test_split(
        np.arange(len(rows)), test_size=held, random_state=seed, stratify=_strata(rows, held)
    )
    # In the order of all rows, so that what is trained on is the same whatever the shuffle.
    return tuple(job.standard.tensors(rows.pick(np.sort(index))) for index in (train, val))  # type: ignore[return-value]


def _strata(rows: Rows, held: int) -> NDArray[Any] | None:
    """The labels, where every class has rows for both sides of a split."""
    if rows.y.ndim == 2:
        return None
    counts = np.unique(rows.y, return_counts=True)[1]
    fits = counts.min() >= 2 and len(counts) <= min(held, len(rows) - held)
    return rows.y if fits else None


def _recipe(rows: int, seed: int, params: dict[str, Any]) -> Recipe:
    patience = params["n_iter_no_change"]
    return Recipe(
        epochs=_integer("max_iter", params["max_iter"]),
        batch_size=batch_size(params["batch_size"], rows),
        optimizer=Optimizer(
            "adamw",
            lr=_number("learning_rate_init", params["learning_rate_init"]),
            weight_decay=_number("alpha", params["alpha"]),
        ),
        schedule=params["schedule"],
        patience=_integer("n_iter_no_change", patience) if params["early_stopping"] else None,
        shuffle=params["shuffle"],
        bootstrap=bool(params["bootstrap"]),
        seed=seed,
    )


def _integer(name: str, value: Any) -> int:
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
        return [(rows.pick(a), rows.pick(b)) for a, b in _equal_folds(rows, int(cv), seed)]
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


def _equal_folds(rows: Rows, cv: int, seed: int) -> Iterable[tuple[Index, Index]]:
    if not 2 <= cv <= len(rows):
        raise ValueError(
            f"beta='auto' needs cv of at least 2 and no more than there are different rows, got "
            f"cv={cv} and n_samples = {len(rows)}; with few rows, give beta a number"
        )
    strata = rows.y.ndim == 1 and np.unique(rows.y, return_counts=True)[1].min() >= cv
    kind = StratifiedKFold if strata else KFold
    splitter = kind(cv, shuffle=True, random_state=seed)
    splits: Iterable[tuple[Index, Index]] = splitter.split(rows.x, rows.y if strata else None)
    return splits


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
