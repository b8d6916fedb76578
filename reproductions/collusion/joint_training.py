"""Joint against independent training across architectures: Table 1 and Figure 6 (right).

Any other architecture can take part by its import path: ``--set model=my_file.py:make_member``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from reproductions.cells import SEEDS_OPTION, seed_cells, seeds_of
from reproductions.collusion import images
from reproductions.comparisons import Quantity, group_records, larger
from reproductions.experiment import Claim, Experiment, Table, quantity_table
from reproductions.figures import Panel, Plot, curve_series
from reproductions.study import Cell, Record, Study

_INDEPENDENT, _JOINT = images.KINDS

#: Table 1: members, then top-1 and top-5 of independent, top-1 and top-5 of joint training, in %.
TABLE_1: dict[str, tuple[int, float, float, float, float]] = {
    "ResNet-18": (5, 68.10, 88.43, 62.74, 84.03),
    "ResNet-34": (3, 73.11, 91.25, 68.91, 88.01),
    "DenseNet": (3, 70.62, 89.51, 60.81, 81.35),
    "ShuffleNet-V2-0.5x": (10, 61.00, 81.94, 53.41, 74.88),
    "ShuffleNet-V2-1x": (5, 68.56, 87.64, 61.96, 81.56),
    "SqueezeNet-V1.1": (5, 56.25, 78.65, 42.69, 65.24),
    "MobileNet-V3-small": (5, 67.43, 86.82, 57.34, 78.30),
    "MobileViT": (3, 61.29, 82.84, 54.69, 76.79),
}

#: The names of these networks in torchvision and timm; the paper does not state their sizes.
_LIBRARY = {
    "ResNet-18": ("torchvision", "resnet18"),
    "ResNet-34": ("torchvision", "resnet34"),
    "DenseNet": ("torchvision", "densenet121"),
    "ShuffleNet-V2-0.5x": ("torchvision", "shufflenet_v2_x0_5"),
    "ShuffleNet-V2-1x": ("torchvision", "shufflenet_v2_x1_0"),
    "SqueezeNet-V1.1": ("torchvision", "squeezenet1_1"),
    "MobileNet-V3-small": ("torchvision", "mobilenet_v3_small"),
    "MobileViT": ("timm", "mobilevit_xxs"),
}


# ---- the study ----------------------------------------------------------------------------------


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Independent and joint training of each architecture, or of the one that is asked for."""
    plan = _PLANS[scale]
    if "model" in options:
        model = str(options["model"])
        name = re.sub(r"[^A-Za-z0-9.]+", "-", model).strip("-.")
        plan = {name: {**next(iter(plan.values())), **_network(model)}}
    changes = {key: options[key] for key in ("data", "epochs", "members") if key in options}
    plan = {name: {**settings, **changes} for name, settings in plan.items()}
    seeds = seeds_of(options, {"smoke": 2, "cpu": 10, "paper": 3}[scale])
    return seed_cells(images.kind_variants(plan), seeds)


#: Adam, because one learning rate of it suits networks with and without batch norm.
_CPU = {**images.CPU, "optimizer": "adam:lr=2e-3", "schedule": "constant"}
_PAPER: dict[str, Any] = {
    **images.PAPER_SWEEP,
    "data": "imagenet",
    "size": 224,
    "val": 50_000,
    "model": f"{images.NETWORKS}:library_model",
    "optimizer": "sgd:lr=0.1,momentum=0.9,weight_decay=1e-4",
    "schedule": "multistep:at=30/60,factor=0.1",
    "epochs": 90,
    "augment": {"crop": 28, "flip": 0.5},
    "patience": 3,
}


def _network(model: str, size: int | None = None, **options: Any) -> dict[str, Any]:
    return {"size": size, "model": model, "model_options": options}


_PLANS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "small-ResNet": {**images.SMOKE},
        "small-CNN": {**images.SMOKE, **_network("small_cnn", width=4, hidden=16)},
    },
    "cpu": {
        "small-ResNet": _CPU,
        "vanilla-CNN": {**_CPU, **_network("cnn")},
        "small-CNN": {**_CPU, **_network("small_cnn", 16, width=16)},
        "small-VGG": {
            **_CPU,
            **_network(f"{images.NETWORKS}:small_vgg", 16, width=8, groups=2, dropout=0.1),
        },
    },
    "paper": {
        name: {
            **_PAPER,
            "members": members,
            "model_options": dict(zip(("package", "name"), _LIBRARY[name], strict=True)),
        }
        for name, (members, *_) in TABLE_1.items()
    },
}

