"""Independent to joint training: the objectives of *collusion*, and their older relatives.

All of them trade the members' own error (mean ERR) against the ensemble's (ERR); the difference of
the two is the diversity DIV = mean ERR − ERR (Definition 4.2). ``Joint``, and anything near β = 1,
invites learner collusion: diversity that members fake by shifting in opposite directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.losses import LOSSES, check_loss, check_loss_inputs, cross_entropy, errors, mse
from dissensus.objectives.base import Objective, Terms, number
from dissensus.outputs import weighted_mean
from dissensus.tools.guards import guarded
from dissensus.tools.specs import check_choice

_THEOREM_5_1 = (
    "beyond 1 the loss has no lower bound, members drive it to minus infinity by moving apart "
    "(Theorem 5.1) of the collusion paper, and below 0 diversity is punished"
)


@dataclass(frozen=True, kw_only=True)
class Interpolation(Objective):
    """The base of the β family: a loss, how members combine, and their errors."""

    loss: str = "cross_entropy"
    combine: str | None = None
    label_smoothing: float = number(0.0, low=0.0, high=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "combine", check_loss(self.loss, self.combine, trainable=True))
        if self.label_smoothing and self.loss != "cross_entropy":
            raise ValueError(f"label_smoothing goes with loss='cross_entropy', got {self.loss!r}")

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_loss_inputs(outputs, targets, self.loss, finite=False)

    def _errors(
        self, outputs: Tensor, targets: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mean ERR and ERR of each example, ``[batch]`` (Definition 4.1)."""
        assert self.combine is not None  # set in __post_init__
        member, ensemble = errors(
            outputs, targets, self.loss, self.combine, weights, self.label_smoothing
        )
        return weighted_mean(member, weights), ensemble


def error_terms(loss: Tensor, member_error: Tensor, ensemble_error: Tensor) -> Terms:
    """The terms of an objective that trades mean ERR against ERR."""
    parts = {
        "member_error": member_error,
        "ensemble_error": ensemble_error,
        "diversity": member_error - ensemble_error,  # Definition 4.2
    }
    return Terms(loss, parts)


@dataclass(frozen=True)
class Independent(Interpolation):
    """Each member minimises its own loss: mean ERR = Σ_j w_j L(f_j, y) (collusion, Section 1).

    The plain deep ensemble, and β = 0 of :class:`Augmented`.

    >>> import torch
    >>> terms = Independent()(torch.zeros(3, 4, 2), torch.tensor([0, 1, 1, 0]))
    >>> round(float(terms.loss), 4)                                             # log 2
    0.6931
    """

    coupled = False

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        member, ensemble = self._errors(outputs, targets, weights)
        return error_terms(member, member, ensemble)


@dataclass(frozen=True)
class Joint(Interpolation):
    """The ensemble's loss alone: ERR = L(f̄, y) (collusion, Section 1). β = 1 of ``Augmented``.

    Kept to study learner collusion and to compare with; for a model to use, train independently.
    """

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        member, ensemble = self._errors(outputs, targets, weights)
        return error_terms(ensemble, member, ensemble)


@dataclass(frozen=True)
class Augmented(Interpolation):
    """``mean ERR − β DIV = (1 − β) mean ERR + β ERR``, β in [0, 1] (collusion, Eq. 2).

    >>> Augmented(beta=1.2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: Augmented: beta must be a finite number in [0, 1], got 1.2; ... (Theorem 5.1) ...
    """

    hyperparameters = ("beta",)

    beta: float = number(0.5, low=0.0, high=1.0, why=_THEOREM_5_1)

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        member, ensemble = self._errors(outputs, targets, weights)
        loss = (1 - self.beta) * member + self.beta * ensemble  # Eq. 2, exact at both ends
        return error_terms(loss, member, ensemble)


