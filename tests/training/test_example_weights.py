"""Example weights in training: a weight is a repetition, in ``fit`` and in a fleet alike."""

import pytest
import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.training import Recipe, Training, fit, fit_fleet
from tests.training.problems import blobs, dense_mlp, state

TIMES = torch.tensor([2.0, 0.0, 1.0, 3.0]).repeat(12)
RECIPE = Recipe(epochs=3, batch_size=48, seed=4)  # all in one batch: order does not matter


def repeated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    index = torch.arange(len(x)).repeat_interleave(TIMES.long())
    return x[index], y[index]


@pytest.mark.parametrize("objective", ["augmented:beta=0.3", "ldr:active=none", "adp:alpha=1"])
def test_weighted_training_is_training_on_repetitions(objective: str) -> None:
    x, y = blobs(48, classes=5, dtype=torch.float64)
    weighed, plain = (Ensemble(dense_mlp5, members=3).double() for _ in range(2))
    weights = (TIMES / TIMES.mean()).double()
    own = (x, y, weights)
    found = fit(weighed, own, objective, val=own, recipe=RECIPE, progress=False)
    more = Recipe(epochs=3, batch_size=len(repeated(x, y)[0]), seed=4)
    again = repeated(x, y)
    wanted = fit(plain, again, objective, val=again, recipe=more, progress=False)
    for name, tensor in state(plain).items():
        torch.testing.assert_close(state(weighed)[name], tensor, rtol=1e-6, atol=1e-8)
    for one, other in zip(found.epochs, wanted.epochs, strict=True):
        for split in ("train", "val"):
            assert one[split].pop("examples") == pytest.approx(48)
            assert other[split].pop("examples") == 72
            for name, value in other[split].items():
                assert one[split][name] == pytest.approx(value, abs=1e-7)


def dense_mlp5() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5))


def test_a_weighted_fleet_trains_each_as_if_alone() -> None:
    data = [(*blobs(50, seed=seed), torch.rand(50) + 0.1) for seed in range(3)]
    recipe = Recipe(epochs=4, batch_size=16, patience=3)
    trainings = [
        Training(
            Ensemble(dense_mlp, members=2, seed=i), own, f"augmented:beta={i / 4}", own, recipe
        )
        for i, own in enumerate(data)
    ]
    alone = [Ensemble(dense_mlp, members=2, seed=i) for i in range(3)]
    found = fit_fleet(trainings, progress=False)
    for i, ens in enumerate(alone):
        history = fit(
            ens, data[i], f"augmented:beta={i / 4}", val=data[i], recipe=recipe, progress=False
        )
        assert found[i].column("val/ensemble_error") == pytest.approx(
            history.column("val/ensemble_error"), rel=1e-5
        )
        for one, other in zip(trainings[i].ens.parameters(), ens.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_what_is_wrong_with_weights_is_said() -> None:
    x, y = blobs(6)
    ens = Ensemble(dense_mlp, members=2)
    with pytest.raises(ValueError, match=r"\[examples\] = \(6,\) floats, got .*\[3\]"):
        fit(ens, (x, y, torch.ones(3)), progress=False)
    with pytest.raises(ValueError, match="not all 0, got zeros alone"):
        Training(ens, (x, y, torch.zeros(6)))
    with pytest.raises(ValueError, match="train without weights"):
        fit(ens, (x, y, torch.ones(6)), augment=lambda x, g: x, progress=False)
