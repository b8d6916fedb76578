"""Base estimator: its parameters, and fitting, from a table to the members that are kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_X_y, validate_data

from dissensus.data.column_values import array_columns, frame_columns
from dissensus.data.encoder import Standard
from dissensus.data.preparation import Preparation
from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective, name_objective
from dissensus.sklearn.beta_choice import choose_beta
from dissensus.sklearn.fitted_members import NUMBERS, FittedMembers
from dissensus.sklearn.fold_members import holds_out_folds, mean_history, train_folds
from dissensus.sklearn.rows import Floats, Rows, check_weights
from dissensus.sklearn.strange_rows import RowDistance, tuned_members
from dissensus.sklearn.trainings import (
    Job,
    combination,
    make_trainings,
    objective_of,
    outputs_each,
    settle,
    train_once,
    train_together,
    with_beta,
)
from dissensus.tools.guards import device_named
from dissensus.tools.specs import check_choice

#: The β that ``beta="auto"`` tries where no others are given.
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)

#: Which rows members hold out.
VALIDATIONS = ("auto", "members", "common")
#: Of a regression.
LOSSES = ("mse", "gaussian")


@dataclass(repr=False, eq=False)
class Parameters(BaseEstimator):  # type: ignore[misc]
    """The parameters of both estimators, kept as they are given; ``fit`` checks them.

    ``n_estimators``, ``hidden_layer_sizes``, ``sharing``
        How many members, the sizes of their hidden layers (``"auto"``: two of 64, for more than
        10,000 rows two of 128), and whether members share weights: with ``sharing="adapters"`` all
        but the last layer's, as in TabM (:class:`.Ensemble`).
    ``objective``
        The training objective: a name such as ``"ldr:strength=2"``, or an object of
        ``dissensus.objectives``. ``"independent"`` is the plain deep ensemble.
    ``beta``, ``betas``, ``cv``
        β of ``(1 − β) mean ERR + β ERR`` (``Augmented``): None leaves the objective as it is, a
        number in [0, 1] is taken, ``"auto"`` takes the smallest of ``betas`` whose error in
        cross-validation is within one standard error of the best, and none whose members collude
        unless its gain is clear (:mod:`dissensus.sweeps.selection`). All folds and all β train side
        by side. ``cv`` is a number of folds, a splitter or pairs of indices.
    ``learning_rate_init``, ``schedule``, ``max_iter``, ``batch_size``, ``alpha``
        AdamW's learning rate and its course (``"cosine"``, ``"constant"``, ``"multistep:…"``;
        ``"auto"``: constant, and for more than 10,000 rows, where training stops early, a cosine of
        40 epochs or ``max_iter``), the most epochs, rows in a batch, weight decay.
    ``shuffle``, ``bootstrap``
        Members see the same batches; ``shuffle="members"`` gives each one its own order, and
        ``bootstrap=True`` its own rows, drawn with replacement, as in bagging. Both go with
        ``objective="independent"`` and without ``beta``.
    ``early_stopping``, ``validation``, ``validation_fraction``, ``n_iter_no_change``
        Whether to hold out rows, keep the epoch that is best on them and stop once there was no
        better one for so many epochs; False trains ``max_iter`` epochs on all rows.
        ``validation="members"`` has each member hold out a fold of its own
        (:mod:`dissensus.sklearn.fold_members`), so that no row is lost and ``held_out_`` tells what
        the ensemble does with rows that it has not seen; ``"common"`` holds out
        ``validation_fraction`` of the rows for all members. ``"auto"`` is ``"members"`` where
        members learn independently of each other, from 20 rows on, and else ``"common"``.
    ``strangers``
        Whether ``fit`` also tunes a copy of the members to disagree on rows whose columns are
        permuted, which ``ood_score`` then scores by; predictions stay as they are. See
        :mod:`dissensus.data.strangers`. Example weights do not count there.
    ``warm_start``
        Whether ``fit`` goes on from the weights of the last ``fit``; columns are then prepared and
        classes numbered as they were then.
    ``random_state``, ``device``, ``verbose``
        A seed, where to train (``"cpu"``, ``"cuda"``), whether to print the loss of each epoch.
    """

    _loss: ClassVar[str]  # "mse" for numbers, "cross_entropy" for classes

    n_estimators: int = 16
    _: KW_ONLY
    hidden_layer_sizes: int | Sequence[int] | str = "auto"
    sharing: str | None = None
    objective: str | Objective = "independent"
    beta: float | str | None = None
    betas: Sequence[float] = BETAS
    cv: Any = 5
    learning_rate_init: float = 5e-3
    schedule: str = "auto"
    max_iter: int = 200
    batch_size: int | str = "auto"
    alpha: float = 1.0
    shuffle: str = "shared"
    bootstrap: bool = False
    early_stopping: bool = True
    validation: str = "auto"
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    strangers: bool = False
    warm_start: bool = False
    random_state: Any = None
    device: str = "cpu"
    verbose: bool = False

    def _check_parameters(self) -> Objective:
        """Check parameters that need no data; returns the objective for this loss."""
        loss = getattr(self, "loss", self._loss)  # a regression has a choice
        check_choice(type(self).__name__, "validation", self.validation, VALIDATIONS)
        if self._loss == "mse":
            check_choice(type(self).__name__, "loss", loss, LOSSES)
        return objective_of(self.objective, loss)

    def _settings(self) -> dict[str, Any]:
        """The parameters by name, with the device that is meant."""
        return {**self.get_params(deep=False), "device": device_named(self.device)}


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

    # ---- state ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Drop the state of earlier calls."""
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


def takes_pieces(estimator: DiverseEstimator) -> bool:
    """Whether there is a ``partial_fit``; raises if not, as ``available_if`` wants it."""
    if estimator.strangers:
        raise AttributeError("partial_fit cannot tune members on all rows; use strangers=False")
    if isinstance(estimator.beta, str):
        raise AttributeError(f"partial_fit cannot search for beta={estimator.beta!r}, give one")
    return True
