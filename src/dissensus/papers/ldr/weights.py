"""Weights α_n over training (Eq. 4 and 5), and the gradients by which A.14 explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives.ldr import hardness_weights
from dissensus.papers.base import Cell, Claim, Experiment, Finding, Record, Study, Table
from dissensus.papers.cells import SEEDS_OPTION, make_cell, seeds_of
from dissensus.papers.comparisons import curve_series, decide
from dissensus.papers.ldr.contenders import CPU, PAPER, SMOKE
from dissensus.papers.ldr.data import load_data
from dissensus.papers.ldr.measurements import outputs_of
from dissensus.papers.ldr.methods import train_ensemble
from dissensus.papers.statistics import judge_within, larger_than, mean_interval
from dissensus.plots import Panel, Plot, Series

__all__ = ["EXPERIMENT", "STUDY", "clashes", "gradients_differ_by"]


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The gradients once, then a training with 5% planted rows for each seed."""
    settings = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}[scale]
    seeds = seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 3}[scale])
    training = {"method": "ldr", "strength": 0.3, "planted": 0.05}
    return [
        make_cell("gradients", settings, method="gradients"),
        *(make_cell(f"training-seed={seed}", settings, **training, seed=seed) for seed in seeds),
    ]


def run(cell: Cell) -> dict[str, Any]:
    """The gradients of A.14, or α_n after every epoch of a training."""
    if cell["method"] == "gradients":
        return {"differ_by": gradients_differ_by(), **clashes()}
    data = load_data(cell)
    x, y = data.train
    planted = data.planted
    assert planted is not None
    curve: list[dict[str, float]] = []

    def watch(record: dict[str, Any], ens: Ensemble) -> None:
        logits = outputs_of(ens, x)
        curve.append(_weights(logits, y, planted))

    train_ensemble(cell, data, callbacks=[watch])
    return {"curve": {key: [point[key] for point in curve] for key in curve[0]}}


