"""Members with settings of their own, drawn at random, trained side by side and chosen greedily.

As in TabPack (2026): several times as many candidates as members are asked for are drawn, each with
a depth, a width, an embedding of numbers, a learning rate and a weight decay. They train in fleets,
one for each architecture, while the best members so far are chosen again and again; a candidate
that falls behind is ended.

Candidates must be compared on the same rows. So all hold out one common part, and it serves both
for early stopping and for the choice: the error of the chosen members on it, and all that follows
from ``held_out_``, is a little too good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dissensus.data.encoder import Encoder
from dissensus.ensemble import Ensemble
from dissensus.models.layers import ScaledLinear
from dissensus.objectives import Independent
from dissensus.sklearn.greedy_choice import GreedyChoice
from dissensus.sklearn.held_out import HeldOut
from dissensus.sklearn.trainings import (
    Job,
    TrainedMembers,
    check_integer,
    hidden_sizes,
    make_ensemble,
    make_recipe,
    split_rows,
    validation_share,
)
from dissensus.training import (
    History,
    NonFiniteLoss,
    Optimizer,
    Recipe,
    Training,
    fit_fleet,
    predict,
)
from dissensus.training.batches import derived_seed

#: Candidates for each member, and the most of them where no number is asked for.
CANDIDATES, MOST = 4, 64
#: How many architectures are drawn: more would be smaller fleets.
ARCHITECTURES = 4
DEPTHS = (1, 2, 3)
#: Widths, as multiples of the widest of ``hidden_layer_sizes``.
WIDTHS = (0.5, 1.0, 2.0)
#: The inputs that a member sees of a number: its piecewise-linear encoding too, or itself alone.
EMBEDDINGS = ("piecewise", "linear")
#: How far below ``learning_rate_init`` and ``alpha`` learning rates and decays go.
RATES, DECAYS = 1 / 50, 1 / 1000
#: Hold out so many rows, but no more than a fifth of them, unless ``validation_fraction`` is more.
HELD_ROWS, HELD_SHARE = 500, 0.2


@dataclass(frozen=True)
class Settings:
    """What one candidate has of its own."""

    hidden_layer_sizes: tuple[int, ...]
    embedding: str
    learning_rate_init: float
    alpha: float


def _check_sampled(job: Job, params: dict[str, Any]) -> None:
    """Raise for parameters that members with settings of their own do not go with."""
    apart, own = isinstance(job.objective, Independent), params["shuffle"] != "shared"
    obstacles = {
        f"they have the objective 'independent', got {job.objective.spec()!r}": not apart,
        f"no β couples them, got beta={params['beta']!r}": params["beta"] is not None,
        f"they share no weights, got sharing={params['sharing']!r}": params["sharing"],
        "each has an order of rows of its own anyway, got shuffle='members'": own,
        "all learn from the same rows, got bootstrap=True": params["bootstrap"],
        "they are chosen on held-out rows, got early_stopping=False": not params["early_stopping"],
        "all hold out the same rows, got validation='members'": params["validation"] == "members",
        "they cannot be trained further, got warm_start=True": params["warm_start"],
    }
    for why, there in obstacles.items():
        if there:
            raise ValueError(f"members='sampled': {why}; change it, or use members='alike'")


def train_sampled(job: Job, seed: int, params: dict[str, Any]) -> TrainedMembers:
    """Train candidates and choose ``n_estimators`` of them, kept in the order of choice."""
    _check_sampled(job, params)
    members = check_integer("n_estimators", params["n_estimators"])
    count = count_candidates(members, params["candidates"])
    share = max(validation_share(params), min(HELD_SHARE, HELD_ROWS / len(job.rows)))
    train, val = split_rows(job, seed, params | {"validation_fraction": share})
    recipe = make_recipe(len(train[0]), seed, params)
    drawn = draw_settings(count, max(hidden_sizes(params), default=1), recipe)
    parts = [tuple(tensor.to(params["device"]) for tensor in part) for part in (train, val)]

    def make(inputs: int, hidden: tuple[int, ...], start: int) -> Ensemble:
        return make_ensemble(inputs, job, 1, start, params | {"hidden_layer_sizes": hidden})

    trainings = _make_trainings(drawn, parts, make, job, recipe)
    choice = GreedyChoice(val, members, job.combine)
    progress = bool(params["verbose"])
    histories = fit_fleet(trainings, on_epoch=choice.end, progress=progress, keep_failed=True)
    places = _finished(histories, members)
    modules = [
        _whole_module(trainings[place].ens, drawn[place], job.standard.x) for place in places
    ]
    every = predict(Ensemble.from_members(modules, job.combine), val[0].double()).outputs
    chosen = choice.among(every)
    held_out = None
    if len(job.rows) > 1:
        predictions, targets = (job.standard.in_units(t) for t in (every[chosen], choice.targets))
        held_out = HeldOut.of_all(predictions, targets, choice.weights)
    return TrainedMembers(
        Ensemble.from_members([modules[number] for number in chosen], job.combine),
        [histories[places[number]] for number in chosen],
        held_out,
        [asdict(drawn[places[number]]) for number in chosen],
    )


def count_candidates(members: int, asked: int | None) -> int:
    """How many candidates to draw.

    >>> count_candidates(16, None), count_candidates(100, None), count_candidates(16, 20)
    (64, 100, 20)
    """
    if asked is None:
        return max(members, min(CANDIDATES * members, MOST))
    if check_integer("candidates", asked) < members:
        raise ValueError(
            f"members are chosen among candidates, which must be at least {members} "
            f"(n_estimators), got {asked}"
        )
    return int(asked)


def _finished(histories: Sequence[History], members: int) -> list[int]:
    """The candidates that did not fail; raises if they are too few."""
    failed = [own.ended for own in histories if own.ended.startswith("failed")]
    if len(histories) - len(failed) < members:
        raise NonFiniteLoss(
            f"{len(failed)} of {len(histories)} candidates {failed[0]}. Lower the learning rate"
        )
    return [place for place, own in enumerate(histories) if own.ended not in failed]


# ---- candidates ---------------------------------------------------------------------------------


def draw_settings(count: int, width: int, recipe: Recipe) -> list[Settings]:
    """The settings of each candidate; architectures take turns.

    With the learning rate η and the weight decay λ of the recipe: 1 to 3 layers of w/2, w or 2w,
    w = ``width``, and log-uniformly a rate in [η/50, η] and a decay in [λ/1000, λ]. With the
    estimators' defaults these are 32 to 128, 1e-4 to 5e-3 and 1e-3 to 1.
    """
    rng = np.random.default_rng(derived_seed(recipe.seed, 0))
    shapes = [
        (
            (max(1, int(width * rng.choice(WIDTHS))),) * int(rng.choice(DEPTHS)),
            EMBEDDINGS[number % len(EMBEDDINGS)],
        )
        for number in range(ARCHITECTURES)
    ]
    (rate,), (decay,) = recipe.optimizer.for_members(1)  # type: ignore[union-attr]
    return [
        Settings(
            *shapes[number % len(shapes)],
            learning_rate_init=float(rate * RATES ** rng.uniform()),
            alpha=float(decay * DECAYS ** rng.uniform()),
        )
        for number in range(count)
    ]


def _make_trainings(
    drawn: Sequence[Settings],
    parts: Sequence[tuple[Tensor, ...]],
    make: Callable[[int, tuple[int, ...], int], Ensemble],
    job: Job,
    recipe: Recipe,
) -> list[Training]:
    """A training of one network for each candidate; those of one embedding share their data.

    ``parts`` are the rows to learn from and those to hold out.
    """
    data = {
        embedding: [(x[:, seen_inputs(job.standard.x, embedding)], *rest) for x, *rest in parts]
        for embedding in EMBEDDINGS
    }
    trainings = []
    for number, own in enumerate(drawn):
        train, val = data[own.embedding]
        seed = derived_seed(recipe.seed, 1 + number)
        optimizer = Optimizer("adamw", lr=own.learning_rate_init, weight_decay=own.alpha)
        own_recipe = replace(recipe, seed=seed, optimizer=optimizer)
        ens = make(train[0].shape[1], own.hidden_layer_sizes, seed)
        trainings.append(Training(ens, train, job.objective, val, own_recipe))
    return trainings


def seen_inputs(encoder: Encoder, embedding: str) -> NDArray[np.int64]:
    """The inputs that a member with this embedding sees: all, or the first of each column."""
    if embedding == "piecewise":
        return np.arange(encoder.inputs)
    return np.cumsum([0, *encoder.widths[:-1]])


def _whole_module(ens: Ensemble, own: Settings, encoder: Encoder) -> nn.Module:
    """The network of a candidate as one that takes all inputs, in float64 on the CPU.

    Weights of inputs that it does not see are 0.
    """
    part = ens.cpu().double().eval().member(0)
    first = next(part.children())
    seen = seen_inputs(encoder, own.embedding)
    if len(seen) == encoder.inputs:
        return part
    assert isinstance(first, ScaledLinear)
    weight = first.weight.new_zeros(len(first.weight), encoder.inputs)
    gain = first.gain.new_ones(encoder.inputs)
    weight[:, seen], gain[seen] = first.weight.detach(), first.gain.detach()
    first.weight, first.gain = nn.Parameter(weight), nn.Parameter(gain)
    return part
