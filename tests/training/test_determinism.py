"""The same seed gives the same bits, and nothing of the caller's chance is used up."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from dissensus.ensemble import Ensemble
from dissensus.training import fit
from tests.training.problems import blobs, dense_mlp, dropout_mlp, norm_mlp, same_bits, state


class Noisy(Dataset):
    """A data set with the transforms of others: chance from torch, NumPy and Python, all global."""

    def __init__(self) -> None:
        self.x, self.y = blobs(60)

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(4) + np.random.randn() + random.random()  # noqa: NPY002
        return self.x[index] + 0.1 * noise, self.y[index]


def flip(x: Tensor, generator: torch.Generator) -> Tensor:
    return x * (torch.rand(len(x), 1, generator=generator) - 0.5).sign()


def loader(data: Dataset, generator: torch.Generator | None = None, **options: Any) -> Any:
    return DataLoader(data, 16, generator=generator, **options)


def own_sampler() -> Any:
    return loader(Noisy(), sampler=RandomSampler(Noisy(), generator=torch.Generator()))


def looped() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 4, 1), nn.Flatten(), dropout_mlp())


#: What draws random numbers: (training data, objective, network, other settings).
RUNS: dict[str, Callable[[], tuple[Any, Any, Any, dict[str, Any]]]] = {
    "drawn members": lambda: (blobs(60), "ldr:active=2", dropout_mlp, {"augment": flip}),
    "looped dropout": lambda: (blobs(60), None, looped, {}),
    "loader": lambda: (loader(Noisy(), torch.Generator(), shuffle=True), None, dropout_mlp, {}),
    "own sampler": lambda: (own_sampler(), None, norm_mlp, {}),
    "disagreement": lambda: (
        loader(Noisy(), shuffle=True),
        "a2d",
        dropout_mlp,
        {"disagreement": loader(Noisy(), shuffle=True)},
    ),
}


def run(kind: str, seed: int = 3) -> tuple[dict[str, Tensor], Any]:
    train, objective, network, settings = RUNS[kind]()
    ens = Ensemble(network, members=3)
    history = fit(
        ens,
        train,
        objective,
        val=blobs(40, seed=5),
        epochs=2,
        batch_size=16,
        seed=seed,
        progress=False,
        **settings,
    )
    return state(ens), history.epochs


def chance() -> tuple[Any, ...]:
    """Where the random numbers of all who share them stand."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), numpy_state[1].tolist(), random.getstate()


@pytest.mark.parametrize("kind", RUNS)
def test_the_same_seed_gives_the_same_bits(kind: str) -> None:
    before = chance()
    weights, figures = run(kind)
    assert chance() == before
    torch.manual_seed(77)  # what was drawn before does not matter
    random.seed(77)
    np.random.seed(77)  # noqa: NPY002
    again, figures_again = run(kind)
    assert same_bits(weights, again)
    assert figures == figures_again
    other, _ = run(kind, seed=4)
    assert not same_bits(weights, other)


@pytest.mark.parametrize(
    ("network", "objective", "augment"),
    [
        (dropout_mlp, "independent", None),
        (dense_mlp, "ldr:active=2", None),
        (dense_mlp, "independent", flip),
    ],
    ids=["dropout", "drawn members", "augmentation"],
)
def test_chance_differs_from_epoch_to_epoch(network: Any, objective: str, augment: Any) -> None:
    """Seen with weights that stand still and batches that stay."""
    x, y = blobs(64)
    history = fit(
        Ensemble(network, members=3),
        list(zip(x.split(16), y.split(16), strict=True)),
        objective,
        epochs=3,
        augment=augment,
        optimizer="sgd:lr=0,momentum=0",
        progress=False,
    )
    assert len(set(history.column("train/ensemble_error"))) == 3
