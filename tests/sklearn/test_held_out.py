"""Held-out rows: the ensemble's error from few members, verdicts, temperatures."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dissensus.calibration import fit_temperature, nll
from dissensus.decomposition import decompose
from dissensus.sklearn.held_out import HeldOut, held_out_temperature


def held_out(outputs: Tensor, targets: Tensor, total: int, folds: int = 1, **more: Any) -> HeldOut:
    own, rows, _ = outputs.shape
    members = torch.arange(own)[:, None] + own * (torch.arange(rows) % folds)
    return HeldOut(
        outputs, targets, more.pop("weights", torch.ones(rows)).double(), members, total, **more
    )


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("own", [2, 4])
def test_few_members_tell_the_error_of_the_whole_ensemble(own: int) -> None:
    """Members share an error and have one of their own; 20 of them predict, ``own`` held out."""
    rows, total = 4000, 20
    truth = draw(rows, 2, seed=1)
    scale = torch.tensor([1.0, 10.0], dtype=torch.float64)
    shared, noise = draw(rows, 2, seed=2) * 0.5, draw(rows, 2, seed=3)
    outputs = truth + (shared + draw(total, rows, 2, seed=4) * 1.5) * scale
    targets = truth + noise * scale
    whole = (outputs.mean(0) - targets).square().mean(0)
    rows_out = held_out(outputs[:own], targets, total)
    few, predicted = rows_out.errors
    torch.testing.assert_close(predicted, whole, rtol=0.06, atol=0.0)
    assert bool((few > 1.25 * whole).all())
    residual = rows_out.residuals.square().mean(0)
    torch.testing.assert_close(residual, predicted)
    # All subsets of the members at once: then it is an identity, for members of any kind.
    pairs = torch.combinations(torch.arange(6)).T
    outputs = outputs[:6]
    every = held_out(outputs[pairs].flatten(1, 2), targets.repeat(pairs.shape[1], 1), 6)
    exact = decompose(outputs, targets, "mse").ensemble_error
    torch.testing.assert_close(every.errors[1].sum(), exact)
    error, member, diversity = every.decompose("mean")
    assert error == pytest.approx(float(exact))
    assert member - error == pytest.approx(diversity)


def test_one_member_and_no_error_shrink_nothing() -> None:
    targets = draw(30, 1)
    assert held_out(targets[None] + 1, targets[:, 0], 5).shrink.tolist() == [1.0]
    exact = held_out(targets.repeat(3, 1, 1), targets, 5)
    assert exact.residuals.abs().max() < 1e-15
    # Members whose errors cancel within each row's own ones: nothing is left, and not less.
    apart = torch.stack([targets + 1, targets - 1])
    assert held_out(apart, targets, 10).errors[1].tolist() == [0.0]


def test_weights_are_repetitions() -> None:
    outputs, targets = draw(3, 40, 1), draw(40, 1, seed=1)
    times = torch.arange(40) % 4
    weighed = held_out(outputs, targets, 12, weights=times)
    index = torch.arange(40).repeat_interleave(times)
    repeated = held_out(outputs[:, index], targets[index], 12)
    torch.testing.assert_close(weighed.errors, repeated.errors)
    assert weighed.decompose("mean") == pytest.approx(repeated.decompose("mean"))


def test_the_verdict_is_judged_fold_by_fold() -> None:
    """Offsets that cancel within each fold's members, and others in each fold."""
    rows, targets = 600, draw(600, 1)
    healthy = targets + draw(4, rows, 1, seed=1)
    found = held_out(healthy, targets, 12, folds=3)
    assert found.verdict("mean") == "healthy"
    offsets = torch.tensor([3.0, -3.0, 5.0, -5.0], dtype=torch.float64)[:, None]
    turn = torch.arange(rows) % 3
    shifted = torch.stack([offsets.roll(int(t), 0)[:, 0] for t in turn], 1)[..., None]
    assert held_out(healthy + shifted, targets, 12, folds=3).verdict("mean") == "colluding"
    assert held_out(healthy[:1], targets, 12).verdict("mean") == "not judged"
    assert repr(found) == "<HeldOut: 600 rows, each by 4 of 12 members>"


@pytest.mark.parametrize("combine", ["probability", "score"])
def test_the_temperature_is_that_of_the_whole_ensemble(combine: str) -> None:
    """Overconfident members that disagree: the best T of 16 members, from 4 of them."""
    rows, total = 3000, 16
    signal = draw(rows, 3, seed=1) * 1.5
    labels = torch.multinomial(signal.softmax(-1), 1, generator=torch.Generator().manual_seed(2))
    logits = 2.0 * (signal + draw(total, rows, 3, seed=3) * 0.8)
    labels = labels.squeeze(1)
    best = float(fit_temperature(logits, labels, combine))
    few, whole = held_out_temperature(held_out(logits[:4], labels, total), combine)
    assert whole == pytest.approx(best, rel=0.08)
    assert few == pytest.approx(float(fit_temperature(logits[:4], labels, combine)), rel=0.01)
    assert abs(few / best - 1) > 1.5 * abs(whole / best - 1)
    assert nll(logits / whole, labels, combine) < nll(logits / few, labels, combine)


def test_few_rows_move_the_temperature_little() -> None:
    """Ten rows, all of them right: sharper is always better, and hardly believed."""
    labels = torch.arange(10) % 2
    logits = 4.0 * torch.nn.functional.one_hot(labels, 2).double()[None]
    own, whole = held_out_temperature(held_out(logits, labels, 8), "probability")
    assert 0.7 < own == whole < 1
    # A row counts as often as its weight says.
    wrong = labels.clone()
    wrong[0] = 1
    light, heavy = (
        held_out_temperature(
            held_out(logits, wrong, 8, weights=torch.tensor([w] + [1.0] * 9)), "score"
        )[1]
        for w in (0.01, 5.0)
    )
    assert light < 1 < heavy
