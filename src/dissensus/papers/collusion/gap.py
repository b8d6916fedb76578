"""The generalisation gap of joint training: Figures 5, 10, 11 and 12.

Train and test loss, both of the ensemble, over a long training without decay of the learning rate.
Nothing is chosen here, so there is no validation part, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dissensus.papers.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.papers.cells import SEEDS_OPTION, seeds_of
from dissensus.papers.collusion.images import (
    CPU,
    PAPER_SWEEP,
    SMOKE,
    image_cell,
    run_image_cell,
)
from dissensus.papers.comparisons import all_of, compare_values, paired, where
from dissensus.papers.statistics import curve_interval, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["GAP", "GENERALIZATION_GAP"]

_TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "digits"}
_MEMORISED = "without augmentation"
_KINDS = {0.0: "independent", 1.0: "joint"}


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
    return [
        image_cell(f"{data}-{kind}-seed={seed}", settings, beta=beta, seed=seed)
        for seed in seeds_of(options, {"smoke": 2, "cpu": 4, "paper": 6}[scale])
        for data, settings in plans[scale].items()
        for beta, kind in _KINDS.items()
    ]


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
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "10 s", "cpu": "15 min", "paper": "GPU days"},
)


# ---- reading ------------------------------------------------------------------------------------


def _groups(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by data set; those of images that were memorised are a group of their own."""
    found: dict[str, list[Record]] = {}
    for record in records:
        cell = record["cell"]
        name = _TITLES.get(cell["data"], cell["data"])
        if "-memorised-" in record["name"]:
            name = f"{name} {_MEMORISED}"
        found.setdefault(name, []).append(record)
    return found


