"""Uncertainty of predicted numbers: intervals, quantiles and standard deviations.

All of them add errors of held-out rows to the prediction: the errors in units of σ, which
:class:`~dissensus.sklearn.error_model.ErrorModel` has kept, times the σ(x) of the new row.
``outputs`` are the members' predictions ``[members, rows, outputs]``, ``noise`` the variances that
Gaussian members predict, shaped alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dissensus.calibration import conformal_quantile, sample_quantiles
from dissensus.sklearn.held_out import HeldOut


def intervals(
    held_out: HeldOut, outputs: Tensor, coverage: float, noise: Tensor | None = None
) -> Tensor:
    """Conformal intervals ``[rows, 2, outputs]`` that hold a new target with ``coverage``.

    ``f̄ + σ(x) [q⁻, q⁺]``, with q⁻ and q⁺ the conformal quantiles of the held-out errors in units of
    σ, (1 − coverage) / 2 on each side: they need not be of one length. As each row was held out by
    other members, this is cross-conformal prediction (Vovk, 2015), whose coverage holds nearly, not
    exactly.
    """
    if not isinstance(coverage, float | int) or not 0 < coverage < 1:
        raise ValueError(f"coverage must lie between 0 and 1, got {coverage!r}; 0.9 means 90%")
    level = (1 + coverage) / 2
    needed, there = math.ceil(level / (1 - level) * (1 - 1e-12)), held_out.effective_rows
    if there < needed * (1 - 1e-9):
        less = f", or ask for less than {(there - 1) / (there + 1):.3g}" if there > 1 else ""
        raise ValueError(
            f"coverage={coverage:g} needs at least {needed} held-out rows, and there are "
            f"{there:.4g}; fit on more rows{less}"
        )
    found = []
    for model in held_out.error_models:
        upper = conformal_quantile(model.scores, level, model.weights)
        lower = -conformal_quantile(-model.scores, level, model.weights)
        found.append(torch.stack([lower, upper]))
    return _around(held_out, outputs, noise, torch.stack(found, -1))


def quantiles(
    held_out: HeldOut, outputs: Tensor, levels: Sequence[float], noise: Tensor | None = None
) -> Tensor:
    """Quantiles ``[rows, levels, outputs]`` of a new target; they rise with the level.

    ``f̄ + σ(x) Q(level)``, with Q of :func:`dissensus.calibration.sample_quantiles`: beyond the
    outermost of the held-out errors it follows an exponential tail.
    """
    found = [
        sample_quantiles(model.scores, levels, model.weights) for model in held_out.error_models
    ]
    return _around(held_out, outputs, noise, torch.stack(found, -1))


def _around(held_out: HeldOut, outputs: Tensor, noise: Tensor | None, scores: Tensor) -> Tensor:
    """``f̄ + σ(x) · scores``, ``[rows, scores, outputs]``, for scores ``[scores, outputs]``."""
    return outputs.mean(0)[:, None] + _sizes(held_out, outputs, noise)[:, None] * scores


def _sizes(held_out: HeldOut, outputs: Tensor, noise: Tensor | None) -> Tensor:
    """σ(x) ``[rows, outputs]``."""
    prediction = outputs.mean(0)
    # What held-out rows did not tell for want of a second member, new rows must not bring in.
    variance = None if held_out.variance is None else outputs.var(0)
    mean_noise = None if noise is None else noise.mean(0)
    sizes = []
    for place, model in enumerate(held_out.error_models):
        spread, own = (None if all_ is None else all_[:, place] for all_ in (variance, mean_noise))
        sizes.append(model.size(prediction[:, place], spread, own, len(outputs)))
    return torch.stack(sizes, -1)


def member_std(outputs: Tensor) -> Tensor:
    """How far members disagree, ``[rows, outputs]``."""
    return outputs.std(0, correction=0)


def total_std(held_out: HeldOut, outputs: Tensor, noise: Tensor | None = None) -> Tensor:
    """The error to expect of the ensemble, ``σ(x) · √(mean of the squared held-out scores)``."""
    squares = [
        (model.scores.square() * model.weights).sum() / model.weights.sum()
        for model in held_out.error_models
    ]
    return _sizes(held_out, outputs, noise) * torch.stack(squares).sqrt()


def noise_std(held_out: HeldOut | None, outputs: Tensor, noise: Tensor | None = None) -> Tensor:
    """What would be left of the error with any number of members: noise, and bias if there is.

    Of Gaussian members the root of their mean variance. Else ``√(total² − V(x) / M)``, never below
    0, as the variance V between M members leaves V / M in their mean.
    """
    if noise is not None:
        return noise.mean(0).sqrt()
    assert held_out is not None
    total = total_std(held_out, outputs)
    if len(outputs) == 1:
        return total
    return (total.square() - outputs.var(0) / len(outputs)).clamp(min=0).sqrt()
