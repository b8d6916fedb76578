"""The inputs on which an LDR ensemble is most and least divided (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dissensus.experiments.base import Cell, Study
from dissensus.experiments.ldr.cells import FASHION, SMOKE, ldr_cell
from dissensus.experiments.ldr.measuring import outputs_of
from dissensus.experiments.ldr.methods import train_ensemble
from dissensus.experiments.ldr.settings import load_setting
from dissensus.scores import pds_sum

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CLASSES", "STUDY"]

#: Fashion-MNIST's classes, in the order of its labels.
CLASSES = (
    "T-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "trainer",
    "bag",
    "boot",
)
_SHOWN = 5


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """One ensemble."""
    settings = SMOKE if scale == "smoke" else FASHION
    return [ldr_cell("ldr", settings, method="ldr", strength=0.3)]


def run(cell: Cell) -> dict[str, Any]:
    """Train and keep the pictures of the five highest and the five lowest PDS."""
    setting = load_setting(cell)
    ens = train_ensemble(cell, setting)
    x, y = setting.test
    logits = outputs_of(ens, x)
    scores = pds_sum(logits)
    order = scores.argsort(descending=True, stable=True)
    picked = {"most": order[:_SHOWN], "least": order[-_SHOWN:].flip(0)}
    wrong = logits.softmax(-1).mean(0).argmax(-1) != y
    tenth = max(1, len(order) // 10)
    return {
        **{
            name: [_example(x, y, logits, scores, int(row)) for row in rows]
            for name, rows in picked.items()
        },
        "wrong_most": float(wrong[order[:tenth]].double().mean()),
        "wrong_least": float(wrong[order[-tenth:]].double().mean()),
    }


def _example(x: Tensor, y: Tensor, logits: Tensor, scores: Tensor, row: int) -> dict[str, Any]:
    return {
        "pixels": (x[row, 0] * 255).round().to(torch.uint8).tolist(),
        "label": int(y[row]),
        "prediction": int(logits[:, row].softmax(-1).mean(0).argmax()),
        "members": logits[:, row].argmax(-1).tolist(),
        "pds_sum": float(scores[row]),
    }


STUDY = Study("examples", cells, run, jobs=1, cost={"smoke": "2 s", "cpu": "30 s"})
