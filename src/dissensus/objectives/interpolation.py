"""From independent to joint training: the objectives of *collusion*, and their older relatives.

All of them trade the members' own error (mean ERR) against the ensemble's (ERR); what lies between
the two is the diversity DIV = mean ERR − ERR (Definition 4.2). ``Joint`` alone, and anything near
β = 1, invites learner collusion: diversity that members fake by shifting in opposite directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.losses import LOSSES, check_loss, check_loss_inputs, cross_entropy, errors, mse
from dissensus.objectives.base import Objective, Terms, number
from dissensus.objectives.fused import score_curvature_parts
from dissensus.objectives.gradients import add_scaled
from dissensus.outputs import mean_over_members, weighted_mean

__all__ = [
    "GNCL",
    "NCL",
    "Augmented",
    "GradientAdjustedTargets",
    "Independent",
    "Joint",
    "equivalent_alpha",
    "equivalent_beta",
]

_THEOREM_5_1 = (
    "beyond 1 the loss has no lower bound, members drive it to minus infinity by moving apart "
    "(Theorem 5.1) of the collusion paper, and below 0 diversity is punished"
)


@dataclass(frozen=True, kw_only=True)
class Interpolation(Objective):
    """What the β family shares: a loss, how members combine, and Eq. 2."""

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

    def weighted(
        self,
        outputs: Tensor,
        targets: Tensor,
        example_weights: Tensor,
        *,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        hyperparameters |= {"example_weights": example_weights}
        return self.core(outputs, targets, weights=weights, **hyperparameters)

    def _parts(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        trained: tuple[str, ...],
        example_weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Mean ERR, ERR and DIV of the batch; those not ``trained`` carry no gradient."""
        assert self.combine is not None  # set in __post_init__
        member, ensemble = errors(
            outputs, targets, self.loss, self.combine, weights, self.label_smoothing
        )
        if example_weights is not None:
            share = example_weights.to(member.dtype)
            member, ensemble = member * share, ensemble * share
        if "member_error" not in trained:
            member = member.detach()
        if "ensemble_error" not in trained:
            ensemble = ensemble.detach()
        mean_error, error = mean_over_members(member, weights), ensemble.mean()
        return {
            "member_error": mean_error,
            "ensemble_error": error,
            "diversity": mean_error.detach() - error.detach(),
        }


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

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        shares = hyperparameters.get("example_weights")
        parts = self._parts(outputs, targets, weights, ("member_error",), shares)
        return Terms(parts["member_error"], parts)


@dataclass(frozen=True)
class Joint(Interpolation):
    """The ensemble's loss alone: ERR = L(f̄, y) (collusion, Section 1). β = 1 of ``Augmented``.

    Kept to study learner collusion and to compare with; for a model to use, train independently.
    """

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        shares = hyperparameters.get("example_weights")
        parts = self._parts(outputs, targets, weights, ("ensemble_error",), shares)
        return Terms(parts["ensemble_error"], parts)


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

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        beta = hyperparameters["beta"]
        shares = hyperparameters.get("example_weights")
        parts = self._parts(outputs, targets, weights, ("member_error", "ensemble_error"), shares)
        # Eq. 2, its second form: (1 − β) mean ERR + β ERR, exact at both ends.
        loss = torch.lerp(parts["member_error"], parts["ensemble_error"], beta)
        return Terms(loss, parts)


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

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        alpha = hyperparameters["alpha"]
        members = outputs.shape[0]
        mean = weighted_mean(outputs, weights)
        seen = (members * mean - outputs) / (members - 1) if self.others_only else mean
        adjusted = torch.lerp(targets, seen, -alpha)  # ỹ = y − α (f̄ − y), below Eq. 7
        if self.detach:
            adjusted = adjusted.detach()
        loss = mean_over_members(mse(outputs, adjusted), weights)
        with torch.no_grad():
            mean_error = mean_over_members(mse(outputs, targets), weights)
            error = mse(mean, targets).mean()
        parts = {
            "member_error": mean_error,
            "ensemble_error": error,
            "diversity": mean_error - error,
        }
        return Terms(loss, parts)


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
        if self.loss not in ("mse", "brier"):
            raise ValueError(f"NCL: loss must be 'mse' or 'brier', got {self.loss!r}")

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_loss_inputs(outputs, targets, self.loss, finite=False)

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        predictions = outputs.softmax(-1) if self.loss == "brier" else outputs
        mean = weighted_mean(predictions, weights)
        away = (predictions - mean).detach()  # −Σ_{l≠j} (f_l − f̄), a constant for member j
        penalty = -((predictions - mean.detach()) * away).sum(-1)
        loss = LOSSES[self.loss].function(predictions, targets)
        mean_error = mean_over_members(loss, weights)
        mean_penalty = mean_over_members(penalty, weights)
        parts = {"member_error": mean_error, "correlation_penalty": mean_penalty}
        return Terms(add_scaled(mean_error, mean_penalty, 2 * hyperparameters["strength"]), parts)


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
        if self.loss not in ("mse", "cross_entropy"):
            raise ValueError(f"GNCL: loss must be 'mse' or 'cross_entropy', got {self.loss!r}")
        natural = "score" if self.loss == "cross_entropy" else None
        object.__setattr__(self, "combine", check_loss(self.loss, self.combine or natural))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_loss_inputs(outputs, targets, self.loss, finite=False)

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        factor = -hyperparameters["strength"]
        if self.combine == "score":
            given = outputs, targets, weights
            loss, mean_error, diversity = score_curvature_parts.total((factor,), *given)
            parts = {"member_error": mean_error, "second_order_diversity": diversity}
            return Terms(loss, parts)
        if self.loss == "mse":
            mean_error = mean_over_members(mse(outputs, targets), weights)
            diversity = mean_over_members(mse(outputs, weighted_mean(outputs, weights)), weights)
        else:
            member = cross_entropy(log_softmax(outputs, -1), targets)
            mean_error = mean_over_members(member, weights)
            diversity = _probability_curvature(member, outputs, targets, weights)
        parts = {"member_error": mean_error, "second_order_diversity": diversity}
        return Terms(add_scaled(mean_error, diversity, factor), parts)


def _probability_curvature(
    member_error: Tensor, logits: Tensor, targets: Tensor, weights: Tensor | None
) -> Tensor:
    """``½ Σ_j w_j Σ_k y_k (p_j(k) − p̄(k))² / p̄(k)²``, the mean over examples.

    w_j p_j / p̄ sums to 1 over members: it is a softmax over them of log p_j + log w_j.
    """
    soft = targets.is_floating_point()
    # With hard labels only the true class has y_k > 0, and its log-probability is −CE.
    log_probs = log_softmax(logits, -1) if soft else -member_error
    if weights is None:
        ratio = log_probs.softmax(0) * logits.shape[0]  # p_j / p̄
    else:
        each = weights.to(logits.dtype).reshape(-1, *[1] * (log_probs.ndim - 1))
        # For a member of weight 0, which counts for nothing, it has no bound, and is 0 here.
        ratio = (log_probs + each.log()).softmax(0) / torch.where(each > 0, each, 1.0)
    away = (ratio - 1).square()
    if soft:
        away = (targets * away).sum(-1)
    return 0.5 * mean_over_members(away, weights)