COMPARISON = Study(
    "joint-vs-independent",
    cells,
    images.run_image_cell,
    options={
        **SEEDS_OPTION,
        "model": "one architecture instead of the study's: a name of dissensus.models.MODELS, "
        "module:name or file.py:name",
        "data": "another data set by name, or a folder with train/ and val/ of images",
        "epochs": "how many epochs",
        "members": "how many members",
    },
    cost={"smoke": "10 s", "cpu": "20 min", "paper": "GPU months"},
)


# ---- reading, figure and table ------------------------------------------------------------------


def _architectures(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by the architecture in the names of their cells, before ``-joint-seed=0``."""
    return group_records(records, lambda record: record["name"].rsplit("-", 2)[0])


def _first(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The architecture of the curves: the first, a ResNet at every scale."""
    return {"": next(iter(_architectures(records).values()))}


def _late(record: Record, key: str) -> float:
    """The mean of a validation curve over its last quarter."""
    curve = record["result"]["validation"][key]
    return float(np.mean(curve[-max(1, len(curve) // 4) :]))


_LATE_ACCURACY, _LATE_MEMBERS = (
    Quantity(f"validation accuracy {of}, last quarter", partial(_late, key=key), "{:.1%}")
    for of, key in (("of the ensemble", "accuracy"), ("of a member", "member_accuracy"))
)
_BEHIND = Quantity(
    "validation accuracy of the ensemble − that of a member",
    lambda record: _late(record, "accuracy") - _late(record, "member_accuracy"),
    "{:.1%}",
)


def plot_curves(records: list[Record]) -> Plot:
    """Figure 6 (right): validation accuracy of the ensemble and of its members over epochs."""
    lines = (("accuracy", "solid", "ensemble"), ("member_accuracy", "dashed", "its members"))
    series = []
    for number, kind in enumerate(images.KINDS):
        runs = kind.of(_first(records)[""])
        for key, dash, predictor in lines:
            curves = [run["result"]["validation"][key] for run in runs]
            name, epochs = f"{kind.name}: {predictor}", range(1, 1 + max(map(len, curves)))
            series.append(curve_series(name, epochs, curves, number, dash=dash))
    panel = Panel("epoch", "validation accuracy", series, legend="lower right")
    return Plot([panel], "Validation accuracy over training", size=(5.0, 3.4))


def table(records: list[Record]) -> Table:
    """Table 1: top-1 and top-5 of both kinds of training."""
    rows = {
        (name, str(runs[0]["cell"]["members"]), kind.name): kind.of(runs)
        for name, runs in _architectures(records).items()
        for kind in images.KINDS
    }
    quantities = [images.QUANTITIES[key] for key in ("accuracy", "top5")]
    return quantity_table(["base learner", "members", "training"], rows, quantities)


# ---- experiments --------------------------------------------------------------------------------


def published(place: int) -> str:
    """The two ResNets of Table 1, top-1 (``place`` 1) or top-5 (2)."""
    shown = (TABLE_1[name] for name in ("ResNet-18", "ResNet-34"))
    pairs = ", ".join(f"{numbers[place]:.1f} > {numbers[place + 2]:.1f}" for numbers in shown)
    return f"ImageNet, ResNet-18, -34: {pairs} %"


JOINT_VS_INDEPENDENT = Experiment(
    "collusion/joint-vs-independent",
    "Table 1",
    "Top-1 and top-5 accuracy of independent and joint training across architectures",
    COMPARISON,
    (
        Claim(
            "Independent training has a higher top-1 accuracy with every architecture",
            "Section 3, Table 1",
            images.independent_larger("accuracy", _architectures),
            published(1),
        ),
        Claim(
            "Independent training has a higher top-5 accuracy with every architecture",
            "Section 3, Table 1",
            images.independent_larger("top5", _architectures),
            published(2),
        ),
    ),
    table,
)

TRAINING_CURVES = Experiment(
    "collusion/training-curves",
    "Figure 6 (right)",
    "Validation accuracy of the ensemble and its members throughout training",
    COMPARISON,
    (
        Claim(
            "Late in training the independently trained ensemble is ahead",
            "Section 6.3, Figure 6 (right)",
            larger(_LATE_ACCURACY, _INDEPENDENT, _JOINT, _first),
        ),
        Claim(
            "Its members are ahead, too",
            "Section 6.3, Figure 6 (right)",
            larger(_LATE_MEMBERS, _INDEPENDENT, _JOINT, _first),
        ),
        Claim(
            "Under joint training members stay further behind their ensemble",
            "Section 6.3, Figure 6 (right)",
            larger(_BEHIND, _JOINT, _INDEPENDENT, _first),
        ),
    ),
    draw=plot_curves,
)
