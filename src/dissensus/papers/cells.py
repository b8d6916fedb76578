"""Cells: their settings and seeds, and the training that every study of networks shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from dissensus.data import AUGMENTATIONS, Augment
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.papers.base import Cell
from dissensus.training import Recipe

__all__ = ["SEEDS_OPTION", "augmentation", "make_cell", "new_ensemble", "recipe", "seeds_of"]

SEEDS_OPTION = {"seeds": "how many runs of each setting, each with its own seed and data split"}


class Inputs(Protocol):
    """What a network has to know of its data."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> int: ...
    @property
    def normalize(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None: ...


def seeds_of(options: Mapping[str, Any], default: int) -> range:
    """The seeds of a study: as many as ``--set seeds=`` says."""
    count = options.get("seeds", default)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"seeds must be an integer of at least 1, got {count!r}")
    return range(count)


def make_cell(name: str, settings: Mapping[str, Any], **changes: Any) -> Cell:
    """A cell of ``settings`` with ``changes``; an unknown setting is an error."""
    unknown = sorted(set(changes) - set(settings))
    if unknown:
        raise ValueError(f"the cell has no setting {', '.join(unknown)}")
    return {"name": name, **settings, **changes}


def new_ensemble(cell: Cell, data: Inputs, **options: Any) -> Ensemble:
    """An untrained ensemble of the cell's network, on the GPU where there is one."""
    make = make_factory(
        cell["model"],
        data.input_shape,
        data.outputs,
        normalize=data.normalize,
        **cell["model_options"],
    )
    ens = Ensemble(make, **{"members": cell["members"], "seed": cell["seed"], **options})
    return ens.to("cuda") if torch.cuda.is_available() else ens


def recipe(cell: Cell, **changes: Any) -> Recipe:
    """The cell's schedule of training."""
    keys = ("epochs", "batch_size", "optimizer", "schedule", "seed")
    return Recipe(**{**{key: cell[key] for key in keys}, **changes})


def augmentation(cell: Cell) -> Augment | None:
    """One of ``AUGMENTATIONS`` by name, or one with the settings that the cell has."""
    wanted = cell["augment"]
    if wanted == "none":
        return None
    return AUGMENTATIONS[wanted] if isinstance(wanted, str) else Augment(**wanted)
