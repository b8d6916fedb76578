"""When LDR helps: one setting changed at a time, LDR beside a deep ensemble; and ensemble size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dissensus.experiments.base import Cell, Study
from dissensus.experiments.comparing import SEEDS_OPTION, seeds_of
from dissensus.experiments.ldr.cells import CPU, PAPER, SMOKE, ldr_cell, run_cell

__all__ = ["CONTENDERS", "FACTORS", "STUDY"]

#: What is compared at every factor: the deep ensemble, and LDR with either pair term.
CONTENDERS: dict[str, dict[str, Any]] = {
    "deep-ensemble": {"method": "deep-ensemble"},
    "ldr": {"method": "ldr", "strength": 0.3},
    "ldr-divdis": {"method": "ldr", "strength": 1.0, "regularizer": "divdis"},
}

#: One change each from the setting of the other tables.
FACTORS: dict[str, dict[str, Any]] = {
    "as elsewhere": {},
    "2,000 training rows": {"train": 2000},
    "learning rate 3e-4": {"optimizer": "adamw:lr=3e-4,weight_decay=0.01"},
    "label smoothing 0.5": {"label_smoothing": 0.5},
    "3 epochs": {"epochs": 3},
    "16 epochs": {"epochs": 16},
    "all members start alike": {"start": "shared"},
    "5% planted": {"planted": 0.05},
}

#: Ensemble sizes of Figure 5; LDR trains for the same number of batches whatever the size.
_SIZES = (2, 5, 10, 20, 50)


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every factor for one seed after another, then every size."""
    settings = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}[scale]
    factors = {**FACTORS}
    if scale == "smoke":
        factors = {name: FACTORS[name] for name in ("as elsewhere", "3 epochs", "5% planted")}
    found = []
    for seed in seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 3}[scale]):
        for factor, changes in factors.items():
            for name, contender in CONTENDERS.items():
                # Alike at the start and trained alike, members of a deep ensemble stay the same.
                if name != "deep-ensemble" or "start" not in changes:
                    found.append(_cell(settings, name, factor, {**contender, **changes}, seed))
        for members in (2, 5) if scale == "smoke" else _SIZES:
            found += _sizes(settings, members, seed)
    return found


def _cell(
    settings: Mapping[str, Any], name: str, factor: str, changes: Mapping[str, Any], seed: int
) -> Cell:
    slug = factor.replace(",", "").replace("%", "pc").replace(" ", "-")
    base = {**settings, "factor": factor, "seed": seed}
    return ldr_cell(f"{slug}-{name}-seed={seed}", base, **changes)


def _sizes(settings: Mapping[str, Any], members: int, seed: int) -> list[Cell]:
    """Figure 5 (right): LDR with as many batches for 50 members as for 5; A.12's |I| beside it."""
    base = {**settings, "factor": "size", "members": members, "seed": seed, "footing": "epochs"}
    base["epochs"] = round(settings["epochs"] * 2.5)
    found = []
    for active in (2, 5, 10) if members == 50 and seed == 0 else (2,):
        name = f"size-{members}-active={active}-ldr-seed={seed}"
        found.append(ldr_cell(name, base, method="ldr", strength=0.3, active=active))
    if members <= 10:
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
