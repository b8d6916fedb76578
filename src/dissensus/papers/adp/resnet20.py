"""ResNet-20 on all of CIFAR-10, as the adp authors train it, and attacked along the way.

One seed at scale ``cpu``: a finding about these networks, not about training. The schedule is the
paper's, 180 epochs with decays after 120 and 160, in proportion. A training that was interrupted
goes on from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.files import read_json, read_safetensors, write_safetensors, write_text
from dissensus.papers.adp import ensembles, measurements, regime
from dissensus.papers.adp.settings import RESNET20
from dissensus.papers.base import Cell, Experiment, Study
from dissensus.papers.cells import ImageData, count_option, load_images, make_cell, seeds_of
from dissensus.training import History

__all__ = ["RESNET20_RUNS", "STUDY", "cells", "run"]

#: The contenders of each scale; the pair comes first.
_CONTENDERS = {
    "smoke": ("plain", "adp"),
    "cpu": ("plain", "adp", "smoothed", "adp-entropy"),
    "paper": ("plain", "adp"),
}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every contender for each seed, the pair of all seeds first."""
    settings = dict(RESNET20[scale])
    epochs = count_option(options, "epochs", settings["epochs"])
    changes = {"epochs": epochs, "schedule": schedule(epochs)}
    return [
        make_cell(f"{contender}-seed={seed}", settings, contender=contender, seed=seed, **changes)
        for pair in (True, False)
        for seed in seeds_of(options, 1)
        for contender in _CONTENDERS[scale]
        if (contender in ensembles.PAIR) == pair
    ]


def schedule(epochs: int) -> str:
    """The paper's decays after 120 and 160 of 180 epochs, in proportion.

    >>> schedule(180), schedule(9)
    ('multistep:at=120/160,factor=0.1', 'multistep:at=6/8,factor=0.1')
    """
    return f"multistep:at={epochs * 2 / 3:g}/{epochs * 8 / 9:g},factor=0.1"


def run(cell: Cell) -> dict[str, Any]:
    """Train the ensemble of ``cell``, attack it along the way, and measure it at the end."""
    data, folder = load_images(cell), regime.work_folder(cell)

    def keep(record: dict[str, Any], ens: Ensemble) -> None:
        if record["epoch"] % cell["every"] == 0:
            write_safetensors(_weights(folder, record["epoch"]), ens.state_dict(), {})

    ens, history = ensembles.train(cell, data, folder, (keep,))
    end = {name: tensor.clone() for name, tensor in ens.state_dict().items()}
    result = {"epochs": _curves(history), "along": _attack_along(ens, cell, data, folder)}
    ens.load_state_dict(end)
    return result | ensembles.measure(ens, cell, data)


def _weights(folder: Path, epoch: int) -> Path:
    return folder / "along" / f"epoch-{epoch:03d}.safetensors"


def _curves(history: History) -> dict[str, list[float]]:
    """What each epoch left: errors and losses, as ``fit`` has them."""
    names = ("train/accuracy", "val/accuracy", "val/member_error", "val/ensemble_error")
    return {name: history.column(name) for name in names}


def _attack_along(ens: Ensemble, cell: Cell, data: ImageData, folder: Path) -> list[dict[str, Any]]:
    """Clean error and accuracy under attack of every checkpoint, each kept once it is measured."""
    images = ensembles.test_images(cell, data)
    return [
        _attack_checkpoint(ens, cell, images, _weights(folder, epoch), epoch)
        for epoch in range(cell["every"], cell["epochs"] + 1, cell["every"])
    ]


def _attack_checkpoint(
    ens: Ensemble, cell: Cell, images: tuple[Tensor, Tensor], path: Path, epoch: int
) -> dict[str, Any]:
    kept = path.with_suffix(".json")
    if not kept.exists():
        ens.load_state_dict(read_safetensors(path)[0])
        few = tuple(part[: cell["along_images"]] for part in images)
        entry = {
            "epoch": epoch,
            "clean": measurements.errors(ens, images),
            "attacks": measurements.attack_each(ens, few[0], few[1], cell["along"]),
        }
        write_text(kept, _json(entry))
    return dict(read_json(kept))


def _json(value: Any) -> str:
    import json

    return json.dumps(value, allow_nan=False)


STUDY = Study(
    "resnet20",
    cells,
    run,
    options={
        "seeds": "how many runs of each setting, each with its own seed and data split",
        "epochs": "epochs of training; the decays are placed in proportion",
    },
    cost={"smoke": "20 s", "cpu": "2 h per ensemble", "paper": "GPU days"},
)

RESNET20_RUNS = Experiment(
    "resnet20",
    "adp",
    "Tables 1 and 3, Figures 3 to 5",
    "ResNet-20 on all of CIFAR-10, attacked along the way",
    STUDY,
    (),
)
