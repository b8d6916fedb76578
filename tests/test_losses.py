"""Per-example losses against NumPy, torch and slow loops."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import one_hot

from dissensus import losses
from dissensus.losses import LOSSES, errors

Array = NDArray[np.float64]
PAIRS = [(loss, way) for loss, entry in LOSSES.items() for way in entry.combinations]
CLASSIFICATION = [pair for pair in PAIRS if LOSSES[pair[0]].classification]


def random_logits(members: int = 3, batch: int = 4, classes: int = 5, scale: float = 2) -> Tensor:
    return scale * torch.randn(members, batch, classes, dtype=torch.float64)


def random_targets(loss: str, soft: bool, batch: int = 4, classes: int = 5) -> Tensor:
    if loss == "mse":
        return torch.randn(batch, classes, dtype=torch.float64)
    if soft:
        return torch.randn(batch, classes, dtype=torch.float64).softmax(-1)
    return torch.randint(classes, (batch,))


# ---- one prediction -----------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_mean_cross_entropy_is_that_of_torch(smoothing: float) -> None:
    logits = random_logits()
    for targets in (random_targets("cross_entropy", False), random_targets("cross_entropy", True)):
        own = [torch_cross_entropy(z, targets, label_smoothing=smoothing) for z in logits]
        weights = torch.tensor([0.2, 0.8, 0.0], dtype=torch.float64)
        for each in (None, weights):
            got = losses.mean_cross_entropy(logits, targets, each, smoothing)
            share = torch.full((3,), 1 / 3, dtype=torch.float64) if each is None else each
            torch.testing.assert_close(got, share @ torch.stack(own))


def test_losses_by_hand() -> None:
    # p = (½, ¼, ¼), true class 1. ‖p − y‖²: ¼ + 9/16 + 1/16 = ⅞; −log ¼ = 2 log 2.
    # Soft label (½, ½, 0): 0 + 1/16 + 1/16 = ⅛; ½ log 2 + ½ · 2 log 2 = 3/2 log 2.
    # The predicted label is 0: wrong for class 1, wrong with probability ½ for the soft one.
    probs = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    label, soft = torch.tensor([1]), torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    assert losses.brier(probs, label).item() == 7 / 8
    assert losses.brier(probs, soft).item() == 1 / 8
    assert losses.cross_entropy(probs.log(), label).item() == pytest.approx(2 * math.log(2))
    assert losses.cross_entropy(probs.log(), soft).item() == pytest.approx(1.5 * math.log(2))
    assert losses.zero_one(probs.argmax(-1), label).item() == 1
    assert losses.zero_one(probs.argmax(-1), soft).item() == 0.5
    # Summed over outputs, not averaged: (1 − 3)² + (2 − 5)² = 13.
    assert losses.mse(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]])).item() == 13


def numpy_loss(loss: str, logits: Array, target: Array) -> Array:
    """The loss of one example's logits, or outputs, and a target vector, in NumPy."""
    if loss == "mse":
        return ((logits - target) ** 2).sum()
    probs = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    if loss == "cross_entropy":
        return -(target * np.log(probs)).sum()
    if loss == "brier":
        return ((probs - target) ** 2).sum()
    return 1 - target[logits.argmax()]


SPACES: dict[str, Callable[[Tensor], Tensor]] = {
    "outputs": lambda logits: logits,
    "log_probs": lambda logits: logits.log_softmax(-1),
    "probs": lambda logits: logits.softmax(-1),
    "labels": lambda logits: logits.argmax(-1),
}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_equals_numpy_and_lets_leading_axes_pass(loss: str, soft: bool) -> None:
    logits, targets = random_logits(), random_targets(loss, soft)
    prediction = SPACES[LOSSES[loss].space](logits)
    vectors = targets if targets.ndim == 2 else one_hot(targets, 5)
    wanted = [
        [numpy_loss(loss, logits[j, n].numpy(), vectors[n].numpy()) for n in range(4)]
        for j in range(3)
    ]
    function = LOSSES[loss].function
    np.testing.assert_allclose(function(prediction, targets), wanted, rtol=1e-12)
    np.testing.assert_allclose(function(prediction[0], targets), wanted[0], rtol=1e-12)
    twice = torch.stack([prediction, prediction])
    np.testing.assert_allclose(function(twice, targets), [wanted, wanted], rtol=1e-12)


def test_brier_keeps_its_precision_where_the_prediction_is_right() -> None:
    # p = (1 − e, e) with e = 2⁻²⁰: the score is 2 e², which 1 − 2 p_y + ‖p‖² would round to 0.
    small = 2.0**-20
    probs = torch.tensor([[1 - small, small]])
    assert losses.brier(probs, torch.tensor([0])).item() == pytest.approx(2 * small**2)


# ---- members and their combination --------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize(("loss", "way"), CLASSIFICATION)
def test_hard_labels_equal_one_hot_soft_labels(loss: str, way: str, smoothing: float) -> None:
    logits = random_logits().requires_grad_()
    labels, weights = random_targets(loss, soft=False), torch.tensor([0.5, 0.3, 0.2]).double()
    for members in (None, weights):
        hard = errors(logits, labels, loss, way, members, smoothing)
        soft = errors(logits, one_hot(labels, 5).double(), loss, way, members, smoothing)
        for got, wanted in zip(hard, soft, strict=True):
            torch.testing.assert_close(got.double(), wanted)
        if loss != "zero_one":
            gradients = [
                torch.autograd.grad(value.ensemble.sum(), logits)[0] for value in (hard, soft)
            ]
            torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("loss", "way"), CLASSIFICATION)
