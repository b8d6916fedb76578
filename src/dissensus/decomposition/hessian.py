"""Theorem 4.5 of *collusion*: diversity as a variance weighted by the curvature of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dissensus.losses import check_loss_inputs, reduced_loss
from dissensus.outputs import check_outputs, check_tensor, check_weights, weighted_mean
from dissensus.tools.guards import formula, guarded
from dissensus.tools.specs import check_choice

PerExampleLoss = Callable[[Tensor, Tensor], Tensor]

_CELLS = 32  # of the grid on which an extremum of φ' is bracketed
_HALVINGS = 12  # of that bracket by values of φ', which see peaks of γ'' that are narrower than it
_BISECTIONS = 40  # halvings of the bracket by the sign of φ'', down to the spacing of float64
_FLAT = 1e-14  # |φ'| below this share of the loss is rounding: the Hessian is constant
_SOLVED = 1e-8  # a residual below this share of loss and deviations is rounding, or a seam such as
# the one of torch's softplus, which is a straight line above 20


class HessianDiversity(NamedTuple):
    """Diversity by Theorem 4.5, ``[batch]``, and its parts, ``[members, batch]`` each.

    ``c`` holds the c_j and ``curvature`` is ``(f_j − f̄)ᵀ H(f*_j) (f_j − f̄)``. ``residual`` is by
    how much ``½ curvature`` misses ``L(f_j) − L(f̄) − ∇L(f̄)ᵀ(f_j − f̄)``, so that its mean over the
    members is by how much ``diversity`` misses DIV; ``solved`` says where that is only rounding.
    """

    diversity: Tensor
    c: Tensor
    curvature: Tensor
    residual: Tensor
    solved: Tensor


@guarded
def hessian_diversity(
    outputs: Tensor,
    targets: Tensor,
    loss: PerExampleLoss,
    weights: Tensor | None = None,
    form: str = "exact",
) -> HessianDiversity:
    """Diversity of any twice differentiable loss: a variance weighted by the loss's curvature.

    ``DIV = ½ Σ_j w_j (f_j − f̄)ᵀ H(f*_j, y) (f_j − f̄)`` with ``f*_j = f̄ + c_j (f_j − f̄)``, some
    ``c_j ∈ [0, 1]`` and H the Hessian of the loss in its first argument (collusion, Theorem 4.5).
    ``form="exact"`` finds a c_j for every member and example and equals ``mean ERR − ERR``; it
    carries no gradient, because that of DIV itself is to be had from :func:`decompose`.
    ``form="second_order"`` sets ``c_j = 0``: differentiable, and off by O(‖f_j − f̄‖³).

    Differs from the paper: the last line of Appendix C.2 drops the w_j of its last sum.

    ``outputs`` ``[members, batch, d]`` are in the space where members are averaged; ``loss`` is
    ``(prediction [batch, d], target) -> [batch]``, twice differentiable between every member and
    the mean. Computed in float64.

    >>> outputs = torch.tensor([[[1.0]], [[3.0]]])
    >>> result = hessian_diversity(outputs, torch.tensor([[0.0]]), lambda f, y: (f - y).exp()[:, 0])
    >>> result.diversity.round(decimals=4), result.c.flatten().round(decimals=4)  # ½(e + e³) − e²
    (tensor([4.0129]), tensor([0.3069, 0.3623]))
    """
    check_choice("hessian_diversity", "form", form, ["exact", "second_order"])
    if not callable(loss):
        raise ValueError(f"loss must be a callable such as dissensus.losses.mse, got {loss!r}")
    check_loss_inputs(outputs, targets, loss)
    check_weights(weights, outputs.shape[0])
    terms = hessian_terms(outputs, targets, loss, weights, form)
    _check_solved(terms, form)
    return terms


@formula
def hessian_terms(
    outputs: Tensor,
    targets: Tensor,
    loss: PerExampleLoss,
    weights: Tensor | None = None,
    form: str = "exact",
) -> HessianDiversity:
    """The core of :func:`hessian_diversity`, with or without a c_j: look at ``solved``.

    >>> terms = hessian_terms(torch.tensor([[[1.0]], [[3.0]]]), torch.zeros(1, 1),
    ...                       lambda f, y: (f - y).square().sum(-1), form="second_order")
    >>> terms.diversity, terms.curvature.flatten()
    (tensor([1.]), tensor([2., 2.]))
    """
    check_outputs(outputs)
    check_tensor(targets)
    check_weights(weights, outputs.shape[0])
    points = (outputs.detach() if form == "exact" else outputs).double()
    labels = targets.double() if targets.is_floating_point() else targets
    mean = weighted_mean(points, weights)

    def gamma(t: Tensor) -> Tensor:  # γ_j(t) = L(f̄ + t (f_j − f̄), y), Appendix C.2
        path = (1 - t[..., None]) * mean + t[..., None] * points  # exactly f_j at t = 1
        return torch.stack([loss(prediction, labels) for prediction in path])

    zeros = points.new_zeros(points.shape[:-1])
    at_mean, at_member = gamma(zeros), gamma(zeros + 1)
    if at_mean.shape != zeros.shape:
        raise reduced_loss(at_mean[0], zeros.shape[1])
    slope = derivative(gamma)
    remainder = at_member - at_mean - slope(zeros)
    size = at_member.abs() + at_mean.abs() + slope(zeros).abs()
    c = zeros if form == "second_order" else _lagrange_points(slope, remainder, size)
    curvature = derivative(slope)(c)
    residual = curvature / 2 - remainder
    distance = torch.linalg.vector_norm((points - mean).detach(), dim=-1)
    solved = residual.abs() <= _SOLVED * (size + distance + distance.square())
    diversity = weighted_mean(curvature / 2, weights)  # Theorem 4.5
    dtype = outputs.dtype
    return HessianDiversity(
        diversity.to(dtype), c.to(dtype), curvature.to(dtype), residual.to(dtype), solved
    )


def derivative(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The gradient of a function that treats the entries of a batch apart, for all at once."""
    # Reverse mode, as torch has more second derivatives of it than of forward mode.
    gradient: Callable[[Tensor], Tensor] = torch.func.grad(lambda value: function(value).sum())
    return gradient


