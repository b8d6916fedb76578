"""Weights α_n over training (Eq. 4 and 5), and the gradients by which A.14 explains them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives.ldr import hardness_weights
from reproductions.cells import SEEDS_OPTION, make_cell, seed_cells, seeds_of
from reproductions.comparisons import (
    Finding,
    Larger,
    Pairs,
    Quantity,
    Sides,
    at,
    data_title,
    exact,
    group_records,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot, Series, curve_series
from reproductions.ldr.contenders import CPU, FASHION, PAPER, SMOKE
from reproductions.ldr.data import load_data
from reproductions.ldr.flow import network_flow, row_flow
from reproductions.ldr.measurements import outputs_of
from reproductions.ldr.methods import train_ensemble
from reproductions.study import Cell, Record, Study

#: What a training is watched on: by name, the settings at each scale and what differs in them.
CASES: Mapping[str, tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Any]]] = {
    "features": ({"smoke": SMOKE, "cpu": CPU, "paper": PAPER}, {}),
    "planted": ({"smoke": SMOKE, "cpu": CPU, "paper": PAPER}, {"planted": 0.05}),
    "fashion_mnist": ({"cpu": FASHION}, {}),
    "mnist": ({"cpu": FASHION}, {"data": "mnist"}),
}

_SEEDS = {"smoke": 2, "cpu": 10, "paper": 3}
#: The cases that cost most, and how many seeds they have.
_IMAGES, _SEEDS_ON_IMAGES = {"fashion_mnist", "mnist"}, 3
#: Rows of each set that the flow is measured on, and how often in a training.
_ROWS, _TIMES = 500, 5


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The gradients once, then a training of each case for each seed; fewer on images."""
    ldr = {"method": "ldr", "strength": 0.3}
    variants = {
        case: {**settings[scale], "case": case, **changes, **ldr}
        for case, (settings, changes) in CASES.items()
        if scale in settings
    }
    images = {case: variants.pop(case) for case in sorted(_IMAGES & variants.keys())}
    return [
        make_cell("gradients", CASES["features"][0][scale], method="gradients"),
        *seed_cells(variants, seeds_of(options, _SEEDS[scale])),
        *seed_cells(images, seeds_of(options, _SEEDS_ON_IMAGES)),
    ]


def run(cell: Cell) -> dict[str, Any]:
    """The gradients of A.14, or α_n and the flow of the pair term over a training."""
    if cell["method"] == "gradients":
        return {"differ_by": gradients_differ_by(), **clashes()}
    data = load_data(cell)
    x, y = data.train
    parts = {"train": data.train, "test": data.test, **data.unknown}
    sets = {name: part[0][:_ROWS] for name, part in parts.items()}
    every = max(1, round(cell["epochs"] * 2.5 / _TIMES))
    curve: list[dict[str, float]] = []
    flows: list[dict[str, Any]] = []

    def watch(record: dict[str, Any], ens: Ensemble) -> None:
        curve.append(_weights(outputs_of(ens, x), y, data.planted))
        if len(curve) == 1 or len(curve) % every == 0:
            flow = network_flow(ens, x[:_ROWS], y[:_ROWS], sets)
            flows.append({"epoch": len(curve), "sets": flow})

    train_ensemble(cell, data, callbacks=[watch])
    return {"curve": {key: [point[key] for point in curve] for key in curve[0]}, "flow": flows}


