"""A sweep over β trained at once, against the loop over ensembles that published scripts use.

The work is the same in both: an epoch of every ensemble of the sweep, each in a shuffled order of
its own, on one core. The fleet's time includes all that its epoch does beside steps: picking
batches, the figures of the history, looking for losses that are not finite.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.timing import Contender, Result, compare
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.training import Recipe, Training, fit
from dissensus.training.fleet import Fleet

_BETAS = [tenths / 10 for tenths in range(11)]
_MEMBERS, _BATCH, _EXAMPLES, _FEATURES, _HIDDEN = 20, 32, 640, 45, (30, 30)


def run(quick: bool) -> list[Result]:
    """All comparisons; one thread unless ``--threads`` says otherwise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_EXAMPLES, _FEATURES, generator=generator)
    y = x[:, :1].sin() + 0.3 * torch.randn(_EXAMPLES, 1, generator=generator)
    sizes = "-".join(map(str, (_FEATURES, *_HIDDEN, 1)))
    return [
        compare(
            f"{len(_BETAS)} β × {_MEMBERS} members × MLP {sizes}, batch {_BATCH}: an epoch of "
            f"{_EXAMPLES} examples, ratio to the plain loop over ensembles",
            Contender("plain loop", plain_loops(x, y)),
            [
                Contender("dissensus, fleet", fleet(x, y), 1 / 20),
                Contender("dissensus, one by one", one_by_one(x, y)),
            ],
            repeats=3 if quick else 15,
        )
    ]


def plain_loops(x: Tensor, y: Tensor) -> Callable[[], None]:
    """An epoch as scripts write it: ensembles, batches and members one after the other."""
    make = make_factory("mlp", x.shape[1:], 1, hidden=_HIDDEN)
    ensembles = [[make() for _ in range(_MEMBERS)] for _ in _BETAS]
    optimizers = [
        torch.optim.Adam([p for net in nets for p in net.parameters()], lr=1e-3)
        for nets in ensembles
    ]

    def epoch() -> None:
        for beta, nets, optimizer in zip(_BETAS, ensembles, optimizers, strict=True):
            for index in torch.randperm(len(x)).split(_BATCH):
                inputs, targets = x[index], y[index]
                outputs = torch.stack([net(inputs) for net in nets])
                members = nn.functional.mse_loss(outputs, targets.expand_as(outputs))
                ensemble = nn.functional.mse_loss(outputs.mean(0), targets)
                optimizer.zero_grad()
                ((1 - beta) * members + beta * ensemble).backward()
                optimizer.step()

    return epoch


def _trainings(x: Tensor, y: Tensor) -> list[Training]:
    make = make_factory("mlp", x.shape[1:], 1, hidden=_HIDDEN)
    return [
        Training(
            Ensemble(make, _MEMBERS, seed=seed, combine="mean"),
            (x, y),
            f"augmented:beta={beta},loss=mse",
            recipe=Recipe(epochs=1, batch_size=_BATCH, seed=seed),
        )
        for seed, beta in enumerate(_BETAS)
    ]


def fleet(x: Tensor, y: Tensor) -> Callable[[], object]:
    """An epoch of all ensembles at once."""
    together = Fleet(_trainings(x, y))
    return lambda: together.epoch(0)


def one_by_one(x: Tensor, y: Tensor) -> Callable[[], None]:
    """The library without the fleet."""
    trainings = _trainings(x, y)

    def epoch() -> None:
        for t in trainings:
            fit(t.ens, t.train, t.objective, recipe=t.recipe, progress=False)

    return epoch