def _weights(logits: Tensor, y: Tensor, planted: Tensor) -> dict[str, float]:
    """α_n of all training rows as one batch, and where its mass lies."""
    alpha = hardness_weights(logits, y).double()
    wrong = logits.mean(0).argmax(-1) != y
    # Below one half the gradient of Eq. 3 draws the other member to the same class.
    unsure = logits.softmax(-1).amax(-1).mean(0) < 0.5
    hardest = alpha.sort(descending=True).values[: max(1, len(alpha) // 20)]
    mean_ce = torch.nn.functional.cross_entropy(logits.mean(0), y)
    return {
        "mean": float(alpha.mean()),
        "inverse_loss": 1 / float(mean_ce),
        "hardest_share": float(hardest.sum() / alpha.sum()),
        "wrong_share": float(alpha[wrong].sum() / alpha.sum()),
        "wrong": float(wrong.double().mean()),
        "pulling_share": float(alpha[unsure].sum() / alpha.sum()),
        "planted_ratio": float(alpha[planted].mean() / alpha[~planted].mean()),
    }


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
    cost={"smoke": "3 s", "cpu": "3 min", "paper": "GPU hours"},
)


# ---- claims -------------------------------------------------------------------------------------


def _curves(records: list[Record], key: str) -> list[list[float]]:
    trained = [record for record in records if "curve" in record["result"]]
    return [record["result"]["curve"][key] for record in trained]


def _last(records: list[Record], key: str) -> list[float]:
    return [curve[-1] for curve in _curves(records, key)]


def _exact(records: list[Record]) -> dict[str, float]:
    """The result of the cell without a training."""
    return next(record["result"] for record in records if "differ_by" in record["result"])


def _identity(records: list[Record]) -> Finding:
    """Eq. 5 on the whole training set, after every epoch."""
    means, inverses = (np.concatenate(_curves(records, key)) for key in ("mean", "inverse_loss"))
    worst = float(np.abs(means / inverses - 1).max())
    sentence = f"mean α_n × mean cross-entropy differs from 1 by at most {worst:.1e}"
    return decide(worst < 1e-4, sentence, "α_B = 1 / mean CE (Eq. 5)")


def _rises(records: list[Record]) -> Finding:
    first = [curve[0] for curve in _curves(records, "mean")]
    return larger_than(_last(records, "mean"), first, ("last epoch", "first epoch"), "mean α_n")


def _on_wrong_rows(records: list[Record]) -> Finding:
    """At the end, the weight on wrongly classified rows is larger than their share."""
    weights, rows = (_last(records, key) for key in ("wrong_share", "wrong"))
    names = ("share of the weight", "share of the rows")
    return larger_than(weights, rows, names, "wrongly classified training rows")


def _on_planted_rows(records: list[Record]) -> Finding:
    ratios = _last(records, "planted_ratio")
    return larger_than(ratios, 1.0, ("planted", "equal"), "α of planted rows over α of others")


def _pushes_apart(records: list[Record]) -> Finding:
    """Most of the weight lies where the pair term pushes members apart (top probability ≥ ½)."""
    estimate = mean_interval([max(curve) for curve in _curves(records, "pulling_share")])
    return Finding(
        judge_within(estimate, high=0.5),
        "rows with a top probability below ½, where the gradient draws members together, have up "
        f"to {estimate.text('{:.0%}')} of the weight during training",
        smallest=f"{estimate.smallest:.0%}",
    )


def _derivatives(records: list[Record]) -> Finding:
    error = _exact(records)["differ_by"]
    sentence = f"largest relative difference from automatic differentiation {error:.1e}"
    return decide(error < 1e-9, f"{sentence} in 2,000 cases")


def _no_flips(records: list[Record]) -> Finding:
    constant, inverse = (_exact(records)[f"flips_{key}"] for key in ("constant", "inverse"))
    return decide(
        constant > 0 and inverse == 0,
        f"dominance changes with f_y at {constant:.0%} of the values of g_y for a constant α = 4, "
        f"at {inverse:.0%} for α = 4 / f_y where |2 g_y − 1| ≥ ¼",
    )


# ---- figure, table and summary ------------------------------------------------------------------


def plot(records: list[Record]) -> Plot:
    """α over training: its mean, where its mass lies, and on planted rows."""

    def line(key: str, style: int, name: str) -> Series:
        curves = _curves(records, key)
        return curve_series(name, range(1, len(curves[0]) + 1), curves, style)

    shares = [
        line("hardest_share", 0, "hardest 5% of rows"),
        line("wrong_share", 1, "wrongly classified rows"),
        line("wrong", 4, "their share of the rows"),
        line("pulling_share", 2, "rows with top probability < ½"),
    ]
    mean, ratio = line("mean", 0, "mean α_n = 1 / mean CE"), line("planted_ratio", 3, "planted")
    panels = [
        Panel("epoch", "mean α_n", [mean], legend="best"),
        Panel("epoch", "share of the weight", shares, y_range=(0.0, 1.6), legend="upper right"),
        Panel("epoch", "mean α of planted rows / of others", [ratio], legend="best"),
    ]
    return Plot(panels, "The weights α over training", 3, (3.5, 2.8))


def table(records: list[Record]) -> Table:
    """The first, middle and last epoch, as means over seeds."""
    keys = {
        "mean": "mean α",
        "hardest_share": "weight on the hardest 5%",
        "wrong_share": "weight on wrong rows",
        "wrong": "wrong rows",
        "pulling_share": "weight on top probability < ½",
        "planted_ratio": "α of planted / others",
    }
    length = len(_curves(records, "mean")[0])
    rows = []
    for epoch in dict.fromkeys((1, max(1, length // 2), length)):
        means = [np.mean([curve[epoch - 1] for curve in _curves(records, key)]) for key in keys]
        rows.append([str(epoch), *(f"{mean:.3g}" for mean in means)])
    return ["epoch", *keys.values()], rows


def brief(records: list[Record]) -> list[str]:
    """Why A2D's pair term may not diversify: where LDR's weight lies."""
    first = float(np.mean([curve[0] for curve in _curves(records, "pulling_share")]))
    last = float(np.mean([curve[-1] for curve in _curves(records, "pulling_share")]))
    return [
        f"{first:.0%} of LDR's weight after the first epoch, {last:.0%} after the last, lies on "
        "rows with a top probability below ½, where the gradient of A2D's pair term draws members "
        "together instead of apart."
    ]


EXPERIMENT = Experiment(
    "weights",
    "ldr",
    "Equations 4, 5, 17 to 25",
    "The weights α_n over training, and the gradients meant to justify them",
    STUDY,
    (
        Claim("The mean weight of a batch is 1 / mean cross-entropy", "Eq. 5", _identity),
        Claim("The weights are lower early in training", "Section 3.3", _rises),
        Claim(
            "They favour samples that the ensemble gets wrong", "Section 3.3, (a)", _on_wrong_rows
        ),
        Claim(
            "They favour samples from another distribution",
            "Sections 3.3 and A.4",
            _on_planted_rows,
        ),
        Claim(
            "Where the weight lies, the pair term pushes members apart",
            "Eq. 3 (our question: below a top probability of ½ its gradient pulls them together)",
            _pushes_apart,
        ),
        Claim("Equations 18 to 20 are the gradients of Eq. 17", "Section A.14", _derivatives),
        Claim(
            "With a constant α the two terms of Eq. 21 change dominance with f_y; with α = γ / f_y "
            "and |2 g_y − 1| ≥ 1/γ they do not",
            "Section A.14, Eq. 22 to 25",
            _no_flips,
        ),
    ),
    plot,
    table,
    {
        "smoke": "Digits of scikit-learn with 5% planted, 3 epochs, 2 seeds.",
        "cpu": (
            "Heads on features as in `detection`, λ = 0.3, 5% of the training rows replaced by "
            "CIFAR-10 features with random labels; α of all training rows as one batch after every "
            "epoch; 3 seeds. The gradients on random and on gridded probabilities."
        ),
        "paper": "The same on ImageNet features of DeiT-III Base/16.",
    },
    brief,
)
