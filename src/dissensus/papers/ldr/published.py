"""Published settings of LDR: the two ensembles behind the one row of Table 2, and their collusion.

The authors' published code trains one ensemble for covariate shift (λ = 5, label smoothing ½) and
another for semantic shift (λ = ½); Table 2 prints the better sets of each as one method.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from dissensus.decomposition import optimal_offsets
from dissensus.diagnostics import diagnose
from dissensus.papers.base import Cell, Study
from dissensus.papers.cells import SEEDS_OPTION, make_cell, seeds_of
from dissensus.papers.ldr.contenders import CPU, PAPER, SMOKE
from dissensus.papers.ldr.data import Split, load_data
from dissensus.papers.ldr.measurements import measure, outputs_of, soups
from dissensus.papers.ldr.methods import train_ensemble

__all__ = ["SETTINGS", "STUDY", "favourite_shares"]

_SHIFT: dict[str, Any] = {
    "label_smoothing": 0.5,
    "batch_size": 32,
    "optimizer": "adamw:lr=1e-3,weight_decay=0.1",
}
_SEMANTIC: dict[str, Any] = {
    "batch_size": 256,
    "optimizer": "adamw:lr=1e-4,weight_decay=0.01",
    "epochs": 24,  # a tenth of the rate needs more of them
}

#: What is run: both published settings with LDR, each with independent members, and the usual one.
SETTINGS: dict[str, dict[str, Any]] = {
    "ldr-shift": {"method": "ldr", "strength": 5.0, **_SHIFT},
    "ldr-semantic": {"method": "ldr", "strength": 0.5, **_SEMANTIC},
    "deep-ensemble": {},
    "deep-ensemble-shift": _SHIFT,
    "deep-ensemble-semantic": _SEMANTIC,
}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every setting, seed after seed."""
    base = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}[scale]
    plan = []
    for seed in seeds_of(options, {"smoke": 2, "cpu": 5, "paper": 3}[scale]):
        for name, changes in SETTINGS.items():
            own = {
                key: value for key, value in changes.items() if scale == "cpu" or key != "epochs"
            }
            settings = {**base, "setting": name, "seed": seed}
            plan.append(make_cell(f"{name}-seed={seed}", settings, **own))
    return plan


def run(cell: Cell) -> dict[str, Any]:
    """Train, measure as it is and without each member's constant shift, and diagnose."""
    data = load_data(cell)
    ens = train_ensemble(cell, data)
    outputs = partial(outputs_of, ens)
    seen, tested = outputs(data.train[0]), outputs(data.test[0])
    shifts = optimal_offsets(seen)[:, None]  # of the logits, on training data
    return {
        **measure(outputs, data),
        "soups": soups(ens, data),
        "favourite_shares": favourite_shares(tested),
        "without_shifts": measure(lambda x: outputs(x) - shifts, data),
        "diagnosis": {
            way: _diagnosis((seen, data.train[1]), (tested, data.test[1]), way)
            for way in ("probability", "score")
        },
    }


def favourite_shares(logits: Tensor) -> list[float]:
    """For each member the share of inputs for which it predicts its most frequent class.

    >>> import torch
    >>> favourite_shares(torch.eye(3)[torch.tensor([[0, 0, 1, 0], [0, 1, 2, 2]])])
    [0.75, 0.5]
    """
    return [float(labels.bincount().max() / len(labels)) for labels in logits.argmax(-1)]


def _diagnosis(train: Split, test: Split, way: str) -> dict[str, Any]:
    """The verdict, and the numbers that it rests on."""
    found = diagnose(train, test, combine=way).to_dict()
    return {
        "verdict": found["verdict"],
        "reasons": found["reasons"],
        "explosion": found["explosion"]["test"],
        "offsets_explain": found["debiased_share"]["test"]["score"]["share"],
        "chance": found["leftover_offset"]["train"]["chance"],
    }


STUDY = Study(
    "published",
    cells,
    run,
    options=SEEDS_OPTION,
    cost={"smoke": "10 s", "cpu": "20 min", "paper": "GPU days"},
)
