"""Choice of β by cross-validation: all folds and all β train side by side as one fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold, check_cv

from dissensus.sklearn.rows import Floats, Rows
from dissensus.training import Training, fit_fleet
from dissensus.training.meters import judge

__all__ = ["folds", "held_out_errors", "results"]

Index = NDArray[np.int64]


def folds(rows: Rows, given: Rows, cv: Any, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to train and rows to judge on, for each fold.

    A number makes that many folds of the merged ``rows``, shuffled, with the classes in proportion
    where they are large enough. A splitter, or pairs of indices, split the rows as ``given``.
    """
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        return [(rows.pick(a), rows.pick(b)) for a, b in _equal_folds(rows, int(cv), seed)]
    labels = given.y if given.y.ndim == 1 else given.y[:, 0]
    pairs: Iterable[tuple[Index, Index]] = check_cv(cv, labels, classifier=given.y.ndim == 1).split(
        given.x, labels
    )
    splits = []
    for train, test in pairs:
        parts = [given.pick(np.asarray(index)) for index in (train, test)]
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


def held_out_errors(
    trainings: Sequence[Training], held_out: Sequence[tuple[torch.Tensor, ...]], progress: bool
) -> Floats:
    """The ensemble's error of each training on its held-out rows, after training all of them."""
    histories = fit_fleet(trainings, progress=progress, keep_failed=True)
    errors = np.full(len(trainings), np.inf)
    for place, (training, history) in enumerate(zip(trainings, histories, strict=True)):
        if history.ended.startswith("failed"):
            continue
        x, y, *weights = (tensor.to(training.ens.device) for tensor in held_out[place])
        with training.ens.evaluating():
            found = judge(training.ens(x), y, training.ens.combine, *weights)
        count = float(weights[0].sum()) if weights else len(x)
        errors[place] = float(found["ensemble_error"]) / count
    return errors


def results(betas: Sequence[float], errors: Floats) -> dict[str, Any]:
    """What was found, in the form of ``GridSearchCV.cv_results_``, from errors ``[β, folds]``.

    Scores are minus the errors, so that higher is better.
    """
    scores = -errors
    mean = scores.mean(1)
    with np.errstate(invalid="ignore"):  # a β whose training failed has an infinite error
        spread = scores.std(1)
    ranks = np.argsort(np.argsort(-mean, kind="stable"), kind="stable") + 1
    return {
        "param_beta": np.array(betas, dtype=np.float64),
        "params": [{"beta": float(beta)} for beta in betas],
        **{f"split{fold}_test_score": scores[:, fold] for fold in range(scores.shape[1])},
        "mean_test_score": mean,
        "std_test_score": spread,
        "rank_test_score": ranks.astype(np.int32),
    }
