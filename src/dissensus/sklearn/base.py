"""Base estimator: the parameters and the fitting that both estimators share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_X_y, validate_data

from dissensus.data.preparation import Preparation
from dissensus.ensemble import Ensemble
from dissensus.guards import device_named
from dissensus.objectives import Gaussian, Independent, Objective
from dissensus.sklearn.fitted_members import NUMBERS, FittedMembers
from dissensus.sklearn.fold_members import LEAST_ROWS, TrainedFolds, mean_history, train_folds
from dissensus.sklearn.held_out import HeldOut
from dissensus.sklearn.rows import (
    Floats,
    Rows,
    Standard,
    array_columns,
    check_weights,
    frame_columns,
)
from dissensus.sklearn.sampled_members import TrainedSample, check_sampled, train_sampled
from dissensus.sklearn.trainings import (
    Job,
    combination,
    cv_results,
    folds,
    judge_folds,
    make_trainings,
    objective_of,
    outputs_each,
    train_once,
    with_beta,
)
from dissensus.sklearn.tuned_members import tuned_members
from dissensus.specs import check_choice
from dissensus.training import Training, predict
from dissensus.training import fit as train
from dissensus.training.fit import name_objective

__all__ = ["BETAS", "DiverseEstimator", "takes_pieces"]

#: The β that ``beta="auto"`` tries where no others are given.
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)

#: Which rows members hold out.
VALIDATIONS = ("auto", "members", "common")
#: Whether members have the same settings, or settings of their own.
MEMBERS = ("alike", "sampled")


class DiverseEstimator(FittedMembers):
    """An ensemble of perceptrons, trained by an objective, as a scikit-learn estimator.

    After ``fit`` there are ``ensemble_`` (a ``dissensus.Ensemble`` in float64), ``estimators_``,
    ``n_features_in_``, ``feature_names_in_``, ``n_outputs_``, ``n_iter_``, ``history_``,
    ``objective_``, ``loss_``, ``loss_curve_`` and ``validation_loss_curve_`` (the ensemble's error
    on training and held-out rows after each epoch; the latter None without early stopping; of all
    calls where training went on), ``columns_`` (how columns become inputs; ``print`` it for a line
    about each), ``standard_`` (how they are encoded and scaled) and ``held_out_`` (what members
    predict for rows that they have not seen, None where none were held out); where members hold out
    folds of their own ``histories_`` of each fold; with ``members="sampled"`` ``histories_`` and
    ``settings_`` of each member; with ``beta`` also ``beta_``, and with ``"auto"`` ``cv_results_``
    in the form that ``GridSearchCV`` gives it, with standard errors, verdicts and the ``status`` of
    each β beside the scores.
    """

    def __init__(
        self,
        n_estimators: int = 16,
        *,
        members: str = "alike",
        candidates: int | None = None,
        hidden_layer_sizes: int | Sequence[int] = (64, 64),
        sharing: str | None = None,
        objective: str | Objective = "independent",
        loss: str = "mse",
        beta: float | str | None = None,
        betas: Sequence[float] = BETAS,
        cv: Any = 5,
        learning_rate_init: float = 5e-3,
        schedule: str = "constant",
        max_iter: int = 200,
        batch_size: int | str = "auto",
        alpha: float = 1.0,
        shuffle: str = "shared",
        bootstrap: bool = False,
        early_stopping: bool = True,
        validation: str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        strangers: bool = False,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        """Keep the parameters; ``fit`` checks them.

        ``n_estimators``, ``hidden_layer_sizes``, ``sharing``
            How many members, the sizes of their hidden layers, and whether members share weights:
            with ``sharing="adapters"`` all but the last layer's, as in TabM (:class:`.Ensemble`).
        ``members``, ``candidates``
            ``"alike"``: all members have these settings. ``"sampled"``: candidates, 4 for each
            member but 64 at most unless a number is given, have a depth, a width, an embedding, a
            learning rate up to ``learning_rate_init`` and a decay up to ``alpha`` of their own, and
            members are chosen among them on rows that all hold out
            (:mod:`dissensus.sklearn.sampled_members`); ``settings_`` lists theirs.
        ``objective``
            The training objective: a name such as ``"ldr:strength=2"``, or an object of
            ``dissensus.objectives``. ``"independent"`` is the plain deep ensemble.
        ``loss``
            Of a regression: ``"mse"``, or ``"gaussian"`` for members that predict a variance of
            their own beside each target (``dissensus.objectives.Gaussian``).
        ``beta``, ``betas``, ``cv``
            β of ``(1 − β) mean ERR + β ERR`` (``Augmented``): None leaves the objective as it is, a
            number in [0, 1] is taken, ``"auto"`` takes the smallest of ``betas`` whose error in
            cross-validation is within one standard error of the best, and none whose members
            collude unless its gain is clear (:mod:`dissensus.sweeps.selection`). All folds and all
            β train side by side. ``cv`` is a number of folds, a splitter or pairs of indices.
        ``learning_rate_init``, ``schedule``, ``max_iter``, ``batch_size``, ``alpha``
            AdamW's learning rate and its course (``"cosine"``, ``"constant"``, ``"multistep:…"``),
            epochs, rows in a batch, and weight decay.
        ``shuffle``, ``bootstrap``
            Members see the same batches; ``shuffle="members"`` gives each one its own order, and
            ``bootstrap=True`` its own rows, drawn with replacement, as in bagging. Both go with
            ``objective="independent"`` and without ``beta``.
        ``early_stopping``, ``validation``, ``validation_fraction``, ``n_iter_no_change``
            Whether to hold out rows, keep the epoch that is best on them and stop once there was
            no better one for so many epochs; False trains ``max_iter`` epochs on all rows.
            ``validation="members"`` has each member hold out a fold of its own
            (:mod:`dissensus.sklearn.fold_members`), so that no row is lost and ``held_out_`` tells
            what the ensemble does with rows that it has not seen; ``"common"`` holds out
            ``validation_fraction`` of the rows for all members. ``"auto"`` is ``"members"`` where
            members learn independently of each other, from 20 rows on, and else ``"common"``.
        ``strangers``
            Whether ``fit`` also tunes a copy of the members to disagree on rows whose columns are
            permuted, which ``ood_score`` then scores by; predictions stay as they are. See
            :mod:`dissensus.data.strangers`. Example weights do not count there.
        ``warm_start``
            Whether ``fit`` goes on from the weights of the last ``fit``; columns are then prepared
            and classes numbered as they were then.
        ``random_state``, ``device``, ``verbose``
            A seed, where to train (``"cpu"``, ``"cuda"``), whether to print the loss after each
            epoch.
        """
        self.n_estimators = n_estimators
        self.members = members
        self.candidates = candidates
        self.hidden_layer_sizes = hidden_layer_sizes
        self.sharing = sharing
        self.objective = objective
        self.loss = loss
        self.beta = beta
        self.betas = betas
        self.cv = cv
        self.learning_rate_init = learning_rate_init
        self.schedule = schedule
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.alpha = alpha
        self.shuffle = shuffle
        self.bootstrap = bootstrap
        self.early_stopping = early_stopping
        self.validation = validation
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.strangers = strangers
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags

    # ---- fitting --------------------------------------------------------------------------------

    @abstractmethod
    def _checks_of_targets(self) -> dict[str, Any]:
        """Options of ``check_X_y`` that concern ``y``."""

    @abstractmethod
    def _learn_targets(self, y: NDArray[Any], kept: NDArray[np.bool_]) -> tuple[NDArray[Any], int]:
        """Labels ``[rows]`` or targets ``[rows, outputs]``, and how many outputs they need.

        Classes are learnt from the rows that are ``kept``, unless they are known already.
        """

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
        device_named(self.device)
        rows, original = self._rows(X, y, sample_weight)
        seed = self._seed()
        self._fit_rows(rows, original, seed)
        if self.strangers:
            self.tuned_ = tuned_members(
                self.ensemble_, rows, self.standard_, self.columns_.groups, seed, self.batch_size
            )
        return self

    def _fit_rows(self, rows: Rows, original: Rows | None, seed: int) -> Self:
        """Train the members in the way that the parameters ask for."""
        objective = self._make_objective()
        check_choice(type(self).__name__, "members", self.members, MEMBERS)
        check_choice(type(self).__name__, "validation", self.validation, VALIDATIONS)
        if self.members == "sampled":
            return self._fit_sampled(rows, objective, seed)
        if self.beta is not None:
            self.beta_ = self._choose_beta(objective, rows, original, seed)
            objective = with_beta(objective, self.beta_)
        if self._holds_out_folds(rows, objective):
            return self._fit_folds(rows, objective, seed)
        training = self._training(rows, objective, seed)
        self.history_ = train(
            training.ens,
            training.train,
            training.objective,
            val=training.val,
            recipe=training.recipe,
            callbacks=[lambda record, _: self._print_loss(record)] if self.verbose else (),
            progress=False,
        )
        self.held_out_ = self._held_out(training) if len(rows) > 1 else None
        return self._keep(training.ens, objective, self.history_.epochs)

    def _holds_out_folds(self, rows: Rows, objective: Objective) -> bool:
        """Whether each member holds out a fold of its own."""
        if not self.early_stopping or self.validation == "common":
            return False
        independent = isinstance(objective, Independent | Gaussian)
        own_rows = self.shuffle != "shared" or self.bootstrap
        obstacles = {
            f"members learn together by {objective.spec()!r}": not independent,
            "shuffle='members' and bootstrap=True give members batches of their own": own_rows,
            "warm_start=True trains members further": self.warm_start,
            f"n_estimators is {self.n_estimators}, and each fold needs one": self.n_estimators == 1,
            f"there are {len(rows)} different rows, fewer than {LEAST_ROWS}": len(rows)
            < LEAST_ROWS,
        }
        found = next((why for why, there in obstacles.items() if there), None)
        if found is not None and self.validation == "members":
            raise ValueError(f"validation='members' does not go here: {found}; use 'common'")
        return found is None

    def _fit_folds(self, rows: Rows, objective: Objective, seed: int) -> Self:
        """Train members that each hold out a fold, and keep what they say of it."""
        self.standard_ = Standard.fit(rows, self.columns_.scaled)
        job = Job(rows, objective, self.standard_)
        combine, params = combination(objective, self._loss), self.get_params(deep=False)
        trained = train_folds(job, self.n_outputs_ * outputs_each(objective), combine, seed, params)
        return self._keep_all(trained, objective)

    def _fit_sampled(self, rows: Rows, objective: Objective, seed: int) -> Self:
        """Train candidates with settings of their own, and keep the members chosen of them."""
        params = self.get_params(deep=False)
        check_sampled(params, objective)
        self.standard_ = Standard.fit(rows, self.columns_.scaled)
        job, combine = Job(rows, objective, self.standard_), combination(objective, self._loss)
        trained = train_sampled(job, self.n_outputs_, combine, seed, params)
        self.settings_ = trained.settings
        return self._keep_all(trained, objective)

    def _keep_all(self, trained: TrainedFolds | TrainedSample, objective: Objective) -> Self:
        """Keep members that trained apart, with the mean of their histories."""
        self.held_out_, self.histories_ = trained.held_out, trained.histories
        self.history_ = mean_history(trained.histories)
        for record in self.history_.epochs if self.verbose else ():
            self._print_loss(record)
        return self._keep(trained.ens, objective, self.history_.epochs)

    def _held_out(self, training: Training) -> HeldOut | None:
        """What all members say of the rows that they have held out together."""
        if training.val is None:
            return None
        ens = training.ens.double().eval()
        x, y, *weights = (tensor.double().cpu() for tensor in training.val)
        raw = predict(ens.cpu(), x).outputs
        outputs, noise = self.standard_.in_units(raw), self.standard_.noise(raw)
        members = torch.arange(ens.members)[:, None].expand(-1, len(x))
        targets = y.long() if self.standard_.y is None else self.standard_.in_units(y)
        weight = weights[0] if weights else torch.ones(len(x), dtype=torch.float64)
        return HeldOut(outputs, targets, weight, members, ens.members, noise)

    def _make_objective(self) -> Objective:
        """The objective, for the loss of this kind of estimator."""
        if self._loss != "mse":
            return objective_of(self.objective, self._loss)
        check_choice(type(self).__name__, "loss", self.loss, ("mse", "gaussian"))
        return objective_of(self.objective, self.loss)

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """One pass over the rows, from the weights and the optimiser's moments of the last one."""
        rows, _ = self._rows(X, y, sample_weight)
        objective = self._make_objective()
        if self.beta is not None:
            self.beta_ = float(self.beta)  # a number: see takes_pieces
            objective = with_beta(objective, self.beta_)
        once = {"early_stopping": False, "max_iter": 1, "schedule": "constant"}
        training = self._training(rows, objective, self._seed(), **once)
        passes, self.held_out_ = getattr(self, "n_iter_", 0), None
        record, self._moments = train_once(training, passes, getattr(self, "_moments", None))
        if self.verbose:
            self._print_loss(record)
        return self._keep(training.ens, objective, [record])

    def _forget(self) -> None:
        """Drop what earlier calls have learnt."""
        for name in [name for name in vars(self) if name.endswith("_") and name[0] != "_"]:
            delattr(self, name)

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> tuple[Rows, Rows | None]:
        """The rows to train on, merged and sorted, and, for cross-validation, the original ones."""
        x, y, weights = self._checked(X, y, sample_weight)
        targets, self.n_outputs_ = self._learn_targets(y, weights > 0)
        weights = weights * self._class_weights(targets, weights)
        original = Rows(x, targets, weights) if self.beta is not None else None
        return Rows.of(x, targets, weights), original

    def _class_weights(self, labels: NDArray[Any], weights: Floats) -> Floats | float:
        return 1.0

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _print_loss(self, record: dict[str, Any]) -> None:
        """A line as ``MLPClassifier`` prints it."""
        epoch = getattr(self, "n_iter_", 0) + record["epoch"]
        text = f"Iteration {epoch}, loss = {_loss(record):.8f}"
        if "val" in record:
            text += f", validation loss = {record['val']['ensemble_error']:.8f}"
        print(text)

    def _checked(self, X: Any, y: Any, sample_weight: Any) -> tuple[Floats, NDArray[Any], Floats]:
        """Inputs as floats, ``y`` as an array, weights; learns columns that are not known yet."""
        checks = self._checks_of_targets()
        if hasattr(self, "ensemble_"):
            x, y = check_X_y(self._checked_inputs(X), y, **NUMBERS, estimator=self, **checks)
            return x, y, check_weights(sample_weight, len(x))
        raw = frame_columns(X)
        self._takes_frames = raw is not None
        if raw is None:
            x, y = validate_data(self, X, y, **NUMBERS, **checks)
            raw = array_columns(x, getattr(self, "feature_names_in_", None))
        else:
            validate_data(self, X, y, skip_check_array=True)
        weights = check_weights(sample_weight, len(next(iter(raw.values()))))
        kept = weights > 0
        known = {name: values[kept] for name, values in raw.items()}
        self.columns_ = Preparation.fit(known, weights=weights[kept])
        x, y = check_X_y(self.columns_.encode(raw, "X"), y, **NUMBERS, estimator=self, **checks)
        return x, y, weights

    def _training(self, rows: Rows, objective: Objective, seed: int, **changes: Any) -> Training:
        """The training of the estimator's own ensemble; of the one there is, if there is one."""
        start: Ensemble | None = getattr(self, "ensemble_", None)
        if start is None:
            self.standard_ = Standard.fit(rows, self.columns_.scaled)
        job = Job(rows, objective, self.standard_)
        (training,) = self._trainings([job], seed, start, **changes)
        return training

    def _trainings(
        self, jobs: Sequence[Job], seed: int, start: Ensemble | None = None, **changes: Any
    ) -> list[Training]:
        combine = combination(jobs[0].objective, self._loss)
        params = self.get_params(deep=False)
        outputs = self.n_outputs_ * outputs_each(jobs[0].objective)
        return make_trainings(jobs, outputs, combine, seed, params | changes, start)

    def _choose_beta(
        self, objective: Objective, rows: Rows, original: Rows | None, seed: int
    ) -> float:
        if not isinstance(self.beta, str):
            return with_beta(objective, self.beta).beta  # type: ignore[arg-type]
        if self.beta != "auto":
            raise ValueError(f"beta must be None, a number in [0, 1] or 'auto', got {self.beta!r}")
        if not len(self.betas):
            raise ValueError("beta='auto' needs some betas to choose from, got none")
        assert original is not None
        splits = folds(rows, original, self.cv, seed)
        standard = Standard.fit(rows, self.columns_.scaled)  # the same inputs for all
        jobs = [
            (Job(train, with_beta(objective, beta), standard), test)
            for beta in self.betas
            for train, test in splits
        ]
        trainings = self._trainings([job for job, _ in jobs], seed)
        held_out = [job.standard.tensors(test) for job, test in jobs]
        errors, verdicts = judge_folds(trainings, held_out, bool(self.verbose))
        overlap = float(np.mean([len(test) / len(train) for train, test in splits]))
        errors = errors.reshape(len(self.betas), -1)
        self.cv_results_, found = cv_results(self.betas, errors, verdicts, overlap)
        beta = float(self.betas[found.chosen])
        if self.verbose:
            print(f"beta = {beta:g}: {found.reason}")
        return beta

    def _keep(self, ens: Ensemble, objective: Objective, records: Sequence[dict[str, Any]]) -> Self:
        """Keep the ensemble, in float64 and on the CPU, and the losses after all earlier ones."""
        self.objective_ = objective
        self.ensemble_ = ens.cpu().double().eval().requires_grad_(False)
        self.ensemble_.objective = name_objective(objective)
        losses = [_loss(record) for record in records]
        self.loss_curve_ = [*getattr(self, "loss_curve_", ()), *losses]
        self.loss_, self.n_iter_ = self.loss_curve_[-1], len(self.loss_curve_)
        curve: list[float] | None = getattr(self, "validation_loss_curve_", None)
        if "val" in records[0]:
            curve = [*(curve or ()), *(record["val"]["ensemble_error"] for record in records)]
        self.validation_loss_curve_ = curve
        return self


def takes_pieces(estimator: DiverseEstimator) -> bool:
    """Whether there is a ``partial_fit``; raises if not, as ``available_if`` wants it."""
    if estimator.members == "sampled":
        raise AttributeError(
            "partial_fit cannot choose members on held-out rows; use members='alike'"
        )
    if estimator.strangers:
        raise AttributeError("partial_fit cannot tune members on all rows; use strangers=False")
    if isinstance(estimator.beta, str):
        raise AttributeError(
            f"partial_fit cannot search for beta, got {estimator.beta!r}; give beta a number"
        )
    return True


def _loss(record: dict[str, Any]) -> float:
    """The ensemble's error while it trained; members with batches of their own have none."""
    metrics: dict[str, float] = record["train"]
    return metrics.get("ensemble_error", metrics["member_error"])
