"""JSMA, C&W and EAD of Table 2, on networks that come near the published accuracy.

They look for small changes in L0, L2 and L1, take a thousand steps, and are judged here as the
paper judges them: by the images that stay right at a fixed strength. ``l2`` says how far the others
were moved. Networks are those of ``adp/mnist`` in the authors' scaling, and the pair of
``adp/resnet20``: a training that one study has made serves the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reproductions import regime
from reproductions.adp import ensembles, measurements, mnist
from reproductions.adp.accuracy import (
    FAMILIES,
    SMALL_CHANGES,
    accuracy_claim,
    accuracy_table,
    on,
    under,
)
from reproductions.adp.ensembles import ADP_RUNS, BASELINE, PAIR, runs_of
from reproductions.adp.published import published_changes
from reproductions.adp.settings import PAPER, slow_attacks
from reproductions.cells import load_images, seed_cells, seeds_of
from reproductions.comparisons import data_title
from reproductions.experiment import Experiment
from reproductions.statistics import over_images, over_runs
from reproductions.study import Cell, Study

#: The names of the cells that are trained alike in the studies of MNIST and of ResNet-20.
_ALIKE = {"mnist": "mnist-mean-{contender}-seed={seed}", "cifar10": "{contender}-seed={seed}"}
#: The paper's JSMA stays on a pixel that is at its bound; this one does not, and goes both ways.
_UNSTUCK = "jsma:theta=0.2,gamma=0.3,direction=both"
_NOTHING = {key: PAPER[key] for key in ("attacks", "standard")}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The pair of all seeds on MNIST, then on CIFAR-10 (one seed), then label smoothing."""
    smoke, cpu = scale == "smoke", scale == "cpu"
    digits = {**mnist.SETTINGS[scale], **_NOTHING, "scaling": "mean", "contender": "plain"}
    digits["slow_attacks"] = [*slow_attacks("mnist"), _UNSTUCK]
    digits["slow_images"] = 5 if smoke else 100 if cpu else 1000
    seeds = seeds_of(options, {"smoke": 2, "cpu": 5, "paper": 5}[scale])
    name = digits["data"]
    plan = seed_cells({f"{name}-{one}": {**digits, "contender": one} for one in PAIR}, seeds)
    if not smoke:
        large = {**PAPER, **regime.RESNET20[scale], "slow_attacks": slow_attacks("cifar10")}
        large["slow_images"] = digits["slow_images"]
        plan += seed_cells({f"cifar10-{one}": {**large, "contender": one} for one in PAIR}, [0])
    return plan + seed_cells({f"{name}-smoothed": {**digits, "contender": "smoothed"}}, seeds)


def run(cell: Cell) -> dict[str, Any]:
    """Train the ensemble of ``cell``, or take it from its folder, and attack it.

    What an attack has left is kept once it is made, so that a kill costs one attack.
    """
    data, folder = load_images(cell), work_folder(cell)
    kept = [regime.keep_checkpoints(folder, cell["every"])] if "every" in cell else []
    ens, _ = ensembles.train(cell, data, folder, kept)
    x, y = ensembles.test_images(cell, data)
    few = slice(cell["slow_images"])
    slow: dict[str, Any] = {}
    for number, spec in enumerate(cell["slow_attacks"]):
        attack = partial(measurements.attack_each, ens, x[few], y[few], [spec])
        slow |= regime.cached(folder / "slow" / f"{number}.json", cell, attack)
    return {"clean": measurements.errors(ens, (x, y)), "slow": slow}


def work_folder(cell: Cell) -> Path:
    """The folder of the training: that of the study which trains the same network."""
    same = _ALIKE.get(cell["data"], "{name}").format(**cell)
    return regime.work_folder(cell, "adp", same)


STUDY = Study(
    "distortion",
    cells,
    run,
    options=regime.OPTIONS,
    cost={"smoke": "20 s", "cpu": "30 min per ensemble on MNIST", "paper": "GPU days"},
)


# ---- claims -------------------------------------------------------------------------------------

DISTORTION = Experiment(
    "adp/distortion",
    "Table 2, JSMA, C&W and EAD",
    "Accuracy under attacks that look for small changes",
    STUDY,
    (
        *(
            accuracy_claim(
                f"{data_title(data)}: ADP is more accurate than the baseline, {FAMILIES[name]}",
                (ADP_RUNS, BASELINE),
                under(name, part="slow"),
                on(data),
                where="Section 4.3, Table 2",
                changes=published_changes((name,), data=data),
                interval=over_runs if data == "mnist" else over_images,
            )
            for data in ("mnist", "cifar10")
            for name in SMALL_CHANGES
        ),
        *(
            accuracy_claim(
                f"MNIST: ADP is more accurate than label smoothing, {FAMILIES[name]}",
                (ADP_RUNS, runs_of("smoothed")),
                under(name, part="slow"),
                on("mnist"),
            )
            for name in SMALL_CHANGES
        ),
    ),
    accuracy_table,
)
