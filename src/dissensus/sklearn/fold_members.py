"""Members that each hold out a fold: no row is lost to validation.

The rows are cut into folds, and each fold is held out by some of the members: they learn from all
other rows, keep the epoch that is best on their fold, and stop once it has not improved for a
while. Folds train side by side, as a fleet. So every row is learnt by most members, and there
are members that never saw it, whose predictions tell what the ensemble does with new rows.

Edges, means and deviations of columns and targets are those of all rows, for all members alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.objectives import Gaussian, Independent
from dissensus.sklearn.held_out import HeldOut
from dissensus.sklearn.rows import ROWS_AT_ONCE, equal_folds, member_outputs, tensors
from dissensus.sklearn.trainings import (
    Job,
    TrainedMembers,
    hidden_sizes,
    make_ensemble,
    make_recipe,
    validation_share,
)
from dissensus.tools.specs import check_integer
from dissensus.training import History, Training, fit_fleet
from dissensus.training.batches import derived_seed

#: The most folds: each member learns from seven eighths of the rows.
FOLDS = 8
#: With fewer rows, a fold would hold no row or one.
LEAST_ROWS = 20
#: Multiplications of a batch with weights, from which on several products are no faster as one.
_LARGE = 1 << 24


def holds_out_folds(job: Job, params: dict[str, Any]) -> bool:
    """Whether each member holds out a fold; raises where that is asked for but impossible."""
    if not params["early_stopping"] or params["validation"] == "common":
        return False
    members, rows = params["n_estimators"], len(job.rows)
    obstacles = {
        f"members learn together by {job.objective.spec()!r}": not isinstance(
            job.objective, Independent | Gaussian
        ),
        "shuffle='members' and bootstrap=True give members batches of their own": (
            params["shuffle"] != "shared" or params["bootstrap"]
        ),
        "warm_start=True trains members further": params["warm_start"],
        f"n_estimators is {members}, and each fold needs one": members == 1,
        f"there are {rows} different rows, fewer than {LEAST_ROWS}": rows < LEAST_ROWS,
    }
    found = next((why for why, there in obstacles.items() if there), None)
    if found is not None and params["validation"] == "members":
        raise ValueError(f"validation='members' does not go here: {found}; use 'common'")
    return found is None


def train_folds(job: Job, seed: int, params: dict[str, Any]) -> TrainedMembers:
    """Train the members, at least two, each without its own fold of the job's rows."""
    members = check_integer("n_estimators", params["n_estimators"])
    validation_share(params)  # unused here, and still not to be nonsense
    folds = equal_folds(job.rows, min(FOLDS, members), seed)
    sizes = [members // len(folds) + (fold < members % len(folds)) for fold in range(len(folds))]
    # As many of each fold as the smallest has.
    outputs = torch.empty(min(sizes), len(job.rows), job.outputs, dtype=torch.float64)
    places = torch.empty(min(sizes), len(job.rows), dtype=torch.int64)
    histories: list[History] = []
    modules: list[nn.Module] = []
    for own, ens, history, predicted in _train_each(job, folds, sizes, seed, params):
        outputs[:, own] = predicted[: min(sizes)]
        places[:, own] = torch.arange(len(modules), len(modules) + min(sizes))[:, None]
        modules += [ens.member(member) for member in range(ens.members)]
        histories.append(history)
    targets, weights = torch.from_numpy(job.rows.y), torch.from_numpy(job.rows.weights)
    noise = job.standard.noise(outputs)
    held_out = HeldOut(
        job.standard.in_units(outputs), targets, weights, places, len(modules), noise
    )
    return TrainedMembers(Ensemble.from_members(modules, job.combine), histories, held_out)


def _train_each(
    job: Job,
    folds: Sequence[tuple[Any, Any]],
    sizes: Sequence[int],
    seed: int,
    params: dict[str, Any],
) -> Iterator[tuple[Tensor, Ensemble, History, Tensor]]:
    """For each fold: its rows, its members, their history, and their predictions for these rows."""
    # Of one length each, so that folds are of one kind for the fleet: the odd row is left out.
    most, held = (min(len(pair[side]) for pair in folds) for side in (0, 1))
    unpack = job.standard.unpack
    data = tuple(t.to(params["device"]) for t in tensors(job.standard, job.rows, packed=True))
    recipe = make_recipe(most, seed, params)
    for numbers in _side_by_side(len(folds), max(sizes), recipe.batch_size, job, params):
        trainings = []
        for number in numbers:
            start, (rows, own) = derived_seed(seed, number), folds[number]
            ens = make_ensemble(job.standard.x.inputs, job, sizes[number], start, params)
            chance = np.random.default_rng(start)
            index = torch.from_numpy(np.sort(chance.permutation(rows)[:most])).to(params["device"])
            val = tuple(tensor[own[:held]] for tensor in data)
            how = replace(recipe, seed=start)
            trainings.append(Training(ens, data, job.objective, val, how, index, unpack=unpack))
        histories = fit_fleet(trainings, progress=bool(params["verbose"]))
        for number, training, history in zip(numbers, trainings, histories, strict=True):
            own, ens = torch.from_numpy(folds[number][1]), training.ens.cpu().eval()
            exact = deepcopy(ens).double()
            inputs = (unpack(data[0][part].cpu()).double() for part in own.split(ROWS_AT_ONCE))
            yield own, ens, history, torch.cat([member_outputs(exact, x) for x in inputs], 1)


def _side_by_side(
    folds: int, members: int, batch_size: int, job: Job, params: dict[str, Any]
) -> Iterator[range]:
    """Numbers of the folds that train side by side: all where products are small, else by twos.

    Small products are faster together. Large ones are as fast by twos, and folds whose turn has not
    come take no memory for inputs, gradients and moments.
    """
    first = [*hidden_sizes(params), job.outputs][0]
    weights = members * job.standard.x.inputs * first  # of the first layer
    # A fold that is left over is not by itself, as it would not be in a fleet.
    count = max(folds // 2, 1) if batch_size * weights > _LARGE else 1
    begins = [number * folds // count for number in range(count + 1)]
    return (range(*ends) for ends in pairwise(begins))


def mean_history(histories: Sequence[History]) -> History:
    """One history: the mean errors over the folds that still trained, in each epoch."""
    if len(histories) == 1:
        return histories[0]
    epochs: list[dict[str, Any]] = []
    for epoch in range(max(len(history.epochs) for history in histories)):
        running = [h.epochs[epoch] for h in histories if epoch < len(h.epochs)]
        means = {
            part: {
                name: float(np.mean([record[part][name] for record in running]))
                for name in ("ensemble_error", "member_error")
            }
            for part in ("train", "val")
        }
        epochs.append({"epoch": epoch + 1, **means})
    best = 1 + int(np.argmin([record["val"]["ensemble_error"] for record in epochs]))
    seconds = max(history.seconds for history in histories)
    ended = "patience" if all(h.ended == "patience" for h in histories) else "epochs"
    return History(epochs, best, ended, seconds, histories[0].execution)
