"""Tuning for detection: a copy of an ensemble whose members learn to disagree on strangers."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import A2D, Objective, Repulsion, as_objective, name_objective
from dissensus.tools.files import read_safetensors, write_safetensors
from dissensus.training.batches import as_batches, as_tensors, split_weights
from dissensus.training.fit import fit
from dissensus.training.recipe import Recipe

#: The fewest steps of tuning unless epochs are given: two epochs of a few hundred rows do nothing.
STEPS = 100


def tune(
    ens: Ensemble,
    train: Any,
    objective: Any = None,
    *,
    strangers: Any = "strangers",
    epochs: int | None = None,
    progress: bool = True,
    **settings: Any,
) -> tuple[Ensemble, dict[str, Any]]:
    """A copy of ``ens``, trained for some more epochs to disagree on strangers; and how.

    ``objective`` is ``a2d`` if nothing is said, ``repulsion`` with the deviation of the targets for
    regressors; ``epochs`` are two, or as many as make ``STEPS`` steps of small data. ``strangers``
    and ``settings`` are what :func:`dissensus.fit` takes as ``disagreement`` and as settings.
    ``ens`` itself is not touched, a frozen backbone not copied.

    >>> import torch
    >>> ens = Ensemble(lambda: torch.nn.Linear(2, 2), members=3)
    >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    >>> tuned, how = tune(ens, (x, (x[:, 0] > 0).long()), progress=False)
    >>> how
    {'objective': 'a2d', 'strangers': 'strangers', 'epochs': 100}
    """
    if not isinstance(ens, Ensemble):
        raise ValueError(f"tuning trains the members of an Ensemble, got {type(ens).__name__}")
    if ens.members < 2:
        raise ValueError("tuning makes members disagree, which needs at least 2; there is 1")
    train = as_tensors(train)
    tuned, parsed = _copy(ens), as_objective(objective or _usual_objective(ens, train))
    recipe = Recipe.of(settings | ({} if epochs is None else {"epochs": epochs}))
    if epochs is None:
        rows, device = split_weights(train)[0], torch.device("cpu")
        batches = len(as_batches(rows, recipe.batch_size, shuffle=True, device=device))
        recipe = replace(recipe, epochs=max(2, math.ceil(STEPS / max(batches, 1))))
    fit(tuned, train, parsed, disagreement=strangers, progress=progress, recipe=recipe)
    spec = strangers if isinstance(strangers, str) else getattr(strangers, "spec", lambda: None)()
    how = {"objective": name_objective(parsed), "strangers": spec or "data of your own"}
    return tuned.eval(), how | {"epochs": recipe.epochs}


def _usual_objective(ens: Ensemble, train: Any) -> Objective:
    """``a2d``; for regressors ``repulsion``, to the deviation of targets in memory."""
    if ens.combine != "mean":
        return A2D()
    y = train[1] if isinstance(train, tuple | list) and len(train) > 1 else None
    spread = float(y.double().var(0, correction=0).sum().sqrt()) if isinstance(y, Tensor) else 1.0
    return Repulsion(scale=float(f"{spread:.4g}") or 1.0)


def save_tuned(tuned: Ensemble, path: str | Path) -> None:
    """Write the weights and statistics of tuned members, without a backbone."""
    tensors = {
        name: tensor
        for name, tensor in tuned.state_dict().items()
        if not name.startswith("backbone.")
    }
    write_safetensors(path, tensors, {"kind": "tuned members"})


def load_tuned(path: str | Path, ens: Ensemble) -> Ensemble:
    """Tuned members from a file; ``ens`` is the ensemble that they were copied from."""
    if not isinstance(ens, Ensemble):
        raise ValueError(f"tuned members need the Ensemble they come from, got {type(ens)}")
    tensors, metadata = read_safetensors(path)
    if metadata.get("kind") != "tuned members":
        raise ValueError(f"{path} holds no tuned members: its kind is {metadata.get('kind')!r}")
    tuned = _copy(ens)
    backbone = {n: t for n, t in tuned.state_dict().items() if n.startswith("backbone.")}
    try:
        tuned.load_state_dict({**tensors, **backbone})
    except RuntimeError as error:
        text = " ".join(str(error).split())[:300]
        raise ValueError(f"{path} belongs to another ensemble: {text}") from error
    return tuned.eval()


def _copy(ens: Ensemble) -> Ensemble:
    """A copy that shares the frozen backbone."""
    frozen = {} if ens.backbone is None else {id(ens.backbone): ens.backbone}
    return copy.deepcopy(ens, dict(frozen))
