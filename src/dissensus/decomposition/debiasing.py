"""Debiasing: members without constant offsets (collusion, Section 6.1 and Appendix C.1)."""

from __future__ import annotations

from torch import Tensor

from dissensus.outputs import (
    check_outputs,
    check_weights,
    weighted_mean,
)

__all__ = ["debias", "optimal_offsets"]


def optimal_offsets(outputs: Tensor, weights: Tensor | None = None) -> Tensor:
    """Each member's constant offset from the ensemble, ``[members, outputs]``.

    ``b_j = mean_i f_j(x_i) − mean_i f̄(x_i)``: of all offsets that leave the ensemble's prediction
    as it is, those whose removal leaves least ambiguity (collusion, Appendix C.1, Eq. 3–6).

    Differs from the paper: with weights the constraint is ``Σ_j w_j b_j = 0``; the paper's
    ``Σ_j b_j = 0`` keeps the prediction only for equal weights.

    >>> import torch
    >>> optimal_offsets(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])).flatten()
    tensor([-1.,  1.])
    """
    check_outputs(outputs, finite=False)
    return (outputs - weighted_mean(outputs, weights)).mean(1)  # Appendix C.1, after Eq. 6


def debias(outputs: Tensor, weights: Tensor | None = None) -> Tensor:
    """The outputs without each member's constant offset, ``[members, batch, outputs]``.

    ``f_j − b_j`` with the b_j of :func:`optimal_offsets` (collusion, Section 6.1, "Debiased
    diversity"). The mean prediction stays; what diversity remains differs between examples.

    >>> import torch
    >>> debias(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])).flatten()
    tensor([2., 3., 2., 3.])
    """
    check_outputs(outputs)
    check_weights(weights, outputs.shape[0])
    return outputs - optimal_offsets(outputs, weights)[:, None]