def _lagrange_points(slope: Callable[[Tensor], Tensor], remainder: Tensor, size: Tensor) -> Tensor:
    """Some c in [0, 1] with ``½ γ''(c) = r = γ(1) − γ(0) − γ'(0)``, for all members and examples.

    It follows the proof of Lagrange's remainder. ``φ(t) = γ(t) − γ(0) − t γ'(0) − r t²`` is 0 at
    both ends, so φ' takes both signs; as φ'(0) = 0, its minimum or its maximum lies inside, and
    there ``φ'' = γ'' − 2r = 0``. A bracket of it on a grid is halved by values of φ', then by the
    sign of φ''. Where φ' is 0 all along, the Hessian is constant, any c will do, and c is 0.
    """
    curvature, slope_at_mean = derivative(slope), slope(torch.zeros_like(remainder))

    def tilt(t: Tensor) -> Tensor:  # φ'
        return slope(t) - slope_at_mean - 2 * remainder * t

    grid = [torch.full_like(remainder, cell / _CELLS) for cell in range(_CELLS + 1)]
    values = torch.stack([tilt(t) for t in grid])  # [grid, members, batch]
    lowest, highest = values.argmin(0), values.argmax(0)
    at_lowest = (lowest > 0) & (lowest < _CELLS)
    centre = torch.where(at_lowest, lowest, highest).clamp(1, _CELLS - 1)
    sign = torch.where(at_lowest, -1.0, 1.0)  # sign · φ' has a maximum in (left, right)
    left, middle, right = ((centre + step).to(remainder.dtype) / _CELLS for step in (-1, 0, 1))
    for _ in range(_HALVINGS):
        before, after = (left + middle) / 2, (middle + right) / 2
        highest = torch.stack([sign * tilt(t) for t in (before, middle, after)]).argmax(0)[None]
        points = torch.stack([left, before, middle, after, right])
        left, middle, right = (points.gather(0, highest + step)[0] for step in (0, 1, 2))
    for _ in range(_BISECTIONS):
        middle = (left + right) / 2
        rising = sign * (curvature(middle) - 2 * remainder) > 0
        left, right = torch.where(rising, middle, left), torch.where(rising, right, middle)
    flat = values.abs().amax(0) <= _FLAT * size
    return torch.where(flat, torch.zeros_like(remainder), (left + right) / 2)


def _check_solved(terms: HessianDiversity, form: str) -> None:
    """Raise where the loss is not finite, or where no c_j was found."""
    unusable = ~torch.isfinite(terms.curvature + terms.residual)
    unsolved = ~terms.solved if form == "exact" else torch.zeros_like(unusable)
    for bad, what in ((unusable, "the loss is not finite"), (unsolved, "no c in [0, 1] is found")):
        if bool(bad.any()):
            member, example = (int(index) for index in bad.nonzero()[0])
            raise ValueError(
                f"{what} for member {member}, example {example} and {int(bad.sum()) - 1} more; it "
                "must be twice differentiable between each member and the mean, else use decompose"
            )