def test_labels_may_have_any_integer_type(loss: str, way: str) -> None:
    logits, labels = random_logits(), random_targets(loss, soft=False)
    expected = errors(logits, labels, loss, way)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        losses.check_loss_inputs(logits, labels.to(dtype), loss)
        for got, wanted in zip(errors(logits, labels.to(dtype), loss, way), expected, strict=True):
            assert torch.equal(got, wanted)


def test_label_smoothing_reaches_the_ensemble() -> None:
    logits, labels = random_logits(), random_targets("cross_entropy", soft=False)
    for way in ("probability", "score"):
        result = errors(logits, labels, "cross_entropy", way, label_smoothing=0.3)
        mixed = (
            logits.softmax(-1).mean(0).log() if way == "probability" else logits.mean(0)
        )  # either is a vector of logits of the ensemble
        torch.testing.assert_close(
            result.ensemble,
            torch_cross_entropy(mixed, labels, reduction="none", label_smoothing=0.3),
        )


@pytest.mark.parametrize("way", ["mean", "score", "probability"])
def test_a_callable_is_given_the_space_where_members_are_averaged(way: str) -> None:
    logits, weights = random_logits(members=2), torch.tensor([0.25, 0.75]).double()
    targets = torch.arange(4)
    seen = []

    def watch(prediction: Tensor, target: Tensor) -> Tensor:
        assert target is targets
        seen.append(prediction)
        return prediction[:, 0]

    result = errors(logits, targets, watch, way, weights)
    space = logits.softmax(-1) if way == "probability" else logits
    wanted = [*space, 0.25 * space[0] + 0.75 * space[1]]
    for got, prediction in zip(seen, wanted, strict=True):
        torch.testing.assert_close(got, prediction)
    torch.testing.assert_close(result.member, space[..., 0])
    torch.testing.assert_close(result.ensemble, wanted[-1][:, 0])


def squared(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).square().sum(-1)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("loss", "way"), [pair for pair in PAIRS if pair[0] != "zero_one"])
def test_gradients_and_huge_logits(loss: str, way: str, soft: bool) -> None:
    logits, targets = random_logits(2, 2, 5), random_targets(loss, soft, batch=2)
    assert torch.autograd.gradcheck(
        lambda values: tuple(errors(values, targets, loss, way)), logits.requires_grad_()
    )
    huge = torch.tensor([[1e4, -1e4, 0.0, 1e4, 3.0], [-1e4, 1e4, 5.0, 0.0, 1.0]])
    huge = torch.stack([huge, -huge]).requires_grad_()
    targets = targets.float() if targets.is_floating_point() else targets
    result = errors(huge, targets, loss, way)
    (gradient,) = torch.autograd.grad(result.ensemble.sum() + result.member.sum(), huge)
    for values in (*result, gradient):
        assert torch.isfinite(values).all()
    if loss == "cross_entropy":  # and right: float32 against float64
        for got, wanted in zip(result, errors(huge.double(), targets, loss, way), strict=True):
            torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-6, atol=1e-2)


# ---- choosing and checking ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "combine", "trainable", "message"),
    [
        (
            "hinge",
            None,
            False,
            "'mse', 'cross_entropy', 'brier', 'zero_one' or a callable, got 'hi",
        ),
        ("hinge", None, True, "'mse', 'cross_entropy', 'brier' or a callable, got 'hinge'$"),
        ("zero_one", None, True, "got 'zero_one' has no gradient to train on"),
        (None, None, False, "or a callable, got None"),
        ("mse", "score", False, "loss='mse' goes with combine='mean', got 'score'"),
        ("brier", "vote", False, "combine='probability' or 'score', got 'vote'"),
        ("zero_one", "mean", False, "combine='probability' or 'score' or 'vote', got 'mean'"),
        (squared, "vote", False, "combine must be one of probability, score, mean, got 'vo"),
    ],
)
def test_check_loss_says_what_is_wrong(
    loss: losses.LossLike, combine: str | None, trainable: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        losses.check_loss(loss, combine, trainable=trainable)


def test_check_loss_inputs_asks_for_what_the_loss_needs() -> None:
    outputs = torch.zeros(2, 4, 1)
    losses.check_loss_inputs(outputs, torch.zeros(4, 1), "mse")
    losses.check_loss_inputs(outputs, torch.zeros(4), squared)  # the callable's own affair
    with pytest.raises(ValueError, match="one entry for each of 4 examples"):
        losses.check_loss_inputs(outputs, torch.zeros(3), squared)
    with pytest.raises(ValueError, match="targets must be finite"):
        losses.check_loss_inputs(outputs, torch.full((4,), torch.nan), squared)
    with pytest.raises(ValueError, match=r"pass targets\[:, None\]"):
        losses.check_loss_inputs(outputs, torch.zeros(4), "mse")
    with pytest.raises(ValueError, match="logits must have two classes"):
        losses.check_loss_inputs(outputs, torch.zeros(4).long(), "brier")
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\)"):
        losses.check_loss_inputs(torch.zeros(2, 4, 3), torch.full((4,), 3), "zero_one")
    not_finite = torch.full((2, 4, 3), math.nan)
    for loss in ("mse", "cross_entropy", squared):
        targets = torch.full((4, 3), 1 / 3)
        with pytest.raises(ValueError, match="must be finite, got 24 NaN"):
            losses.check_loss_inputs(not_finite, targets, loss)
        losses.check_loss_inputs(not_finite, targets, loss, finite=False)


def test_a_callable_that_reduces_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[batch\] = \(4,\), got \(\); drop its reduction"):
        errors(torch.zeros(2, 4, 3), torch.zeros(4, 3), lambda f, y: (f - y).mean(), "mean")