@dataclass(frozen=True)
class GradientAdjustedTargets(Objective):
    """Independent regression on targets moved against the ensemble's error (collusion, Appendix D).

    ``(1/M) Σ_j ‖f_j − ỹ‖²`` with ``ỹ = y − α (f̄ − y)`` (Eq. 7 and 8), or, with ``others_only``, the
    mean of the *other* members in place of f̄ (Eq. 10). Up to the factor (1 + α)² this is
    ``Augmented(equivalent_beta(α), loss="mse")``, in value and gradient (Theorems D.1 and D.3).

    Differs from the paper: those equalities need gradient to flow through the moved target. With
    ``detach=True`` it is a constant; the gradient is then (1 + α) times that of ``Augmented`` with
    another β, which :func:`equivalent_beta` knows too. The default is the paper's.
    """

    hyperparameters = ("alpha",)

    alpha: float = number(1.0, low=0.0, why="it is the length of a step against the error")
    others_only: bool = False
    detach: bool = False

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_loss_inputs(outputs, targets, "mse", finite=False)
        members = outputs.shape[0]
        if not self.others_only:
            return
        if members < 2:
            raise ValueError("others_only=True needs at least two members, got 1")
        if self.detach and self.alpha > members - 1:
            raise ValueError(
                f"alpha must be at most members − 1 = {members - 1} with others_only=True and "
                f"detach=True, got {self.alpha:g}: it equals beta > 1, and {_THEOREM_5_1}"
            )

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        members, mean = outputs.shape[0], weighted_mean(outputs, weights)
        seen = (members * mean - outputs) / (members - 1) if self.others_only else mean
        adjusted = targets - self.alpha * (seen - targets)  # ỹ, below Eq. 7, and Eq. 10
        if self.detach:
            adjusted = adjusted.detach()
        loss = weighted_mean(mse(outputs, adjusted), weights)  # Eq. 7
        return error_terms(loss, weighted_mean(mse(outputs, targets), weights), mse(mean, targets))


@guarded
def equivalent_beta(
    alpha: float, members: int | None = None, *, others_only: bool = False, detach: bool = False
) -> float:
    """The β of ``Augmented`` that equals ``GradientAdjustedTargets(alpha, …)``.

    ============================  ==============================================  =============
    others_only, detach           β                                               paper
    ============================  ==============================================  =============
    False, False                  1 − 1 / (1 + α)²                                Theorem D.1
    True, False                   1 − ((M − 1 − α) / ((M − 1)(1 + α)))²           Theorem D.3
    False, True                   α / (1 + α)                                     not in it
    True, True                    α M / ((M − 1)(1 + α))                          not in it
    ============================  ==============================================  =============

    Theorem D.3's γ reaches 1 at α = M − 1 and falls after it.

    >>> equivalent_beta(1.0), equivalent_beta(1.0, detach=True)
    (0.75, 0.5)
    """
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha must be a finite number of at least 0, got {alpha:g}")
    if not others_only:
        return alpha / (1 + alpha) if detach else 1 - 1 / (1 + alpha) ** 2
    if members is None or members < 2:
        raise ValueError(f"others_only=True needs the number of members (≥ 2), got {members}")
    if detach:
        return alpha * members / ((members - 1) * (1 + alpha))
    return 1 - ((members - 1 - alpha) / ((members - 1) * (1 + alpha))) ** 2


@guarded
def equivalent_alpha(
    beta: float, members: int | None = None, *, others_only: bool = False, detach: bool = False
) -> float:
    """The smallest α ≥ 0 whose :func:`equivalent_beta` is ``beta``; its inverse.

    β = 1 is reached by no finite α unless ``others_only``, where it is α = M − 1.

    >>> equivalent_alpha(0.75), equivalent_alpha(0.5, detach=True)
    (1.0, 1.0)
    """
    if not 0 <= beta <= 1 or (beta == 1 and not others_only):
        limits = "[0, 1]" if others_only else "[0, 1), no finite alpha reaches 1"
        raise ValueError(f"beta must lie in {limits}, got {beta:g}")
    if not others_only:
        return beta / (1 - beta) if detach else (1 - beta) ** -0.5 - 1
    if members is None or members < 2:
        raise ValueError(f"others_only=True needs the number of members (≥ 2), got {members}")
    others = members - 1
    if detach:  # β (M − 1)(1 + α) = α M
        return beta * others / (members - beta * others)
    root = math.sqrt(1 - beta)  # (M − 1 − α) = r (M − 1)(1 + α)
    return others * (1 - root) / (1 + root * others)


