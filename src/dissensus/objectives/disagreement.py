"""A2D, DivDis and Repulsion: members that disagree on unlabelled data, and their pair terms.

A2D and DivDis add to the members' cross-entropy a term over every pair of members, on outputs for
unlabelled data that should be unlike the training data (ldr, Eq. 1 and 2). ``LDR`` uses the same
pair terms on hard *training* examples instead, so each is a function that can weigh examples.

Differs from the paper: Equation 2 of ldr divides a sum over pairs m < l by M (M − 1), which is half
their mean; its Appendix A.13 uses the mean. Here it is always the **mean over pairs**.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.diversity import entropy
from dissensus.losses import LOSSES, check_loss_inputs, mean_cross_entropy
from dissensus.objectives.base import Objective, Terms, number
from dissensus.outputs import check_logits, check_targets, weighted_mean


def a2d_pairs(log_probs: Tensor) -> Tensor:
    """Eq. 3 of ldr for every ordered pair, ``[members, members, batch]``; ``[m, l]`` is at ŷ of m.

    ``−log(p_ŷ (1 − q_ŷ) + q_ŷ (1 − p_ŷ))`` with ŷ the class that p predicts. It is 0 where one is
    sure of a class that the other excludes. ∂/∂q_ŷ has the sign of 2 p_ŷ − 1: where p_ŷ < ½ a
    descent *raises* q_ŷ, the same class as p predicts. Total variation may still rise there, as
    the probability of whoever is surer rises faster; ``results/ldr.md``, *flow*, has measurements.

    Stable: where ŷ is also the other member's top class, log(1 − q_ŷ) is the log-sum-exp of its
    remaining log-probabilities; elsewhere q_ŷ ≤ ½ and log1p(−q_ŷ) loses nothing. No epsilon.

    >>> sure, unlike = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.75]])
    >>> a2d_pairs(torch.stack([sure, unlike]).log().clamp_min(-99))[0, 1]          # −log ¾
    tensor([0.2877])
    """
    top = log_probs.argmax(-1)  # ŷ of every member, [members, batch]
    # log(1 − p_ŷ) at its own ŷ
    rest = log_probs.scatter(-1, top[..., None], -math.inf).logsumexp(-1)
    # [l, batch, m]: the classes that l is asked for
    index = top.T.expand(top.shape[0], *top.T.shape)
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
    mean = torch.logaddexp(log_probs[:, None], log_probs) - math.log(2)
    own = entropy(log_probs)
    return (own[:, None] + own) / 2 - entropy(mean)  # adp, Eq. 9, of two members


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
    """How much each ordered pair of different members counts, ``[members, members]``, sum 1.

    With ``weights`` a pair counts w_m w_l. All are 0 where there is no pair: for one member, or
    where one member has all the weight. For ``a2d_pairs`` the two orders of a pair differ (ŷ is the
    first one's class). The paper leaves the order open; taking both makes the objective independent
    of the order of members.
    """
    off_diagonal = 1 - torch.eye(members, dtype=like.dtype, device=like.device)
    if weights is None:
        return off_diagonal / max(members * (members - 1), 1)
    pairs = off_diagonal * torch.outer(weights, weights).to(like.dtype)
    total = pairs.sum()
    return pairs / torch.where(total > 0, total, 1.0)


def mean_over_pairs(pairs: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of ``pairs`` ``[members, members]`` over ordered pairs of different members."""
    return (pairs * pair_weights(pairs, pairs.shape[0], weights)).sum()


@dataclass(frozen=True)
class _Disagreement(Objective):
    """The base of A2D and DivDis: cross-entropy, and a term on unlabelled data."""

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

    def terms(
        self, logits: Tensor, targets: Tensor, disagreement: Tensor, weights: Tensor | None = None
    ) -> Terms:
        ce = mean_cross_entropy(logits, targets, weights, self.label_smoothing)  # Eq. 1
        pairs = a2d_pairs(log_softmax(disagreement, -1)).mean(-1)  # Eq. 3
        term = mean_over_pairs(pairs, weights)  # Eq. 2
        return Terms(ce + self.strength * term, {"cross_entropy": ce, "disagreement": term})


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

    def terms(
        self, logits: Tensor, targets: Tensor, disagreement: Tensor, weights: Tensor | None = None
    ) -> Terms:
        ce = mean_cross_entropy(logits, targets, weights)
        log_probs = log_softmax(disagreement, -1)
        information = mean_over_pairs(divdis_pairs(log_probs), weights)
        mean = log_probs.exp().mean(1)  # each member's mean prediction, [members, classes]
        divergence = (_x_log_x(mean) - mean * self.log_prior(mean)).sum(-1)  # KL to the prior
        imbalance = weighted_mean(divergence, weights)
        parts = {
            "cross_entropy": ce,
            "mutual_information": information,
            "imbalance": imbalance,
        }
        return Terms(ce + self.strength * information + self.balance * imbalance, parts)

    def log_prior(self, like: Tensor) -> Tensor:
        """The logarithm of ``prior``, ``[classes]``, with dtype and device of ``like``."""
        classes = like.shape[-1]
        if self.prior is None:
            return like.new_full((classes,), -math.log(classes))
        return like.new_tensor(self.prior).log()


@dataclass(frozen=True)
class Repulsion(Objective):
    """What A2D is for classes: members predict alike on the data, and apart on unlabelled inputs.

    ``mean_m ‖f_m − y‖² + λ s² · mean over pairs of exp(−‖f_m(u) − f_l(u)‖² / 2 s²)``, u being the
    unlabelled inputs (strangers) and s, ``scale``, the deviation of the targets: 1 where these are
    standardised. Where members are close, the term is s² − ‖f_m − f_l‖² / 2, the reward of negative
    correlation learning. That one has no bound, and on inputs without targets nothing would hold
    members back; this one is between 0 and s² and lets go of members that are s apart. It is the
    repulsion of D'Angelo and Fortuin (2021) in function space, with a kernel of fixed width.

    >>> outputs, apart = torch.zeros(2, 1, 1), torch.tensor([[[0.0]], [[2.0]]])
    >>> terms = Repulsion()(outputs, torch.ones(1, 1), disagreement=apart)
    >>> terms.parts["member_error"], terms.parts["disagreement"]                        # 1, e⁻²
    (tensor(1.), tensor(0.1353))
    """

    needs_disagreement = True
    hyperparameters = ("strength", "scale")

    strength: float = number(1.0, low=0.0)
    scale: float = number(1.0, above=0.0)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_loss_inputs(outputs, targets, "mse", finite=False)

    def terms(
        self, outputs: Tensor, targets: Tensor, disagreement: Tensor, weights: Tensor | None = None
    ) -> Terms:
        error = weighted_mean(LOSSES["mse"].function(outputs, targets), weights).mean()
        square = self.scale**2
        distances = (disagreement[:, None] - disagreement).square().sum(-1)  # [m, l, batch]
        kernel = torch.exp(-distances / (2 * square)).mean(-1)
        term = square * mean_over_pairs(kernel, weights)
        return Terms(error + self.strength * term, {"member_error": error, "disagreement": term})
