"""Ensemble diversity, Jensen–Shannon divergence and entropy against NumPy and values by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import log_softmax
from torch.testing import assert_close

from dissensus.diversity import (
    DETERMINANT_FLOOR,
    entropy,
    jensen_shannon,
    log_ensemble_diversity,
)


def draw(
    seed: int = 0, members: int = 3, batch: int = 4, classes: int = 6, scale: float = 2.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(members, batch, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (batch,), generator=generator)


def slow_log_diversity(logits: Tensor, labels: Tensor) -> np.ndarray:
    """Eq. 3 of adp, from the probabilities themselves."""
    values = []
    for n, label in enumerate(labels.tolist()):
        columns = []
        for member in logits.double().numpy():
            exponentials = np.exp(member[n] - member[n].max())
            wrong = np.delete(exponentials / exponentials.sum(), label)
            columns.append(wrong / np.linalg.norm(wrong))
        matrix = np.stack(columns, axis=1)
        gram = matrix.T @ matrix + DETERMINANT_FLOOR * np.eye(len(columns))
        values.append(np.linalg.slogdet(gram)[1])
    return np.array(values)


# ---- ensemble diversity -------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**16),
    members=st.integers(1, 5),
    batch=st.integers(1, 4),
    scale=st.sampled_from([0.3, 1.0, 5.0]),
)
def test_log_diversity_is_the_determinant_of_normalised_wrong_class_predictions(
    seed: int, members: int, batch: int, scale: float
) -> None:
    logits, labels = draw(seed, members, batch, scale=scale)
    wanted = slow_log_diversity(logits, labels)
    got = log_ensemble_diversity(logits, labels)
    np.testing.assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)
    assert float(got.max()) <= members * math.log1p(DETERMINANT_FLOOR) + 1e-12
    narrow = log_ensemble_diversity(logits.float(), labels)
    assert narrow.dtype == torch.float32
    # float32 rounds the Gram matrix by 1e-7 or so; the smallest eigenvalue is at least 1e-6.
    np.testing.assert_allclose(narrow, wanted, rtol=1e-3, atol=0.5 if scale < 1 else 0.05)


def test_by_hand() -> None:
    # y = 2 left out: (.3, .4) and (.5, .0) point along (.6, .8) and (1, 0): det = 1 − .6² = .64
    probs = torch.tensor([[[0.3, 0.4, 0.3]], [[0.5, 1e-300, 0.5]]], dtype=torch.float64)
    got = log_ensemble_diversity(probs.log(), torch.tensor([2]))
    assert float(got) == pytest.approx(math.log(0.64), abs=4e-6)


@pytest.mark.parametrize("members", [1, 2, 5, 20])
@pytest.mark.parametrize("classes", [30, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_members_have_the_documented_floor(
    members: int, classes: int, dtype: torch.dtype
) -> None:
    logits = (3 * torch.randn(1, 4, classes, dtype=dtype)).expand(members, -1, -1)
    got = log_ensemble_diversity(logits, torch.randint(classes, (4,)))
    floor = DETERMINANT_FLOOR
    wanted = math.log(members + floor) + (members - 1) * math.log(floor)
    # One part in 1e7, the rounding of a float32, is a tenth of the floor: 0.1 for each member.
    tolerance = 0.1 * members if dtype == torch.float32 else 1e-8
    assert_close(got, torch.full_like(got, wanted), rtol=0, atol=tolerance)


def test_the_label_decides_which_class_is_left_out() -> None:
    # Members that differ in class 0 alone are identical once it is left out, and only then.
    logits = torch.zeros(2, 2, 4, dtype=torch.float64)
    logits[1, :, 0] = 5.0
    got = log_ensemble_diversity(logits, torch.tensor([0, 1]))
    assert float(got[0]) == pytest.approx(math.log((2 + 1e-6) * 1e-6))
    # Label 1: (1, 1, 1) and (e⁵, 1, 1): cos² = (e⁵ + 2)² / (3 (e¹⁰ + 2))
    cosine = (math.exp(5) + 2) ** 2 / (3 * (math.exp(10) + 2))
    assert float(got[1]) == pytest.approx(math.log(1 - cosine), abs=1e-5)


@given(seed=st.integers(0, 2**16), shift=st.floats(-1e4, 1e4))
def test_the_true_class_and_a_shift_of_logits_change_nothing(seed: int, shift: float) -> None:
    logits, labels = draw(seed)
    moved = logits + shift
    moved.scatter_add_(-1, labels.expand(3, 4)[..., None], torch.randn(3, 4, 1).double() * 100)
    assert_close(
        log_ensemble_diversity(moved, labels), log_ensemble_diversity(logits, labels), atol=1e-4,
        rtol=1e-6,
    )  # fmt: skip


def test_a_member_of_weight_zero_is_left_out_and_other_weights_change_nothing() -> None:
    logits, labels = draw(members=4)
    weights = torch.tensor([0.5, 0.0, 0.1, 0.4], dtype=torch.float64)
    got = log_ensemble_diversity(logits, labels, weights)
    assert_close(got, log_ensemble_diversity(logits[[0, 2, 3]], labels))
    assert float((got - log_ensemble_diversity(logits, labels)).abs().max()) > 0.01
    some = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
    assert_close(log_ensemble_diversity(logits, labels, some),
                 log_ensemble_diversity(logits, labels))  # fmt: skip
    leaf = logits.requires_grad_()
    total = log_ensemble_diversity(leaf, labels, weights).sum()
    gradient = torch.autograd.grad(total, leaf)[0]
    assert float(gradient[1].abs().max()) == 0
    assert float(gradient[0].abs().max()) > 1e-3


def test_order_does_not_matter_and_gradcheck() -> None:
    logits, labels = draw(members=3, batch=2)
    order = [2, 0, 1]
    assert_close(log_ensemble_diversity(logits[order], labels),
                 log_ensemble_diversity(logits, labels))  # fmt: skip
    assert torch.autograd.gradcheck(
        lambda z: log_ensemble_diversity(z, labels), logits.requires_grad_()
    )


def test_finite_at_ten_thousand_in_float32() -> None:
    eye = torch.eye(5)
    logits = torch.stack([1e4 * eye[[0, 1, 2]], 1e4 * eye[[0, 1, 3]], -1e4 * eye[[4, 4, 0]]])
    logits.requires_grad_()
    labels = torch.tensor([0, 4, 1])
    got = log_ensemble_diversity(logits, labels)
    gradient = torch.autograd.grad(got.sum(), logits)[0]
    assert bool(torch.isfinite(got).all())
    assert bool(torch.isfinite(gradient).all())
    # Example 1: members 0 and 1 both (1, 0, 0) on class 1, member 2 uniform on the four others
    # than 4: Gram (1, 1, ½; 1, 1, ½; ½, ½, 1) + 1e-6: det = 1e-6 · (2 · 1 − ½) to first order.
    assert float(got[1].detach()) == pytest.approx(math.log(1.5e-6), abs=1e-3)
    # Example 2 (label 1): member 0 on class 2, member 1 on class 3, member 2 on 2, 3, 4 alike:
    # Gram (1, 0, c; 0, 1, c; c, c, 1) with c² = ⅓: det = 1 − 2/3
    assert float(got[2].detach()) == pytest.approx(math.log(1 / 3), abs=1e-4)


def test_vmap_of_the_gradient_equals_the_loop() -> None:
    runs = [draw(seed) for seed in range(3)]
    logits, labels = (torch.stack(part) for part in zip(*runs, strict=True))

    def total(z: Tensor, y: Tensor) -> Tensor:
        return log_ensemble_diversity(z, y).sum()

    got = vmap(grad(total))(logits, labels)
    assert_close(got, torch.stack([grad(total)(*run) for run in runs]))


# ---- Jensen–Shannon and entropy -----------------------------------------------------------------


@given(
    seed=st.integers(0, 2**16),
    members=st.integers(1, 6),
    classes=st.integers(2, 6),
    scale=st.sampled_from([0.1, 1.0, 10.0, 1e4]),
    weighted=st.booleans(),
)
def test_jensen_shannon_is_the_slow_formula_within_its_bounds(
    seed: int, members: int, classes: int, scale: float, weighted: bool
) -> None:
    logits, _ = draw(seed, members, 4, classes, scale)
    weights = torch.full((members,), 1 / members, dtype=torch.float64)
    if weighted:
        generator = torch.Generator().manual_seed(seed + 1)
        weights = torch.randn(members, generator=generator, dtype=torch.float64).softmax(0)
    got = jensen_shannon(log_softmax(logits, -1), weights if weighted else None)
    probs = logits.softmax(-1).numpy()

    def h(p: np.ndarray) -> float:
        return -sum(value * math.log(value) for value in p if value > 0)

    for n in range(4):
        mean = sum(float(w) * p for w, p in zip(weights, probs[:, n], strict=True))
        own = sum(float(w) * h(p) for w, p in zip(weights, probs[:, n], strict=True))
        assert float(got[n]) == pytest.approx(h(mean) - own, abs=1e-10)
    assert float(got.min()) > -1e-12
    assert float(got.max()) <= math.log(min(members, classes)) + 1e-12


def test_jensen_shannon_by_hand() -> None:
    sure = log_softmax(1e4 * torch.eye(3, dtype=torch.float64)[:, None], -1)
    # Three members sure of three classes: log 3. Two that agree and one that does not:
    # H(⅔, ⅓) − 0. The same with weights (½, ½, 0) of members 0, 0, 1: 0.
    assert float(jensen_shannon(sure)) == pytest.approx(math.log(3))
    mixed = sure[[0, 0, 1]]
    assert float(jensen_shannon(mixed)) == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    weights = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert float(jensen_shannon(mixed, weights)) == 0
    # (½, ½) and (¾, ¼): H(5/8, 3/8) − ½ log 2 − ½ H(¾, ¼)
    two = torch.tensor([[[0.5, 0.5]], [[0.75, 0.25]]], dtype=torch.float64).log()
    wanted = (
        -5 / 8 * math.log(5 / 8)
        - 3 / 8 * math.log(3 / 8)
        - 0.5 * math.log(2)
        + 0.5 * (0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    )
    assert float(jensen_shannon(two)) == pytest.approx(wanted)


def test_entropy_by_hand_and_at_the_edge() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    assert entropy(probs.log()).tolist() == pytest.approx([1.5 * math.log(2), math.log(3)])
    logits = torch.tensor([[1e4, -1e4, 0.0], [1e4, 1e4, -1e4]], requires_grad=True)
    value = entropy(log_softmax(logits, -1))
    assert value.tolist() == pytest.approx([0.0, math.log(2)])
    assert bool(torch.isfinite(torch.autograd.grad(value.sum(), logits)[0]).all())
    leaf = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: entropy(log_softmax(z, -1)), leaf)
