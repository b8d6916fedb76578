"""Runs on all of CIFAR-10: a small network over β, and ResNet-20 beside the baseline of adp.

The small network goes through β in two seeds. ResNet-20 has one seed, and is trained as in
``adp/resnet20``: the baseline of that study is the same training as β = 0 here, and whichever of
both comes first does it for both. A training that was interrupted goes on from its last checkpoint.
Curves come from the weights that are kept along the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import Augmented, Independent, Objective
from dissensus.training import fit, predict
from reproductions import regime
from reproductions.cells import (
    ImageData,
    augmentation,
    count_option,
    load_images,
    seed_cells,
    seeds_of,
)
from reproductions.collusion.images import NETWORKS, beta_variants, columns, measure
from reproductions.comparisons import group_records
from reproductions.study import Cell, Record, Study

_RESNET20 = "resnet20"
#: The ends of the sweep come first, so that a partial record has both.
BETAS = (0.0, 1.0, 0.5, 0.9)
#: Images are measured as a whole and in so many blocks: a hundred numbers tell as much about the
#: error of a mean as ten thousand, and fit into a record.
_BLOCKS = 100


# ---- the study ----------------------------------------------------------------------------------


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The small network over β, ResNet-20 with β = 0 last, then further seeds of the former."""
    own = {
        "beta": 0.0,
        "combine": "probability",
        "averages": ["probability"],
        "train_images": 100 if scale == "smoke" else 5000,
    }
    large = {**_training(scale, options, "resnet20_epochs"), **own}
    small = {
        **_training(scale, options, "epochs", 10 if scale == "cpu" else None),
        **own,
        "model": f"{NETWORKS}:small_resnet",
        "model_options": {"width": 4 if scale == "smoke" else 24, "stages": [1, 1, 1], "stem": 2},
        "every": 20 if scale == "paper" else 1,
    }
    averages = ("probability", "score")
    networks = {
        f"{_RESNET20}-joint-{one}": {**large, "beta": 1.0, "combine": one, "averages": [one]}
        for one in averages
    }
    networks[f"{_RESNET20}-independent"] = {**large, "averages": list(averages)}
    first, *further = seeds_of(options, 6 if scale == "paper" else 2)
    variants = beta_variants({"small": (small, BETAS)})
    return [
        *seed_cells(variants, [first]),
        *seed_cells(networks, [0]),
        *seed_cells(variants, further),
    ]


def _training(
    scale: str, options: Mapping[str, Any], option: str, epochs: int | None = None
) -> dict[str, Any]:
    """The regime of the scale, for as many epochs as an option asks for."""
    settings = regime.RESNET20[scale]
    wanted = count_option(options, option, epochs or settings["epochs"])
    return {**settings, **regime.epochs_of(settings, {"epochs": wanted})}


def run(cell: Cell) -> dict[str, Any]:
    """Train one ensemble and measure it at every checkpoint, with each average that is asked for.

    The last epoch is the one that counts: nothing is chosen on test data.
    """
    data, folder = load_images(cell), work_folder(cell)
    ens = regime.new_ensemble(cell, data, combine=cell["combine"])
    fit(
        ens,
        data.train,
        objective_of(cell),
        val=data.val,
        augment=augmentation(cell),
        callbacks=[regime.keep_checkpoints(folder, cell["every"])],
        out=folder,
        resume=folder.exists(),
        progress=False,
        recipe=regime.recipe(cell),
    )
    points = [_measure_epoch(ens, cell, data, cell["epochs"])]
    for epoch in reversed(range(cell["every"], cell["epochs"], cell["every"])):
        regime.load_checkpoint(ens, regime.checkpoint_path(folder, epoch))
        points.insert(0, _measure_epoch(ens, cell, data, epoch))
    return {
        "parameters": sum(p.numel() for p in ens.member(0).parameters()),
        "averages": {
            average: {
                "train": points[-1][average]["train"],
                "test": points[-1][average]["test"],
                "watched": columns([point[average] for point in points]),
            }
            for average in cell["averages"]
        },
    }


def work_folder(cell: Cell) -> Path:
    """The folder of the training; for ResNet-20 at β = 0 that of adp's baseline."""
    if cell["model"] == _RESNET20 and cell["beta"] == 0:
        return regime.work_folder(cell, "adp", regime.BASELINE.format(seed=cell["seed"]))
    return regime.work_folder(cell, "collusion")


def objective_of(cell: Cell) -> Objective:
    """``L^β`` (Eq. 2); at β = 0 under the name by which other studies train the same."""
    return Augmented(cell["beta"], combine=cell["combine"]) if cell["beta"] else Independent()


def _measure_epoch(ens: Ensemble, cell: Cell, data: ImageData, epoch: int) -> dict[str, Any]:
    """Some training images, without augmentation, and the test images, for each average."""
    seen = tuple(part[: cell["train_images"]] for part in data.train)
    parts = {"train": predict(ens, seen), "test": predict(ens, data.test)}
    measured: dict[str, Any] = {}
    for average in cell["averages"]:
        measured[average] = {"epoch": epoch}
        for name, predictions in parts.items():
            assert predictions.targets is not None  # every part is labelled
            measured[average][name] = _measure_part(
                predictions.outputs, predictions.targets, average
            )
    return measured


def _measure_part(logits: Tensor, targets: Tensor, average: str) -> dict[str, Any]:
    """The quantities of all images, and some of them of each block, for intervals over images."""
    blocks = [
        measure(outputs, labels, average)
        for outputs, labels in zip(
            logits.chunk(_BLOCKS, dim=1), targets.chunk(_BLOCKS), strict=True
        )
    ]
    kept = {key: [block[key] for block in blocks] for key in ("accuracy", "error", "member_error")}
    own = [float(np.mean(block["member_accuracies"])) for block in blocks]
    return {**measure(logits, targets, average), "blocks": {**kept, "member_accuracy": own}}


STUDY = Study(
    "cifar10",
    cells,
    run,
    options={
        "seeds": "how many runs of the small network at each β, each with its own seed and split",
        "epochs": "epochs of the small network; the schedule is stretched in proportion",
        "resnet20_epochs": "epochs of ResNet-20, those of adp/resnet20 if both are to share β = 0",
    },
    cost={
        "smoke": "30 s",
        "cpu": "6 h",
        "paper": "GPU days",
    },
)


# ---- reading ------------------------------------------------------------------------------------


def by_average(records: Sequence[Record]) -> list[Record]:
    """Each record once for each average that it was measured with, as a record of that average."""
    return [
        {
            **record,
            "cell": {**record["cell"], "combine": average},
            "result": {**record["result"], **measured},
        }
        for record in records
        for average, measured in record["result"]["averages"].items()
    ]


def by_network(records: Sequence[Record]) -> dict[str, list[Record]]:

    def name(record: Record) -> str:
        network = "ResNet-20" if record["cell"]["model"] == _RESNET20 else "small ResNet"
        return network + (", averaged scores" if record["cell"]["combine"] == "score" else "")

    return group_records(by_average(records), name)
