"""Contenders of the ldr paper: the study that most tables read, every method on every data set.

Methods with a strength are run at several; :func:`reproductions.ldr.records.choose_runs` decides
which one counts, by validation data alone. The settings of each scale are here, the paper's
(Appendix A.5) as ``PAPER``; the other studies change what differs in them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reproductions.cells import SEEDS_OPTION, seed_cells, seeds_of
from reproductions.ldr.data import load_data
from reproductions.ldr.measurements import (
    Outputs,
    distances,
    dropout_passes,
    measure,
    outputs_of,
    soups,
)
from reproductions.ldr.methods import train_ensemble
from reproductions.study import Cell, Study

# ---- settings and runs --------------------------------------------------------------------------

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


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train the ensemble of a cell and measure it."""
    data = load_data(cell)
    started = time.process_time()
    ens = train_ensemble(cell, data)
    seconds = time.process_time() - started
    outputs: Outputs = partial(outputs_of, ens)
    if cell["method"] == "dropout":
        outputs = dropout_passes(ens, cell["members"], cell["seed"])
    result = {"training_seconds": seconds, **measure(outputs, data)}
    if cell["method"] == "distances":
        for name, aurocs in distances(ens, data).items():
            result["auroc"][name] |= aurocs
    elif cell["method"] != "dropout":
        result["soups"] = soups(ens, data)
    return result


# ---- contenders ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """A method under its title in tables, with its settings and the strengths it is run at."""

    title: str
    settings: Mapping[str, Any]
    strengths: Sequence[float] = (0.0,)


_LINEAR: dict[str, Any] = {"model": "ldr_linear_head", "model_options": {}}

#: All contenders; LDR up to the strength at which accuracy is lost (Figure 5).
CONTENDERS: dict[str, Contender] = {
    "single": Contender("1 model", {"method": "single", "members": 1}),
    "deep-ensemble": Contender("deep ensemble", {"method": "deep-ensemble"}),
    "diverse-hyperparameters": Contender(
        "diverse hyperparameters", {"method": "diverse-hyperparameters"}
    ),
    "divdis": Contender("DivDis", {"method": "divdis"}, (0.1, 1.0)),
    "a2d": Contender("A2D", {"method": "a2d"}, (0.1, 1.0)),
    "a2d-sequential": Contender("A2D, sequential", {"method": "a2d-sequential"}, (1.0,)),
    "ldr": Contender("LDR", {"method": "ldr"}, (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)),
    "ldr-all": Contender("LDR, all pairs", {"method": "ldr", "active": None}, (0.3, 1.0)),
    "ldr-divdis": Contender(
        "LDR, DivDis term", {"method": "ldr", "regularizer": "divdis"}, (0.3, 1.0, 3.0)
    ),
    "ldr-same-epochs": Contender(
        "LDR, same epochs", {"method": "ldr", "footing": "epochs"}, (0.0, 0.3)
    ),
    "two-stage": Contender("two-stage", {"method": "two-stage"}, (0.3, 1.0)),
    "ldr-3": Contender("LDR, |I| = 3", {"method": "ldr", "active": 3}, (0.3,)),
    "ldr-4": Contender("LDR, |I| = 4", {"method": "ldr", "active": 4}, (0.3,)),
    "divdis-other": Contender("DivDis, other data", {"method": "divdis"}, (1.0,)),
    "a2d-other": Contender("A2D, other data", {"method": "a2d"}, (1.0,)),
    "linear-deep-ensemble": Contender(
        "deep ensemble, linear heads", {"method": "deep-ensemble", **_LINEAR}
    ),
    "linear-ldr": Contender("LDR, linear heads", {"method": "ldr", **_LINEAR}, (0.1, 0.3, 1.0)),
    "dropout": Contender("dropout passes", {"method": "dropout"}),
    "snapshots": Contender("snapshots", {"method": "snapshots"}),
    "distances": Contender("1 model, distances", {"method": "distances"}),
}

#: Strengths on images, where a training costs more, and on features of a small backbone.
_ON_IMAGES: dict[str, Sequence[float]] = {
    "single": (0.0,),
    "deep-ensemble": (0.0,),
    "diverse-hyperparameters": (0.0,),
    "a2d": (1.0,),
    "ldr": (0.0, 0.1, 0.3, 1.0),
    "ldr-divdis": (0.1, 1.0),
    "dropout": (0.0,),
    "snapshots": (0.0,),
    "distances": (0.0,),
}
_ON_MNIST: dict[str, Sequence[float]] = {"deep-ensemble": (0.0,), "a2d": (1.0,), "ldr": (0.1, 0.3)}
_ON_BACKBONE: dict[str, Sequence[float]] = {
    "linear-deep-ensemble": (0.0,),
    "linear-ldr": (0.0, 0.1, 0.3, 1.0),
}

#: The disagreement set that is not the usual one (Table 9).
_OTHER = {"features": "svhn", "digits": "negative", "imagenet": "imagenet-a"}


def contender_title(name: str) -> str:
    """``"deep ensemble"`` for ``"deep-ensemble"``."""
    return CONTENDERS[name].title


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every contender at every strength, on features first; each seed of a data set in turn."""
    everything = {name: contender.strengths for name, contender in CONTENDERS.items()}
    if scale == "smoke":
        last = {name: strengths[-1:] for name, strengths in everything.items()}
        return _cells(SMOKE, last, seeds_of(options, 2))
    if scale == "paper":
        return _cells(PAPER, everything, seeds_of(options, 3))
    seeds = seeds_of(options, 10)
    return [
        *_cells(CPU, everything, seeds),
        *_cells({**FASHION, "data": "fashion_features"}, _ON_BACKBONE, seeds),
        *_cells(FASHION, _ON_IMAGES, seeds),
        *_cells({**FASHION, "data": "mnist"}, _ON_MNIST, seeds),
    ]


def _cells(
    settings: Mapping[str, Any], contenders: Mapping[str, Sequence[float]], seeds: Iterable[int]
) -> list[Cell]:
    variants = {
        f"{settings['data']}-{name}-strength={strength:g}": {
            **settings,
            **_changes(name, settings),
            "strength": strength,
        }
        for name, strengths in contenders.items()
        for strength in strengths
    }
    return seed_cells(variants, seeds)


def _changes(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a contender that differ from those of its data set."""
    changes = dict(CONTENDERS[name].settings)
    if name == "dropout":
        changes["model_options"] = {**settings["model_options"], "dropout": 0.1}
    if name.endswith("-other"):
        changes["disagreement"] = _OTHER[settings["data"]]
    if name.startswith("linear-") and settings["data"] == "digits":
        changes |= {"model": "linear", "model_options": {}}
    return changes


STUDY = Study(
    "contenders",
    cells,
    run_cell,
    options=SEEDS_OPTION,
    cost={"smoke": "15 s", "cpu": "2 h", "paper": "GPU days"},
)
