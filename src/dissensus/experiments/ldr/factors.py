"""When LDR helps: one setting changed at a time, LDR beside a deep ensemble; and ensemble size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dissensus.experiments.base import Cell, Study
from dissensus.experiments.comparing import SEEDS_OPTION, seeds_of
from dissensus.experiments.ldr.cells import CPU, PAPER, SMOKE, ldr_cell, run_cell

__all__ = ["FACTORS", "STRENGTHS", "STUDY"]

STRENGTHS = (0.1, 1.0)

#: One change each; ``None`` is the setting of the other tables. Rows, rates and epochs are those of
#: the features; the smoke scale scales them down.
FACTORS: dict[str, dict[str, Any]] = {
    "as elsewhere": {},
    "2,000 training rows": {"train": 2000},
    "learning rate 3e-4": {"optimizer": "adamw:lr=3e-4,weight_decay=0.01"},
    "learning rate 3e-3": {"optimizer": "adamw:lr=3e-3,weight_decay=0.01"},
    "label smoothing 0.5": {"label_smoothing": 0.5},
    "3 epochs": {"epochs": 3},
    "20 epochs": {"epochs": 20},
    "all members start alike": {"start": "shared"},
    "1% planted": {"planted": 0.01},
    "5% planted": {"planted": 0.05},
}

#: Ensemble sizes of Figure 5; LDR trains for the same number of batches whatever the size.
_SIZES = (2, 5, 10, 20, 50)


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every factor for one seed after another, then every size."""
    settings = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}[scale]
    seeds = seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 3}[scale])
    factors = {**FACTORS}
    if scale == "smoke":
        factors = {name: FACTORS[name] for name in ("as elsewhere", "3 epochs", "5% planted")}
    found = []
    for seed in seeds:
        for factor, changes in factors.items():
            if "start" not in changes:  # alike and trained alike, members would stay the same
                found.append(_cell(settings, "deep-ensemble", factor, changes, 0.0, seed))
            for strength in STRENGTHS:
                found.append(_cell(settings, "ldr", factor, changes, strength, seed))
        for members in (2, 5) if scale == "smoke" else _SIZES:
            found += _sizes(settings, members, seed, scale)
    return found


def _cell(
    settings: Mapping[str, Any],
    method: str,
    factor: str,
    changes: Mapping[str, Any],
    strength: float,
    seed: int,
) -> Cell:
    slug = factor.replace(",", "").replace("%", "pc").replace(" ", "-")
    name = f"{slug}-{method}-strength={strength:g}-seed={seed}"
    base = {**settings, "factor": factor, "method": method, "strength": strength, "seed": seed}
    return ldr_cell(name, base, **changes)


def _sizes(settings: Mapping[str, Any], members: int, seed: int, scale: str) -> list[Cell]:
    """Figure 5 (right): LDR with as many batches for 50 members as for 5; A.12's |I| beside it."""
    base = {**settings, "factor": "size", "members": members, "seed": seed, "footing": "epochs"}
    base["epochs"] = round(settings["epochs"] * 2.5)
    found = []
    for active in (2, 5, 10) if members in (20, 50) and seed == 0 else (2,):
        name = f"size-{members}-active={active}-ldr-seed={seed}"
        found.append(ldr_cell(name, base, method="ldr", strength=0.3, active=active))
    if members <= 20:
        usual = {**base, "epochs": settings["epochs"]}
        name = f"size-{members}-deep-ensemble-seed={seed}"
        found.append(ldr_cell(name, usual, method="deep-ensemble"))
    return found


STUDY = Study(
    "factors",
    cells,
    run_cell,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "15 s", "cpu": "20 min", "paper": "GPU days"},
)
