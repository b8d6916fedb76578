"""Schedules against torch's, their warm-up, and their written form."""

import math

import pytest
import torch

from dissensus.training import Recipe, parse_schedule

EPOCHS = 12


def torch_factors(kind: type, **options: object) -> list[float]:
    """The factor that torch's scheduler has in each epoch, stepped at the end of each."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = kind(optimizer, **options)
    factors = []
    for _ in range(EPOCHS):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        (
            "multistep:at=3/7/8,factor=0.2",
            torch_factors(torch.optim.lr_scheduler.MultiStepLR, milestones=[3, 7, 8], gamma=0.2),
        ),
        (
            "cosine",
            torch_factors(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=EPOCHS),
        ),
        (
            "cosine:factor=0.1",
            torch_factors(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=EPOCHS, eta_min=0.1),
        ),
        ("constant", [1.0] * EPOCHS),
    ],
)
def test_factors_are_torchs_at_the_ends_of_epochs(text: str, factors: list[float]) -> None:
    schedule = parse_schedule(text)
    assert [schedule(epoch, EPOCHS) for epoch in range(EPOCHS)] == pytest.approx(factors)


@pytest.mark.parametrize("shape", ["constant", "cosine", "multistep:at=2/6"])
def test_a_warm_up_rises_in_a_line_and_then_the_shape_follows(shape: str) -> None:
    comma = "," if ":" in shape else ":"
    schedule, plain = parse_schedule(f"{shape}{comma}warmup=4"), parse_schedule(shape)
    assert 0 < schedule(0, EPOCHS) <= 1e-3
    assert [schedule(time, EPOCHS) for time in (1, 2, 3.5)] == pytest.approx([0.25, 0.5, 0.875])
    if shape == "cosine":  # the rest of the time is the whole of the cosine
        assert schedule(4, EPOCHS) == 1
        assert schedule(8, EPOCHS) == pytest.approx(0.5)
    else:
        assert schedule(4, EPOCHS) == plain(4, EPOCHS)
        assert schedule(6, EPOCHS) == plain(6, EPOCHS)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("linear", "there is no schedule 'linear'; did you mean"),
        ("multistep", "needs it: multistep:at=30/50/70"),
        ("cosine:at=3", "at= belongs to a multistep schedule"),
        ("cosine:gamma=3", "cosine has no setting 'gamma'; known are at, factor, warmup"),
        ("cosine:factor=low", "factor must be a number, got 'low'"),
        ("cosine:factor=0.1/0.2", "factor must be a number, got '0.1/0.2'"),
        ("cosine:factor=-1", "factor must be a finite number of at least 0"),
        ("cosine:warmup=-1", "warmup must be a finite number of at least 0"),
    ],
)
def test_what_no_schedule_is(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_schedule(text)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"epochs": 0}, "epochs must be an integer of at least 1, got 0"),
        ({"epochs": True}, "epochs must be an integer"),
        ({"batch_size": 2.5}, "batch_size must be an integer"),
        ({"patience": 0}, "patience must be an integer of at least 1"),
        ({"freeze_patience": -1}, "freeze_patience must be"),
        ({"select_by": "loss"}, "select_by must be one of ensemble_error, .*, got 'loss'"),
        ({"patience": 2, "select_by": "last"}, "patience waits for a better epoch"),
        ({"clip": 0}, "clip must be a finite number greater than 0"),
        ({"clip": math.inf}, "clip must be a finite number"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"batchsize": 3}, "no training setting 'batchsize'; did you mean 'batch_size'"),
        ({"checkpoint_every": 0}, "checkpoint_every must be batches"),
        ({"checkpoint_every": "soon"}, "checkpoint_every must be batches"),
        ({"checkpoint_every": "0s"}, "checkpoint_every must be batches"),
        ({"checkpoint_every": True}, "checkpoint_every must be batches"),
        ({"zzz": 3}, "known are epochs, batch_size"),
    ],
)
def test_what_no_recipe_is(settings: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Recipe.of(settings)


def test_a_recipe_is_written_as_plain_values() -> None:
    recipe = Recipe(optimizer="sgd:lr=0.5", schedule="cosine:warmup=2", clip=1.5, epochs=7)
    plain = recipe.plain()
    assert Recipe.of(plain) == recipe
    assert plain["schedule"] == "cosine:factor=0,warmup=2"
    assert "patience" not in plain
