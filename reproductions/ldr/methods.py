"""Methods: every way to train the ensemble of a cell, on equal footing.

All methods share architecture, optimiser, batch size and, unless a cell says otherwise
(``footing="epochs"``), the number of updates that each *member* gets. LDR updates only |I| of M
members in a batch, so that it runs M/|I| times as many epochs of 1/(M/|I|) the cost; with equal
epochs its members would be trained less, and less trained members disagree more whatever the
objective. A2D and DivDis run a second batch, of disagreement data, beside each batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dissensus.ensemble import Ensemble
from dissensus.objectives import (
    A2D,
    LDR,
    DivDis,
    Independent,
    LearnerDropout,
    Objective,
    Sequential,
)
from dissensus.training import Optimizer, Recipe, fit, predict
from dissensus.training.optim import parse_schedule
from reproductions.cells import new_ensemble
from reproductions.cells import recipe as cell_recipe
from reproductions.ldr.data import Split, StudyData
from reproductions.study import Cell

Callback = Callable[[dict[str, Any], Ensemble], bool | None]


def train_ensemble(cell: Cell, data: StudyData, *, callbacks: Sequence[Callback] = ()) -> Ensemble:
    """The trained ensemble of a cell; ``callbacks`` see each epoch of LDR."""
    if callbacks:
        return _ldr(cell, data, callbacks)
    return METHODS[cell["method"]](cell, data)


# ---- methods ------------------------------------------------------------------------------------


def _independent(cell: Cell, data: StudyData) -> Ensemble:
    """A deep ensemble, or one network where ``members`` is 1."""
    return _fit(_new(cell, data), data.train, _cross_entropy(cell), _recipe(cell))


def _diverse(cell: Cell, data: StudyData) -> Ensemble:
    """Independent members of different learning rate and weight decay.

    Rates go from 1/3 to 3 times the cell's, evenly in the logarithm; decay from 10 to 1/10 times,
    the other way round.
    """
    recipe = _recipe(cell)
    base = recipe.optimizer
    assert isinstance(base, Optimizer)
    assert isinstance(base.lr, float)
    assert isinstance(base.weight_decay, float)
    along = [2 * member / max(cell["members"] - 1, 1) - 1 for member in range(cell["members"])]
    optimizer = replace(
        base,
        lr=tuple(base.lr * 3**at for at in along),
        weight_decay=tuple(base.weight_decay * 10**-at for at in along),
    )
    recipe = replace(recipe, optimizer=optimizer)
    return _fit(_new(cell, data), data.train, _cross_entropy(cell), recipe)


def _disagreeing(cell: Cell, data: StudyData) -> Ensemble:
    """A2D or DivDis, all members at once, on unlabelled disagreement data."""
    objective = DivDis(strength=cell["strength"]) if cell["method"] == "divdis" else _a2d(cell)
    unlabelled = data.disagreement[cell["disagreement"]]
    return _fit(_new(cell, data), data.train, objective, _recipe(cell), disagreement=unlabelled)


def _sequential(cell: Cell, data: StudyData) -> Ensemble:
    """A2D as its authors trained it: one member after the other, against those before it."""
    ens = _new(cell, data)
    unlabelled = data.disagreement[cell["disagreement"]]
    for stage in range(cell["members"]):
        objective = Sequential(stage=stage, objective=_a2d(cell))
        _fit(ens, data.train, objective, _recipe(cell), disagreement=unlabelled)
    return ens


def _ldr(cell: Cell, data: StudyData, callbacks: Sequence[Callback] = ()) -> Ensemble:
    """LDR (Eq. 6); ``strength`` 0 leaves the stochastic sum alone."""
    objective = LDR(
        strength=cell["strength"],
        active=cell["active"],
        regularizer=cell["regularizer"],
        label_smoothing=cell["label_smoothing"],
    )
    return _fit(_new(cell, data), data.train, objective, _recipe(cell), callbacks=callbacks)


def _two_stage(cell: Cell, data: StudyData) -> Ensemble:
    """Appendix A.9: a first network's least confident training rows become disagreement data.

    The paper takes those below a confidence of 0.2, 1.4% of ImageNet; here the same share. Cross-
    entropy is minimised on all other rows; |I| members per batch, as in LDR.
    """
    alone = {**cell, "members": 1, "method": "deep-ensemble", "active": None}
    first = _independent(alone, data)
    x, y = data.train
    confidence = predict(first, data.train).outputs[0].softmax(-1).amax(-1)
    count = max(2, round(0.014 * len(x)))
    hard = confidence.argsort()[:count]
    easy = torch.ones(len(x), dtype=torch.bool)
    easy[hard] = False
    objective: Objective = _a2d(cell)
    dropped = cell["members"] - (cell["active"] or cell["members"])
    if dropped:
        # A hair above the share, so that the whole number of members is what is dropped.
        objective = LearnerDropout(drop=(dropped + 1e-6) / cell["members"], objective=objective)
    train = (x[easy], y[easy])
    return _fit(_new(cell, data), train, objective, _recipe(cell), disagreement=x[hard])


def _snapshots(cell: Cell, data: StudyData) -> Ensemble:
    """One network trained in cycles, a copy kept at the end of each (Huang et al., 2017).

    A cycle is as long as a member's training, with a cosine schedule that starts anew.
    """
    ens = _new({**cell, "members": 1}, data)
    copies = []
    for cycle in range(cell["members"]):
        seed = 1000 * (cycle + 1) + cell["seed"]
        recipe = replace(_recipe(cell), schedule=parse_schedule("cosine"), seed=seed)
        _fit(ens, data.train, _cross_entropy(cell), recipe)
        copies.append(copy.deepcopy(ens.member(0)))
    return Ensemble.from_members(copies)


def _one(cell: Cell, data: StudyData) -> Ensemble:
    """One network, whatever ``members`` says: for dropout passes and for distances."""
    return _independent({**cell, "members": 1}, data)


#: Every method by name: ``method(cell, data) -> trained Ensemble``.
METHODS: dict[str, Callable[[Cell, StudyData], Ensemble]] = {
    "single": _independent,
    "deep-ensemble": _independent,
    "diverse-hyperparameters": _diverse,
    "divdis": _disagreeing,
    "a2d": _disagreeing,
    "a2d-sequential": _sequential,
    "ldr": _ldr,
    "two-stage": _two_stage,
    "snapshots": _snapshots,
    "dropout": _one,
    "distances": _one,
}


# ---- shared steps -------------------------------------------------------------------------------


def _fit(
    ens: Ensemble, train: Split, objective: Objective, recipe: Recipe, **options: Any
) -> Ensemble:
    fit(ens, train, objective, recipe=recipe, progress=False, **options)
    return ens


def _a2d(cell: Cell) -> A2D:
    return A2D(strength=cell["strength"], label_smoothing=cell["label_smoothing"])


def _cross_entropy(cell: Cell) -> Independent:
    return Independent(label_smoothing=cell["label_smoothing"])


def _new(cell: Cell, data: StudyData) -> Ensemble:
    """Members with weights of their own, or one start for all (``start="shared"``)."""
    ens = new_ensemble(cell, data)
    if cell["start"] == "shared":
        first = ens.member(0)
        ens = Ensemble.from_members([copy.deepcopy(first) for _ in range(cell["members"])])
    return ens


def _recipe(cell: Cell) -> Recipe:
    """The cell's schedule, longer where only some of the members are updated in a batch."""
    drawn = cell["active"] if cell["method"] in ("ldr", "two-stage") else None
    times = cell["members"] / drawn if drawn and cell["footing"] == "updates" else 1.0
    return cell_recipe(cell, epochs=max(1, round(cell["epochs"] * times)))
