"""The study that most of the paper is read off: contenders trained once, and all about each.

A cell is one ensemble: one data set, one contender, one seed. It is trained, and everything that
the tables and figures need is measured at once, so that no experiment trains it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.papers.adp import measuring
from dissensus.papers.adp.contenders import train_ensemble
from dissensus.papers.adp.plans import data_settings, ensemble_cell
from dissensus.papers.base import Cell, Study
from dissensus.papers.collusion.parts import Parts, load_parts
from dissensus.papers.comparing import (
    SEEDS_OPTION,
    seeds_of,
)

__all__ = ["CONTROLS", "ENSEMBLES", "PAIR", "TRAINED", "cells", "measure", "run"]

PAIR = ("plain", "adp")
CONTROLS = ("adp-entropy", "smoothed", "single")
TRAINED = ("fgsm", "fgsm-adp", "pgd", "pgd-adp")


# ---- planning -----------------------------------------------------------------------------------

#: Who competes on which data set, the main rows first. Adversarial training has the paper's ε,
#: which are CIFAR's and suit Fashion-MNIST too.
_ENTRIES: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "smoke": ((("digits",), (*PAIR, *CONTROLS, *TRAINED)),),
    "cpu": (
        (("mnist", "fashion_mnist", "digits"), PAIR),
        (("mnist", "fashion_mnist", "digits"), CONTROLS),
        (("fashion_mnist",), TRAINED),
        (("cifar10",), ("plain", "adp-entropy", "adp")),
    ),
    "paper": (
        (("mnist", "cifar10", "cifar100"), PAIR),
        (("mnist", "cifar10"), CONTROLS),
        (("cifar10",), TRAINED),
    ),
}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every contender on every data set, for each seed; the main rows of all seeds come first.

    At scale ``cpu`` the pair that most claims are about gets two more seeds, at the end.
    """
    seeds = seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 3}[scale])
    plan = [(seeds, sets, contenders) for sets, contenders in _ENTRIES[scale]]
    if scale == "cpu" and "seeds" not in options:
        plan.append((range(3, 5), *_ENTRIES[scale][0]))
    settings = data_settings(scale)
    return [
        _fitted(f"{data}-{contender}-seed={seed}", settings[data], data, contender, seed)
        for chosen, sets, contenders in plan
        for seed in chosen
        for data in sets
        for contender in contenders
    ]


def _fitted(name: str, settings: Mapping[str, Any], data: str, contender: str, seed: int) -> Cell:
    """The cell of a contender: what is not asked of it is left out, as it costs the most."""
    changes: dict[str, Any] = {"data": data, "contender": contender, "seed": seed}
    if contender not in ("plain", "adp"):
        changes |= {"slow_attacks": [], "curve": None, "detection": None, "features": 0}
    if contender in ("single", *TRAINED):
        changes |= {"transfer": None}
    if contender in ("fgsm", "fgsm-adp"):
        changes |= {"standard": None}
    elif contender in CONTROLS and settings["standard"]:
        smallest = settings["standard"]["eps"][:1]
        changes |= {"standard": {**settings["standard"], "eps": smallest}}
    return ensemble_cell(name, settings, **changes)


# ---- running ------------------------------------------------------------------------------------


def run(cell: Cell) -> dict[str, Any]:
    """Train the ensemble of ``cell`` and measure all that it asks for."""
    parts = load_parts(cell)
    ens = train_ensemble(cell, parts)
    return measure(ens, cell, parts)


def measure(ens: Ensemble, cell: Cell, parts: Parts) -> dict[str, Any]:
    """What the tables and figures are made of; see :mod:`dissensus.papers.adp.measuring`."""
    x, y = _shuffled(parts.test, cell["seed"])
    result: dict[str, Any] = {
        "parameters": sum(p.numel() for p in ens.member(0).parameters()),
        "clean": measuring.errors(ens, (x, y)),
    }

    def some(count: int) -> tuple[Tensor, Tensor]:
        return x[:count], y[:count]

    if cell["attacks"]:
        result["weak"] = measuring.attacked(ens, *some(cell["images"]), cell["attacks"])
    if cell["slow_attacks"]:
        slow = measuring.attacked(ens, *some(cell["slow_images"]), cell["slow_attacks"])
        result["slow"] = slow
    if cell["standard"]:
        images = some(cell["standard"]["images"])
        result["standard"] = measuring.worst_case(ens, *images, cell["standard"])
        steps = cell["standard"]["steps"]
        result["at_half"] = measuring.resists_everything(ens, *images, steps)
    if cell["curve"]:
        images = some(cell["curve"]["images"])
        result["curve"] = measuring.over_eps(ens, *images, cell["curve"]["eps"])
    if cell["transfer"]:
        images = some(cell["transfer"]["images"])
        result["transfer"] = measuring.transferred(ens, *images, cell["transfer"])
    if cell["detection"]:
        images = some(cell["detection"]["images"])
        result["detection"] = measuring.detected(ens, *images, cell["detection"])
    if ens.members > 1:
        result["histogram"] = measuring.histogram(ens, (x, y))
    if cell["features"]:
        images = some(cell["features"])
        features = measuring.hidden_features(ens, images[0])
        result["similarity"] = measuring.similarity(features)
        if cell["seed"] == 0:
            result["tsne"] = measuring.visualised(features, images[1], cell["seed"])
    return result


def _shuffled(part: tuple[Tensor, Tensor], seed: int) -> tuple[Tensor, Tensor]:
    """Test images in an order of the seed's, so that the first of them are no easier kind."""
    order = torch.randperm(len(part[1]), generator=torch.Generator().manual_seed(seed))
    return part[0][order], part[1][order]


ENSEMBLES = Study(
    "ensembles",
    cells,
    run,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "1 min", "cpu": "1 h", "paper": "GPU days"},
)
