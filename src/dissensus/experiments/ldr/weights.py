"""The weights α_n over training (Eq. 4 and 5), and the gradients by which A.14 explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.experiments.base import Cell, Study
from dissensus.experiments.comparing import SEEDS_OPTION, seeds_of
from dissensus.experiments.ldr.cells import CPU, PAPER, SMOKE, ldr_cell
from dissensus.experiments.ldr.measuring import outputs_of
from dissensus.experiments.ldr.methods import train_ensemble
from dissensus.experiments.ldr.settings import load_setting
from dissensus.objectives.ldr import hardness_weights

__all__ = ["STUDY", "clashes", "gradients_differ_by"]


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The gradients once, then a training with 5% planted rows for each seed."""
    settings = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}[scale]
    seeds = seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 3}[scale])
    found = [ldr_cell("gradients", settings, method="gradients")]
    for seed in seeds:
        name = f"training-seed={seed}"
        found.append(ldr_cell(name, settings, method="ldr", strength=0.3, planted=0.05, seed=seed))
    return found


def run(cell: Cell) -> dict[str, Any]:
    """The gradients of A.14, or α_n after every epoch of a training."""
    if cell["method"] == "gradients":
        return {"differ_by": gradients_differ_by(), **clashes()}
    setting = load_setting(cell)
    x, y = setting.train
    planted = setting.planted
    assert planted is not None
    curve: list[dict[str, float]] = []

    def watch(record: dict[str, Any], ens: Ensemble) -> None:
        logits = outputs_of(ens, x)
        curve.append(_weights(logits, y, planted))

    train_ensemble(cell, setting, callbacks=[watch])
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
    errors = [
        (p[name].grad - value).abs() / value.abs().clamp_min(1) for name, value in written.items()
    ]
    return float(torch.stack(errors).max())


def clashes(gamma: float = 4.0, points: int = 401) -> dict[str, float]:
    """Where y = f̂, on a grid of f_y and g_y: which term of Eq. 21 dominates.

    ``flips_constant`` is the share of g_y at which dominance changes with f_y for α = γ, and
    ``flips_inverse`` the same for α = γ / f_y where |2 g_y − 1| ≥ 1/γ (Eq. 25's condition);
    ``together`` the share of the grid where both terms raise f_y, so that they do not clash.
    """
    f = torch.linspace(0.0025, 0.9975, points, dtype=torch.float64)[None]
    g = torch.linspace(0.0025, 0.9975, points, dtype=torch.float64)[:, None]
    c = f + g - 2 * f * g

    def dominates(alpha: Tensor) -> Tensor:
        return alpha * (2 * g - 1).abs() / c >= 1 / f

    def flips(found: Tensor) -> Tensor:
        return found.any(1) & ~found.all(1)

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
