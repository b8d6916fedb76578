"""Parameters of the estimators: their names, defaults and meaning, and the checks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from sklearn.base import BaseEstimator

from dissensus.objectives import Objective
from dissensus.sklearn.trainings import objective_of
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
        """Check what needs no data; returns the objective, for the loss of this estimator."""
        loss = getattr(self, "loss", self._loss)  # a regression has a choice
        check_choice(type(self).__name__, "validation", self.validation, VALIDATIONS)
        if self._loss == "mse":
            check_choice(type(self).__name__, "loss", loss, LOSSES)
        return objective_of(self.objective, loss)

    def _settings(self) -> dict[str, Any]:
        """The parameters by name, with the device that is meant."""
        return {**self.get_params(deep=False), "device": device_named(self.device)}


def takes_pieces(estimator: Parameters) -> bool:
    """Whether there is a ``partial_fit``; raises if not, as ``available_if`` wants it."""
    if estimator.strangers:
        raise AttributeError("partial_fit cannot tune members on all rows; use strangers=False")
    if isinstance(estimator.beta, str):
        raise AttributeError(f"partial_fit cannot search for beta={estimator.beta!r}, give one")
    return True
