"""Training of members that share weights: whose gradient a weight follows, and who stays still."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.objectives import OBJECTIVES, Independent, Objective
from dissensus.training import Recipe, Training, fit, fit_fleet
from dissensus.training.fit_fleet import kind
from dissensus.training.step import Trainer
from dissensus.training.stream import TrainingBatch
from tests.training.problems import blobs, same_bits, state


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


def made(
    make: Callable[[], nn.Module] = perceptron, members: int = 3, seed: int = 0, **options: Any
) -> Ensemble:
    return Ensemble(make, members, seed, sharing="adapters", **options)


def stepped(
    ens: Ensemble, objective: Objective, batch: TrainingBatch, steps: int = 1, **settings: Any
) -> None:
    trainer = Trainer(ens, objective, Recipe.of(settings))
    for _ in range(steps):
        trainer.step(batch, set(), 1.0, check=True)


def test_a_step_follows_own_losses_and_the_mean_of_them() -> None:
    """SGD: θ_j − η (∂L_j/∂θ_j + λθ_j), W − η (mean_j ∂L_j/∂W + λW); r and s do not decay."""
    ens = made().double()
    before, (x, y) = state(ens), blobs(20, dtype=torch.float64)
    gradients = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    for j in range(3):
        loss = nn.functional.cross_entropy(ens(x, members=[j])[0], y)
        found = torch.autograd.grad(loss, list(ens.parameters()))
        for (name, _), gradient in zip(ens.named_parameters(), found, strict=True):
            gradients[name] += gradient / 3 if name.endswith("shared") else gradient
    stepped(
        ens,
        Independent(),
        TrainingBatch(x, y, None, None),
        optimizer="sgd:lr=0.1,weight_decay=0.5,momentum=0",
    )
    for name, parameter in ens.named_parameters():
        decay = 0.0 if name.endswith((".r", ".s")) else 0.5
        wanted = before[name] - 0.1 * (gradients[name] + decay * before[name])
        torch.testing.assert_close(parameter.detach(), wanted, msg=lambda m, name=name: name + m)


@pytest.mark.parametrize("optimizer", ["adamw:weight_decay=0.1", torch.optim.RMSprop])
def test_members_that_are_not_drawn_keep_their_adapters(optimizer: Any) -> None:
    """The shared weights move, and by the mean of those that were drawn."""
    whole, (x, y) = made(members=4).double(), blobs(20, dtype=torch.float64)
    part = whole.select([1, 3])
    before = state(whole)
    stepped(
        whole, Independent(), TrainingBatch(x, y, None, [1, 3]), 3, optimizer=optimizer, clip=0.1
    )
    stepped(part, Independent(), TrainingBatch(x, y, None, None), 3, optimizer=optimizer, clip=0.1)
    after, alone = state(whole), state(part)
    for name in after:
        if name.endswith("shared"):
            torch.testing.assert_close(after[name], alone[name])
            assert not torch.equal(after[name], before[name])
        else:
            torch.testing.assert_close(after[name][[1, 3]], alone[name])
            assert torch.equal(after[name][[0, 2]], before[name][[0, 2]])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_takes_the_same_steps_in_both_executions(name: str) -> None:
    objective, (x, y) = OBJECTIVES[name](), blobs(20, dtype=torch.float64)
    extra = torch.randn(5, 4, dtype=torch.float64) if objective.needs_disagreement else None
    sampled = objective.sample_members(3, torch.Generator().manual_seed(0))
    width = {"ncl": 4, "gat": 4, "repulsion": 4, "gaussian": 2}.get(name)  # of regression targets
    targets = y if width is None else torch.randn(20, width, dtype=torch.float64)

    def make() -> nn.Module:
        return nn.Sequential(perceptron(), nn.Linear(3, 4))

    ends = []
    for execution in ("stacked", "looped"):
        ens = made(make, execution=execution).double()
        batch = TrainingBatch(x, targets, extra, None if sampled is None else list(sampled))
        settings = {"optimizer": "sgd:lr=0.1,weight_decay=0.1", "clip": 0.5}
        stepped(ens, objective, batch, 3, **settings)
        ends.append(state(ens))
    assert not same_bits(ends[0], state(made(make).double()))
    torch.testing.assert_close(ends[0], ends[1])


class Residual(nn.Module):
    """A network that only vmap can batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        result: Tensor = self.last(hidden + self.norm(hidden) / 2)
        return result


@pytest.mark.parametrize("make", [perceptron, Residual])
def test_a_fleet_trains_each_ensemble_as_if_alone(make: Callable[[], nn.Module]) -> None:
    """Unlike learning rates, decay and ends, so that optimisers are split and rows leave."""
    optimizers = ["adamw:lr=0.01,weight_decay=0.5", "adamw:lr=0.03", "adamw:lr=0.03", "adamw:lr=1"]
    sweep = []
    for number, optimizer in enumerate(optimizers):
        recipe = Recipe(
            optimizer=optimizer, epochs=7, batch_size=16, patience=2, clip=0.5, seed=number
        )
        data = blobs(48, seed=number), f"augmented:beta={number / 4}", blobs(30, seed=9)
        sweep.append(Training(made(make, seed=number), *data, recipe=recipe))
    alone = [replace(training, ens=made(make, seed=n)) for n, training in enumerate(sweep)]
    assert len({kind(training) for training in sweep} - {None}) == 1  # together
    histories = fit_fleet(sweep, progress=False)
    lengths = set()
    for one, other, history in zip(sweep, alone, histories, strict=True):
        wanted = fit_fleet([other], progress=False)[0]
        lengths.add(len(history.epochs))
        assert history.best_epoch == wanted.best_epoch
        torch.testing.assert_close(state(one.ens), state(other.ens), rtol=1e-3, atol=1e-4)
    assert len(lengths) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze_patience": 1}, "freeze_patience does not go with sharing"),
        ({"optimizer": "adam:lr=1e-3/1e-2/1e-2"}, "members share one lr"),
        ({"distributed": True}, "cannot be spread over processes"),
    ],
)
def test_what_treats_members_apart_is_refused(settings: dict[str, Any], message: str) -> None:
    data = blobs(20)
    with pytest.raises(ValueError, match=message):
        fit(made(), data, val=data, epochs=1, progress=False, **settings)
