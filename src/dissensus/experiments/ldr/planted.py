"""The paper's own setting, made to order: training data from (1 − ε) P + ε Q (Theorem 2).

P is Fashion-MNIST and Q is KMNIST with random labels; disagreement is then measured on KMNIST
images that were not planted, on test images of P, and on the training rows of highest loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from dissensus.experiments.base import Cell, Study
from dissensus.experiments.comparing import SEEDS_OPTION, seeds_of
from dissensus.experiments.ldr.cells import FASHION, SMOKE, ldr_cell
from dissensus.experiments.ldr.measuring import measure, outputs_of
from dissensus.experiments.ldr.methods import train_ensemble
from dissensus.experiments.ldr.settings import load_setting
from dissensus.scores import disagreement, unique

__all__ = ["STUDY", "high_loss_facts"]

#: H of Theorem 2: this share of the training rows, those with the highest loss.
HIGH_LOSS = 0.05

_SHARES = (0.0, 0.01, 0.05)
_STRENGTHS = (0.1, 0.3, 1.0)


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every ε with a deep ensemble and with LDR at each strength."""
    settings = dict(SMOKE if scale == "smoke" else FASHION)
    if scale == "paper":
        settings |= {"train": 50_000, "val": 10_000, "test": 10_000, "epochs": 20}
    shares = (0.0, 0.05) if scale == "smoke" else _SHARES
    strengths = (0.3,) if scale == "smoke" else _STRENGTHS
    found = []
    for seed in seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 5}[scale]):
        for share in shares:
            common = {**settings, "planted": share, "seed": seed}
            name = f"planted={share:g}"
            found.append(ldr_cell(f"{name}-deep-ensemble-seed={seed}", common))
            found += [
                ldr_cell(
                    f"{name}-ldr-strength={strength:g}-seed={seed}",
                    common,
                    method="ldr",
                    strength=strength,
                )
                for strength in strengths
            ]
    return found


def run(cell: Cell) -> dict[str, Any]:
    """Train, measure, and look at the training rows of highest loss."""
    setting = load_setting(cell)
    ens = train_ensemble(cell, setting)
    outputs = partial(outputs_of, ens)
    result = measure(outputs, setting)
    seen = outputs(setting.train[0])
    result["high_loss"] = high_loss_facts(seen, setting.train[1], setting.planted)
    groups = {"test": setting.test[0], **{name: x for name, (x, _) in setting.unknown.items()}}
    result["any_disagreement"] = {name: _any(outputs(x)) for name, x in groups.items()}
    return result


def high_loss_facts(logits: Tensor, y: Tensor, planted: Tensor | None) -> dict[str, float]:
    """δ_H, the pairwise disagreement on H, and how much of H is planted (Assumption 4's ρ).

    The loss is ``Σ_m −log p_y^m``, as in Theorem 2.
    """
    repeated = y.expand(len(logits), -1)
    loss = functional.cross_entropy(logits.transpose(1, 2), repeated, reduction="none").sum(0)
    hardest = loss.argsort(descending=True)[: max(1, round(HIGH_LOSS * len(y)))]
    on_hardest = logits[:, hardest]
    facts = {
        "delta": float(disagreement(on_hardest).double().mean()),
        "least_loss": float(loss[hardest].min()),
        "rest_delta": float(disagreement(logits).double().mean()),
    }
    if planted is not None:
        disagreed = unique(on_hardest) > 1
        facts["planted_share"] = float(planted[hardest].double().mean())
        facts["rho"] = (
            float(planted[hardest][disagreed].double().mean()) if disagreed.any() else 0.0
        )
        facts["planted_found"] = float(planted[hardest].sum() / planted.sum())
    return facts


def _any(logits: Tensor) -> float:
    """``Pr[J(x) = 1]``: the share of inputs on which some two members differ."""
    return float((unique(logits) > 1).double().mean())


STUDY = Study(
    "planted",
    cells,
    run,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "5 s", "cpu": "10 min", "paper": "1 h on a GPU"},
)