def _as_published(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {name: found for name, found in _groups(records).items() if _MEMORISED not in name}


def _memorised(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {name: found for name, found in _groups(records).items() if _MEMORISED in name}


def _curves(records: Sequence[Record], beta: float, quantity: str) -> dict[int, Any]:
    """A quantity over the watched epochs, by seed."""
    return {
        record["cell"]["seed"]: _quantity(record["result"]["watched"], quantity)
        for record in where(records, beta=beta)
    }


def _quantity(watched: Mapping[str, Any], name: str) -> Any:
    """``gap``, ``train_diversity`` and ``test_diversity`` follow from the errors."""
    columns = {key: np.asarray(values, dtype=float) for key, values in watched.items()}
    if name == "gap":
        return columns["test_error"] - columns["train_error"]
    part, _, rest = name.partition("_")
    if rest == "diversity":
        return columns[f"{part}_member_error"] - columns[f"{part}_error"]
    return columns[name]


def _epochs(records: Sequence[Record]) -> list[int]:
    found: list[int] = records[0]["result"]["watched"]["epoch"]
    return found


Summary = Callable[[Any], float]
Groups = Callable[[Sequence[Record]], dict[str, list[Record]]]


def _last(curve: Any) -> float:
    return float(curve[-1])


def _mean(curve: Any) -> float:
    return float(np.mean(curve))


def _early(curve: Any) -> float:
    """The mean over the first third of the watched epochs."""
    return float(np.mean(curve[: max(1, len(curve) // 3)]))


def _second_half(curve: Any) -> float:
    """The mean over the second half of the watched epochs."""
    return float(np.mean(curve[len(curve) // 2 :]))


def _joint_larger(
    quantity: str,
    summary: Summary,
    words: str,
    groups: Groups = _as_published,
) -> Callable[[list[Record]], Finding]:
    """A check that joint training has the larger ``summary`` of ``quantity`` on all data."""

    def check(records: list[Record]) -> Finding:
        found = {}
        for name, runs in groups(records).items():
            ends = [
                {seed: summary(c) for seed, c in _curves(runs, beta, quantity).items()}
                for beta in (1.0, 0.0)
            ]
            found[name] = compare_values(*paired(*ends), ("joint", "independent"), words)
        return all_of(found)

    return check


def _diversity_first(groups: Groups) -> Callable[[list[Record]], Finding]:
    """A check that joint training's DIV is largest before its mean ERR is least, in training."""
    return lambda records: _peak_before_end(groups(records))


def _peak_before_end(groups: Mapping[str, list[Record]]) -> Finding:
    found = {}
    for name, runs in groups.items():
        epochs = _epochs(runs)
        diversity = _curves(runs, 1.0, "train_diversity")
        error = _curves(runs, 1.0, "train_member_error")
        peaks = {seed: float(epochs[int(np.argmax(c))]) for seed, c in diversity.items()}
        least = {seed: float(epochs[int(np.argmin(c))]) for seed, c in error.items()}
        names = ("of least mean ERR", "of largest DIV")
        found[name] = compare_values(
            *paired(least, peaks), names, "epoch under joint training", "{:.1f}"
        )
    return all_of(found)


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


def draw(records: list[Record]) -> Figure:
    """One row a data set: the gap, both losses, and both decompositions over epochs."""
    from dissensus.plots.style import add_line, label, new_figure

    groups = _groups(records)
    figure, axes = new_figure(2 * len(groups), 4, width=3.2, height=2.6)
    for row, (name, chosen) in enumerate(groups.items()):
        panels = axes[2 * row : 2 * row + 2].reshape(-1)
        for panel, (quantity, unit, title) in zip(panels, _PANELS, strict=False):
            for number, (beta, kind) in enumerate(_KINDS.items()):
                runs = list(_curves(chosen, beta, quantity).values())
                mean, low, high = curve_interval(runs)
                epochs = _epochs(chosen)
                add_line(panel, epochs, mean, number, band=(low, high), name=kind, markers=False)
            label(panel, "epoch", unit, title)
        panels[0].legend(loc="upper left", fontsize=8.0, frameon=False)
        panels[-1].set_axis_off()
        panels[-1].text(0.05, 0.5, name.replace(" without", ",\nwithout"), fontsize=11.0)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """The last epoch in numbers."""
    quantities = [quantity for quantity, _, _ in _PANELS] + ["test_accuracy"]
    rows = []
    for name, chosen in _groups(records).items():
        for beta, kind in _KINDS.items():
            shown = []
            for quantity in quantities:
                runs = [_last(c) for c in _curves(chosen, beta, quantity).values()]
                form = "{:.1%}" if quantity.endswith("accuracy") else "{:.3f}"
                shown.append(mean_interval(runs).shown(form))
            rows.append([name, kind, *shown])
    names = [quantity.replace("_", " ").replace("error", "ERR") for quantity in quantities]
    return ["data", "training", *names], rows


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
            _joint_larger("gap", _early, "mean gap over the first third"),
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
            _joint_larger("train_diversity", _early, "training DIV, mean over the first third"),
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
    draw,
    table,
    {
        "smoke": "256 digits of scikit-learn, a tiny ResNet, 4 epochs, 2 seeds: no claim can show.",
        "cpu": (
            "CIFAR-10 averaged down to 16 × 16, 2,500 training and 2,000 test images, 5 members of "
            "a CNN with two convolutions (16 and 32 channels, max-pools, no batch norm); Adam 2e-3 "
            "without decay, 40 epochs, batch 64, crops, flips and rotations as in the paper; "
            "measured every 4 epochs on the training images without augmentation and on the test "
            "images; 4 seeds. Once more without augmentation, on 1,500 images with the small "
            "ResNet of the sweeps for 50 epochs (measured every 5), which learns its training "
            "images by heart. ResNet-18 for 100 epochs is out of reach of two cores."
        ),
        "paper": (
            "CIFAR-10 and CIFAR-100, ResNet-18 with a CIFAR stem, 5 members, Adam 1e-3 without "
            "decay (the paper states no learning rate), 100 epochs, crops, flips and rotations, "
            "the official split, 6 seeds."
        ),
    },
)
