"""Joint against independent training across architectures: Table 1 and Figure 6 (right).

Any other architecture can take part by its import path: ``--set model=my_file.py:make_member``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dissensus.papers.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.papers.cells import SEEDS_OPTION, seeds_of
from dissensus.papers.collusion.comparing import (
    FORMS,
    compare,
)
from dissensus.papers.collusion.images import (
    CPU,
    NETWORKS,
    PAPER_SWEEP,
    SMOKE,
    by_seed,
    image_cell,
    run_image_cell,
)
from dissensus.papers.comparisons import all_of, compare_values, paired, where
from dissensus.papers.statistics import curve_interval, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COMPARISON", "JOINT_VS_INDEPENDENT", "TABLE_1", "TRAINING_CURVES"]

_KINDS = {0.0: "independent", 1.0: "joint"}

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
    plan = {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[scale]()
    if "model" in options:
        model = str(options["model"])
        base = {**next(iter(plan.values())), "model": model, "model_options": {}, "size": None}
        plan = {re.sub(r"[^A-Za-z0-9.]+", "-", model).strip("-."): base}
    changes = {key: options[key] for key in ("data", "epochs", "members") if key in options}
    return [
        image_cell(f"{name}-{kind}-seed={seed}", settings, beta=beta, seed=seed, **changes)
        for seed in seeds_of(options, 2 if scale == "smoke" else 3)
        for name, settings in plan.items()
        for beta, kind in _KINDS.items()
    ]


def _smoke() -> dict[str, dict[str, Any]]:
    cnn = {"model": "small_cnn", "model_options": {"width": 4, "hidden": 16}}
    return {"small-ResNet": {**SMOKE}, "small-CNN": {**SMOKE, **cnn}}


def _cpu() -> dict[str, dict[str, Any]]:
    # Adam, because one learning rate of it suits networks with and without batch norm.
    base = {**CPU, "optimizer": "adam:lr=2e-3", "schedule": "constant"}
    vgg = {"width": 8, "groups": 2, "dropout": 0.1}
    return {
        "small-ResNet": base,
        "vanilla-CNN": {**base, "model": "cnn", "model_options": {}},
        "small-CNN": {**base, "size": 16, "model": "small_cnn", "model_options": {"width": 16}},
        "small-VGG": {
            **base,
            "size": 16,
            "model": f"{NETWORKS}:small_vgg",
            "model_options": vgg,
        },
    }


def _paper() -> dict[str, dict[str, Any]]:
    base: dict[str, Any] = {
        **PAPER_SWEEP,
        "data": "imagenet",
        "size": 224,
        "val": 50_000,
        "model": f"{NETWORKS}:library_model",
        "optimizer": "sgd:lr=0.1,momentum=0.9,weight_decay=1e-4",
        "schedule": "multistep:at=30/60,factor=0.1",
        "epochs": 90,
        "augment": {"crop": 28, "flip": 0.5},
        "patience": 3,
    }
    return {
        name: {
            **base,
            "members": members,
            "model_options": dict(zip(("package", "name"), _LIBRARY[name], strict=True)),
        }
        for name, (members, *_) in TABLE_1.items()
    }


COMPARISON = Study(
    "joint-vs-independent",
    cells,
    run_image_cell,
    jobs=2,
    options={
        **SEEDS_OPTION,
        "model": "one architecture instead of the study's: a name of dissensus.models.MODELS, "
        "module:name or file.py:name",
        "data": "another data set by name, or a folder with train/ and val/ of images",
        "epochs": "how many epochs",
        "members": "how many members",
    },
    cost={"smoke": "10 s", "cpu": "8 min", "paper": "GPU months"},
)


# ---- reading ------------------------------------------------------------------------------------


def _architectures(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by the architecture in the names of their cells."""
    found: dict[str, list[Record]] = {}
    for record in records:
        kind = _KINDS[float(record["cell"]["beta"])]
        name = record["name"].rpartition(f"-{kind}-seed=")[0]
        found.setdefault(name, []).append(record)
    return found


