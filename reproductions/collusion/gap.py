"""Generalisation gap of joint training: Figures 5, 10, 11 and 12.

Train and test loss, both of the ensemble, over a long training without decay of the learning rate.
Nothing is chosen here, so there is no validation part, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reproductions.cells import seed_study
from reproductions.collusion import images
from reproductions.collusion.curves import (
    INDEPENDENT,
    JOINT,
    PANELS,
    curve_claim,
    last,
    plot_training,
    summary,
)
from reproductions.comparisons import data_title, group_records, groups_named
from reproductions.experiment import Experiment, Table, quantity_table
from reproductions.figures import Plot
from reproductions.study import Record

_MEMORISED = "without augmentation"


# ---- the study ----------------------------------------------------------------------------------


_LONG = {"val": 0, "optimizer": "adam:lr=1e-3", "schedule": "constant"}

#: As the paper, with augmentation.
_CPU: dict[str, Any] = {
    **images.CPU,
    **_LONG,
    "size": 16,
    "test": 2000,
    "model": "small_cnn",
    "model_options": {"width": 16},
    "optimizer": "adam:lr=2e-3",
    "augment": {"crop": 2, "flip": 0.5, "rotate": 15.0},
    "epochs": 40,
    "watch": 4,
}

#: Fewer images, no augmentation and batch norm: the training images are learnt by heart.
_CPU_MEMORISED: dict[str, Any] = {
    **_CPU,
    "train": 1500,
    "size": None,
    "model": images.CPU["model"],
    "model_options": images.CPU["model_options"],
    "augment": "none",
    "epochs": 50,
    "watch": 5,
}

_PAPER: dict[str, Any] = {**images.PAPER_SWEEP, **_LONG, "epochs": 100, "watch": 1}

_PLANS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {"digits": {**images.SMOKE, **_LONG, "watch": 1, "epochs": 4}},
    "cpu": {"cifar10": _CPU, "cifar10-memorised": _CPU_MEMORISED},
    "paper": {data: {**_PAPER, "data": data} for data in ("cifar10", "cifar100")},
}

GAP = seed_study(
    "generalization-gap",
    {scale: images.kind_variants(plan) for scale, plan in _PLANS.items()},
    images.run_image_cell,
    seeds=(2, 10, 6),
    cost=("10 s", "45 min", "GPU days"),
)


# ---- reading ------------------------------------------------------------------------------------


def _groups(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by data set; those of images that were memorised are a group of their own."""

    def name(record: Record) -> str:
        data = data_title(record["cell"]["data"])
        return f"{data} {_MEMORISED}" if "-memorised-" in record["name"] else data

    return group_records(records, name)


_as_published = groups_named(_groups, _MEMORISED, absent=True)
_memorised = groups_named(_groups, _MEMORISED)


# ---- figure and table ---------------------------------------------------------------------------


def plot(records: list[Record]) -> Plot:
    """Two rows for each data set: the gap, both losses, and both decompositions over epochs."""
    groups = _groups(records)
    named = {name.replace(" without", ",\nwithout"): group for name, group in groups.items()}
    return plot_training(named, (INDEPENDENT, JOINT))


def table(records: list[Record]) -> Table:
    """The last epoch in numbers."""
    quantities = [
        summary(
            curve,
            last,
            curve.replace("_", " ").replace("error", "ERR"),
            "{:.1%}" if curve.endswith("accuracy") else "{:.3f}",
        )
        for curve in (*(curve for curve, _, _ in PANELS), "test_accuracy")
    ]
    rows = {
        (name, kind.name): kind.of(group)
        for name, group in _groups(records).items()
        for kind in (INDEPENDENT, JOINT)
    }
    return quantity_table(["data", "training"], rows, quantities)


GENERALIZATION_GAP = Experiment(
    "collusion/generalization-gap",
    "Figures 5, 10, 11 and 12",
    "Train and test loss of joint and independent training over the course of training",
    GAP,
    (
        *(curve_claim(kind, _as_published) for kind in ("gap", "early gap", "late gap")),
        curve_claim("gap", _memorised, more=" where images are memorised", ours=True),
        *(curve_claim(kind, _as_published) for kind in ("slow", "test loss", "early diversity")),
        curve_claim("diversity first", _as_published),
        curve_claim("diversity first", _memorised, more=" where images are memorised", ours=True),
        curve_claim("members", _as_published),
    ),
    table,
    plot,
)
