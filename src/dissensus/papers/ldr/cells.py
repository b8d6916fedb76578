"""One training of the ldr studies: a cell's settings in, diversity, accuracy and detection out.

Every study is made of these cells; a study changes what differs in it. The settings of each scale
are here, the paper's (Appendix A.5) as ``PAPER``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from dissensus.papers.base import Cell
from dissensus.papers.ldr.measuring import (
    Outputs,
    distances,
    dropout_passes,
    measure,
    outputs_of,
    soups,
)
from dissensus.papers.ldr.methods import train_ensemble
from dissensus.papers.ldr.settings import load_setting

__all__ = ["CPU", "FASHION", "PAPER", "SMOKE", "ldr_cell", "run_cell"]

#: Heads on frozen features, as two cores can train them.
CPU: Mapping[str, Any] = {
    "data": "features",
    "train": 8000,
    "val": 2000,
    "test": 4000,
    "method": "deep-ensemble",
    "members": 5,
    "strength": 0.0,
    "active": 2,
    "regularizer": "a2d",
    "label_smoothing": 0.0,
    "optimizer": "adamw:lr=1e-3,weight_decay=0.01",
    "schedule": "constant",
    "epochs": 8,
    "batch_size": 256,
    "footing": "updates",
    "model": "ldr_head",
    "model_options": {"expansion": 2},
    "start": "own",
    "disagreement": "cifar10",
    "planted": 0.0,
    "planted_labels": "random",
    "seed": 0,
}

#: A small convolutional network on Fashion-MNIST (or MNIST).
FASHION: Mapping[str, Any] = {
    **CPU,
    "data": "fashion_mnist",
    "train": 6000,
    "test": 2000,
    "batch_size": 128,
    "model": "cnn",
    "model_options": {"dropout": 0.0},
    "disagreement": "svhn",
}

#: A few steps on the digits of scikit-learn, to see that everything works.
SMOKE: Mapping[str, Any] = {
    **CPU,
    "data": "digits",
    "train": 300,
    "val": 100,
    "test": 200,
    "optimizer": "adamw:lr=5e-3,weight_decay=0.01",
    "epochs": 3,
    "batch_size": 64,
    "model": "mlp",
    "model_options": {"hidden": [32]},
    "disagreement": "turned",
}

#: ImageNet features of DeiT-III Base/16, made by ``dissensus features``; A.5 and the notes there.
PAPER: Mapping[str, Any] = {
    **CPU,
    "data": "imagenet",
    "train": 1_231_167,
    "val": 50_000,
    "test": 50_000,
    "model_options": {"expansion": 4},
    "disagreement": "imagenet-r",
    "footing": "epochs",
    "epochs": 10,
}


def ldr_cell(name: str, settings: Mapping[str, Any], **changes: Any) -> Cell:
    """A cell of ``settings`` with ``changes``; a setting that there is not is an error."""
    unknown = sorted(set(changes) - set(settings))
    if unknown:
        raise ValueError(f"an ldr cell has no setting {', '.join(unknown)}")
    return {"name": name, **settings, **changes}


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train the ensemble of a cell and measure it."""
    setting = load_setting(cell)
    started = time.process_time()
    ens = train_ensemble(cell, setting)
    seconds = time.process_time() - started
    outputs: Outputs = partial(outputs_of, ens)
    if cell["method"] == "dropout":
        outputs = dropout_passes(ens, cell["members"], cell["seed"])
    result = {"training_seconds": seconds, **measure(outputs, setting)}
    if cell["method"] == "distances":
        result["auroc"] = {
            name: result["auroc"][name] | found for name, found in distances(ens, setting).items()
        }
    elif cell["method"] != "dropout":
        result["soups"] = soups(ens, setting)
    return result