@dataclass(frozen=True)
class NCL(Objective):
    """Negative correlation learning (Liu and Yao, 1999): ``mean_j [L(f_j, y) + 2 λ p_j]``.

    The penalty ``p_j = ⟨f_j − f̄, Σ_{l≠j} (f_l − f̄)⟩ = −‖f_j − f̄‖²`` rewards errors that point away
    from those of the others. As its authors do, each member sees f̄ and the others as constants, so
    its gradient is that of ``Augmented(beta=strength)`` on the same loss, although the value, mean
    ERR − 2 λ DIV, is another (twice the authors' loss, as ``mse`` here has no factor ½).

    ``loss`` is ``"mse"`` on outputs or ``"brier"`` on probabilities.
    """

    hyperparameters = ("strength",)

    strength: float = number(0.5, low=0.0, high=1.0, why=f"it acts as beta does: {_THEOREM_5_1}")
    loss: str = "mse"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("NCL", "loss", self.loss, ["mse", "brier"])

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_loss_inputs(outputs, targets, self.loss, finite=False)

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        predictions = outputs.softmax(-1) if self.loss == "brier" else outputs
        mean = weighted_mean(predictions, weights).detach()
        others = (mean - predictions).detach()  # Σ_{l≠j} (f_l − f̄), a constant for member j
        penalty = weighted_mean(((predictions - mean) * others).sum(-1), weights)  # p_j
        error = weighted_mean(LOSSES[self.loss].function(predictions, targets), weights)
        parts = {"member_error": error, "correlation_penalty": penalty}
        return Terms(error + 2 * self.strength * penalty, parts)


@dataclass(frozen=True)
class GNCL(Objective):
    """Generalised negative correlation learning, second-order form (Buschjäger et al., 2020).

    ``mean ERR − λ · ½ Σ_j w_j (f_j − f̄)ᵀ H(f̄) (f_j − f̄)``: the diversity of Theorem 4.5 (collusion)
    with every c_j = 0, that is, the Hessian H of the loss taken at the ensemble. Exact for ``mse``.

    * ``mse``: H = 2 I, the ambiguity Σ_j w_j ‖f_j − f̄‖².
    * ``cross_entropy`` with ``combine="score"``: H = diag(q̄) − q̄ q̄ᵀ, half the variance of the
      logit differences under q̄.
    * ``cross_entropy`` with ``combine="probability"``: H = diag(y ⊘ p̄²).
    """

    hyperparameters = ("strength",)

    strength: float = number(0.5, low=0.0, high=1.0, why=f"it acts as beta does: {_THEOREM_5_1}")
    loss: str = "cross_entropy"
    combine: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("GNCL", "loss", self.loss, ["mse", "cross_entropy"])
        natural = "score" if self.loss == "cross_entropy" else None
        object.__setattr__(self, "combine", check_loss(self.loss, self.combine or natural))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_loss_inputs(outputs, targets, self.loss, finite=False)

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        if self.loss == "mse":
            member = mse(outputs, targets)
            curvature = mse(outputs, weighted_mean(outputs, weights))  # ½ dᵀ 2I d
        else:
            member = cross_entropy(log_softmax(outputs, -1), targets)
            curve = _score_curvature if self.combine == "score" else _probability_curvature
            curvature = curve(outputs, targets, weights)
        error, diversity = weighted_mean(member, weights), weighted_mean(curvature, weights)
        parts = {"member_error": error, "second_order_diversity": diversity}
        return Terms(error - self.strength * diversity, parts)  # Theorem 4.5


def _score_curvature(logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """``½ dᵀ (diag q̄ − q̄ q̄ᵀ) d``, d = f_j − f̄: half its variance under q̄, ``[members, batch]``."""
    mean = weighted_mean(logits, weights)
    probs = mean.softmax(-1)
    away = logits - mean
    centred = away - (probs * away).sum(-1, keepdim=True)
    return 0.5 * (probs * centred.square()).sum(-1)


def _probability_curvature(logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """``½ Σ_k y_k (p_j(k) − p̄(k))² / p̄(k)²``, ``[members, batch]``.

    w_j p_j / p̄ sums to 1 over members: it is a softmax over them of log p_j + log w_j.
    """
    log_probs = log_softmax(logits, -1)
    if not targets.is_floating_point():  # only the true class has y_k > 0
        index = targets.long().expand(logits.shape[:-1])[..., None]
        log_probs, targets = log_probs.gather(-1, index), torch.ones((), device=logits.device)
    if weights is None:
        ratio = log_probs.softmax(0) * logits.shape[0]  # p_j / p̄
    else:
        each = weights.to(logits.dtype)[:, None, None]
        # A member of weight 0 counts for nothing; its ratio has no bound, and is 0 here.
        ratio = (log_probs + each.log()).softmax(0) / torch.where(each > 0, each, 1.0)
    return 0.5 * (targets * (ratio - 1).square()).sum(-1)
