"""Training members to disagree on data without labels: A2D and DivDis.

Both add to the members' cross-entropy a term over every pair of members, on outputs for unlabelled
data that should be unlike the training data (ldr, Eq. 1 and 2). ``LDR`` uses the same pair terms on
hard *training* examples instead, so each is a function that can weigh examples.

Differs from the paper: Equation 2 of ldr divides a sum over pairs m < l by M (M − 1), which is half
their mean; its Appendix A.13 uses the mean. Here it is always the **mean over pairs**.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.diversity import jensen_shannon
from dissensus.losses import mean_cross_entropy
from dissensus.objectives.base import Objective, Terms, number
from dissensus.objectives.fused import a2d_term, divdis_parts, member_weights
from dissensus.objectives.gradients import add_scaled
from dissensus.outputs import check_logits, check_targets, weighted_mean

__all__ = [
    "A2D",
    "PAIR_TERMS",
    "DivDis",
    "a2d_pair",
    "a2d_pairs",
    "disagreement_term",
    "divdis_pairs",
    "jsd_pairs",
    "mean_over_pairs",
    "pair_weights",
]


def a2d_pair(log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """``−log(p_ŷ (1 − q_ŷ) + q_ŷ (1 − p_ŷ))`` with ŷ the class that p predicts (ldr, Eq. 3).

    For two members' log-probabilities ``[batch, classes]``; both get gradient. It is 0 where one is
    sure of a class that the other excludes. Where p_ŷ < ½ its gradient pulls the two *together*:
    ∂/∂q_ŷ has the sign of 2 p_ŷ − 1, so unsure members first have to become sure.

    >>> sure, unlike = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.75]])
    >>> a2d_pair(sure.log().clamp_min(-99), unlike.log())          # −log ¾
    tensor([0.2877])
    """
    both = torch.stack([log_probs, other_log_probs])
    return a2d_pairs(both)[0, 1]


def a2d_pairs(log_probs: Tensor) -> Tensor:
    """Eq. 3 of ldr for every ordered pair, ``[members, members, batch]``; ``[m, l]`` is at ŷ of m.

    Stable: where ŷ is also the other member's top class, log(1 − q_ŷ) is the log-sum-exp of its
    remaining log-probabilities; elsewhere q_ŷ ≤ ½ and log1p(−q_ŷ) loses nothing. No epsilon.
    """
    top = log_probs.argmax(-1)  # ŷ of every member, [members, batch]
    rest = log_probs.scatter(-1, top[..., None], -math.inf).logsumexp(
        -1
    )  # log(1 − p_ŷ) at its own ŷ
    index = top.T.expand(
        top.shape[0], *top.T.shape
    )  # [l, batch, m]: the classes that l is asked for
    at = log_probs.gather(-1, index)  # log q_ŷ of member l at ŷ of member m
    own = top[..., None] == index
    not_at = torch.where(own, rest[..., None], torch.log1p(-torch.where(own, -1.0, at).exp()))
    sure = at.diagonal(dim1=0, dim2=2)  # log p_ŷ of m at its own ŷ, [batch, m]
    pair = -torch.logaddexp(sure + not_at, at + rest.T)  # Eq. 3, [l, batch, m]
    return pair.permute(2, 0, 1)


def divdis_pairs(log_probs: Tensor, example_weights: Tensor | None = None) -> Tensor:
    """Mutual information of every pair's predictions over the batch, ``[members, members]``.

    ``KL(joint ‖ product of marginals)`` of DivDis (Lee et al., 2023), where joint is the batch mean
    of p^m ⊗ p^l; the diagonal is left at 0. ``example_weights`` sum to 1 and make it a weighted
    mean. Costs pairs × classes² numbers: for many classes prefer A2D.
    """
    members, batch, classes = log_probs.shape
    probs = log_probs.exp()
    if example_weights is None:
        example_weights = log_probs.new_full((batch,), 1 / batch)
    weighted = probs * example_weights[:, None]
    negative_entropy = _x_log_x(weighted.sum(1)).sum(-1)
    if (members * classes) ** 2 <= _AT_ONCE:
        by_example = probs.transpose(0, 1).flatten(1)  # [batch, members · classes]
        joint = weighted.transpose(0, 1).flatten(1).T @ by_example  # all pairs in one product
        joints = joint.unflatten(0, (members, classes)).unflatten(2, (members, classes))
        negative_joint = _x_log_x(joints).sum((1, 3))
    else:
        negative_joint = _negative_joint_entropies(weighted, probs)
    information = negative_joint - negative_entropy[:, None] - negative_entropy
    return information * (1 - torch.eye(members, dtype=probs.dtype, device=probs.device))


#: Entries of all pairs' joint distributions that may be held at once.
_AT_ONCE = 1 << 20


def _negative_joint_entropies(weighted: Tensor, probs: Tensor) -> Tensor:
    """``Σ J log J`` of every pair m < l in turn, mirrored, so that one joint is held at a time."""
    members = probs.shape[0]
    rows = []
    for m in range(members):
        later = [_x_log_x(weighted[m].T @ probs[other]).sum() for other in range(m + 1, members)]
        rows.append(torch.stack([probs.new_zeros(())] * (m + 1) + later))
    upper = torch.stack(rows)
    return upper + upper.T


def jsd_pairs(log_probs: Tensor) -> Tensor:
    """Minus the Jensen–Shannon divergence of every pair, ``[members, members, batch]``."""
    left, right = torch.broadcast_tensors(log_probs[:, None], log_probs[None, :])
    return -jensen_shannon(torch.stack([left, right]))


def _x_log_x(values: Tensor) -> Tensor:
    """``x log x``, 0 at 0, with a gradient of 0 there: its limit once multiplied by x."""
    return values * torch.where(values > 0, values, 1.0).log()


def _weighted_a2d(log_probs: Tensor, example_weights: Tensor) -> Tensor:
    return a2d_pairs(log_probs) @ example_weights / example_weights.shape[0]


def _weighted_jsd(log_probs: Tensor, example_weights: Tensor) -> Tensor:
    return jsd_pairs(log_probs) @ example_weights / example_weights.shape[0]


def _weighted_divdis(log_probs: Tensor, example_weights: Tensor) -> Tensor:
    # The information under the weighted batch, times the mean weight: with all weights 1 it is the
    # plain one, and doubling the weights doubles it, as for terms that are sums over examples.
    total = example_weights.sum()
    share = example_weights / torch.where(total > 0, total, 1.0)
    return divdis_pairs(log_probs, share) * total / example_weights.shape[0]


#: Pair terms by name: (log_probs, example_weights ``[batch]``) to ``[members, members]``.
PAIR_TERMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a2d": _weighted_a2d,
    "divdis": _weighted_divdis,
    "jsd": _weighted_jsd,
}


def pair_weights(like: Tensor, members: int, weights: Tensor | None = None) -> Tensor:
    """How much each ordered pair of unlike members counts, ``[members, members]``, summing to 1.

    With ``weights`` a pair counts w_m w_l. All 0 where there is no pair: for one member, or where
    one member has all the weight. For ``a2d_pairs`` the two orders of a pair differ (ŷ is the first
    one's class); the paper leaves the order open, and taking both makes the objective independent
    of the order of members.
    """
    if weights is None:
        return _equal_pairs((members, members), 1, like.dtype, like.device)
    other = 1 - torch.eye(members, dtype=like.dtype, device=like.device)
    off = other * torch.outer(weights, weights).to(like.dtype)
    total = off.sum()
    return off / torch.where(total > 0, total, 1.0)


def pair_shares(logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """:func:`pair_weights` for one example of the batch, as ``a2d_term`` takes them.

    ``[members, members, 1]``, the same for both orders of a pair.
    """
    members, batch = logits.shape[:2]
    if weights is None:
        return _equal_pairs((members, members, 1), batch, logits.dtype, logits.device)
    return pair_weights(logits, members, weights)[..., None] / batch


def _equal_pairs(
    shape: tuple[int, ...], batch: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    # A tensor made inside torch.func belongs to that call and must not outlive it.
    if torch._C._are_functorch_transforms_active():
        return _make_equal_pairs(shape, batch, dtype, device)
    return _kept_equal_pairs(shape, batch, dtype, device)


def _make_equal_pairs(
    shape: tuple[int, ...], batch: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    members = shape[0]
    off = 1 - torch.eye(members, dtype=dtype, device=device)
    return (off / (max(members * (members - 1), 1) * batch)).view(shape)


_kept_equal_pairs = lru_cache(_make_equal_pairs)


def mean_over_pairs(pairs: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of ``pairs`` ``[members, members]`` over ordered pairs of unlike members."""
    return (pairs * pair_weights(pairs, pairs.shape[0], weights)).sum()


def disagreement_term(
    name: str, logits: Tensor, example_weights: Tensor, weights: Tensor | None = None
) -> Tensor:
    """The mean over pairs of a pair term of ``PAIR_TERMS``, each example weighed; a scalar."""
    if name == "a2d":
        return a2d_term(logits, pair_shares(logits, weights) * example_weights)[0]
    return mean_over_pairs(PAIR_TERMS[name](log_softmax(logits, -1), example_weights), weights)


@dataclass(frozen=True)
class _Disagreement(Objective):
    """What A2D and DivDis share: cross-entropy on labelled data plus a term on unlabelled data."""

    needs_disagreement = True

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_logits(outputs, finite=False)
        check_targets(targets, outputs.shape[1], outputs.shape[2])


@dataclass(frozen=True)
class A2D(_Disagreement):
    """Agree to disagree (Pagliardini et al., 2023), all members at once: ldr, Eq. 1 to 3.

    ``mean CE + λ · mean over pairs of −log(p_ŷ(1 − q_ŷ) + q_ŷ(1 − p_ŷ))`` on unlabelled data. For
    members trained one after the other wrap it: ``Sequential(A2D(strength), stage)``.
    """

    hyperparameters = ("strength",)

    strength: float = number(1.0, low=0.0)
    label_smoothing: float = number(0.0, low=0.0, high=1.0)

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        assert disagreement is not None  # checked by the shell
        ce = mean_cross_entropy(outputs, targets, weights, self.label_smoothing)
        pairs = pair_shares(disagreement, weights)
        factors = (hyperparameters["strength"],)
        loss, term = a2d_term.total(factors, disagreement, pairs, base=ce)
        return Terms(loss, {"cross_entropy": ce, "disagreement": term})


@dataclass(frozen=True)
class DivDis(_Disagreement):
    """Diversify and disambiguate (Lee et al., 2023), its diversifying stage.

    ``mean CE + λ₁ · mean over pairs of the mutual information + λ₂ · mean_m KL(mean prediction ‖
    prior)`` on unlabelled data. The last term (``balance``) keeps members from disagreeing by
    predicting one class for everything; ``prior`` is the class distribution expected there, uniform
    unless given.
    """

    hyperparameters = ("strength", "balance")

    strength: float = number(1.0, low=0.0)
    balance: float = number(1.0, low=0.0)
    prior: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        prior = self.prior
        if prior is not None and not (
            all(type(share) in (int, float) and share > 0 for share in prior)
            and abs(sum(prior) - 1) <= 1e-6
        ):
            raise ValueError(
                f"DivDis: prior must be greater than 0 for every class and sum to 1, got {prior}"
            )

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        super().check(outputs, targets)
        if self.prior is not None and len(self.prior) != outputs.shape[2]:
            raise ValueError(
                f"DivDis: prior has {len(self.prior)} classes, the outputs have {outputs.shape[2]}"
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
        assert disagreement is not None  # checked by the shell
        ce = mean_cross_entropy(outputs, targets, weights)
        factors = hyperparameters["strength"], hyperparameters["balance"]
        members, _, classes = disagreement.shape
        if (members * classes) ** 2 <= _AT_ONCE:
            pairs = pair_weights(disagreement, members, weights)
            each = member_weights(disagreement, weights)
            given = disagreement, self._log_prior(disagreement), pairs, each
            loss, information, imbalance = divdis_parts.total(factors, *given, base=ce)
        else:
            information, imbalance = self._one_pair_at_a_time(disagreement, weights)
            loss = add_scaled(add_scaled(ce, information, factors[0]), imbalance, factors[1])
        parts = {
            "cross_entropy": ce,
            "mutual_information": information,
            "imbalance": imbalance,
        }
        return Terms(loss, parts)

    def _log_prior(self, logits: Tensor) -> Tensor:
        if self.prior is None:
            classes = logits.shape[2]
            return logits.new_full((classes,), -math.log(classes))
        return logits.new_tensor(self.prior).log()

    def _one_pair_at_a_time(self, logits: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mean over pairs of the mutual information, and of the members' KL to the prior."""
        log_probs = log_softmax(logits, -1)
        mean_probs = log_probs.exp().mean(1)
        # KL for each member
        imbalance = (_x_log_x(mean_probs) - mean_probs * self._log_prior(logits)).sum(-1)
        information = mean_over_pairs(divdis_pairs(log_probs), weights)
        return information, weighted_mean(imbalance, weights)
