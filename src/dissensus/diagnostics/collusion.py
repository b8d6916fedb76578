"""Signs of collusion in one split: DIV beside ERR, constant offsets, the generalisation gap.

Sections 6.1 and 6.2 of *collusion*. All functions take a checked :class:`~.split.Split`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import fdtr
from torch import Tensor

from dissensus.decomposition import ambiguity, debias, optimal_offsets
from dissensus.diagnostics.split import Split, ratio
from dissensus.outputs import weighted_mean
from dissensus.tools.specs import check_choice

#: Where offsets are looked for, in words.
SPACES = {"outputs": "outputs", "score": "scores", "probability": "probabilities"}


@dataclass(frozen=True)
class Explosion:
    """DIV relative to ERR; ``limit`` is the most that members with unrelated errors can reach."""

    ensemble_error: float
    member_error: float
    diversity: float
    ratio: float
    limit: float

    @property
    def sentence(self) -> str:
        if self.ensemble_error == 0:
            return "The ensemble makes no error at all, so DIV has nothing to be compared with."
        return (
            f"Diversity (DIV) is {self.ratio:.3g} times the ensemble's error (ERR); members whose "
            f"errors have nothing in common reach {self.limit:.3g} under squared error."
        )


def explosion(split: Split) -> Explosion:
    """DIV / ERR (collusion, Section 6.1, "Diversity explosion", Fig. 2).

    ``limit`` is ``1/Σ_j w_j² − 1``, M − 1 for equal weights: members with unrelated errors of
    variance v have ``ERR = v Σ_j w_j²`` and ``DIV = v (1 − Σ_j w_j²)``. Networks trained on the
    same data share most of their errors and stay far below it; only cancelling goes above it.
    A ratio is 0 where DIV and ERR are both 0, and infinite where ERR alone is.

    >>> import torch
    >>> split = Split.of((torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[1.0]])))
    >>> explosion(split).ratio                               # ERR = DIV = 1
    1.0
    """
    parts = split.decompose()
    error, diversity = float(parts.ensemble_error), float(parts.diversity)
    return Explosion(
        error,
        float(parts.member_error),
        diversity,
        ratio(diversity, error),
        1 / float(split.shares.square().sum()) - 1,
    )


@dataclass(frozen=True, eq=False)
class DebiasedShare:
    """``share`` in [0, 1] of the spread around the ensemble that constant offsets explain.

    ``spread`` and ``debiased`` are ``Σ_j w_j ‖f_j − f̄‖²``, averaged over examples, before and after
    ``offsets`` ``[members, outputs]`` are taken away, in ``space``.
    """

    space: str
    share: float
    spread: float
    debiased: float
    offsets: Tensor

    @property
    def sentence(self) -> str:
        where = SPACES[self.space]
        if self.spread == 0:
            return f"The members' {where} are the same, so there is nothing to explain."
        return (
            f"A constant shift of each member explains {self.share:.0%} of the spread of the "
            f"members' {where}."
        )


def debiased_share(split: Split, space: str | None = None) -> DebiasedShare:
    """The share of diversity that constant offsets explain (collusion, Section 6.1, Fig. 3).

    ``1 − Σ_j w_j ‖f_j − b_j − f̄‖² / Σ_j w_j ‖f_j − f̄‖²`` with the optimal b_j of Appendix C.1
    (weights: ``Σ_j w_j b_j = 0``). For squared error this is a share of DIV itself. ``space`` is
    ``"outputs"`` for a regression; for classifiers ``"score"``, logits centred over the classes,
    as a constant on all logits of a member changes no prediction, or ``"probability"``. The default
    is the space in which the ensemble averages.

    >>> import torch
    >>> outputs = torch.tensor([[[1.0], [2.0]], [[3.0], [2.0]]])   # apart by 2, then by 0
    >>> debiased_share(Split.of((outputs, torch.zeros(2, 1)))).share   # offsets ∓½: ½ of ½ remains
    0.5
    """
    space = space or {"mean": "outputs", "score": "score"}.get(split.combine, "probability")
    values = _in_space(split, space)
    spread = float(ambiguity(values, split.weights).mean())
    left = float(ambiguity(debias(values, split.weights), split.weights).mean())
    share = 0.0 if spread == 0 else min(1.0, max(0.0, 1 - left / spread))  # rounding can overstep
    offsets = optimal_offsets(values, split.weights)
    return DebiasedShare(space, share, spread, left, offsets)


def _in_space(split: Split, space: str) -> Tensor:
    allowed = ["outputs"] if split.regression else ["score", "probability"]
    check_choice("debiased_share", "space", space, allowed)
    if space == "score":
        return split.outputs - split.outputs.mean(-1, keepdim=True)
    return split.outputs.softmax(-1) if space == "probability" else split.outputs


@dataclass(frozen=True)
class LeftoverOffset:
    """How much of the members' mean errors is left in the ensemble, against what chance leaves.

    ``leftover`` is about 1 for offsets that know nothing of each other, 0 for those that cancel,
    far above 1 where members err in the same direction; infinite without offsets. ``chance`` is how
    often independent offsets leave as little.
    """

    leftover: float
    chance: float

    @property
    def sentence(self) -> str:
        if math.isinf(self.leftover):
            return "Members do not differ in their mean error, so no offsets can cancel."
        return (
            f"The members' mean errors leave {self.leftover:.3g} times as much in the ensemble as "
            f"unrelated ones would; unrelated errors leave as little in {self.chance:.1%} of "
            "cases, while offsets that were made to cancel leave close to 0."
        )


def leftover_offset(split: Split) -> LeftoverOffset:
    """Whether constant offsets cancel more exactly than chance allows (our measure).

    With the mean errors ``a_j = mean_i (f_j − y)`` (probabilities for classifiers) and g that of
    the ensemble, ``‖g‖² / (s² Σ_j w_j²)``, where ``s² = Σ_j w_j ‖a_j − ā‖² / (1 − Σ_j w_j²)`` is
    their variance. Independent offsets of mean 0 give 1 on average. This separates
    members that are each biased in their own way from members whose biases make up for each other.

    ``chance`` is that of :func:`chance_to_cancel`. With one output and few members only very exact
    cancelling is beyond chance: 5% takes a leftover below 0.006 for two members, 0.0045 for five.
    Where scores are averaged, the mean errors are still those of probabilities, so that it is an
    approximation.

    >>> import torch
    >>> colluding = torch.tensor([[[2.0]], [[-2.0]]])
    >>> leftover_offset(Split.of((colluding, torch.zeros(1, 1)))).leftover
    0.0
    >>> biased = torch.tensor([[[2.0]], [[-1.0]]])              # mean ½, s² = 9/2: ½² · 2 / (9/2)
    >>> offset = leftover_offset(Split.of((biased, torch.zeros(1, 1))))
    >>> round(offset.leftover, 4), round(offset.chance, 4)       # (2/π) arctan(⅓)
    (0.1111, 0.2048)
    """
    residuals, ensemble_residuals = split.residuals()
    means, left = residuals.mean(1), ensemble_residuals.mean(0)
    squares = float(split.shares.square().sum())
    apart = split.shares.sqrt()[:, None] * (means - weighted_mean(means, split.weights))
    variance = ratio(float(apart.square().sum()), 1 - squares)
    size = float(left.square().sum())
    if variance == 0 or split.members == 1:
        return LeftoverOffset(math.inf, 1.0)
    leftover = size / (variance * squares)
    return LeftoverOffset(leftover, chance_to_cancel(apart, squares, leftover))


def chance_to_cancel(apart: Tensor, squares: float, leftover: float) -> float:
    """How often independent members leave ``leftover`` or less of their errors in the ensemble.

    Rows of ``apart`` ``[members, …]`` are ``√w_j (a_j − ā)``, ``squares`` is ``Σ_j w_j²``. M
    independent normal errors of variance s² that spread over d directions evenly leave s²/M in
    their mean, and what is left over s²/M has the F distribution with d and d(M − 1) degrees of
    freedom. Here M is ``1/squares``, and ``d = (tr Σ)² / tr Σ²`` of the errors' covariance Σ. Its
    sample value is M − 1 at most; from five members on both traces are estimated without bias.

    >>> import torch
    >>> round(chance_to_cancel(torch.tensor([[1.5], [-1.5]]).double() / 2**0.5, 0.5, 1 / 9), 4)
    0.2048
    """
    members = 1 / squares
    total = float(apart.square().sum())
    # The Gram matrix has the same tr S² as the covariance S. S, like s², is over 1 − Σ_j w_j².
    square = float((apart @ apart.T).square().sum())
    most = float(apart.shape[1])
    if len(apart) < 5:
        directions = total**2 / square
    else:
        free = members - 1
        trace = free**2 / ((free - 1) * (free + 2)) * max(square - total**2 / free, 0.0)
        whole = total**2 - 2 * trace / free
        directions = most if trace * most <= whole else whole / trace
    directions = min(max(directions, 1.0), most)
    return float(fdtr(directions, directions * (members - 1), leftover))


@dataclass(frozen=True)
class GeneralizationGap:
    """Test minus train of the ensemble's loss and of its parts: ``gap = member − diversity``."""

    gap: float
    member_error: float
    diversity: float
    train_error: float
    test_error: float

    @property
    def sentence(self) -> str:
        return (
            f"From train to test the ensemble's error goes from {self.train_error:.4g} to "
            f"{self.test_error:.4g} ({self.gap:+.3g}): the members' own error changes by "
            f"{self.member_error:+.3g}, diversity by {self.diversity:+.3g}."
        )


def generalization_gap(train: Split, test: Split) -> GeneralizationGap:
    """``L_test − L_train`` of the ensemble (collusion, Section 6.2, Fig. 5), with its two parts.

    >>> import torch
    >>> split = Split.of((torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[1.0]])))
    >>> generalization_gap(split, split).gap
    0.0
    """
    before, after = explosion(train), explosion(test)
    return GeneralizationGap(
        after.ensemble_error - before.ensemble_error,
        after.member_error - before.member_error,
        after.diversity - before.diversity,
        before.ensemble_error,
        after.ensemble_error,
    )
