"""Examples on which an LDR ensemble is most and least divided (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dissensus.papers.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.papers.cells import make_cell
from dissensus.papers.comparisons import decide
from dissensus.papers.ldr.contenders import FASHION, SMOKE
from dissensus.papers.ldr.data import load_data
from dissensus.papers.ldr.measurements import outputs_of
from dissensus.papers.ldr.methods import train_ensemble
from dissensus.plots import Image, Plot
from dissensus.scores import pds_sum

if TYPE_CHECKING:
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
    return [make_cell("ldr", settings, method="ldr", strength=0.3)]


def run(cell: Cell) -> dict[str, Any]:
    """Train and keep the pictures of the five highest and the five lowest PDS."""
    data = load_data(cell)
    ens = train_ensemble(cell, data)
    x, y = data.test
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
    most, least = (records[0]["result"][key] for key in ("wrong_most", "wrong_least"))
    return decide(
        most > 2 * least,
        f"the ensemble is wrong on {most:.1%} of the tenth of test images with the highest PDS, on "
        f"{least:.1%} of the tenth with the lowest (holds if more than twice as often; one run)",
    )


def plot(records: list[Record]) -> Plot:
    """Figure 3: the five most and the five least divided test images, with their votes."""
    cell, result = records[0]["cell"], records[0]["result"]
    names = CLASSES if cell["data"] == "fashion_mnist" else tuple(map(str, range(10)))
    images = []
    for kind in ("most", "least"):
        for number, example in enumerate(result[kind]):
            prediction = example["prediction"]
            others = [one for one in dict.fromkeys(example["members"]) if one != prediction]
            images.append(
                Image(
                    np.asarray(example["pixels"], dtype=np.uint8)[None],
                    f"is {names[example['label']]}",
                    names[prediction],
                    ", ".join(names[other] for other in others),
                    "" if number else kind,
                    inverted=True,
                )
            )
    return Plot(images, "Test images on which members differ most and least", _SHOWN)


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
    plot,
    None,
    {
        "smoke": "Digits of scikit-learn, an MLP, 3 epochs: nothing to see yet.",
        "cpu": "Fashion-MNIST as in `detection`, LDR with λ = 0.3, one run.",
        "paper": "As cpu: the photographs of ImageNet are not part of its features.",
    },
)
