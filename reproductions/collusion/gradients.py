"""Gradients of a member: Appendix E with Table 2, and Appendix F's example, exactly.

The closed gradients of independent, probability-averaged and score-averaged training with
cross-entropy are compared with autograd through the library's objectives on random draws in
float64; so are Table 2's losses. Appendix F is the same for offsets of one shared prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dissensus.objectives import Independent, Joint, Objective
from reproductions.cells import count_option
from reproductions.collusion.offsets import OFFSET_CLAIMS, run_offsets
from reproductions.comparisons import TOLERANCE, Equal, Finding, exact, filter_records
from reproductions.exact import (
    extremes,
    generator_of,
    relative_difference,
    uniform,
    value_and_gradient,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot, Series
from reproductions.study import Cell, Record, Study

_SIZES = {  # (members, classes)
    "smoke": ((2, 2), (5, 10)),
    "cpu": ((2, 2), (2, 10), (3, 5), (5, 10), (5, 100), (10, 10), (20, 10), (5, 1000)),
    "paper": ((2, 2), (2, 10), (3, 5), (5, 10), (5, 100), (10, 10), (20, 10), (5, 1000), (50, 100)),
}
_DRAWS = {"smoke": 10, "cpu": 200, "paper": 500}

#: The three columns of Table 2 and the objective of the library for each.
_WAYS: dict[str, Objective] = {
    "independent": Independent(),
    "probability": Joint(combine="probability"),
    "score": Joint(combine="score"),
}
_NAMES = {
    "independent": "independent training",
    "probability": "joint training, probabilities averaged",
    "score": "joint training, scores averaged",
}


# ---- the paper's closed forms -------------------------------------------------------------------


def printed_losses(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Table 2, last row, the mean over examples; φ is the softmax and k* the true class."""
    pick = labels[None, :, None].expand(len(logits), -1, 1)
    true = logits.softmax(-1).gather(-1, pick).squeeze(-1)  # φ(f_j)_k*, [members, batch]
    of_mean = logits.mean(0).softmax(-1).gather(-1, labels[:, None]).squeeze(-1)
    return {
        "independent": -true.log().mean(0).mean(),
        "probability": -true.mean(0).log().mean(),
        "score": -of_mean.log().mean(),
    }


