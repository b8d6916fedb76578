"""Diversity: unique predictions (Table 1), and divided images (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dissensus.scores import pds_sum
from reproductions.cells import make_cell
from reproductions.comparisons import (
    Finding,
    Larger,
    Sides,
    Within,
    cell_values,
    data_title,
    exact,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Image, Plot
from reproductions.ldr.contenders import FASHION, SMOKE, STUDY, contender_title
from reproductions.ldr.data import load_data
from reproductions.ldr.measurements import outputs_of
from reproductions.ldr.methods import train_ensemble
from reproductions.ldr.records import (
    choose_runs,
    chosen,
    data_in,
    data_with,
    larger_on_parts,
    quantity_on,
    unique,
    unknown_sets,
)
from reproductions.study import Cell, Record, Study

# ---- unique predictions (Table 1) ---------------------------------------------------------------

_ROWS = ("deep-ensemble", "diverse-hyperparameters", "divdis", "a2d", "ldr", "ldr-divdis")


def _more_unique_than(other: str, words: str, published: str) -> Claim:
    return Claim(
        f"LDR has more unique predictions on unknown inputs than {words}",
        "Section 4.2, Table 1",
        larger_on_parts(chosen("ldr"), chosen(other), unique),
        published,
    )


def _gains(records: list[Record]) -> Sides:
    """LDR's gain in #unique over a deep ensemble, on unknown inputs and on test inputs."""
    cases = {}
    for data in data_with(records, "ldr", "deep-ensemble"):
        ldr, rival = (choose_runs(records, data, name) for name in ("ldr", "deep-ensemble"))
        for part in unknown_sets(ldr):
            gains = [unique(one).differences(ldr, rival) for one in (part, "test")]
            cases[f"{data_title(data)} {part}"] = (gains[0], gains[1])
    return cases


def _plain_unique(records: list[Record]) -> dict[str, list[float]]:
    """A deep ensemble's #unique on test inputs."""
    runs = {
        data_title(data): choose_runs(records, data, "deep-ensemble")
        for data in data_with(records, "ldr", "deep-ensemble")
    }
    return {title: list(unique("test").values(some).values()) for title, some in runs.items()}


def diversity_table(records: list[Record]) -> Table:
    """#unique as in Table 1, with the strength that validation chose."""
    rows = []
    for data in data_in(records):
        for name in _ROWS:
            runs = choose_runs(records, data, name)
            if runs:
                chosen_at = "/".join(f"{strength:g}" for strength in cell_values(runs, "strength"))
                cells = quantity_on(["test", *unknown_sets(runs)], unique, runs)
                rows.append([data_title(data), contender_title(name), chosen_at, *cells])
    header = ["data", "method", "λ chosen", "test", "shift, mild", "shift, strong"]
    return Table([*header, "far 1", "far 2"], rows, labels=2)


DIVERSITY = Experiment(
    "ldr/diversity",
    "Table 1",
    "How many different classes five members predict, on test and on unknown inputs",
    STUDY,
    (
        _more_unique_than("deep-ensemble", "a deep ensemble", "1.82 to 4.68 against 1.09 to 1.31"),
        _more_unique_than("a2d", "A2D", "1.82 to 4.68 against 1.04 to 1.91"),
        Claim(
            "LDR adds more unique predictions on unknown inputs than on test inputs",
            "Section 4.2, Table 1",
            Larger("gain in #unique over a deep ensemble", ("unknown", "test"), _gains, "{:.2f}"),
            "test +0.31, C-1 +0.73, iNat +3.37, OI +2.88",
        ),
        Claim(
            "A deep ensemble has next to no diversity on test inputs (here: #unique below 1.2)",
            "Section 4.2, Table 1",
            Within(
                "#unique of a deep ensemble on test inputs", _plain_unique, high=1.2, form="{:.2f}"
            ),
            "1.05",
        ),
    ),
    diversity_table,
)


# ---- images on which members differ (Figure 3) --------------------------------------------------

#: Fashion-MNIST's classes, in the order of its labels.
CLASSES = [
    *("T-shirt", "trousers", "pullover", "dress", "coat"),
    *("sandal", "shirt", "trainer", "bag", "boot"),
]
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
    predictions = logits.softmax(-1).mean(0).argmax(-1)
    wrong = (predictions != y).double()[order]
    tenth = max(1, len(order) // 10)

    def example(row: int) -> dict[str, Any]:
        return {
            "pixels": (x[row, 0] * 255).round().to(torch.uint8).tolist(),
            "label": int(y[row]),
            "prediction": int(predictions[row]),
            "members": logits[:, row].argmax(-1).tolist(),
            "pds_sum": float(scores[row]),
        }

    return {
        "most": [example(row) for row in order[:_SHOWN].tolist()],
        "least": [example(row) for row in order[-_SHOWN:].flip(0).tolist()],
        "wrong_most": float(wrong[:tenth].mean()),
        "wrong_least": float(wrong[-tenth:].mean()),
    }


EXAMPLES_STUDY = Study(
    "examples", cells, run, jobs=1, cost={"smoke": "2 s", "cpu": "30 s", "paper": "30 s"}
)


def _ambiguous(records: list[Record]) -> Finding:
    """More than twice as often wrong on the tenth of highest PDS as on the lowest; one run."""
    most, least = (records[0]["result"][key] for key in ("wrong_most", "wrong_least"))
    return exact(most > 2 * least, f"wrong on {most:.1%} of the highest tenth, {least:.1%} lowest")


def plot_examples(records: list[Record]) -> Plot:
    """Figure 3: the five most and the five least divided test images, with their votes."""
    cell, result = records[0]["cell"], records[0]["result"]
    names = CLASSES if cell["data"] == "fashion_mnist" else list(map(str, range(10)))
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


EXAMPLES = Experiment(
    "ldr/examples",
    "Figure 3",
    "The test images on which an LDR ensemble is most and least divided",
    EXAMPLES_STUDY,
    (
        Claim(
            "Images of high PDS are ambiguous, those of low PDS clear",
            "Section 4.2, Figure 3",
            _ambiguous,
        ),
    ),
    draw=plot_examples,
)
