"""Fitted members: predictions, scores and diagnosis of a trained ensemble."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from dissensus.data.column_values import array_columns, is_frame, raw_columns
from dissensus.data.encoder import Standard
from dissensus.data.preparation import Preparation
from dissensus.decomposition import Decomposition, decompose
from dissensus.detection import default_score
from dissensus.diagnostics import Diagnosis, diagnose
from dissensus.ensemble import Ensemble
from dissensus.scores import parse as parse_score
from dissensus.sklearn.held_out import HeldOut
from dissensus.sklearn.rows import ROWS_AT_ONCE, Floats, member_outputs
from dissensus.sklearn.strange_rows import RowDistance

#: scikit-learn's checks of a table of numbers.
NUMBERS = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "accept_sparse": "csr"}


class FittedMembers(TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """What both estimators can do once ``fit`` has made ``ensemble_``."""

    _loss: ClassVar[str]
    _takes_frames: bool

    columns_: Preparation
    standard_: Standard
    ensemble_: Ensemble
    held_out_: HeldOut | None  # None where no rows were held out
    tuned_: Ensemble  # with strangers=True: members that ood_score scores by
    distance_: RowDistance | None  # of rows from those that were learnt; None where there is none

    @abstractmethod
    def _known_targets(self, y: Any) -> Tensor:
        """Targets of new data, as ``decompose`` and ``diagnose`` take them."""

    def member_outputs(self, X: Any) -> Tensor:
        """Every member's output, ``[members, rows, outputs]``, in float64.

        Logits, or in regression predictions in the units of the target.
        """
        return self._outputs_and_noise(X)[0]

    def _outputs_and_noise(self, X: Any) -> tuple[Tensor, Tensor | None]:
        """The members' outputs and, of Gaussian members, the variances that they predict."""
        check_is_fitted(self, "ensemble_")
        each = self._inputs(X)
        outputs = torch.cat([member_outputs(self.ensemble_, inputs) for inputs in each], 1)
        return self.standard_.in_units(outputs), self.standard_.noise(outputs)

    def _inputs(self, X: Any) -> Iterator[Tensor]:
        """What networks get, much larger than the table: a part of the rows at a time."""
        x = self._checked_inputs(X)
        for begin in range(0, len(x), ROWS_AT_ONCE):
            yield self.standard_.inputs(x[begin : begin + ROWS_AT_ONCE], np.float64)

    def _checked_inputs(self, X: Any) -> Floats:
        if self._takes_frames and not is_frame(X):
            raise ValueError(f"X must be a DataFrame as in training, got {type(X).__name__}")
        if self._takes_frames:
            validate_data(self, X, reset=False, skip_check_array=True)
            raw = raw_columns(X)
        else:
            x = validate_data(self, X, reset=False, **NUMBERS)
            raw = array_columns(x, getattr(self, "feature_names_in_", None))
        return self.columns_.encode(raw, "X")

    def _need_held_out(self, what: str) -> HeldOut:
        """What members held out; raises if there is nothing for ``what`` to learn from."""
        check_is_fitted(self, "ensemble_")
        if self.held_out_ is None:
            raise ValueError(f"{what} needs rows that were held out; fit with early_stopping=True")
        return self.held_out_

    def transform(self, X: Any) -> Floats:
        """What each member predicts, ``[rows, members · outputs]``: probabilities, or targets.

        As ``VotingClassifier`` has it, to stack another model upon the members; see
        ``get_feature_names_out`` for the columns. ``set_output(transform="pandas")`` makes it a
        DataFrame.
        """
        outputs = self._member_predictions(self.member_outputs(X))
        columns: Floats = outputs.transpose(0, 1).flatten(1).numpy()
        return columns

    def _member_predictions(self, outputs: Tensor) -> Tensor:
        return outputs

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """The names of the columns of ``transform``, such as ``diverseregressor_member0``."""
        check_is_fitted(self, "ensemble_")
        prefix, members = type(self).__name__.lower(), range(self.ensemble_.members)
        outputs = self._output_names()
        names = [f"{prefix}_member{member}{output}" for member in members for output in outputs]
        return np.array(names, dtype=object)

    @abstractmethod
    def _output_names(self) -> list[str]:
        """The end of the name of each output in ``get_feature_names_out``."""

    @property
    def estimators_(self) -> list[nn.Module]:
        """The members as ordinary modules; they take the standardised inputs."""
        check_is_fitted(self, "ensemble_")
        return [self.ensemble_.member(member) for member in range(self.ensemble_.members)]

    def ood_score(self, X: Any, score: str | None = None) -> Floats:
        """Out-of-distribution score of each row, ``[rows]``: higher is less like the training data.

        ``score`` is ``"combined"``, of the members' disagreement and the row's distance from the
        training rows (:mod:`dissensus.sklearn.strange_rows`); ``"mahalanobis"``, the distance
        alone; or a name of ``dissensus.scores.SCORES`` for the members alone. None is
        ``"combined"``, or without a ``distance_``, as after ``partial_fit``, the
        ``dissensus.detection.default_score`` of the members: mutual information where they are
        independent, energy for LDR, variance in a regression. With ``strangers=True`` the members
        are those that were tuned for it.
        """
        check_is_fitted(self, "ensemble_")
        distance = self.distance_
        if score in ("combined", "mahalanobis") and distance is None:
            raise ValueError(f"score={score!r} needs distance_, which is None; leave score out")

        def part(inputs: Tensor) -> Tensor:
            if distance is not None and score == "mahalanobis":
                return distance.distance(inputs)
            if distance is not None and score in (None, "combined"):
                return distance.combine(self._member_scores(inputs), inputs)
            return self._member_scores(inputs, score)

        scores: Floats = torch.cat([part(inputs) for inputs in self._inputs(X)]).numpy()
        return scores

    def _member_scores(self, inputs: Tensor, score: str | None = None) -> Tensor:
        """A score of the outputs of the members, or of the tuned copy if there is one."""
        ens = getattr(self, "tuned_", self.ensemble_)
        named = parse_score(default_score(ens) if score is None else score)
        return named(self._scored_outputs(self.standard_.in_units(member_outputs(ens, inputs))))

    def _scored_outputs(self, outputs: Tensor) -> Tensor:
        return outputs

    def decompose(self, X: Any, y: Any, loss: str | None = None) -> Decomposition:
        """The members' mean error on ``(X, y)``, the ensemble's, and diversity, their difference.

        See :func:`dissensus.decompose`; in regression in the units of the target, squared.
        """
        check_is_fitted(self, "ensemble_")
        chosen = self._loss if loss is None else loss
        combine = None if self._loss == "mse" else self.ensemble_.combine
        return decompose(self.member_outputs(X), self._known_targets(y), chosen, combine)

    def diagnose(self, X: Any, y: Any, X_train: Any = None, y_train: Any = None) -> Diagnosis:
        """Whether the members' diversity on held-out ``(X, y)`` is real, or they collude.

        With the training data as well, the verdict is sharper. See :func:`dissensus.diagnose`.
        """
        test = self.member_outputs(X), self._known_targets(y)
        train = None
        if X_train is not None:
            train = self.member_outputs(X_train), self._known_targets(y_train)
        return diagnose(train, test, loss=self._loss, combine=self.ensemble_.combine)
