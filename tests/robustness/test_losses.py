"""Losses by hand, and masks that hold on log-probabilities."""

import math

import pytest
import torch

from dissensus.robustness.losses import LOSSES, Goal, ce, dlr, margin, rival

LOG_PROBS = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
AWAY, TOWARDS = Goal(torch.tensor([0])), Goal(torch.tensor([0]), torch.tensor([2]))


def test_values_by_hand() -> None:
    assert float(ce(LOG_PROBS, AWAY)) == pytest.approx(-math.log(0.5))
    assert float(ce(LOG_PROBS, TOWARDS)) == pytest.approx(math.log(0.15))
    assert float(margin(LOG_PROBS, AWAY)) == pytest.approx(math.log(0.3 / 0.5))
    assert float(margin(LOG_PROBS, TOWARDS)) == pytest.approx(math.log(0.15 / 0.5))
    expected = math.log(0.3 / 0.5) / math.log(0.5 / 0.15)
    assert float(dlr(LOG_PROBS, AWAY)) == pytest.approx(expected)
    below = math.log(0.5) - (math.log(0.15) + math.log(0.05)) / 2
    assert float(dlr(LOG_PROBS, TOWARDS)) == pytest.approx(math.log(0.15 / 0.5) / below)


def test_the_class_itself_is_never_its_own_rival() -> None:
    """Log-probabilities are all below 0: a mask of zeros would win every maximum."""
    sure = torch.tensor([[-1e-6, -14.0, -15.0]])
    assert int(rival(sure, Goal(torch.tensor([0])))) == 1
    assert float(margin(sure, Goal(torch.tensor([0])))) == pytest.approx(-14.0, abs=1e-4)


@pytest.mark.parametrize("goal", [AWAY, TOWARDS])
@pytest.mark.parametrize("name", LOSSES)
def test_invariance_and_gradients(name: str, goal: Goal) -> None:
    loss = LOSSES[name]
    if name != "ce":
        torch.testing.assert_close(loss(LOG_PROBS + 7, goal), loss(LOG_PROBS, goal))
    if name == "dlr":
        torch.testing.assert_close(loss(LOG_PROBS * 50, goal), loss(LOG_PROBS, goal))
    inputs = LOG_PROBS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, goal), inputs)
    far = (1e4 * LOG_PROBS).float().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(far, goal).sum(), far)
    assert bool(gradient.isfinite().all())


def test_a_positive_margin_is_a_goal_reached() -> None:
    log_probs = torch.randn(500, 5).log_softmax(-1)
    labels = torch.randint(5, (500,))
    for goal in (Goal(labels), Goal(labels, (labels + 1) % 5)):
        assert torch.equal(margin(log_probs, goal) > 0, goal.reached(log_probs))


def test_dlr_needs_classes() -> None:
    with pytest.raises(ValueError, match="loss=dlr needs 3 classes, got 2; use margin"):
        dlr(torch.zeros(1, 2), Goal(torch.tensor([0])))
