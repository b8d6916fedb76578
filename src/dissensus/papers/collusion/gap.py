"""Generalisation gap of joint training: Figures 5, 10, 11 and 12.

Train and test loss, both of the ensemble, over a long training without decay of the learning rate.
Nothing is chosen here, so there is no validation part, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.papers.base import Cell, Claim, Experiment, Record, Study, Table
from dissensus.papers.cells import SEEDS_OPTION, seeds_of
from dissensus.papers.collusion.images import (
    CPU,
    KINDS,
    PAPER_SWEEP,
    SMOKE,
    kind_cells,
    run_image_cell,
    smoke_setting,
)
from dissensus.papers.comparisons import (
    Groups,
    Larger,
    Quantity,
    Runs,
    curve_series,
    data_title,
    group_records,
    quantity_table,
)
from dissensus.plots import AnyPanel, Panel, Plot, Text

__all__ = ["GAP", "GENERALIZATION_GAP"]

_MEMORISED = "without augmentation"
_INDEPENDENT, _JOINT = KINDS.values()


# ---- the study ----------------------------------------------------------------------------------


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Independent and joint training for each data set and seed."""
    shared = {"val": 0, "optimizer": "adam:lr=1e-3", "schedule": "constant"}
    cpu = {**CPU, **shared, **_CPU_CHANGES}
    plans: dict[str, dict[str, dict[str, Any]]] = {
        "smoke": {"digits": {**SMOKE, **shared, "watch": 1, "epochs": 4}},
        "cpu": {"cifar10": cpu, "cifar10-memorised": {**cpu, **_MEMORISED_CHANGES}},
        "paper": {
            data: {**PAPER_SWEEP, **shared, "data": data, "epochs": 100, "watch": 1}
            for data in ("cifar10", "cifar100")
        },
    }
    seeds = seeds_of(options, {"smoke": 2, "cpu": 4, "paper": 6}[scale])
    return kind_cells(plans[scale], seeds)


