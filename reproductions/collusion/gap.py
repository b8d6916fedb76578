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
    PANELS,
    Summary,
    diversity_epoch,
    error_epoch,
    first_third,
    last,
    mean,
    plot_training,
    second_half,
    summary,
)
from reproductions.comparisons import (
    Groups,
    Larger,
    Runs,
    data_title,
    group_records,
    groups_named,
    larger,
)
from reproductions.experiment import Claim, Experiment, Table, quantity_table
from reproductions.figures import Plot
from reproductions.study import Record

_MEMORISED = "without augmentation"
_INDEPENDENT, _JOINT = (Runs(kind.name, kind.settings) for kind in images.KINDS)


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
    return plot_training(named, (_INDEPENDENT, _JOINT))


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
        for kind in (_INDEPENDENT, _JOINT)
    }
    return quantity_table(["data", "training"], rows, quantities)


# ---- claims -------------------------------------------------------------------------------------


def _joint_larger(curve: str, value: Summary, name: str, groups: Groups = _as_published) -> Larger:
    """A check that joint training has the larger ``value`` of a curve in every group."""
    return larger(summary(curve, value, name), _JOINT, _INDEPENDENT, groups)


def _diversity_first(groups: Groups) -> Larger:
    """A check that joint training's DIV is largest before its mean ERR is least, in training."""
    return larger(
        error_epoch(),
        Runs("of least mean ERR", _JOINT.settings),
        Runs("of largest DIV", _JOINT.settings),
        groups,
        against=diversity_epoch(),
    )


GENERALIZATION_GAP = Experiment(
    "collusion/generalization-gap",
    "Figures 5, 10, 11 and 12",
    "Train and test loss of joint and independent training over the course of training",
    GAP,
    (
        Claim(
            "Joint training ends with a larger generalisation gap",
            "Section 6.2, Figure 5",
            _joint_larger("gap", last, "gap in the last epoch"),
        ),
        Claim(
            "Its gap is larger over the first third of training",
            "Section 6.2, Figure 5",
            _joint_larger("gap", first_third, "mean gap over the first third"),
        ),
        Claim(
            "Its gap is larger over the second half of training",
            "Section 6.2, Figure 5",
            _joint_larger("gap", second_half, "mean gap over the second half"),
        ),
        Claim(
            "Its gap is larger without augmentation, where images are memorised",
            "Section 6.2, Figure 5",
            _joint_larger("gap", last, "gap in the last epoch", _memorised),
            ours=True,
        ),
        Claim(
            "Joint training converges more slowly on the training set",
            "Section G.1, Figure 10",
            _joint_larger("train_error", mean, "training ERR, mean over training"),
        ),
        Claim(
            "Joint training reaches a larger test loss",
            "Section G.1, Figure 10",
            _joint_larger("test_error", last, "test ERR in the last epoch"),
        ),
        Claim(
            "Its training DIV is inflated early",
            "Section G.1, Figure 11",
            _joint_larger(
                "train_diversity", first_third, "training DIV, mean over the first third"
            ),
        ),
        Claim(
            "Its DIV is largest before its mean ERR is least",
            "Section G.1, Figure 11",
            _diversity_first(_as_published),
        ),
        Claim(
            "Its DIV is largest first where training images are memorised",
            "Section G.1, Figure 11",
            _diversity_first(_memorised),
            ours=True,
        ),
        Claim(
            "Its members have a larger test loss",
            "Section G.1, Figure 12",
            _joint_larger("test_member_error", last, "mean test ERR in the last epoch"),
        ),
    ),
    table,
    plot,
)
