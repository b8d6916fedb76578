"""The worst group (Table 8): a class that a shortcut gives away in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dissensus.experiments.base import Cell, Study
from dissensus.experiments.comparing import SEEDS_OPTION, seeds_of
from dissensus.experiments.ldr.cells import FASHION, ldr_cell, run_cell

__all__ = ["STUDY"]

#: 4 members, no stochastic sum, the validation digits as disagreement data (Appendix A.10).
_CPU: Mapping[str, Any] = {
    **FASHION,
    "data": "colored_mnist",
    "train": 6000,
    "val": 2000,
    "test": 4000,
    "members": 4,
    "active": None,
    "model": "mlp",
    "model_options": {"hidden": [128, 128]},
    "disagreement": "val",
}

_STRENGTHS = {
    "deep-ensemble": (0.0,),
    "divdis": (0.3, 1.0, 3.0),
    "a2d": (0.1, 0.3, 1.0),
    "ldr": (0.1, 0.3, 1.0),
}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Each method at its strengths, seed after seed."""
    settings = dict(_CPU)
    if scale == "smoke":
        settings |= {"data": "colored_digits", "train": 200, "val": 100, "test": 200, "epochs": 2}
        settings["model_options"] = {"hidden": [16]}
    if scale == "paper":
        settings |= {"train": 50_000, "val": 10_000, "test": 10_000, "epochs": 20, "model": "cnn"}
        settings["model_options"] = {"dropout": 0.0}
    return [
        ldr_cell(
            f"{method}-strength={strength:g}-seed={seed}",
            settings,
            method=method,
            strength=strength,
            seed=seed,
        )
        for seed in seeds_of(options, {"smoke": 2, "cpu": 5, "paper": 5}[scale])
        for method, strengths in _STRENGTHS.items()
        for strength in (strengths[-1:] if scale == "smoke" else strengths)
    ]


STUDY = Study(
    "worst-group",
    cells,
    run_cell,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "5 s", "cpu": "10 min", "paper": "1 h on a GPU"},
)
