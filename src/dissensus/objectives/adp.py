"""ADP and JSD: diversity of the members' predictions against adversarial examples (*adp*).

``L = Σ_k CE_k − α H(mean prediction) − β log det(M̃ᵀ M̃)`` (adp, Eq. 2 to 6). The determinant makes
wrong-class predictions point in different directions, so that an adversarial example for one member
is less likely to fool the next. The entropy leaves probability on the wrong classes: without it
members become one-hot (Theorem 1), and the determinant has nothing to act on.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.diversity import (
    entropy,
    jensen_shannon,
    log_determinant,
    wrong_class_predictions,
)
from dissensus.losses import cross_entropy
from dissensus.objectives.base import Objective, Terms, check_hard_labels, number
from dissensus.outputs import check_logits, check_targets, log_mean_exp, weighted_mean
from dissensus.tools.guards import guarded


@dataclass(frozen=True)
class ADP(Objective):
    """Adaptive diversity promoting training (adp, Eq. 2, 5 and 6).

    ``alpha`` weighs the entropy of the mean prediction, ``beta`` the logarithm of the ensemble
    diversity (Eq. 3). α must be scaled with members and classes: :func:`alpha_for` solves Eq. 7.
    ``temperature`` divides the logits in training only, for many classes (Appendix B.2).

    Differs from the paper: 1e-6 is added to the diagonal of M̃ᵀ M̃ (see ``DETERMINANT_FLOOR``), so
    that members that agree exactly have a finite loss and gradient. The paper's sum over members is
    kept; with ``weights``, Σ_k CE_k is K Σ_k w_k CE_k.

    More members than the L − 1 wrong classes (a warning says so) cannot be orthogonal there. With
    δ = 1e-6, ``log det(M̃ᵀ M̃ + δ I_K) = log det(M̃ M̃ᵀ + δ I_{L−1}) + (K − L + 1) log δ``: it is
    largest where the members' predictions, together, cover all wrong classes evenly.

    >>> import torch
    >>> logits = torch.zeros(3, 2, 10)
    >>> parts = ADP()(logits, torch.tensor([0, 1])).parts
    >>> round(float(parts["cross_entropy"]), 4), round(float(parts["ensemble_entropy"]), 4)
    (6.9078, 2.3026)
    """

    hyperparameters = ("alpha", "beta", "temperature")
    reduction = "sum"

    alpha: float = number(2.0, low=0.0)
    beta: float = number(0.5, low=0.0)
    temperature: float = number(1.0, above=0.0)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_hard_labels("ADP", outputs, targets)
        members, _, classes = outputs.shape
        if members > 1 and classes < 3:
            raise ValueError(
                "ADP needs at least 3 classes: with one wrong class, members cannot differ on it"
            )
        if members > classes - 1:
            warnings.warn(
                f"ADP has {members} members for {classes - 1} wrong classes. No more than "
                f"{classes - 1} can be orthogonal there: the determinant, which would be 0 but for "
                "the 1e-6 on its diagonal, then measures how evenly members together cover the "
                "wrong classes",
                stacklevel=4,
            )

    def terms(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Terms:
        members, logits = logits.shape[0], logits / self.temperature
        log_probs = log_softmax(logits, -1)  # log F^k
        log_mean = log_mean_exp(log_probs, weights)  # the logarithm of Eq. 1
        ce = members * weighted_mean(cross_entropy(log_probs, labels), weights)  # Eq. 2
        wrong = wrong_class_predictions(logits, labels)  # the rows of M̃ᵀ, not yet of length 1
        log_diversity = log_determinant(wrong @ wrong.mT, weights).to(logits.dtype)  # Eq. 3 and 4
        mean_entropy = entropy(log_mean)
        regularizer = self.alpha * mean_entropy + self.beta * log_diversity  # Eq. 5
        parts = {
            "cross_entropy": ce,
            "ensemble_entropy": mean_entropy,
            "log_diversity": log_diversity,
        }
        return Terms(ce - regularizer, parts)  # Eq. 6


@guarded
def alpha_for(target_probability: float, members: int, classes: int) -> float:
    """The α with which ADP's best prediction gives the true class ``target_probability`` (Eq. 7).

    ``1 / F_y = (α / K) log(F_y (L − 1) / (1 − F_y))``, solved for α. The same number on another
    data set needs another α: five members on 1,000 classes with F_y = 0.9 (adp, Section 3.3):

    >>> round(alpha_for(0.9, members=5, classes=1000), 3)
    0.61
    """
    _check_sizes(members, classes)
    if not 1 / classes < target_probability < 1:
        raise ValueError(
            f"target_probability must be in ({1 / classes:.4g}, 1), got {target_probability!r}"
        )
    odds = target_probability * (classes - 1) / (1 - target_probability)
    return members / (target_probability * math.log(odds))


@guarded
def target_probability(alpha: float, members: int, classes: int) -> float:
    """The probability of the true class at ADP's best prediction, for a given α (Eq. 7 for F_y).

    ``1 − F_y`` is the label smoothing that the entropy term amounts to (Theorem 2).

    >>> round(target_probability(2.0, members=3, classes=10), 3)
    0.588
    """
    from scipy.optimize import brentq

    _check_sizes(members, classes)
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be a finite number greater than 0, got {alpha!r}")

    # In log-odds s of F_y: K = α F_y (s + log(L − 1)) has one root right of −log(L − 1).
    def excess(s: float) -> float:
        return alpha * (s + math.log(classes - 1)) / (1 + math.exp(-s)) - members

    low, high = -math.log(classes - 1), 1.0
    while excess(high) < 0:
        high *= 2
    root: float = brentq(excess, low, high, xtol=1e-13)
    return 1 / (1 + math.exp(-root))


def _check_sizes(members: int, classes: int) -> None:
    if members < 1 or classes < 3:
        raise ValueError(
            f"ADP needs at least 1 member and 3 classes, got members={members}, classes={classes}"
        )


@dataclass(frozen=True)
class JSD(Objective):
    """``Σ_k CE_k − λ JSD``: Jensen–Shannon divergence as the diversity (adp, Eq. 9 and 10).

    Shown to have no solution inside the simplex (Theorem* 1 of Appendix B.1): the divergence can
    outweigh the cross-entropy and make a member wrong. Here to compare with.
    """

    hyperparameters = ("strength",)
    reduction = "sum"

    strength: float = number(1.0, low=0.0)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_logits(outputs, finite=False)
        check_targets(targets, outputs.shape[1], outputs.shape[2])

    def terms(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        log_probs = log_softmax(logits, -1)
        ce = weighted_mean(cross_entropy(log_probs, targets), weights) * logits.shape[0]  # Eq. 2
        divergence = jensen_shannon(log_probs, weights)  # Eq. 9
        loss = ce - self.strength * divergence  # Eq. 10
        return Terms(loss, {"cross_entropy": ce, "jensen_shannon": divergence})
