"""Debiasing, and the colluding offsets of Appendix F."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.func import vmap

from dissensus import decomposition as dc
from dissensus.outputs import combine
from tests.decomposition.cases import Case, cases, tensor


@settings(max_examples=30)
@given(case=cases())
def test_debiasing_keeps_the_prediction_and_is_optimal(case: Case) -> None:
    outputs, weights = case.tensors
    members, _, width = outputs.shape
    share = torch.ones(members).double() / members if weights is None else weights
    offsets, debiased = dc.optimal_offsets(outputs, weights), dc.debias(outputs, weights)
    scale = float(outputs.abs().max())
    near = {"rtol": 0, "atol": 1e-12 * scale}
    slow = np.array(
        [(row - np.tensordot(share.numpy(), case.outputs, 1)).mean(0) for row in case.outputs]
    )
    np.testing.assert_allclose(offsets, slow, **near)
    torch.testing.assert_close(share @ offsets, torch.zeros(width).double(), **near)
    torch.testing.assert_close(
        combine(debiased, "mean", weights), combine(outputs, "mean", weights), **near
    )
    least = float(dc.ambiguity(debiased, weights).mean())
    assert least <= float(dc.ambiguity(outputs, weights).mean()) + 1e-12 * scale**2
    for seed in range(5):  # other offsets with Σ_j w_j b_j = 0 never leave less diversity
        step = scale * torch.randn(
            members, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        moved = outputs - (offsets + step - share @ step)[:, None]
        assert float(dc.ambiguity(moved, weights).mean()) >= least - 1e-12 * scale**2


def test_debiasing_by_hand_needs_the_weighted_constraint() -> None:
    # Weights ¾, ¼; members constant at 0 and 4: f̄ = 1, b = (−1, 3), and ¾ · (−1) + ¼ · 3 = 0,
    # though −1 + 3 ≠ 0. Without them all members say 1.
    outputs, weights = tensor([[[0.0], [0.0]], [[4.0], [4.0]]]), tensor([0.75, 0.25])
    assert dc.optimal_offsets(outputs, weights).flatten().tolist() == [-1, 3]
    assert dc.debias(outputs, weights).flatten().tolist() == [1, 1, 1, 1]
    many = torch.stack([outputs, 2 * outputs])
    assert torch.equal(
        vmap(lambda values: dc.optimal_offsets(values, weights))(many),
        torch.stack([dc.optimal_offsets(values, weights) for values in many]),
    )


def test_colluding_offsets_are_free_under_joint_training() -> None:
    # Appendix F: f_j = f + c_j, here with f = 3, y = 1.
    prediction, target = tensor(3.0), tensor([[1.0]])

    def terms(offsets: Tensor) -> dc.DecompositionTerms:
        return dc.decomposition_terms((prediction + offsets)[:, None, None], target, "mse")

    offsets = torch.randn(5, dtype=torch.float64)
    offsets -= offsets.mean()
    excess = []
    for size in (0.0, 1.0, 10.0, 100.0):
        colluding = (size * offsets).requires_grad_()
        errors = terms(colluding)
        assert errors.ensemble_error.item() == pytest.approx(4)  # (f − y)², whatever the c_j
        (gradient,) = torch.autograd.grad(errors.ensemble_error.sum(), colluding)
        torch.testing.assert_close(gradient, gradient.mean().expand(5))  # flat within Σ_j c_j = 0
        if size:
            excess.append((errors.member_error / errors.diversity).item() - 1)
    # mean ERR / DIV = 1 + (f − y)² / mean c²: it tends to 1 as |c| grows.
    spread = offsets.square().mean().item()
    assert excess == pytest.approx([4 / (size**2 * spread) for size in (1, 10, 100)])
    # mean ERR = (f − y)² + mean c² + (2 / M) Σ_j c_j (f − y), the 2 being missing in the paper,
    free = torch.randn(5, dtype=torch.float64)
    wanted = 4 + free.square().mean() + 2 * free.mean() * 2
    torch.testing.assert_close(terms(free).member_error[0], wanted)
    # and its minimum is at c_j = y − f, where the paper says 0.
    alone = torch.full((5,), -2.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(terms(alone).member_error.sum(), alone)
    assert torch.equal(gradient, torch.zeros(5).double())
    assert terms(alone.detach()).member_error.item() == 0