#: As the paper, with augmentation.
_CPU_CHANGES: dict[str, Any] = {
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
_MEMORISED_CHANGES: dict[str, Any] = {
    "train": 1500,
    "size": None,
    "model": CPU["model"],
    "model_options": CPU["model_options"],
    "augment": "none",
    "epochs": 50,
    "watch": 5,
}

GAP = Study(
    "generalization-gap",
    cells,
    run_image_cell,
    options=SEEDS_OPTION,
    cost={"smoke": "10 s", "cpu": "15 min", "paper": "GPU days"},
)


# ---- reading ------------------------------------------------------------------------------------

Curve = NDArray[np.float64]


def _groups(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by data set; those of images that were memorised are a group of their own."""

    def name(record: Record) -> str:
        data = data_title(record["cell"]["data"])
        return f"{data} {_MEMORISED}" if "-memorised-" in record["name"] else data

    return group_records(records, name)


def _as_published(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {name: runs for name, runs in _groups(records).items() if _MEMORISED not in name}


def _memorised(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {name: runs for name, runs in _groups(records).items() if _MEMORISED in name}


def _curve(record: Record, name: str) -> Curve:
    """A quantity over the watched epochs; the gap and diversities follow from the errors."""

    def watched(key: str) -> Curve:
        return np.asarray(record["result"]["watched"][key], dtype=np.float64)

    if name == "gap":
        return watched("test_error") - watched("train_error")
    part, _, rest = name.partition("_")
    if rest == "diversity":
        return watched(f"{part}_member_error") - watched(f"{part}_error")
    return watched(name)


def _last(curve: Curve) -> float:
    return float(curve[-1])


def _mean(curve: Curve) -> float:
    return float(np.mean(curve))


def _first_third(curve: Curve) -> float:
    return float(np.mean(curve[: max(1, len(curve) // 3)]))


def _second_half(curve: Curve) -> float:
    return float(np.mean(curve[len(curve) // 2 :]))


def _summary(
    curve: str, summary: Callable[[Curve], float], name: str, form: str = "{:.3f}"
) -> Quantity:
    return Quantity(name, lambda record: summary(_curve(record, curve)), form)


def _joint_larger(
    curve: str, summary: Callable[[Curve], float], name: str, groups: Groups = _as_published
) -> Larger:
    """A check that joint training has the larger ``summary`` of a curve on all data."""
    return Larger(_summary(curve, summary, name), _JOINT, _INDEPENDENT, groups)


def _epoch_of(curve: str, extreme: Callable[[Curve], Any]) -> Quantity:
    """The epoch at which a curve is largest or smallest."""

    def read(record: Record) -> float:
        return float(record["result"]["watched"]["epoch"][int(extreme(_curve(record, curve)))])

    return Quantity("epoch under joint training", read, "{:.1f}")


def _diversity_first(groups: Groups) -> Larger:
    """A check that joint training's DIV is largest before its mean ERR is least, in training."""
    return Larger(
        _epoch_of("train_member_error", np.argmin),
        Runs("of least mean ERR", _JOINT.settings),
        Runs("of largest DIV", _JOINT.settings),
        groups,
        against=_epoch_of("train_diversity", np.argmax),
    )


# ---- figure and table ---------------------------------------------------------------------------

_PANELS = (
    ("gap", "ERR test − ERR train", "Generalisation gap (Fig. 5)"),
    ("train_error", "ERR", "Training loss (Fig. 10)"),
    ("test_error", "ERR", "Test loss (Fig. 10)"),
    ("train_member_error", "mean ERR", "Training: individual error (Fig. 11)"),
    ("train_diversity", "DIV", "Training: diversity (Fig. 11)"),
    ("test_member_error", "mean ERR", "Test: individual error (Fig. 12)"),
    ("test_diversity", "DIV", "Test: diversity (Fig. 12)"),
)


def plot(records: list[Record]) -> Plot:
    """Two rows for each data set: the gap, both losses, and both decompositions over epochs."""
    panels: list[AnyPanel] = []
    for name, group in _groups(records).items():
        epochs = group[0]["result"]["watched"]["epoch"]
        for curve, unit, title in _PANELS:
            series = []
            for number, kind in enumerate((_INDEPENDENT, _JOINT)):
                curves = [_curve(record, curve).tolist() for record in kind.of(group)]
                series.append(curve_series(kind.name, epochs, curves, number))
            panels.append(Panel("epoch", unit, series, title))
        panels.append(Text(name.replace(" without", ",\nwithout")))
    return Plot(panels, "Losses, errors and diversity over training", 4, (3.2, 2.6))


def table(records: list[Record]) -> Table:
    """The last epoch in numbers."""
    quantities = [
        _summary(
            curve,
            _last,
            curve.replace("_", " ").replace("error", "ERR"),
            "{:.1%}" if curve.endswith("accuracy") else "{:.3f}",
        )
        for curve in (*(curve for curve, _, _ in _PANELS), "test_accuracy")
    ]
    rows = {
        (name, kind.name): kind.of(group)
        for name, group in _groups(records).items()
        for kind in (_INDEPENDENT, _JOINT)
    }
    return quantity_table(["data", "training"], rows, quantities)


# ---- the experiment -----------------------------------------------------------------------------

GENERALIZATION_GAP = Experiment(
    "generalization-gap",
    "collusion",
    "Figures 5, 10, 11 and 12",
    "Train and test loss of joint and independent training over the course of training",
    GAP,
    (
        Claim(
            "Joint training ends with a larger generalisation gap than independent training",
            "Section 6.2, Figure 5",
            _joint_larger("gap", _last, "gap in the last epoch"),
        ),
        Claim(
            "Its gap is larger as training proceeds: over the first third of training",
            "Section 6.2, Figure 5",
            _joint_larger("gap", _first_third, "mean gap over the first third"),
        ),
        Claim(
            "Its gap is larger as training proceeds: over the second half of training",
            "Section 6.2, Figure 5",
            _joint_larger("gap", _second_half, "mean gap over the second half"),
        ),
        Claim(
            "The gap is larger, too, where nothing keeps the training images from being memorised "
            "(our question, not the paper's: no augmentation)",
            "Section 6.2, Figure 5",
            _joint_larger("gap", _last, "gap in the last epoch", _memorised),
        ),
        Claim(
            "Joint training converges more slowly on the training set",
            "Section G.1, Figure 10",
            _joint_larger("train_error", _mean, "training ERR, mean over training"),
        ),
        Claim(
            "Joint training reaches a larger test loss",
            "Section G.1, Figure 10",
            _joint_larger("test_error", _last, "test ERR in the last epoch"),
        ),
        Claim(
            "Diversity on training data is inflated early under joint training",
            "Section G.1, Figure 11",
            _joint_larger(
                "train_diversity", _first_third, "training DIV, mean over the first third"
            ),
        ),
        Claim(
            "Joint training maximises diversity early, before it minimises individual error",
            "Section G.1, Figure 11",
            _diversity_first(_as_published),
        ),
        Claim(
            "The same where training goes on until the training images are memorised",
            "Section G.1, Figure 11 (our question)",
            _diversity_first(_memorised),
        ),
        Claim(
            "On test data, too, the members of a jointly trained ensemble are worse",
            "Section G.1, Figure 12",
            _joint_larger("test_member_error", _last, "mean test ERR in the last epoch"),
        ),
    ),
    plot,
    table,
    {
        "smoke": smoke_setting("a tiny ResNet", epochs=4),
        "cpu": (
            "CIFAR-10 averaged down to 16 × 16, 2,500 training and 2,000 test images, 5 members of "
            "a CNN with two convolutions (16 and 32 channels, max-pools, no batch norm); Adam 2e-3 "
            "without decay, 40 epochs, batch 64, crops, flips and rotations as in the paper; "
            "measured every 4 epochs on the training images without augmentation and on the test "
            "images. Once more without augmentation, on 1,500 images with the small "
            "ResNet of the sweeps for 50 epochs (measured every 5), which learns its training "
            "images by heart. ResNet-18 for 100 epochs is out of reach of two cores."
        ),
        "paper": (
            "CIFAR-10 and CIFAR-100, ResNet-18 with a CIFAR stem, 5 members, Adam 1e-3 without "
            "decay (the paper states no learning rate), 100 epochs, crops, flips and rotations, "
            "the official split."
        ),
    },
)
