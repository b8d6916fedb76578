"""All of MNIST with three scalings of the input: baseline, ADP and label smoothing; raw digits too.

On small subsets the scaling of the input alone moved the baseline's accuracy under PGD by tens of
points and turned the sign of ADP's gain. These networks come near the published accuracy, so that
they can say which scaling the paper's claim needs (:mod:`reproductions.adp.scalings`). Attacks
live in [0, 1]; the scaling is a fixed first layer of each member.

Whether members' losses are added up or averaged needs no run: see
:mod:`reproductions.regime`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproductions import regime
from reproductions.adp.ensembles import PAIR, run
from reproductions.adp.settings import (
    AUTHORS,
    CPU_DIGITS,
    DATA_SETTINGS,
    FEW_STEPS,
    MNIST_WEAK,
    SMOKE,
    standard,
)
from reproductions.cells import make_cell, seeds_of
from reproductions.old.base import Cell, Study

_MNIST: Mapping[str, Any] = {
    **AUTHORS,
    "data": "mnist",
    "scaling": "raw",
    "model": "reproductions.networks:small_vgg",
    "model_options": {"width": 16},
    "optimizer": "adam:lr=2e-3",
    "schedule": "cosine:warmup=1",
    "epochs": 5,
    "augment": "none",
    "attacks": MNIST_WEAK,
    "standard": standard((0.1,), 200),
}
#: As in the study of the other ensembles, but for the scaling: nothing decays.
_DIGITS: Mapping[str, Any] = {
    **CPU_DIGITS,
    "scaling": "raw",
    "kernel_decay": 0.0,
    "attacks": MNIST_WEAK,
    "images": 400,
    "standard": standard((0.1,), 100),
}
_SMOKE: Mapping[str, Any] = {
    **SMOKE,
    "scaling": "raw",
    "kernel_decay": AUTHORS["kernel_decay"],
    "attacks": MNIST_WEAK,
    "images": 20,
    "standard": standard((0.1,), 10, **FEW_STEPS),
}
_PAPER: Mapping[str, Any] = {
    **DATA_SETTINGS["paper"]["mnist"],
    **{key: AUTHORS[key] for key in ("curve", "transfer", "detection", "features")},
    "data": "mnist",
    "scaling": "raw",
}

#: Images of digits at each scale, of MNIST where it is not for tests.
SETTINGS = {"smoke": _SMOKE, "cpu": _MNIST, "paper": _PAPER}

#: The data of each scale: settings, scalings and the first seed. Earlier runs on digits had seeds
#: from 0 on; these are fresh.
_DATA: dict[str, tuple[tuple[Mapping[str, Any], tuple[str, ...], int], ...]] = {
    scale: ((settings, tuple(regime.SCALINGS), 0),) for scale, settings in SETTINGS.items()
}
_DATA["cpu"] += ((_DIGITS, ("raw",), 10),)


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The pair with every scaling, seed by seed, then label smoothing: partial records compare."""
    return [
        make_cell(
            f"{settings['data']}-{scaling}-{contender}-seed={first + number}",
            settings,
            scaling=scaling,
            contender=contender,
            seed=first + number,
            **regime.epochs_of(settings, options),
        )
        for settings, scalings, first in _DATA[scale]
        for contenders in (PAIR, ("smoothed",))
        for number in seeds_of(options, {"smoke": 2, "cpu": 5, "paper": 5}[scale])
        for scaling in scalings
        for contender in contenders
    ]


STUDY = Study(
    "mnist",
    cells,
    run,
    options=regime.OPTIONS,
    cost={"smoke": "20 s", "cpu": "30 min per ensemble", "paper": "GPU days"},
)