def _independent_ahead(key: str, place: int) -> Callable[[list[Record]], Finding]:
    """A check that ``key`` is higher for independent training with every architecture."""

    def check(records: list[Record]) -> Finding:
        found = {}
        ahead = pairs = 0
        for name, runs in _architectures(records).items():
            ends = where(runs, beta=0.0), where(runs, beta=1.0)
            found[name] = compare(*ends, ("independent", "joint"), key)
            both = paired(*(by_seed(end, "test", key) for end in ends))
            ahead += sum(left > right for left, right in zip(*both, strict=True))
            pairs += len(both[0])
        whole = all_of(found, _published(place))
        words = f"independent ahead in {ahead} of {pairs} pairs of runs; {whole.measured}"
        return Finding(whole.verdict, words, whole.published)

    return check


def _published(place: int) -> str:
    shown = ", ".join(
        f"{name} {numbers[place]:.2f} against {numbers[place + 2]:.2f}"
        for name, numbers in TABLE_1.items()
    )
    return f"ImageNet, %: {shown}"


def _first(records: list[Record]) -> list[Record]:
    """The architecture of the curves: the first, a ResNet at every scale."""
    return next(iter(_architectures(records).values()))


def _late(records: Sequence[Record], beta: float, key: str) -> dict[int, float]:
    """The mean of a validation curve over its last quarter, by seed."""
    found = {}
    for record in where(records, beta=beta):
        curve = record["result"]["validation"][key]
        found[record["cell"]["seed"]] = float(np.mean(curve[-max(1, len(curve) // 4) :]))
    return found


def _curves_apart(key: str, words: str) -> Callable[[list[Record]], Finding]:
    def check(records: list[Record]) -> Finding:
        runs = _first(records)
        pair = paired(_late(runs, 0.0, key), _late(runs, 1.0, key))
        return compare_values(*pair, ("independent", "joint"), words, "{:.1%}")

    return check


def _members_far_below(records: list[Record]) -> Finding:
    runs = _first(records)
    behind = []
    for beta in (1.0, 0.0):
        whole, single = _late(runs, beta, "accuracy"), _late(runs, beta, "member_accuracy")
        behind.append({seed: whole[seed] - single[seed] for seed in whole})
    words = "validation accuracy of the ensemble − that of a member"
    return compare_values(*paired(*behind), ("joint", "independent"), words, "{:.1%}")


# ---- figures and table --------------------------------------------------------------------------


def draw_curves(records: list[Record]) -> Figure:
    """Figure 6 (right): validation accuracy of the ensemble and of its members over epochs."""
    from dissensus.plots.style import COLORS, add_line, label, new_figure

    figure, axes = new_figure(1, 1, width=5.0, height=3.4)
    panel = axes[0, 0]
    runs = _first(records)
    for number, (beta, kind) in enumerate(_KINDS.items()):
        for key, style, what in (
            ("accuracy", "-", "ensemble"),
            ("member_accuracy", "--", "its members"),
        ):
            curves = [r["result"]["validation"][key] for r in where(runs, beta=beta)]
            shortest = min(len(curve) for curve in curves)  # early stopping ends runs apart
            mean, low, high = curve_interval([curve[:shortest] for curve in curves])
            add_line(
                panel,
                range(1, shortest + 1),
                mean,
                band=(low, high),
                name=f"{kind}: {what}",
                markers=False,
                color=COLORS[number],
                linestyle=style,
            )
    label(panel, "epoch", "validation accuracy")
    panel.legend(loc="lower right", fontsize=8.0, frameon=False)
    return figure


def draw_table(records: list[Record]) -> Figure:
    """Top-1 test accuracy of both kinds of training, one pair of bars an architecture."""
    from dissensus.plots.style import COLORS, label, new_figure

    found = _architectures(records)
    figure, axes = new_figure(1, 1, width=max(4.0, 1.6 * len(found)), height=3.2)
    panel = axes[0, 0]
    for number, (beta, kind) in enumerate(_KINDS.items()):
        estimates = [
            mean_interval(list(by_seed(where(runs, beta=beta), "test", "accuracy").values()))
            for runs in found.values()
        ]
        places = np.arange(len(found)) + 0.36 * (number - 0.5)
        means = [estimate.mean for estimate in estimates]
        panel.bar(places, means, 0.34, color=COLORS[number], label=kind)
        halves = [e.high - e.mean if e.runs > 1 else 0.0 for e in estimates]
        panel.errorbar(places, means, yerr=halves, fmt="none", ecolor="#333333", linewidth=1.0)
    panel.set_xticks(range(len(found)), list(found))
    label(panel, "", "test accuracy")
    panel.legend(loc="lower right", fontsize=8.0, frameon=True)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Table 1: top-1 and top-5 of both kinds of training, with what the paper prints."""
    rows = []
    for name, runs in _architectures(records).items():
        shown = [
            mean_interval(list(by_seed(where(runs, beta=beta), "test", key).values())).shown(
                FORMS[key]
            )
            for beta in _KINDS
            for key in ("accuracy", "top5")
        ]
        printed = TABLE_1.get(name)
        published = (
            "–" if printed is None else "{:.2f} / {:.2f}, {:.2f} / {:.2f}".format(*printed[1:])
        )
        rows.append([name, str(runs[0]["cell"]["members"]), *shown, published])
    header = ["base learner", "members", "independent top-1", "independent top-5"]
    return [*header, "joint top-1", "joint top-5", "published (%)"], rows


# ---- experiments --------------------------------------------------------------------------------

_SETTING = {
    "smoke": "256 digits of scikit-learn, two tiny networks, 2 epochs, 2 seeds: no claim can show.",
    "cpu": (
        "Not ImageNet: CIFAR-10, 2,500 training images, 1,000 for validation, 5,000 of the "
        "official test images, and four small architectures of 5 members: a ResNet of two blocks, "
        "the CNN of Table 3, a CNN with max-pools and a VGG of two groups (the last two on images "
        "averaged down to 16 × 16); Adam 2e-3, 12 epochs, batch 64, no augmentation, best epoch by "
        "validation ERR; 3 seeds. The published numbers are for other networks and data: their "
        "order can be compared, not their size. Another architecture: --set model=file.py:name."
    ),
    "paper": (
        "ImageNet at 224 × 224 in folders train/ and val/, the architectures of Table 1 from "
        "torchvision and timm; SGD 0.1 (× 0.1 at 30 and 60), momentum 0.9, weight decay 1e-4, "
        "batch 128, at most 90 epochs, flips and padded crops, patience of 3 epochs (15 "
        "evaluations of 2,000 batches); 3 seeds. The paper tuned rates and schedules without "
        "stating them, and stopped by the set it reports; here validation is cut from train."
    ),
}

JOINT_VS_INDEPENDENT = Experiment(
    "joint-vs-independent",
    "collusion",
    "Table 1",
    "Top-1 and top-5 accuracy of independent and joint training across architectures",
    COMPARISON,
    (
        Claim(
            "Independent training has a higher top-1 accuracy with every architecture",
            "Section 3, Table 1",
            _independent_ahead("accuracy", 1),
        ),
        Claim(
            "Independent training has a higher top-5 accuracy with every architecture",
            "Section 3, Table 1",
            _independent_ahead("top5", 2),
        ),
    ),
    draw_table,
    table,
    _SETTING,
)

TRAINING_CURVES = Experiment(
    "training-curves",
    "collusion",
    "Figure 6 (right)",
    "Validation accuracy of the ensemble and its members throughout training",
    COMPARISON,
    (
        Claim(
            "Late in training the independently trained ensemble is ahead on validation data",
            "Section 6.3, Figure 6 (right)",
            _curves_apart("accuracy", "validation accuracy, last quarter of training"),
        ),
        Claim(
            "So are its members: those of a jointly trained ensemble perform poorly",
            "Section 6.3, Figure 6 (right)",
            _curves_apart("member_accuracy", "validation accuracy of a member, last quarter"),
        ),
        Claim(
            "Under joint training members stay further behind their ensemble",
            "Section 6.3, Figure 6 (right)",
            _members_far_below,
        ),
    ),
    draw_curves,
    None,
    _SETTING,
)