def printed_gradients(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Appendix E's ∂L/∂f_{i,k} of each example, ``[members, batch, classes]``.

    Independent: (φ(f_i)_k − 1[k = k*]) / M. Probabilities averaged: that times
    φ(f_i)_k* M / Σ_j φ(f_j)_k*. Scores averaged: (φ(f̄)_k − 1[k = k*]) / M, without i.

    Differs from the paper: a logarithm is missing in its first line for independent training; the
    cases that it arrives at are right.
    """
    members, classes = len(logits), logits.shape[-1]
    probs = logits.softmax(-1)
    true = torch.nn.functional.one_hot(labels, classes).to(logits.dtype)
    own = (probs - true) / members
    at_true = (probs * true).sum(-1, keepdim=True)  # φ(f_i)_k*
    shared = (logits.mean(0).softmax(-1) - true) / members
    return {
        "independent": own,
        "probability": own * at_true * members / at_true.sum(0),
        "score": shared.expand_as(logits).clone(),
    }


# ---- the study ----------------------------------------------------------------------------------


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """One cell for each pair of members and classes, one for the curves, one for Appendix F."""
    draws = count_option(options, "draws", _DRAWS[scale])
    equalities = [
        {
            "name": f"members={members}-classes={classes}",
            "kind": "draws",
            "members": members,
            "classes": classes,
            "draws": draws,
            "seed": number,
        }
        for number, (members, classes) in enumerate(_SIZES[scale])
    ]
    curves = {"name": "curves", "kind": "curves", "members": 5}
    return [curves, *equalities, {"name": "offsets", "kind": "offsets", "draws": draws, "seed": 0}]


def run(cell: Cell) -> dict[str, Any]:
    """The curves, the deviations over random draws, or Appendix F, by the cell's ``kind``."""
    kinds = {"curves": _curves, "draws": _deviations, "offsets": run_offsets}
    return kinds[cell["kind"]](cell)


def _deviations(cell: Cell) -> dict[str, Any]:
    """Deviations from the closed forms, and how gradients depend on members, over all draws."""
    generator = generator_of(cell["seed"])
    draws = (
        _deviations_of(*_draw(cell["members"], cell["classes"], generator), generator)
        for _ in range(cell["draws"])
    )
    least, most = extremes(draws)
    return {"most": most, "least": least}


def _draw(members: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    batch = int(torch.randint(1, 9, (), generator=generator))
    width = 10 ** uniform(-1, 0.7, generator)  # from nearly uniform to nearly certain
    logits = torch.randn(members, batch, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    return width * logits, labels


def _deviations_of(logits: Tensor, labels: Tensor, generator: torch.Generator) -> dict[str, float]:
    losses, closed = printed_losses(logits, labels), printed_gradients(logits, labels)
    moved = logits.clone()  # another prediction of the last member; the first is looked at
    moved[-1] += torch.randn(moved[-1].shape, generator=generator, dtype=moved.dtype)
    deviations = {}
    values = {}
    for way, objective in _WAYS.items():
        value, gradient = value_and_gradient(objective, logits, labels)
        _, after = value_and_gradient(objective, moved, labels)
        values[way] = float(value)
        deviations[f"{way}_loss"] = relative_difference(value, losses[way])
        deviations[f"{way}_gradient"] = relative_difference(gradient, closed[way] / len(labels))
        deviations[f"{way}_spread"] = _spread(gradient)
        deviations[f"{way}_dependence"] = relative_difference(gradient[0], after[0])
    for way in ("probability", "score"):
        deviations[f"{way}_minus_independent"] = values[way] - values["independent"]
    return deviations


def _spread(gradient: Tensor) -> float:
    """The largest difference between members' gradients, relative to the largest entry."""
    return float((gradient.amax(0) - gradient.amin(0)).max() / gradient.abs().max())


def _curves(cell: Cell) -> dict[str, Any]:
    """M times a member's gradient at the true class against its own probability of that class.

    Two classes; all other members give the true class the probability ``others``.
    """
    members = cell["members"]
    own = [step / 50 for step in range(1, 50)]
    others = [0.1, 0.5, 0.9]
    label = torch.zeros(1, dtype=torch.long)
    curves: dict[str, list[list[float]]] = {way: [] for way in _WAYS}
    for probability in others:
        for way, objective in _WAYS.items():
            sizes = []
            for value in own:
                true = torch.full((members,), probability, dtype=torch.float64)
                true[0] = value
                logits = torch.stack([true.logit(), torch.zeros_like(true)], -1)[:, None]
                _, gradient = value_and_gradient(objective, logits, label)
                sizes.append(-members * float(gradient[0, 0, 0]))
            curves[way].append(sizes)
    return {"own": own, "others": others, "size": curves}


# ---- claims -------------------------------------------------------------------------------------


def _draws(records: list[Record]) -> list[Record]:
    return filter_records(records, kind="draws")


def _most(records: list[Record], key: str) -> float:
    return max(float(record["result"]["most"][key]) for record in _draws(records))


def _least(records: list[Record], key: str) -> float:
    return min(float(record["result"]["least"][key]) for record in _draws(records))


def _own_gradient(records: list[Record]) -> Finding:
    dependence, spread = (
        _most(records, "independent_dependence"),
        _least(records, "independent_spread"),
    )
    measured = f"dependence {dependence:.1g}, spread at least {spread:.2g}"
    return exact(dependence == 0 and spread > TOLERANCE, measured)


def _varied_gradient(records: list[Record]) -> Finding:
    spread, dependence = (_least(records, f"probability_{key}") for key in ("spread", "dependence"))
    measured = f"spread at least {spread:.1e}, dependence at least {dependence:.1e}"
    return exact(min(spread, dependence) > TOLERANCE, measured)


def _same_gradient(records: list[Record]) -> Finding:
    spread, dependence = _most(records, "score_spread"), _least(records, "score_dependence")
    measured = f"spread at most {spread:.1e}, dependence at least {dependence:.1e}"
    return exact(spread <= TOLERANCE and dependence > TOLERANCE, measured)


def _never_above(records: list[Record]) -> Finding:
    most = [_most(records, f"{way}_minus_independent") for way in ("probability", "score")]
    return exact(max(most) <= TOLERANCE, f"joint − mean member loss at most {max(most):.1e}")


# ---- figure and table ---------------------------------------------------------------------------


def plot(records: list[Record]) -> Plot:
    """The pull on a member towards the true class, for each way of training."""
    (curves,) = (record["result"] for record in filter_records(records, kind="curves"))
    panels = []
    for way, sizes in curves["size"].items():
        series = []
        for number, others in enumerate(curves["others"]):
            # Where the others do not matter the lines coincide: dashes let all of them be seen.
            dash: Any = ("solid", "dashed", "dotted")[number if way == "independent" else 0]
            name, y = f"others give it {others:g}", sizes[number]
            series.append(Series(name, curves["own"], y, number, dash=dash, markers=False))
        title = _NAMES[way].replace("joint training, ", "joint: ")
        axes = ("own probability of the true class", "M · |∂L/∂f| at the true class")
        panels.append(Panel(*axes, series, title))
    return Plot(panels, "The pull on a member by its own probability", 3, (3.1, 2.9), "all")


def table(records: list[Record]) -> Table:
    """The largest deviations from Table 2 and Appendix E, and the spread of gradients."""
    rows = [
        [
            name,
            *(f"{_most(records, f'{way}_{key}'):.1e}" for key in ("loss", "gradient")),
            *(f"{read(records, f'{way}_spread'):.1e}" for read in (_least, _most)),
        ]
        for way, name in _NAMES.items()
    ]
    deviations = ["deviation of the loss", "deviation of the gradient"]
    return Table(["training", *deviations, "least spread over members", "largest"], rows)


EXPERIMENT = Experiment(
    "collusion/gradients",
    "Table 2, Appendices E and F",
    "The gradient of a member in independent and joint training",
    Study(
        name="gradients",
        cells=cells,
        run=run,
        jobs=1,
        options={"draws": "how many random draws for each size"},
        cost={"smoke": "1 s", "cpu": "10 s", "paper": "1 min"},
    ),
    (
        Claim(
            "Table 2's cross-entropy losses are those of independent and joint training",
            "Appendix E, Table 2",
            Equal([f"{way}_loss" for way in _WAYS], _most),
        ),
        Claim(
            "The closed gradients of all three are right",
            "Appendix E",
            Equal([f"{way}_gradient" for way in _WAYS], _most),
        ),
        Claim(
            "Independent training: a member's gradient depends on its own prediction alone",
            "Appendix E",
            _own_gradient,
            "the form g(f_i)",
        ),
        Claim(
            "Averaged probabilities: gradients differ and depend on the other members",
            "Appendix E",
            _varied_gradient,
            "the form g(i, f_1, …, f_M)",
        ),
        Claim(
            "Averaged scores: all members get the same gradient",
            "Appendix E",
            _same_gradient,
            "the form g(f)",
        ),
        Claim(
            "The joint loss never exceeds the mean loss of the members",
            "Section 6, Appendix E, point 2",
            _never_above,
        ),
        *OFFSET_CLAIMS,
    ),
    table,
    plot,
)
