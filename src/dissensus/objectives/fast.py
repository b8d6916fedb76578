"""Fast gradients of objectives: what trainers call, and the fused entries behind it.

:func:`value_and_gradient` differentiates an objective's formula by autograd, unless ``FAST`` has an
entry for it. An entry computes value and gradient in one go: autograd records every operation and
visits each again, which for tensors as small as a batch of outputs costs more than the arithmetic.
Tests hold each entry equal to its formula; without entries everything is right, and slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import log_softmax

from dissensus.diversity import DETERMINANT_FLOOR, leave_out, wrong_class_predictions
from dissensus.objectives.adp import ADP, JSD
from dissensus.objectives.base import Objective, Terms
from dissensus.objectives.disagreement import AT_ONCE, pair_weights
from dissensus.objectives.interpolation import (
    GNCL,
    Augmented,
    Independent,
    Joint,
    error_terms,
)
from dissensus.objectives.ldr import LDR, hardness_weights
from dissensus.objectives.wrappers import LearnerDropout
from dissensus.outputs import log_mean_exp, weighted_mean


def value_and_gradient(
    objective: Objective,
    outputs: Tensor,
    targets: Tensor,
    disagreement: Tensor | None = None,
    weights: Tensor | None = None,
    example_weights: Tensor | None = None,
) -> tuple[Terms, list[Tensor]]:
    """The terms, without a graph, and the gradient of the loss at the outputs; unchecked.

    With ``disagreement`` there is a second gradient, at those outputs.

    >>> from dissensus.objectives import parse
    >>> terms, (gradient,) = value_and_gradient(
    ...     parse("joint"), torch.zeros(2, 1, 4), torch.tensor([0])
    ... )
    >>> gradient[0]
    tensor([[-0.3750,  0.1250,  0.1250,  0.1250]])
    """
    with torch.no_grad():
        fused = _fused(objective, outputs, targets, weights, example_weights)
    if fused is not None:
        return fused[0], [fused[1]]

    def evaluate(outputs: Tensor, disagreement: Tensor | None = None) -> Terms:
        return objective.evaluate(outputs, targets, disagreement, weights, example_weights)

    return _differentiate(evaluate, outputs, *[] if disagreement is None else [disagreement])


def fleet_value_and_gradient(
    objective: Objective,
    values: dict[str, Tensor],
    outputs: Tensor,
    targets: Tensor,
    example_weights: Tensor | None = None,
    disagreement: Tensor | None = None,
) -> tuple[Terms, list[Tensor]]:
    """The same for ensembles side by side, each with hyperparameters of its own.

    ``outputs`` are ``[ensembles, members, batch, outputs]``; targets, example weights,
    disagreement and ``values``, the hyperparameters by name, have the ensembles as first axis too.
    Loss and parts are ``[ensembles]``.
    """
    others = [targets] if example_weights is None else [targets, example_weights]

    def fused(values: dict[str, Tensor], z: Tensor, y: Tensor, *examples: Tensor) -> Any:
        return _fused(objective.with_values(**values), z, y, None, *examples or [None]) or ()

    def formula(values: dict[str, Tensor], z: Tensor, y: Tensor, *examples: Tensor) -> Terms:
        return objective.with_values(**values).evaluate(z, y, None, None, *examples)

    def disagreeing(values: dict[str, Tensor], z: Tensor, extra: Tensor, y: Tensor) -> Terms:
        return objective.with_values(**values).evaluate(z, y, extra)

    if disagreement is not None:
        return _differentiate(
            lambda z, extra: vmap(disagreeing)(values, z, extra, targets), outputs, disagreement
        )
    with torch.no_grad():
        terms_and_gradient = vmap(fused)(values, outputs, *others)
    if terms_and_gradient:
        return terms_and_gradient[0], [terms_and_gradient[1]]
    return _differentiate(lambda z: vmap(formula)(values, z, *others), outputs)


def _differentiate(evaluate: Callable[..., Terms], *outputs: Tensor) -> tuple[Terms, list[Tensor]]:
    """Terms and gradients by autograd; no ensemble's loss depends on another one's outputs."""
    leaves = [x.detach().requires_grad_() for x in outputs]
    with torch.enable_grad():
        loss, parts = evaluate(*leaves)
    gradients = torch.autograd.grad(
        loss, leaves, torch.ones_like(loss), allow_unused=True, materialize_grads=True
    )
    terms = Terms(loss.detach(), {name: part.detach() for name, part in parts.items()})
    return terms, list(gradients)


def _fused(objective: Objective, outputs: Tensor, targets: Tensor, *weights: Any) -> Fused | None:
    """What an entry returns, where there is one that covers the objective's settings."""
    while isinstance(objective, LearnerDropout):
        objective = objective.objective
    entry = FAST.get(type(objective))
    regression = getattr(objective, "loss", None) == "mse"
    if entry is None or (targets.ndim > 1 and not regression):  # soft labels have no entry
        return None
    return entry(objective, outputs, targets, *weights)


