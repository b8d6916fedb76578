"""The study that most tables read: every method, on every data set, over seeds.

Methods with a strength are run at several; which one counts is decided when records are read, by
validation data alone (:func:`chosen`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dissensus.papers.base import Cell, Study
from dissensus.papers.cells import SEEDS_OPTION, seeds_of
from dissensus.papers.ldr.cells import CPU, FASHION, PAPER, SMOKE, ldr_cell, run_cell

__all__ = ["CONTENDERS", "METHOD_NAMES", "SETTING", "STUDY"]

#: The strengths of LDR that are run, up to where accuracy is lost (Figure 5).
_LDR = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
_FEW = (0.1, 1.0)

_LINEAR: dict[str, Any] = {"model": "ldr_linear_head", "model_options": {}}

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
    "ldr-divdis": ({"method": "ldr", "regularizer": "divdis"}, (0.3, 1.0, 3.0)),
    "ldr-same-epochs": ({"method": "ldr", "footing": "epochs"}, (0.0, 0.3)),
    "two-stage": ({"method": "two-stage"}, (0.3, 1.0)),
    "ldr-3": ({"method": "ldr", "active": 3}, (0.3,)),
    "ldr-4": ({"method": "ldr", "active": 4}, (0.3,)),
    "divdis-other": ({"method": "divdis"}, (1.0,)),
    "a2d-other": ({"method": "a2d"}, (1.0,)),
    "linear-deep-ensemble": ({"method": "deep-ensemble", **_LINEAR}, (0.0,)),
    "linear-ldr": ({"method": "ldr", **_LINEAR}, (0.1, 0.3, 1.0)),
    "dropout": ({"method": "dropout"}, (0.0,)),
    "snapshots": ({"method": "snapshots"}, (0.0,)),
    "distances": ({"method": "distances"}, (0.0,)),
}

#: What a table calls them.
METHOD_NAMES = {
    "single": "1 model",
    "deep-ensemble": "deep ensemble",
    "diverse-hyperparameters": "diverse hyperparameters",
    "divdis": "DivDis",
    "a2d": "A2D",
    "a2d-sequential": "A2D, sequential",
    "ldr": "LDR",
    "ldr-all": "LDR, all pairs",
    "ldr-divdis": "LDR, DivDis term",
    "ldr-same-epochs": "LDR, same epochs",
    "two-stage": "two-stage",
    "ldr-3": "LDR, |I| = 3",
    "ldr-4": "LDR, |I| = 4",
    "divdis-other": "DivDis, other data",
    "a2d-other": "A2D, other data",
    "linear-deep-ensemble": "deep ensemble, linear heads",
    "linear-ldr": "LDR, linear heads",
    "dropout": "dropout passes",
    "snapshots": "snapshots",
    "distances": "1 model, distances",
}

#: Those that are run on images, where a training costs more, and on features of a small backbone.
_ON_IMAGES: dict[str, Sequence[float]] = {
    "single": (0.0,),
    "deep-ensemble": (0.0,),
    "diverse-hyperparameters": (0.0,),
    "a2d": (1.0,),
    "ldr": (0.0, 0.1, 0.3, 1.0),
    "ldr-divdis": (0.1, 1.0),
}
_ON_MNIST: dict[str, Sequence[float]] = {
    "deep-ensemble": (0.0,),
    "a2d": (1.0,),
    "ldr": (0.1, 0.3),
}
_BASELINES: dict[str, Sequence[float]] = {
    "dropout": (0.0,),
    "snapshots": (0.0,),
    "distances": (0.0,),
}
_ON_BACKBONE: dict[str, Sequence[float]] = {
    "linear-deep-ensemble": (0.0,),
    "linear-ldr": (0.0, 0.1, 0.3, 1.0),
}

#: The disagreement set that is not the usual one (Table 9).
_OTHER = {"features": "svhn", "digits": "negative", "imagenet": "imagenet-a"}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every contender at every strength, data set after data set, seed after seed."""
    everything = {name: strengths for name, (_, strengths) in CONTENDERS.items()}
    if scale == "smoke":
        last = {name: strengths[-1:] for name, strengths in everything.items()}
        return _cells(SMOKE, last, seeds_of(options, 2))
    if scale == "paper":
        return _cells(PAPER, everything, seeds_of(options, 3))
    few = seeds_of(options, 3)
    return [
        *_cells(CPU, everything, seeds_of(options, 4)),
        *_cells(FASHION, _ON_IMAGES | _BASELINES, few),
        *_cells({**FASHION, "data": "fashion_features"}, _ON_BACKBONE, few),
        *_cells({**FASHION, "data": "mnist"}, _ON_MNIST, few),
    ]


def _cells(
    settings: Mapping[str, Any], contenders: Mapping[str, Sequence[float]], seeds: Iterable[int]
) -> list[Cell]:
    return [
        ldr_cell(
            f"{settings['data']}-{name}-strength={strength:g}-seed={seed}",
            settings,
            **_changes(name, settings),
            strength=strength,
            seed=seed,
        )
        for seed in seeds
        for name, strengths in contenders.items()
        for strength in strengths
    ]


def _changes(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What sets a contender apart from the settings of its data set."""
    changes = dict(CONTENDERS[name][0])
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
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "15 s", "cpu": "30 min", "paper": "GPU days"},
)

#: What is run, for the experiments that read this study.
SETTING = {
    "smoke": "300 digits of scikit-learn, an MLP, 3 epochs, 2 seeds: no claim can show.",
    "cpu": (
        "(a) Heads on EfficientNet-lite0 features of 8,000 Tiny ImageNet images (256 dimensions, "
        "200 classes): norm, MLP 256→512→256 with residual and layer scale, norm, linear; AdamW "
        "1e-3, decay 0.01, batch 256, 8 epochs, 4 seeds; unknown: the test images corrupted "
        "mildly and strongly (severity 1 and 5), SVHN, CIFAR-10. (b) Fashion-MNIST and MNIST, "
        "6,000 images, the CNN of collusion without dropout, batch 128, 8 epochs, 3 seeds; "
        "unknown: corruptions 1 and 5, KMNIST, the other of the two. (c) Linear heads on frozen "
        "features of such a CNN. Five members; every member gets the same number of updates, so "
        "that LDR, which trains two of five in a batch, runs 2.5 times the epochs at two fifths "
        "of the cost (“same epochs” does not). A2D and DivDis disagree on CIFAR-10 features (SVHN "
        "images in (b)) that are not tested on. λ is chosen per seed on validation data: among "
        "strengths within one point of the best accuracy, the one whose PDS best tells validation "
        "inputs from averages of two of them. ImageNet and DeiT-III cannot be had here."
    ),
    "paper": (
        "ImageNet features of DeiT-III Base/16, heads 768→3072→768→1000, 10 epochs; unknown: "
        "ImageNet-C 1 and 5, iNaturalist, OpenImages-O; 3 seeds."
    ),
}
