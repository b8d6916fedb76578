"""Choice of β by cross-validation: all folds and all β train side by side as one fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import check_cv
from torch import Tensor

from dissensus.diagnostics import Split
from dissensus.diagnostics import judge as verdict_of
from dissensus.sklearn.rows import Floats, Rows, equal_folds, tensors
from dissensus.sklearn.trainings import Job, make_trainings, with_beta
from dissensus.sweeps.selection import Selection, overall_verdict, select_setting
from dissensus.training import Training, fit_fleet
from dissensus.training.evaluation import judge


def choose_beta(
    job: Job, original: Rows, seed: int, params: dict[str, Any]
) -> tuple[float, dict[str, Any] | None]:
    """The β that ``params`` ask for, and ``cv_results_`` where it is searched for.

    ``original`` are the rows of the job as they were given, which ``cv`` may split.
    """
    beta, betas = params["beta"], params["betas"]
    if not isinstance(beta, str):
        return with_beta(job.objective, beta).beta, None
    if beta != "auto":
        raise ValueError(f"beta must be None, a number in [0, 1] or 'auto', got {beta!r}")
    if not len(betas):
        raise ValueError("beta='auto' needs some betas to choose from, got none")
    splits = folds(job.rows, original, params["cv"], seed)
    jobs = [
        replace(job, rows=train, objective=with_beta(job.objective, own))
        for own in betas
        for train, _ in splits
    ]
    held_out = [tensors(job.standard, test) for _, test in splits] * len(betas)
    trainings = make_trainings(jobs, seed, params)
    errors, verdicts = judge_folds(trainings, held_out, bool(params["verbose"]))
    overlap = float(np.mean([len(test) / len(train) for train, test in splits]))
    results, found = cv_results(betas, errors.reshape(len(betas), -1), verdicts, overlap)
    chosen = float(betas[found.chosen])
    if params["verbose"]:
        print(f"beta = {chosen:g}: {found.reason}")
    return chosen, results


def folds(rows: Rows, original: Rows, cv: Any, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to train and rows to judge on, for each fold.

    A number makes that many folds of the merged ``rows``, shuffled, with the classes in proportion
    where they are large enough. A splitter, or pairs of indices, split the ``original`` rows.
    """
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        if not 2 <= cv <= len(rows):
            raise ValueError(f"cv must be from 2 to n_samples = {len(rows)}, got {cv}")
        return [(rows.pick(a), rows.pick(b)) for a, b in equal_folds(rows, int(cv), seed)]
    classifier = original.y.ndim == 1
    labels = original.y if classifier else original.y[:, 0]
    splits = []
    for pair in check_cv(cv, labels, classifier=classifier).split(original.x, labels):
        train, test = (original.pick(np.asarray(index)) for index in pair)
        if not (train.weights.any() and test.weights.any()):
            raise ValueError("cv left no row of a weight above zero on one side of a split")
        splits.append((train.merge(), test.merge()))
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