# ---- entries ------------------------------------------------------------------------------------

#: The terms, and the gradient of the loss at the outputs.
Fused = tuple[Terms, Tensor]

Share = float | Tensor  # a number where all count the same


def _shares(
    outputs: Tensor, weights: Tensor | None, example_weights: Tensor | None
) -> tuple[Share, Share]:
    """How much each member counts, ``[members, 1, 1]``, and each example, ``[batch, 1]``."""
    members, batch, _ = outputs.shape
    member: Share = 1 / members if weights is None else weights.to(outputs.dtype)[:, None, None]
    if example_weights is None:
        return member, 1 / batch
    return member, example_weights.to(outputs.dtype)[:, None] / batch


class _Batch:
    """What entries share: probabilities, the true class, and how much each output counts."""

    def __init__(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None, example_weights: Tensor | None
    ) -> None:
        self.member, self.example = _shares(logits, weights, example_weights)
        self.share = self.member * self.example
        self.logits, self.labels, self.weights = logits, labels, weights
        self.index = labels.long().expand(logits.shape[:2])[..., None]
        self.log_probs = log_softmax(logits, -1)
        self.probs = self.log_probs.exp()
        self.log_true = self.log_probs.gather(-1, self.index)

    def cross_entropy(self) -> Tensor:
        """Its mean over members and examples."""
        return -(self.log_true * self.share).sum()

    def minus_labels(self, slope: Tensor) -> Tensor:
        """``slope − y``; of the softmax it is the gradient of the cross-entropy."""
        return slope.scatter_add(-1, self.index, slope.new_full(self.index.shape, -1.0))

    def mean(self, values: Tensor) -> Tensor:
        """The mean of ``[batch, 1]`` over examples, or of ``[batch, classes]``, added up."""
        return (values * self.example).sum()


def _interpolation(objective: Independent | Joint | Augmented, *inputs: Any) -> Fused | None:
    """``(1 − β) mean ERR + β ERR`` of the cross-entropy or the squared error (collusion, Eq. 2)."""
    beta = objective.beta if isinstance(objective, Augmented) else float(type(objective) is Joint)
    if objective.loss == "mse":
        member, ensemble, slope = _squared_error(beta, *inputs)
    elif objective.loss == "cross_entropy" and not objective.label_smoothing:
        member, ensemble, slope = _cross_entropy(beta, objective.combine, _Batch(*inputs))
    elif objective.loss == "cross_entropy" and isinstance(objective, Independent):
        member, ensemble, slope = _smoothed(objective, _Batch(*inputs))
    else:
        return None
    return error_terms((1 - beta) * member + beta * ensemble, member, ensemble), slope


