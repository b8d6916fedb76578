"""The same seed gives the same bits, and nothing of the caller's chance is used up."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

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


def loader(**options: Any) -> Any:
    return DataLoader(TensorDataset(*blobs(60)), batch_size=16, **options)


def own_sampler() -> Any:
    data = TensorDataset(*blobs(60))
    return DataLoader(data, 16, sampler=RandomSampler(data, generator=torch.Generator()))


#: Everything that draws random numbers: (training data, objective, network, other settings).
RUNS: dict[str, Callable[[], tuple[Any, Any, Any, dict[str, Any]]]] = {
    "tensors": lambda: (blobs(60), None, norm_mlp, {}),
    "dropout": lambda: (blobs(60), None, dropout_mlp, {}),
    "looped dropout": lambda: (
        blobs(60),
        None,
        lambda: nn.Sequential(
            nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 4, 1), nn.Flatten(), dropout_mlp()
        ),
        {},
    ),
    "drawn members": lambda: (blobs(60), "ldr:active=2", dropout_mlp, {}),
    "augmentation": lambda: (blobs(60), None, dropout_mlp, {"augment": flip}),
    "loader": lambda: (loader(shuffle=True), None, dropout_mlp, {}),
    "loader with a generator": lambda: (
        loader(shuffle=True, generator=torch.Generator()),
        None,
        norm_mlp,
        {},
    ),
    "own sampler": lambda: (own_sampler(), None, norm_mlp, {}),
    "transforms": lambda: (DataLoader(Noisy(), 16, shuffle=True), None, dropout_mlp, {}),
    "disagreement": lambda: (
        blobs(60),
        "a2d",
        dropout_mlp,
        {"disagreement": DataLoader(Noisy(), 25, shuffle=True)},
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


def test_the_seed_of_a_run_leaves_the_first_weights_alone() -> None:
    """Members are made from the ensemble's seed, batches from the run's."""
    assert same_bits(state(Ensemble(norm_mlp)), state(Ensemble(norm_mlp, seed=0)))
    assert not same_bits(state(Ensemble(norm_mlp)), state(Ensemble(norm_mlp, seed=1)))


@pytest.mark.parametrize("faster", ["stacked", "looped"])
def test_tuning_changes_nothing_but_the_execution(
    faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"stacked": 1.0, "looped": 1.0} | {faster: 0.5}

    def measure(run: Callable[[str], Tensor]) -> dict[str, float]:
        for execution in found:
            run(execution).sum().backward()  # as it does, with dropout and statistics
        return found

    monkeypatch.setattr("dissensus.ensemble.module.measure", measure)
    results = []
    for execution in ("tune", faster):
        network = lambda: nn.Sequential(norm_mlp(), nn.Dropout(0.2))  # noqa: E731
        ens = Ensemble(network, members=3, execution=execution)
        history = fit(ens, blobs(60), epochs=2, batch_size=16, progress=False)
        assert history.execution == faster
        results.append((state(ens), history.epochs))
    assert same_bits(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
