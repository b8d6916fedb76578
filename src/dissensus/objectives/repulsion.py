"""Repulsion: regressors that disagree on unlabelled inputs, by no more than they have to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dissensus.losses import LOSSES, check_loss_inputs
from dissensus.objectives.base import Objective, Terms, number
from dissensus.objectives.disagreement import mean_over_pairs
from dissensus.outputs import weighted_mean


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
