"""Weights α_n over training (Eq. 4 and 5), the gradients by which A.14 explains them, and the flow.

The flow (:mod:`.flow`) is how the pair term moves members: apart or together, on which inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    Within,
    at,
    data_title,
    exact,
    group_records,
)
from reproductions.experiment import Claim, Experiment, Table
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


# ---- reading ------------------------------------------------------------------------------------


def _trainings(records: list[Record]) -> dict[str, list[Record]]:
    """The trainings by the title of their case."""
    titles = {"features": "features", "planted": "features, 5% planted"}
    runs = [record for record in records if "curve" in record["result"]]

    def title(record: Record) -> str:
        case = str(record["cell"]["case"])
        return titles.get(case) or data_title(case)

    return group_records(runs, title)


def _curves(runs: Iterable[Record], key: str) -> list[list[float]]:
    return [run["result"]["curve"][key] for run in runs if key in run["result"]["curve"]]


def _at_epoch(key: str, epoch: int) -> Quantity:
    """A number of the curves at an epoch (−1 is the last)."""
    return Quantity(key, at("curve", key, epoch))


def _pair_term(part: str, *, relative: bool = False) -> Quantity:
    """The rate of total variation by the pair term on a set of inputs, mean over a training.

    ``"unknown"`` is the mean over these sets; ``relative`` is to the total variation there is.
    """

    def read(record: Record) -> float:
        rates = [
            one["pair_term"] / (one["tv"] if relative else 1)
            for time in record["result"]["flow"]
            for name, one in time["sets"].items()
            if name == part or (part == "unknown" and name not in ("train", "test"))
        ]
        return float(np.mean(rates))

    return Quantity("rate", read)


def _number(value: float) -> Quantity:
    return Quantity("", lambda record: value)


# ---- claims -------------------------------------------------------------------------------------


def _exact(records: list[Record]) -> dict[str, float]:
    """The result of the cell without a training."""
    return next(record["result"] for record in records if "differ_by" in record["result"])


def _identity(records: list[Record]) -> Finding:
    """Eq. 5 on the whole training set, after every epoch."""
    runs = [run for some in _trainings(records).values() for run in some]
    means, inverses = (np.concatenate(_curves(runs, key)) for key in ("mean", "inverse_loss"))
    worst = float(np.abs(means / inverses - 1).max())
    return exact(worst < 1e-4, f"relative deviation at most {worst:.1e}")


def _compare(first: Quantity, second: Quantity) -> Pairs:
    """Both quantities of the trainings of every case that has them."""

    def pairs(records: list[Record]) -> Sides:
        groups = _trainings(records).items()
        sides = {case: (first.values(runs), second.values(runs)) for case, runs in groups}
        return {case: pair for case, pair in sides.items() if all(pair)}

    return pairs


def _derivatives(records: list[Record]) -> Finding:
    error = _exact(records)["differ_by"]
    return exact(error < 1e-9, f"relative deviation at most {error:.1e}")


def _no_flips(records: list[Record]) -> Finding:
    constant, inverse = (_exact(records)[f"flips_{key}"] for key in ("constant", "inverse"))
    measured = f"dominance changes at {constant:.0%} and {inverse:.0%} of the values of g_y"
    return exact(constant > 0 and inverse == 0, measured)


def _rates(records: list[Record]) -> dict[str, list[float]]:
    """The rate in each run, on training, test and unknown inputs of each case."""
    return {
        f"{case} {part}": list(_pair_term(part).values(runs).values())
        for case, runs in _trainings(records).items()
        for part in ("train", "test", "unknown")
    }


# ---- tables and experiments ---------------------------------------------------------------------


def _tabulate(columns: Mapping[str, str]) -> Callable[[list[Record]], Table]:
    """Numbers of the curves at the first, middle and last epoch of each case, means over seeds."""

    def table(records: list[Record]) -> Table:
        rows = []
        for case, runs in _trainings(records).items():
            length = len(_curves(runs, "mean")[0])
            for epoch in dict.fromkeys((1, max(1, length // 2), length)):
                values = [[curve[epoch - 1] for curve in _curves(runs, key)] for key in columns]
                cells = [f"{np.mean(some):.3g}" if some else "–" for some in values]
                rows.append([case, str(epoch), *cells])
        return Table(["case", "epoch", *columns.values()], rows, labels=2)

    return table


WEIGHTS = Experiment(
    "ldr/weights",
    "Equations 4, 5, 17 to 25",
    "The weights α_n over training, and the gradients meant to justify them",
    STUDY,
    (
        Claim("The mean weight of a batch is 1 / mean cross-entropy", "Eq. 5", _identity),
        Claim(
            "The weights are lower early in training",
            "Section 3.3",
            Larger(
                "mean α_n",
                ("last epoch", "first epoch"),
                _compare(_at_epoch("mean", -1), _at_epoch("mean", 0)),
            ),
        ),
        Claim(
            "They favour samples that the ensemble gets wrong",
            "Section 3.3, (a)",
            Larger(
                "wrongly classified training rows",
                ("share of the weight", "share of the rows"),
                _compare(_at_epoch("wrong_share", -1), _at_epoch("wrong", -1)),
            ),
        ),
        Claim(
            "They favour samples from another distribution",
            "Sections 3.3 and A.4",
            Larger(
                "α of planted rows over α of others",
                ("planted", "equal"),
                _compare(_at_epoch("planted_ratio", -1), _number(1.0)),
            ),
        ),
        Claim(
            "Most of the weight lies on rows with a top probability of ½ or more",
            "Eq. 3",
            Larger(
                "share of the weight after the last epoch",
                ("half", "on a top probability < ½"),
                _compare(_number(0.5), _at_epoch("unsure_share", -1)),
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
    _tabulate(
        {
            "mean": "mean α",
            "hardest_share": "weight on the hardest 5%",
            "wrong_share": "weight on wrong rows",
            "wrong": "wrong rows",
            "unsure_share": "weight on top probability < ½",
            "planted_ratio": "α of planted / others",
        }
    ),
)

FLOW = Experiment(
    "ldr/flow",
    "Equations 3 and 6",
    "Whether the pair term moves members apart, and on which inputs",
    STUDY,
    (
        Claim(
            "On training rows, the pair term moves members apart more than together",
            "Eq. 3",
            Larger(
                "rate of total variation, mean over rows and training",
                ("apart", "together"),
                _compare(*(Quantity(key, at("curve", key)) for key in ("apart", "together"))),
                "{:.3g}",
            ),
            ours=True,
        ),
        Claim(
            "Through the network, the pair term raises the total variation between members",
            "Eq. 6",
            Within("rate of total variation by the pair term", _rates, low=0.0),
            ours=True,
        ),
        Claim(
            "It raises it by a larger factor on unknown inputs than on test inputs",
            "Section 3.3",
            Larger(
                "rate relative to the total variation that there is, mean over training",
                ("unknown", "test"),
                _compare(*(_pair_term(part, relative=True) for part in ("unknown", "test"))),
                "{:.3g}",
            ),
            ours=True,
        ),
    ),
    _tabulate(
        {
            "unsure_share": "weight on top probability < ½",
            "together_share": "weight on rows drawn together",
            "apart": "rate apart",
            "together": "rate together",
        }
    ),
)
