"""The inputs on which an LDR ensemble is most and least divided (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dissensus.papers.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.papers.ldr.cells import FASHION, SMOKE, ldr_cell
from dissensus.papers.ldr.measuring import outputs_of
from dissensus.papers.ldr.methods import train_ensemble
from dissensus.papers.ldr.settings import load_setting
from dissensus.scores import pds_sum

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

__all__ = ["CLASSES", "EXPERIMENT", "STUDY"]

#: Fashion-MNIST's classes, in the order of its labels.
CLASSES = (
    "T-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "trainer",
    "bag",
    "boot",
)
_SHOWN = 5


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """One ensemble."""
    settings = SMOKE if scale == "smoke" else FASHION
    return [ldr_cell("ldr", settings, method="ldr", strength=0.3)]


def run(cell: Cell) -> dict[str, Any]:
    """Train and keep the pictures of the five highest and the five lowest PDS."""
    setting = load_setting(cell)
    ens = train_ensemble(cell, setting)
    x, y = setting.test
    logits = outputs_of(ens, x)
    scores = pds_sum(logits)
    order = scores.argsort(descending=True, stable=True)
    picked = {"most": order[:_SHOWN], "least": order[-_SHOWN:].flip(0)}
    wrong = logits.softmax(-1).mean(0).argmax(-1) != y
    tenth = max(1, len(order) // 10)
    return {
        **{
            name: [_example(x, y, logits, scores, int(row)) for row in rows]
            for name, rows in picked.items()
        },
        "wrong_most": float(wrong[order[:tenth]].double().mean()),
        "wrong_least": float(wrong[order[-tenth:]].double().mean()),
    }


def _example(x: Tensor, y: Tensor, logits: Tensor, scores: Tensor, row: int) -> dict[str, Any]:
    return {
        "pixels": (x[row, 0] * 255).round().to(torch.uint8).tolist(),
        "label": int(y[row]),
        "prediction": int(logits[:, row].softmax(-1).mean(0).argmax()),
        "members": logits[:, row].argmax(-1).tolist(),
        "pds_sum": float(scores[row]),
    }


STUDY = Study("examples", cells, run, jobs=1, cost={"smoke": "2 s", "cpu": "30 s"})


# ---- figure and claim ---------------------------------------------------------------------------


def _ambiguous(records: list[Record]) -> Finding:
    found = records[0]["result"]
    most, least = found["wrong_most"], found["wrong_least"]
    return Finding(
        "holds" if most > 2 * least else "does not hold",
        f"the ensemble is wrong on {most:.1%} of the tenth of test images with the highest PDS, on "
        f"{least:.1%} of the tenth with the lowest (holds if more than twice as often; one run)",
    )


def draw(records: list[Record]) -> Figure:
    """Figure 3: the five most and the five least divided test images, with their votes."""
    from dissensus.plots.style import new_figure

    figure, axes = new_figure(2, _SHOWN, width=1.7, height=2.1)
    found = records[0]["result"]
    names = CLASSES if records[0]["cell"]["data"] == "fashion_mnist" else tuple(map(str, range(10)))
    for row, kind in zip(axes, ("most", "least"), strict=True):
        for panel, example in zip(row, found[kind], strict=True):
            panel.imshow(example["pixels"], cmap="gray_r", vmin=0, vmax=255)
            panel.axis("off")
            others = [m for m in dict.fromkeys(example["members"]) if m != example["prediction"]]
            votes = ", ".join(names[member] for member in others)
            title = f"{names[example['prediction']]} (is {names[example['label']]})"
            panel.set_title(title, fontsize=7.0, fontweight="bold")
            panel.text(
                0.5, -0.04, votes, fontsize=6.5, ha="center", va="top", transform=panel.transAxes
            )
    axes[0, 0].text(-0.1, 0.5, "most", rotation=90, va="center", transform=axes[0, 0].transAxes)
    axes[1, 0].text(-0.1, 0.5, "least", rotation=90, va="center", transform=axes[1, 0].transAxes)
    return figure


EXPERIMENT = Experiment(
    "examples",
    "ldr",
    "Figure 3",
    "The test images on which an LDR ensemble is most and least divided",
    STUDY,
    (
        Claim(
            "Images of high PDS are ambiguous, those of low PDS clear",
            "Section 4.2, Figure 3",
            _ambiguous,
        ),
    ),
    draw,
    None,
    {
        "smoke": "Digits of scikit-learn, an MLP, 3 epochs: nothing to see yet.",
        "cpu": "Fashion-MNIST as in `detection`, LDR with λ = 0.3, one run.",
        "paper": "As cpu: the photographs of ImageNet are not part of its features.",
    },
)
