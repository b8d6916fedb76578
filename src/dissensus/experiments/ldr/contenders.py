"""The study that most tables read: every method, on every data set, over seeds.

Methods with a strength are run at several; which one counts is decided when records are read, by
validation data alone (:func:`chosen`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dissensus.experiments.base import Cell, Study
from dissensus.experiments.comparing import SEEDS_OPTION, seeds_of
from dissensus.experiments.ldr.cells import CPU, FASHION, PAPER, SMOKE, ldr_cell, run_cell

__all__ = ["CONTENDERS", "METHOD_NAMES", "STUDY"]

#: The strengths of LDR that are run, up to where accuracy is lost (Figure 5).
_LDR = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
_FEW = (0.1, 1.0)

#: A contender is a method with what sets it apart: its settings and the strengths it is run at.
CONTENDERS: dict[str, tuple[dict[str, Any], Sequence[float]]] = {
    "single": ({"method": "single", "members": 1}, (0.0,)),
    "deep-ensemble": ({"method": "deep-ensemble"}, (0.0,)),
    "diverse-hyperparameters": ({"method": "diverse-hyperparameters"}, (0.0,)),
    "divdis": ({"method": "divdis"}, _FEW),
    "a2d": ({"method": "a2d"}, _FEW),
    "a2d-sequential": ({"method": "a2d-sequential"}, (1.0,)),
    "ldr": ({"method": "ldr"}, _LDR),
    "ldr-all": ({"method": "ldr", "active": None}, (0.3, 1.0)),
    "ldr-divdis": ({"method": "ldr", "regularizer": "divdis"}, (1.0,)),
    "ldr-same-epochs": ({"method": "ldr", "footing": "epochs"}, (0.0, 0.3)),
    "two-stage": ({"method": "two-stage"}, (0.3, 1.0)),
}

#: What a table calls them.
METHOD_NAMES = {
    "single": "1 model",
    "deep-ensemble": "deep ensemble",
    "diverse-hyperparameters": "+ diverse hyperparameters",
    "divdis": "DivDis",
    "a2d": "A2D",
    "a2d-sequential": "A2D, sequential",
    "ldr": "LDR",
    "ldr-all": "LDR, all pairs",
    "ldr-divdis": "LDR, DivDis term",
    "ldr-same-epochs": "LDR, same epochs",
    "two-stage": "two-stage",
}

#: Those that are run on images, where a training costs more.
_ON_IMAGES = ("single", "deep-ensemble", "diverse-hyperparameters", "a2d", "ldr")


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every contender at every strength, data set after data set, seed after seed."""
    if scale == "smoke":
        return _cells("digits", SMOKE, CONTENDERS, seeds_of(options, 2), fewer=True)
    if scale == "paper":
        return _cells("imagenet", PAPER, CONTENDERS, seeds_of(options, 3))
    images = {name: CONTENDERS[name] for name in _ON_IMAGES}
    images["ldr"] = (images["ldr"][0], (0.0, 0.1, 0.3, 1.0))
    images["a2d"] = (images["a2d"][0], (1.0,))
    found = _cells("features", CPU, CONTENDERS, seeds_of(options, 5))
    for data in ("fashion_mnist", "mnist"):
        found += _cells(data, {**FASHION, "data": data}, images, seeds_of(options, 3))
    return found


def _cells(
    data: str,
    settings: Mapping[str, Any],
    contenders: Mapping[str, tuple[dict[str, Any], Sequence[float]]],
    seeds: Iterable[int],
    *,
    fewer: bool = False,
) -> list[Cell]:
    return [
        ldr_cell(
            f"{data}-{name}-strength={strength:g}-seed={seed}",
            settings,
            **changes,
            strength=strength,
            seed=seed,
        )
        for seed in seeds
        for name, (changes, strengths) in contenders.items()
        for strength in (strengths[-2:] if fewer else strengths)
    ]


STUDY = Study(
    "contenders",
    cells,
    run_cell,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "15 s", "cpu": "30 min", "paper": "GPU days"},
)
