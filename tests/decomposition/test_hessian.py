"""The Hessian form of diversity: exact, and to second order."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import logsigmoid, softplus

from dissensus import decomposition as dc
from dissensus.losses import mse
from dissensus.outputs import weighted_mean
from tests.decomposition.cases import (
    Case,
    cases,
    make_case,
    softmax_loss,
    tensor,
)


class Problem(NamedTuple):
    """A twice differentiable loss, and outputs and targets that suit it."""

    loss: Callable[[Tensor, Tensor], Tensor]
    outputs: Callable[[Tensor], Tensor]
    targets: Callable[[Tensor], Tensor]


def signs(noise: Tensor) -> Tensor:
    return torch.where(noise > 0, 1.0, -1.0).double()


HESSIAN_PROBLEMS: dict[str, Problem] = {
    "squared": Problem(mse, lambda z: z, lambda z: z),
    "logistic": Problem(lambda f, y: -logsigmoid(y * f).sum(-1), lambda z: z, signs),
    "exponential": Problem(lambda f, y: (-y * f).exp().sum(-1), lambda z: z, signs),
    "softplus of a product": Problem(
        lambda f, y: softplus((f * y).sum(-1)) + softplus(f).prod(-1), lambda z: z, lambda z: z
    ),
    "score cross-entropy": Problem(softmax_loss, lambda z: z, lambda z: z.softmax(-1)),
    "cross-entropy of probabilities": Problem(
        lambda f, y: -(y * f.log()).sum(-1), lambda z: z.softmax(-1), lambda z: z.softmax(-1)
    ),
    "not convex": Problem(lambda f, y: (f + y).sin().prod(-1), lambda z: z, lambda z: z),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HESSIAN_PROBLEMS)
@settings(max_examples=6)
@given(case=cases())
def test_the_exact_hessian_form_equals_diversity(name: str, case: Case) -> None:
    problem, (noise, weights) = HESSIAN_PROBLEMS[name], case.tensors
    noise = noise / max(1.0, float(noise.abs().max()) / 5)
    outputs = problem.outputs(noise)
    targets = problem.targets(torch.from_numpy(case.values).clamp(-5, 5))
    result = dc.hessian_diversity(outputs, targets, problem.loss, weights)
    wanted = dc.decompose(outputs, targets, problem.loss, weights=weights).examples
    size = float(wanted.per_member.abs().max() + wanted.ensemble_error.abs().max())
    torch.testing.assert_close(result.diversity, wanted.diversity, rtol=1e-8, atol=1e-10 * size)
    assert ((result.c >= 0) & (result.c <= 1)).all()
    assert result.solved.all()


def test_the_curvature_is_the_hessian_of_the_paper() -> None:
    # For L = −yᵀ log f the Hessian is diag(y ⊘ f²); for squared error it is 2 I and any c will do.
    case = make_case()
    weights = torch.from_numpy(case.weights)
    probs, targets = torch.from_numpy(case.outputs).softmax(-1), torch.from_numpy(case.soft)
    loss = HESSIAN_PROBLEMS["cross-entropy of probabilities"].loss
    result = dc.hessian_diversity(probs, targets, loss, weights)
    for n in range(4):
        mean = sum(w * p for w, p in zip(case.weights, probs[:, n].numpy(), strict=True))
        diversity = 0.0
        for j in range(3):
            deviation = probs[j, n].numpy() - mean
            between = mean + result.c[j, n].item() * deviation
            form = deviation @ np.diag(case.soft[n] / between**2) @ deviation
            assert result.curvature[j, n].item() == pytest.approx(form)
            diversity += 0.5 * case.weights[j] * form
        assert result.diversity[n].item() == pytest.approx(diversity)
    squared = dc.hessian_diversity(probs, targets, mse, weights)
    assert (squared.c == 0).all()
    torch.testing.assert_close(squared.diversity, dc.ambiguity(probs, weights))


def test_the_c_of_the_exponential_loss_by_hand() -> None:
    # Members 1 and 3, loss e^f, mean 2: γ(t) = e^{2 + tδ}, δ = ±1. For δ = 1 the remainder is
    # e³ − e² − e², so ½ e^{2 + c} = e³ − 2e², c = log(2 (e − 2)) = 0.36225. For δ = −1 it is
    # e − e² + e² = e, so ½ e^{2 − c} = e, c = 1 − log 2 = 0.30685. DIV = ½ (e³ − 2e² + e).
    outputs = torch.tensor([[[1.0]], [[3.0]]])
    result = dc.hessian_diversity(outputs, torch.zeros(1, 1), lambda f, y: (f - y).exp().sum(-1))
    assert result.diversity.dtype == result.c.dtype == torch.float32
    assert result.c.flatten().tolist() == pytest.approx([1 - math.log(2), math.log(2 * math.e - 4)])
    assert result.diversity.item() == pytest.approx((math.e**3 - 2 * math.e**2 + math.e) / 2)


@pytest.mark.parametrize("gap", [1e-3, 1.0, 1e2, 1e4])
def test_a_bend_far_narrower_than_the_grid_is_found(gap: float) -> None:
    # Logistic loss between far members bends only within about 1 / gap of one point.
    outputs = torch.linspace(-1, 1.3, 5, dtype=torch.float64)[:, None, None] * gap
    targets = torch.ones(1, 1, dtype=torch.float64)
    loss = HESSIAN_PROBLEMS["logistic"].loss
    result = dc.hessian_diversity(outputs, targets, loss)
    wanted = dc.decompose(outputs, targets, loss).diversity
    assert result.diversity.item() == pytest.approx(wanted.item(), rel=1e-7)


def test_the_second_order_form_is_off_by_the_cube() -> None:
    case = make_case()
    outputs, weights = case.tensors
    targets, centre = torch.from_numpy(case.soft), torch.from_numpy(case.values)
    missed = []
    for delta in (0.2, 0.1, 0.05, 0.025):
        near = centre + delta * (outputs - weighted_mean(outputs, weights))
        result = dc.hessian_diversity(near, targets, softmax_loss, weights, form="second_order")
        assert (result.c == 0).all()
        diversity = dc.decompose(near, targets, softmax_loss, "score", weights).examples.diversity
        error = result.diversity - diversity
        torch.testing.assert_close(weighted_mean(result.residual, weights), error)
        missed.append(float(error.abs().max()))
    ratios = [first / second for first, second in itertools.pairwise(missed)]
    assert ratios == pytest.approx([8, 8, 8], rel=0.15)  # halving δ divides the error by 2³
    assert ratios[-1] == pytest.approx(8, rel=0.03)


def test_the_second_order_form_has_the_right_gradient() -> None:
    case = make_case(members=2, batch=2)
    outputs, weights = case.tensors
    targets = torch.from_numpy(case.soft)

    def diversity(values: Tensor) -> Tensor:
        return dc.hessian_diversity(values, targets, softmax_loss, weights, "second_order")[0]

    assert torch.autograd.gradcheck(diversity, outputs.clone().requires_grad_())


@pytest.mark.parametrize("form", ["exact", "second_order"])
def test_vmap_of_the_hessian_form(form: str) -> None:
    many = [make_case(seed, members=2, batch=2) for seed in range(2)]
    outputs = torch.stack([case.tensors[0] for case in many])
    weights = torch.stack([case.tensors[1] for case in many])
    targets = torch.stack([torch.from_numpy(case.soft) for case in many])

    def terms(*arguments: Tensor) -> dc.HessianDiversity:
        values, wanted, members = arguments
        return dc.hessian_terms(values, wanted, softmax_loss, members, form)

    looped = [terms(*arguments) for arguments in zip(outputs, targets, weights, strict=True)]
    for got, wanted in zip(
        vmap(terms)(outputs, targets, weights), zip(*looped, strict=True), strict=True
    ):
        torch.testing.assert_close(got, torch.stack(wanted))


def kinked(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).abs().sum(-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": kinked}, "no c in .* for member 1, example 0 and 0 more"),
        (
            {"loss": lambda f, y: -f.log().sum(-1)},
            "not finite for member 0, example 0 and 1 more",
        ),
        ({"loss": lambda f, y: f}, r"a loss must return \[batch\] = \(1,\), got \(1, 1\)"),
        ({"loss": "mse"}, "must be a callable .* got 'mse'"),
        ({"form": "first_order"}, "form must be one of exact, second_order, got 'first_order'"),
        ({"outputs": torch.zeros(2, 1)}, r"batch, outputs\], got \(2, 1\); .*outputs\[None\]"),
        ({"targets": tensor([[float("nan")]])}, "targets must be finite, got 1 NaN"),
        ({"weights": torch.ones(2)}, "must sum to 1, got"),
    ],
)
def test_the_hessian_form_says_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    usual = {"outputs": tensor([[[-3.0]], [[2.0]]]), "targets": tensor([[0.0]]), "loss": mse}
    with pytest.raises(ValueError, match=message):
        dc.hessian_diversity(**{**usual, **arguments})
