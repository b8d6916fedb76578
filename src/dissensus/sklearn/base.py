"""Base estimator: fitting, from a table to the members that are kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_X_y, validate_data

from dissensus.data.column_values import array_columns, frame_columns
from dissensus.data.encoder import Standard
from dissensus.data.preparation import Preparation
from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective
from dissensus.sklearn.beta_choice import choose_beta
from dissensus.sklearn.fitted_members import NUMBERS, FittedMembers
from dissensus.sklearn.fold_members import holds_out_folds, mean_history, train_folds
from dissensus.sklearn.parameters import Parameters
from dissensus.sklearn.rows import Floats, Rows, check_weights
from dissensus.sklearn.strange_rows import RowDistance, tuned_members
from dissensus.sklearn.trainings import (
    Job,
    combination,
    make_trainings,
    outputs_each,
    settle,
    train_once,
    train_together,
    with_beta,
)
from dissensus.training.fit import name_objective


class DiverseEstimator(FittedMembers, Parameters):
    """An ensemble of perceptrons, trained by an objective, as a scikit-learn estimator.

    After ``fit`` there are ``ensemble_`` (a ``dissensus.Ensemble`` in float64), ``estimators_``,
    ``n_features_in_``, ``feature_names_in_``, ``n_outputs_``, ``n_iter_``, ``history_``,
    ``objective_``, ``loss_``, ``loss_curve_`` and ``validation_loss_curve_`` (the ensemble's error
    on training and held-out rows after each epoch; the latter None without early stopping; of all
    calls where training went on), ``columns_`` (how columns become numbers; ``print`` it for a line
    about each), ``standard_`` (how these are encoded and scaled), ``held_out_`` (what members
    predict for rows that they have not seen, None where none were held out) and ``distance_`` (of
    rows from the training rows, for ``ood_score``; None where there is none); where members hold
    out folds of their own ``histories_`` of each fold; with ``beta`` also ``beta_``, and with
    ``"auto"`` ``cv_results_`` in the form that ``GridSearchCV`` gives it, with standard errors,
    verdicts and the ``status`` of each β beside the scores.
    """

    #: Options of ``check_X_y`` that concern ``y``.
    _target_checks: ClassVar[dict[str, Any]] = {}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags

    @abstractmethod
    def _learn_targets(self, y: NDArray[Any], kept: NDArray[np.bool_]) -> tuple[NDArray[Any], int]:
        """Labels ``[rows]`` or targets ``[rows, outputs]``, and how many outputs they need.

        Classes are learnt from the rows that are ``kept``, unless they are known already.
        """

    def _class_weights(self, labels: NDArray[Any], weights: Floats) -> Floats | float:
        return 1.0

    # ---- fitting --------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the ensemble.

        ``X`` is ``[rows, columns]``, an array, a sparse array or a DataFrame, which may hold text,
        dates and missing values; see :mod:`dissensus.data.preparation`. A row of weight w counts as
        if it were there w times; see :mod:`dissensus.sklearn.rows`.
        """
        if not self.warm_start or not hasattr(self, "ensemble_"):
            self._forget()
        for earlier in ("beta_", "cv_results_", "_moments", "tuned_"):
            self.__dict__.pop(earlier, None)
        objective = self._check_parameters()
        original = self._read(X, y, sample_weight)
        job, seed = self._job(original.merge(), objective), self._seed()
        settings = settle(self._settings(), len(job.rows), getattr(self, "ensemble_", None))
        if self.beta is not None:
            self.beta_, results = choose_beta(job, original, seed, settings)
            if results is not None:
                self.cv_results_ = results
            job = replace(job, objective=with_beta(objective, self.beta_))
        del original  # as large as the table
        if holds_out_folds(job, settings):
            trained = train_folds(job, seed, settings)
            self.histories_ = trained.histories
        else:
            trained = train_together(job, seed, settings, getattr(self, "ensemble_", None))
        self.history_, self.held_out_ = mean_history(trained.histories), trained.held_out
        self._keep(trained.ens, job.objective, self.history_.epochs)
        if self.strangers:
            groups = self.columns_.groups
            self.tuned_ = tuned_members(
                self.ensemble_, job.rows, job.standard, groups, seed, self.batch_size
            )
        self.distance_ = RowDistance.fit(job.rows.x, job.standard, self._member_scores, seed)
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """One pass over the rows, from the weights and the optimiser's moments of the last one."""
        objective = self._check_parameters()
        if self.beta is not None:
            self.beta_ = float(self.beta)  # a number: see takes_pieces
            objective = with_beta(objective, self.beta_)
        job = self._job(self._read(X, y, sample_weight).merge(), objective)
        once = {"early_stopping": False, "max_iter": 1, "schedule": "constant"}
        start = getattr(self, "ensemble_", None)
        settings = settle(self._settings() | once, len(job.rows), start)
        (training,) = make_trainings([job], self._seed(), settings, start)
        passes, self.held_out_ = getattr(self, "n_iter_", 0), None
        record, self._moments = train_once(training, passes, getattr(self, "_moments", None))
        self._keep(training.ens, objective, [record])
        self.distance_ = None  # it would be that of these rows alone
        return self

    def _job(self, rows: Rows, objective: Objective) -> Job:
        """What to train; columns and targets are standardised as they were before, if they were."""
        if not hasattr(self, "ensemble_"):
            self.standard_ = Standard.fit(rows.x, rows.y, self.columns_.scaled, rows.weights)
        outputs = self.n_outputs_ * outputs_each(objective)
        return Job(rows, objective, self.standard_, outputs, combination(objective, self._loss))

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    # ---- the table ------------------------------------------------------------------------------

    def _read(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        """The rows of a table as numbers; learns columns and classes that are not known yet."""
        if hasattr(self, "ensemble_"):
            x = self._checked_inputs(X)
            weights = check_weights(sample_weight, len(x))
        else:
            raw = self._raw_columns(X)
            weights = check_weights(sample_weight, len(next(iter(raw.values()))))
            kept = weights > 0
            known = {name: values[kept] for name, values in raw.items()}
            self.columns_ = Preparation.fit(known, weights=weights[kept])
            x = self.columns_.encode(raw, "X")
        x, y = check_X_y(x, y, **NUMBERS, estimator=self, **self._target_checks)
        targets, self.n_outputs_ = self._learn_targets(y, weights > 0)
        return Rows(x, targets, weights * self._class_weights(targets, weights))

    def _raw_columns(self, X: Any) -> dict[str, NDArray[Any]]:
        """The columns of a new table, checked and named as scikit-learn does it."""
        raw = frame_columns(X)
        self._takes_frames = raw is not None
        if raw is not None:
            validate_data(self, X, skip_check_array=True)
            return raw
        x = validate_data(self, X, **NUMBERS)
        return array_columns(x, getattr(self, "feature_names_in_", None))

    # ---- what is kept ---------------------------------------------------------------------------

    def _forget(self) -> None:
        """Drop what earlier calls have learnt."""
        for name in [name for name in vars(self) if name.endswith("_") and name[0] != "_"]:
            delattr(self, name)

    def _keep(self, ens: Ensemble, objective: Objective, records: Sequence[dict[str, Any]]) -> None:
        """Keep the ensemble, in float64 and on the CPU, and the losses after all earlier ones."""
        self.objective_ = objective
        self.ensemble_ = ens.cpu().double().eval().requires_grad_(False)
        self.ensemble_.objective = name_objective(objective)
        for record in records if self.verbose else ():
            self._print_loss(record)
        losses = [_loss(record) for record in records]
        self.loss_curve_ = [*getattr(self, "loss_curve_", ()), *losses]
        self.loss_, self.n_iter_ = self.loss_curve_[-1], len(self.loss_curve_)
        curve: list[float] | None = getattr(self, "validation_loss_curve_", None)
        if "val" in records[0]:
            curve = [*(curve or ()), *(record["val"]["ensemble_error"] for record in records)]
        self.validation_loss_curve_ = curve

    def _print_loss(self, record: dict[str, Any]) -> None:
        """A line as ``MLPClassifier`` prints it."""
        epoch = getattr(self, "n_iter_", 0) + record["epoch"]
        text = f"Iteration {epoch}, loss = {_loss(record):.8f}"
        if "val" in record:
            text += f", validation loss = {record['val']['ensemble_error']:.8f}"
        print(text)


def _loss(record: dict[str, Any]) -> float:
    """The ensemble's error while it trained; members with batches of their own have none."""
    metrics: dict[str, float] = record["train"]
    return metrics.get("ensemble_error", metrics["member_error"])