def _weights(logits: Tensor, y: Tensor, planted: Tensor | None) -> dict[str, float]:
    """α_n of all training rows as one batch, where its mass lies, and what it does to the rows."""
    alpha = hardness_weights(logits, y).double()
    wrong = logits.mean(0).argmax(-1) != y
    # Below one half the gradient of Eq. 3 raises the other member's probability of the same class.
    unsure = logits.softmax(-1).amax(-1).mean(0) < 0.5
    hardest = alpha.sort(descending=True).values[: max(1, len(alpha) // 20)]
    mean_ce = torch.nn.functional.cross_entropy(logits.mean(0), y)
    some = alpha[: 4 * _ROWS]
    flow = row_flow(logits[:, : 4 * _ROWS], some.to(logits.dtype)).double()
    numbers = {
        "mean": float(alpha.mean()),
        "inverse_loss": 1 / float(mean_ce),
        "hardest_share": float(hardest.sum() / alpha.sum()),
        "wrong_share": float(alpha[wrong].sum() / alpha.sum()),
        "wrong": float(wrong.double().mean()),
        "unsure_share": float(alpha[unsure].sum() / alpha.sum()),
        "together_share": float(some[flow < 0].sum() / some.sum()),
        "apart": float(flow.clamp_min(0).mean()),
        "together": float(-flow.clamp_max(0).mean()),
    }
    if planted is not None:
        numbers["planted_ratio"] = float(alpha[planted].mean() / alpha[~planted].mean())
    return numbers


# ---- the gradients of A.14 ----------------------------------------------------------------------


def gradients_differ_by(cases: int = 2000, seed: int = 0) -> float:
    """The largest difference between Equations 18 to 20 and automatic differentiation of Eq. 17.

    y, f̂ and ĝ are different classes, so that no two of the terms share a probability.
    """
    draw = np.random.default_rng(seed).uniform(0.01, 0.99, (cases, 6))
    values = torch.from_numpy(draw)
    names = ("f_y", "f_f", "f_g", "g_y", "g_f", "g_g")
    p = {name: values[:, i].clone().requires_grad_() for i, name in enumerate(names)}
    alpha = 0.7

    def apart(first: Tensor, second: Tensor) -> Tensor:
        return first * (1 - second) + second * (1 - first)

    loss = -p["f_y"].log() - p["g_y"].log()
    loss = loss - alpha * (apart(p["f_f"], p["g_f"]).log() + apart(p["g_g"], p["f_g"]).log())
    loss.sum().backward()
    with torch.no_grad():
        written = {
            "f_y": -1 / p["f_y"],
            "f_f": alpha * (2 * p["g_f"] - 1) / apart(p["f_f"], p["g_f"]),
            "f_g": alpha * (2 * p["g_g"] - 1) / apart(p["f_g"], p["g_g"]),
        }
    errors = []
    for name, value in written.items():
        gradient = p[name].grad
        assert gradient is not None  # backward has run
        errors.append((gradient - value).abs() / value.abs().clamp_min(1))
    return float(torch.stack(errors).max())


def clashes(gamma: float = 4.0, points: int = 401) -> dict[str, float]:
    """The dominant term of Eq. 21 where y = f̂, on a grid of f_y and g_y.

    ``flips_constant`` is the share of g_y at which dominance changes with f_y for α = γ, and
    ``flips_inverse`` the same for α = γ / f_y where |2 g_y − 1| ≥ 1/γ (Eq. 25's condition);
    ``together`` the share of the grid where both terms raise f_y, so that they do not clash.
    """
    f = torch.linspace(0.0025, 0.9975, points, dtype=torch.float64)[None]
    g = torch.linspace(0.0025, 0.9975, points, dtype=torch.float64)[:, None]
    c = f + g - 2 * f * g

    def dominates(alpha: Tensor) -> Tensor:
        return alpha * (2 * g - 1).abs() / c >= 1 / f

    def flips(dominant: Tensor) -> Tensor:
        return dominant.any(1) & ~dominant.all(1)

    enough = ((2 * g - 1).abs() >= 1 / gamma).flatten()
    return {
        "flips_constant": float(flips(dominates(torch.full_like(f, gamma))).double().mean()),
        "flips_inverse": float(flips(dominates(gamma / f))[enough].double().mean()),
        "together": float((2 * g - 1 < 0).double().mean()),
        "largest_c": float(c.max()),
        "least_c": float(c.min()),
    }


STUDY = Study(
    "weights",
    cells,
    run,
    jobs=1,
    options=SEEDS_OPTION,
    cost={"smoke": "3 s", "cpu": "30 min", "paper": "GPU hours"},
)


# ---- claims -------------------------------------------------------------------------------------

_TITLES = {"features": "features", "planted": "features, 5% planted"}


def trainings(records: list[Record]) -> dict[str, list[Record]]:
    """The trainings by the title of their case."""
    runs = [record for record in records if "curve" in record["result"]]

    def title(record: Record) -> str:
        case = str(record["cell"]["case"])
        return _TITLES.get(case) or data_title(case)

    return group_records(runs, title)


def curves(runs: Iterable[Record], key: str) -> list[list[float]]:
    return [run["result"]["curve"][key] for run in runs if key in run["result"]["curve"]]


def _at_epoch(key: str, epoch: int) -> Quantity:
    """A number of the curves at an epoch (−1 is the last)."""
    return Quantity(key, at("curve", key, epoch))


_SURE = Quantity("", lambda record: 1 - record["result"]["curve"]["unsure_share"][-1])


def _exact(records: list[Record]) -> dict[str, float]:
    """The result of the cell without a training."""
    return next(record["result"] for record in records if "differ_by" in record["result"])


def _identity(records: list[Record]) -> Finding:
    """Eq. 5 on the whole training set, after every epoch."""
    runs = [run for some in trainings(records).values() for run in some]
    means, inverses = (np.concatenate(curves(runs, key)) for key in ("mean", "inverse_loss"))
    worst = float(np.abs(means / inverses - 1).max())
    return exact(worst < 1e-4, f"relative deviation at most {worst:.1e}")


def compare(first: Quantity, second: Quantity) -> Pairs:
    """Both quantities of the trainings of every case that has them."""

    def pairs(records: list[Record]) -> Sides:
        groups = trainings(records).items()
        sides = {case: (first.values(runs), second.values(runs)) for case, runs in groups}
        return {case: pair for case, pair in sides.items() if all(pair)}

    return pairs


def _number(value: float) -> Quantity:
    return Quantity("", lambda record: value)


def _derivatives(records: list[Record]) -> Finding:
    error = _exact(records)["differ_by"]
    return exact(error < 1e-9, f"relative deviation at most {error:.1e}")


def _no_flips(records: list[Record]) -> Finding:
    constant, inverse = (_exact(records)[f"flips_{key}"] for key in ("constant", "inverse"))
    measured = f"dominance changes at {constant:.0%} and {inverse:.0%} of the values of g_y"
    return exact(constant > 0 and inverse == 0, measured)


# ---- figure, table and summary ------------------------------------------------------------------


def plot(records: list[Record]) -> Plot:
    """α over training in each case: its mean, where its mass lies, and on planted rows."""
    cases = trainings(records)

    def line(key: str, style: int, name: str, case: str) -> list[Series]:
        found = curves(cases[case], key)
        return [epoch_series(name, found, style)] if found else []

    everywhere = list(enumerate(cases))
    means = [one for n, case in everywhere for one in line("mean", n, case, case)]
    ratios = [one for n, case in everywhere for one in line("planted_ratio", n, case, case)]
    shares = {
        "hardest_share": "hardest 5% of rows",
        "wrong_share": "wrongly classified rows",
        "wrong": "their share of the rows",
        "unsure_share": "rows with top probability < ½",
    }
    first = next(iter(cases))
    lines = [one for n, key in enumerate(shares) for one in line(key, n, shares[key], first)]
    panels = [
        Panel("epoch", "mean α_n = 1 / mean CE", means, legend="best"),
        Panel("epoch", "share of the weight", lines, first, y_range=(0.0, 1.6), legend="best"),
    ]
    if ratios:
        panels.append(Panel("epoch", "mean α of planted rows / of others", ratios, legend="best"))
    return Plot(panels, "The weights α over training", 3, (3.5, 2.8))


def epoch_series(name: str, found: Sequence[Sequence[float]], style: int) -> Series:
    """Curves of some runs over the epochs."""
    return curve_series(name, range(1, len(found[0]) + 1), found, style)


def table(records: list[Record]) -> Table:
    """The first, middle and last epoch of each case, as means over seeds."""
    keys = {
        "mean": "mean α",
        "hardest_share": "weight on the hardest 5%",
        "wrong_share": "weight on wrong rows",
        "wrong": "wrong rows",
        "unsure_share": "weight on top probability < ½",
        "planted_ratio": "α of planted / others",
    }
    return epoch_table(records, keys)


def epoch_table(records: list[Record], keys: Mapping[str, str]) -> Table:
    """Numbers of the curves at the first, middle and last epoch of each case, means over seeds."""
    rows = []
    for case, runs in trainings(records).items():
        length = len(curves(runs, "mean")[0])
        for epoch in dict.fromkeys((1, max(1, length // 2), length)):
            values = [[curve[epoch - 1] for curve in curves(runs, key)] for key in keys]
            cells = [f"{np.mean(some):.3g}" if some else "–" for some in values]
            rows.append([case, str(epoch), *cells])
    return Table(["case", "epoch", *keys.values()], rows, labels=2)


EXPERIMENT = Experiment(
    "ldr/weights",
    "Equations 4, 5, 17 to 25",
    "The weights α_n over training, and the gradients meant to justify them",
    STUDY,
    (
        Claim(
            "The mean weight of a batch is 1 / mean cross-entropy",
            "Eq. 5",
            _identity,
        ),
        Claim(
            "The weights are lower early in training",
            "Section 3.3",
            Larger(
                "mean α_n",
                ("last epoch", "first epoch"),
                compare(_at_epoch("mean", -1), _at_epoch("mean", 0)),
            ),
        ),
        Claim(
            "They favour samples that the ensemble gets wrong",
            "Section 3.3, (a)",
            Larger(
                "wrongly classified training rows",
                ("share of the weight", "share of the rows"),
                compare(_at_epoch("wrong_share", -1), _at_epoch("wrong", -1)),
            ),
        ),
        Claim(
            "They favour samples from another distribution",
            "Sections 3.3 and A.4",
            Larger(
                "α of planted rows over α of others",
                ("planted", "equal"),
                compare(_at_epoch("planted_ratio", -1), _number(1.0)),
            ),
        ),
        Claim(
            "Most of the weight lies on rows with a top probability of ½ or more",
            "Eq. 3",
            Larger(
                "top probability of ½ or more",
                ("share of the weight after the last epoch", "half"),
                compare(_SURE, _number(0.5)),
            ),
            ours=True,
        ),
        Claim("Equations 18 to 20 are the gradients of Eq. 17", "Section A.14", _derivatives),
        Claim(
            "Eq. 21: dominance changes with f_y for a constant α, and not for α = γ / f_y",
            "Section A.14, Eq. 22 to 25",
            _no_flips,
        ),
    ),
    table,
    plot,
)
