"""Members that hold out folds of their own: no row is lost to validation.

The rows are cut into folds, and each fold is held out by some of the members: they learn from all
other rows, keep the epoch that is best on their fold, and stop once it has not improved for a
while. All folds train side by side as one fleet. So every row is learnt by most members, and there
are members that never saw it, whose predictions tell what the ensemble does with new rows.

Edges, means and deviations of columns and targets are those of all rows, for all members alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import Gaussian, Independent
from dissensus.sklearn.held_out import HeldOut
from dissensus.sklearn.trainings import (
    Job,
    TrainedMembers,
    check_integer,
    equal_folds,
    make_ensemble,
    make_recipe,
    validation_share,
)
from dissensus.training import History, Training, fit_fleet, predict
from dissensus.training.batches import derived_seed

#: The most folds: each member learns from seven eighths of the rows.
FOLDS = 8
#: With fewer rows, a fold would hold no row or one.
LEAST_ROWS = 20


def holds_out_folds(job: Job, params: dict[str, Any]) -> bool:
    """Whether each member holds out a fold of its own; raises where that is asked for in vain."""
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
    # Of one length each, so that folds are of one kind for the fleet: the odd row is left out.
    most, held = (min(len(pair[side]) for pair in folds) for side in (0, 1))
    unpack = job.standard.unpack
    data = tuple(t.to(params["device"]) for t in job.standard.tensors(job.rows, packed=True))
    recipe = make_recipe(most, seed, params)
    trainings = []
    for number, ((rows, own), size) in enumerate(zip(folds, sizes, strict=True)):
        start = derived_seed(seed, number)
        ens = make_ensemble(job.standard.x.inputs, job, size, start, params)
        chance = np.random.default_rng(start)
        index = torch.from_numpy(np.sort(chance.permutation(rows)[:most])).to(params["device"])
        val = tuple(tensor[own[:held]] for tensor in data)
        own_recipe = replace(recipe, seed=start)
        trainings.append(Training(ens, data, job.objective, val, own_recipe, index, unpack=unpack))
    histories = fit_fleet(trainings, progress=bool(params["verbose"]))
    ensembles = [training.ens.cpu().double().eval() for training in trainings]
    modules = [ens.member(member) for ens in ensembles for member in range(ens.members)]
    whole = Ensemble.from_members(modules, job.combine)
    return TrainedMembers(whole, histories, _held_out(job, folds, ensembles, data[0].cpu()))


def _held_out(
    job: Job, folds: Sequence[tuple[Any, Any]], ensembles: Sequence[Ensemble], packed: Tensor
) -> HeldOut:
    """What the members of each fold predict for it; as many of each as the smallest fold has."""
    fewest, rows = min(ens.members for ens in ensembles), len(packed)
    predictions = torch.empty(fewest, rows, job.outputs, dtype=torch.float64)
    members = torch.empty(fewest, rows, dtype=torch.int64)
    first = 0
    for ens, (_, own) in zip(ensembles, folds, strict=True):
        for part in torch.from_numpy(own).split(1024):
            x = job.standard.unpack(packed[part]).double()
            predictions[:, part] = predict(ens, x).outputs[:fewest]
        members[:, own] = torch.arange(first, first + fewest)[:, None]
        first += ens.members
    targets = torch.from_numpy(job.rows.y)
    weights = torch.from_numpy(job.rows.weights)
    noise = job.standard.noise(predictions)
    return HeldOut(job.standard.in_units(predictions), targets, weights, members, first, noise)


def mean_history(histories: Sequence[History]) -> History:
    """One history: the mean errors over the folds that still trained, in each epoch."""
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