def _cross_entropy(
    beta: Share, combine: str | None, batch: _Batch
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean ERR, ERR, and the gradient of their interpolation."""
    if combine == "score":
        log_mean = log_softmax(weighted_mean(batch.logits, batch.weights), -1)
        error = -log_mean.gather(-1, batch.index[0])
        slope = (1 - beta) * batch.probs + beta * log_mean.exp()
        slope = batch.minus_labels(slope) * batch.share
    else:
        error = -log_mean_exp(batch.log_true, batch.weights)
        # ∂ERR / ∂ log p_j(y) is −w_j p_j / p̄, a softmax over members.
        scores = batch.log_true
        if isinstance(batch.member, Tensor):
            scores = scores + batch.member.log()
        share = ((1 - beta) * batch.member + beta * scores.softmax(0)) * batch.example
        slope = batch.minus_labels(batch.probs) * share
    return batch.cross_entropy(), batch.mean(error), slope


def _smoothed(objective: Independent, batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The same for β = 0 with labels ``(1 − s) y + s / classes``."""
    s, classes = objective.label_smoothing, batch.logits.shape[-1]
    if objective.combine == "score":
        log_mean = log_softmax(weighted_mean(batch.logits, batch.weights), -1)
    else:
        log_mean = log_mean_exp(batch.log_probs, batch.weights)
    true, mean_true = batch.log_true, log_mean.gather(-1, batch.index[0])
    member = (1 - s) * true + s * batch.log_probs.mean(-1, keepdim=True)
    error = (1 - s) * mean_true + s * log_mean.mean(-1, keepdim=True)
    slope = batch.probs - s / classes
    slope = slope.scatter_add(-1, batch.index, slope.new_full(batch.index.shape, s - 1))
    return -(member * batch.share).sum(), -batch.mean(error), slope * batch.share


def _squared_error(
    beta: Share, outputs: Tensor, targets: Tensor, weights: Tensor | None, example_weights: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with ``‖f_j − y‖²`` and ``‖f̄ − y‖²``, whose slopes are 2 (f_j − y) and 2 (f̄ − y)."""
    share, example = _shares(outputs, weights, example_weights)
    away, mean = outputs - targets, weighted_mean(outputs, weights) - targets
    slope = ((1 - beta) * away + beta * mean) * (2 * share * example)
    return (away.square() * share * example).sum(), (mean.square() * example).sum(), slope


def _adp(objective: ADP, logits: Tensor, *others: Any) -> Fused:
    """``Σ_k CE_k − α H(F̄) − β log det(M̃ᵀ M̃)`` (adp, Eq. 2 to 6)."""
    alpha, beta, temperature = objective.alpha, objective.beta, objective.temperature
    batch = _Batch(logits / temperature, *others)
    members, probs = logits.shape[0], batch.probs
    ce = members * batch.cross_entropy()
    mean = weighted_mean(probs, batch.weights)
    log_mean = _finite_log(mean)
    entropy = -batch.mean(mean * log_mean)
    # ∂H/∂F^k = −w_k (log F̄ + 1), taken back through the softmax, which cancels the 1.
    slope = members * batch.minus_labels(probs) + alpha * _through_softmax(log_mean, probs)
    log_det, det_slope = _log_diversity(batch)
    log_diversity = batch.mean(log_det).to(logits.dtype)
    slope = slope * batch.share - (beta * batch.example) * det_slope
    parts = {"cross_entropy": ce, "ensemble_entropy": entropy, "log_diversity": log_diversity}
    return Terms(ce - (alpha * entropy + beta * log_diversity), parts), slope / temperature


def _log_diversity(batch: _Batch) -> tuple[Tensor, Tensor]:
    """``diversity.log_ensemble_diversity`` as ``[batch, 1]``, and its gradient at the logits."""
    rows = wrong_class_predictions(batch.logits, batch.labels)
    rows = rows / rows.norm(dim=-1, keepdim=True)  # M̃ᵀ
    gram = rows @ rows.mT
    if batch.weights is not None:
        gram = leave_out(gram, batch.weights)
    diagonal = gram.diagonal(dim1=1, dim2=2).add_(DETERMINANT_FLOOR)
    factor = torch.linalg.cholesky_ex(gram)[0]
    log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(-1, keepdim=True)
    # ∂ log det / ∂M̃ = 2 M̃ G⁻¹; back through the normalisation that is 2 M̃ (G⁻¹ − diag(G⁻¹ M̃ᵀ M̃)),
    # and G⁻¹ M̃ᵀ M̃ = 1 − floor · G⁻¹, where the floor is all that the diagonal of G is above 1.
    push = 2 * torch.linalg.inv_ex(gram)[0]
    push.diagonal(dim1=1, dim2=2).mul_(diagonal).sub_(2)
    slope = rows * (push @ rows)
    return log_det, slope.transpose(0, 1).to(batch.logits.dtype)


def _jsd(objective: JSD, *inputs: Any) -> Fused:
    """``Σ_k CE_k − λ Σ_k w_k KL(F^k ‖ F̄)`` (adp, Eq. 9 and 10)."""
    batch = _Batch(*inputs)
    members, probs = batch.logits.shape[0], batch.probs
    ce = members * batch.cross_entropy()
    away = batch.log_probs - _finite_log(weighted_mean(probs, batch.weights))
    divergence = (probs * away).sum(-1, keepdim=True)  # KL(F^k ‖ F̄)
    jensen_shannon = (divergence * batch.share).sum()
    slope = members * batch.minus_labels(probs) - objective.strength * probs * (away - divergence)
    parts = {"cross_entropy": ce, "jensen_shannon": jensen_shannon}
    return Terms(ce - objective.strength * jensen_shannon, parts), slope * batch.share


def _gncl(objective: GNCL, *inputs: Any) -> Fused | None:
    """``mean ERR − λ · ½ Σ_j w_j (f_j − f̄)ᵀ H (f_j − f̄)`` of averaged scores."""
    if objective.combine != "score":
        return None
    batch = _Batch(*inputs)
    mean = weighted_mean(batch.logits, batch.weights)
    mean_probs = mean.softmax(-1)
    centred = batch.logits - mean
    centred = centred - (mean_probs * centred).sum(-1, keepdim=True)
    spread = weighted_mean(centred.square(), batch.weights)
    variance = (mean_probs * spread).sum(-1, keepdim=True)
    error, diversity = batch.cross_entropy(), batch.mean(variance) / 2
    # Through the distances, and through the probabilities at which H is taken.
    slope = mean_probs * (centred + (spread - variance) / 2)
    slope = batch.minus_labels(batch.probs) - objective.strength * slope
    parts = {"member_error": error, "second_order_diversity": diversity}
    return Terms(error - objective.strength * diversity, parts), slope * batch.share


def _ldr(objective: LDR, *inputs: Any) -> Fused | None:
    """``mean CE + λ mean_n α_n · mean over pairs of G`` (ldr, Eq. 6)."""
    batch, regularizer = _Batch(*inputs), objective.regularizer
    members, _, classes = batch.logits.shape
    many = (members * classes) ** 2 > AT_ONCE  # DivDis takes them one pair at a time
    if objective.label_smoothing or (regularizer == "divdis" and many):
        return None
    alpha = hardness_weights(*inputs)  # Eq. 4
    examples = batch.example[:, 0] if isinstance(batch.example, Tensor) else batch.example
    pairs = pair_weights(batch.logits, members, batch.weights)
    pair_term = PAIR_SLOPES[regularizer]
    disagreement, slope = pair_term(batch.log_probs, batch.probs, pairs, alpha * examples)
    ce = batch.cross_entropy()
    slope = batch.minus_labels(batch.probs) * batch.share + objective.strength * slope
    parts = {"cross_entropy": ce, "disagreement": disagreement}
    return Terms(ce + objective.strength * disagreement, parts), slope


#: The mean of a pair term over pairs and examples, both weighed, and its gradient at the logits.
Slope = tuple[Tensor, Tensor]


def _a2d_slope(log_probs: Tensor, probs: Tensor, pairs: Tensor, examples: Tensor) -> Slope:
    """``disagreement.a2d_pairs``, ``[m, l, batch]``."""
    members, pairs = len(log_probs), pairs[..., None] * examples
    top = log_probs.argmax(-1, keepdim=True)
    masked = log_probs.scatter(-1, top, -math.inf)
    rest = masked.logsumexp(-1)  # log(1 − p) of every member at its own ŷ
    asked = top[:, None, :, 0].expand(-1, members, -1)  # ŷ of m, for every l
    index = asked.permute(1, 2, 0)  # [l, batch, m]
    log_q = log_probs.gather(-1, index).permute(2, 0, 1)
    own = asked == top[..., 0]
    q = torch.where(own, 0.0, log_q.exp())
    first = log_q.diagonal(dim1=0, dim2=1).T[:, None] + torch.where(own, rest, torch.log1p(-q))
    either = torch.logaddexp(first, log_q + rest[:, None])  # −G, ldr, Eq. 3
    # With s = e^first / e^either: ∂G/∂z of m is F − s δ_ŷ − (1 − s) r, with r the softmax of the
    # rest; that of l is F − (1 − s) δ_ŷ − s r if ŷ is its top class too, else t (δ_ŷ − F).
    s = (first - either).exp() * pairs
    not_s = pairs - s
    t = torch.where(own, 0.0, s * q / (1 - q) - not_s)
    at_rest = (not_s.sum(1) + torch.where(own, s, 0.0).sum(0))[..., None]
    at_top = (s.sum(1) + torch.where(own, not_s, 0.0).sum(0))[..., None]
    slope = probs * (at_rest + at_top - t.sum(0)[..., None])
    slope = slope - (masked - rest[..., None]).exp() * at_rest
    slope = slope.scatter_add(-1, top, -at_top).scatter_add(-1, index, t.permute(1, 2, 0))
    return -(pairs * either).sum(), slope


def _jsd_slope(log_probs: Tensor, probs: Tensor, pairs: Tensor, examples: Tensor) -> Slope:
    """``disagreement.jsd_pairs``."""
    pairs = pairs[..., None] * examples
    away = log_probs[:, None] - _finite_log((probs[:, None] + probs) / 2)
    divergence = (probs[:, None] * away).sum(-1)  # KL of m to the mean with l
    slope = (away - divergence[..., None]) * pairs[..., None]
    return -(pairs * divergence).sum(), -probs * slope.sum(1)


def _divdis_slope(log_probs: Tensor, probs: Tensor, pairs: Tensor, examples: Tensor) -> Slope:
    """``disagreement.divdis_pairs``.

    ``Σ pairs (Σ J log J − Σ μ_m log μ_m − Σ μ_l log μ_l)``, J joint distributions, μ marginals.
    """
    members, size, classes = probs.shape
    total = examples.sum()
    share = examples / torch.where(total > 0, total, 1.0)
    flat = probs.transpose(0, 1).reshape(size, members * classes)
    weighted = flat * share[:, None]
    joint = weighted.T @ flat  # of all pairs in one product
    pair_log = _finite_log(joint).reshape(members, classes, members, classes)
    pair_log = (pair_log * pairs[:, None, :, None]).reshape(joint.shape)
    mean = weighted.sum(0)
    marginal_log = _finite_log(mean).reshape(members, classes) * (2 * pairs.sum(1)[:, None])
    information = (joint * pair_log).sum() - (mean * marginal_log.flatten()).sum()
    # ∂(J log J)/∂J is log J + 1; the 1 does nothing once it went through the softmax.
    slope = (2 * (flat @ pair_log)).reshape(size, members, classes).transpose(0, 1)
    slope = _through_softmax(slope - marginal_log[:, None], probs)
    return total * information, slope * examples[:, None]


#: The pair terms of LDR by name.
PAIR_SLOPES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Slope]] = {
    "a2d": _a2d_slope,
    "divdis": _divdis_slope,
    "jsd": _jsd_slope,
}


def _through_softmax(slope: Tensor, probs: Tensor) -> Tensor:
    """The gradient at the logits of what has the gradient ``slope`` at the probabilities."""
    return probs * (slope - (probs * slope).sum(-1, keepdim=True))


def _finite_log(probs: Tensor) -> Tensor:
    """The logarithm, finite at 0, so that 0 log 0 = 0."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


#: Fused values and gradients, by objective. Each saves at least 10% of a whole training step.
FAST: dict[type[Objective], Callable[..., Fused | None]] = {
    Independent: _interpolation,
    Joint: _interpolation,
    Augmented: _interpolation,
    ADP: _adp,
    JSD: _jsd,
    GNCL: _gncl,
    LDR: _ldr,
}
