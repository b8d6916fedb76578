"""Gaussian members: each predicts a mean and a variance for every target (deep ensembles)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dissensus.losses import gaussian_nll
from dissensus.objectives.base import Objective, Terms, number
from dissensus.objectives.interpolation import error_terms
from dissensus.outputs import check_outputs, check_regression_targets, log_mean_exp, weighted_mean
from dissensus.tools.guards import formula

#: The least variance, of standardised targets a thousandth of their deviation, squared: without
#: one, a row that is met exactly has a loss of minus infinity.
LEAST_VARIANCE = 1e-6


@formula
def gaussian_moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and log-variances ``[…, targets]`` of outputs ``[…, 2 · targets]``.

    The first half are means μ, the second s gives the variance ``exp(s) + 1e-6``.

    >>> means, log_variances = gaussian_moments(torch.tensor([[3.0, 0.0]]))
    >>> means, log_variances.exp()
    (tensor([[3.]]), tensor([[1.0000]]))
    """
    means, logs = outputs.chunk(2, -1)
    return means, torch.logaddexp(logs, logs.new_tensor(math.log(LEAST_VARIANCE)))


def gaussian_errors(
    outputs: Tensor, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``−log p_j(y)`` of the members, ``[members, batch]``, and of their mixture, ``[batch]``.

    The ensemble's density is the mean of its members', ``p̄ = Σ_j w_j N(μ_j, σ_j²)``, so that
    diversity, mean ERR − ERR, is never negative.
    """
    member = gaussian_nll(*gaussian_moments(outputs), targets).sum(-1)
    return member, -log_mean_exp(-member, weights)


@dataclass(frozen=True)
class Gaussian(Objective):
    """Each member predicts a mean and a variance: ``−Σ_j w_j v_j log N(y; μ_j, σ_j²)``.

    With ``weighting`` 0, v_j = 1: the deep ensembles of Lakshminarayanan et al. (2017, Section
    2.2.1). Their gradient for a mean is (μ − y) / σ², so that rows of little noise are learnt at
    the cost of all others, and the error of the means is larger than with ``mse``.
    ``v_j = (σ_j² / (1 + σ_j²))^weighting``, a constant for the gradient, takes that back in part
    (Seitzer et al., 2022, whose v_j is σ_j^(2 · weighting); this one is bounded, and the same where
    σ is small). Members have two outputs for each target, see :func:`gaussian_moments`; targets
    should be standardised.

    >>> terms = Gaussian()(torch.zeros(3, 4, 2), torch.zeros(4, 1))
    >>> round(float(terms.parts["member_error"]), 4)                            # ½ log 2π
    0.9189
    """

    hyperparameters = ("weighting",)
    coupled = False

    weighting: float = number(0.5, low=0.0, high=1.0, why="1 learns means as mse does")

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_outputs(outputs, finite=False)
        if outputs.shape[2] % 2:
            raise ValueError(
                f"Gaussian members have two outputs for each target; double {tuple(outputs.shape)}"
            )
        check_regression_targets(targets, gaussian_moments(outputs)[0])

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        means, log_variances = gaussian_moments(outputs)
        entries = gaussian_nll(means, log_variances, targets)
        share = (self.weighting * logsigmoid(log_variances)).exp().detach()  # v_j
        member = entries.sum(-1)
        loss = weighted_mean((share * entries).sum(-1), weights)
        parts = error_terms(loss, weighted_mean(member, weights), -log_mean_exp(-member, weights))
        return Terms(loss, {**parts.parts, "weighted_error": loss})
