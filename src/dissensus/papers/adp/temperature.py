"""A hundred classes, and a temperature in training: the study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dissensus.data import fit_images
from dissensus.ensemble import Ensemble
from dissensus.papers.adp.contenders import train_ensemble
from dissensus.papers.adp.ensembles import measure
from dissensus.papers.adp.plans import (
    CIFAR100_WEAK,
    CPU,
    PAPER,
    SMOKE,
    ensemble_cell,
    gradient_attacks,
    standard,
)
from dissensus.papers.base import Cell, Study
from dissensus.papers.collusion.parts import Parts, load_parts
from dissensus.papers.comparing import (
    SEEDS_OPTION,
    seeds_of,
)
from dissensus.training import predict

__all__ = ["TEMPERATURE", "cells", "digit_pairs", "run"]

_WEAK = gradient_attacks((), (0.025, 0.05))


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The baseline, and ADP at several temperatures, for each seed."""
    few = {"steps": 4, "restarts": 2, "autoattack_steps": 4, "queries": 20}
    settings: dict[str, Any] = {
        "smoke": {
            **SMOKE,
            "pairs": True,
            "attacks": _WEAK,
            "standard": standard((0.05,), 10, **few),
        },
        "cpu": {
            **CPU,
            "data": "mnist",
            "pairs": True,
            "train": 8000,
            "attacks": _WEAK,
            "standard": standard((0.05,), 30),
        },
        "paper": {
            **PAPER,
            "data": "cifar100",
            "pairs": False,
            "attacks": CIFAR100_WEAK,
            "standard": standard((0.005, 0.01), 1000, autoattack_steps=100, queries=5000),
        },
    }[scale]
    settings["temperature"] = 1.0
    kinds = [("plain", 1.0), ("adp", 1.0), ("adp", 4.0)]
    return [
        ensemble_cell(
            f"{contender}-temperature={temperature:g}-seed={seed}",
            settings,
            contender=contender,
            temperature=temperature,
            seed=seed,
            standard=settings["standard"] if temperature == 1.0 else None,
        )
        for seed in seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 3}[scale])
        for contender, temperature in kinds
    ]


def run(cell: Cell) -> dict[str, Any]:
    """Train and measure; beside the rest, how much probability the wrong classes have."""
    parts = load_parts(cell)
    if cell["pairs"]:
        parts = digit_pairs(parts, cell["seed"])
    ens = train_ensemble(cell, parts)
    result = measure(ens, cell, parts)
    return {**result, "wrong": _wrong(ens, parts, cell["temperature"])}


def digit_pairs(parts: Parts, seed: int) -> Parts:
    """Two digits side by side, each at half its size: a hundred classes from ten.

    CIFAR-100 stands for many classes in the paper. Each image is once the left and once the right
    half, with a partner of the same part.
    """

    def pair(part: tuple[Tensor, Tensor], number: int) -> tuple[Tensor, Tensor]:
        x, y = part
        half = fit_images(x, (x.shape[1], x.shape[2] // 2, x.shape[3] // 2))
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(2 * seed + number))
        both = torch.cat([half, half[order]], -1)
        return both.contiguous(memory_format=torch.channels_last), 10 * y + y[order]

    train = pair(parts.train, 0)
    pixels = train[0]
    return replace(
        parts,
        train=train,
        test=pair(parts.test, 1),
        input_shape=tuple(pixels.shape[1:]),
        outputs=10 * parts.outputs,
        normalize=((float(pixels.mean()),), (float(pixels.std()),)),
    )


def _wrong(ens: Ensemble, parts: Parts, temperature: float) -> dict[str, float]:
    """A member's probability for wrong classes on test data: of all, and of the largest."""
    found = {}
    for name, divisor in (("in_training", temperature), ("in_use", 1.0)):
        probs = (predict(ens, parts.test).outputs.double() / divisor).softmax(-1)
        index = parts.test[1].expand(probs.shape[:-1])[..., None]
        others = probs.scatter(-1, index, 0.0)
        found[f"{name}_all"] = float(others.sum(-1).mean())
        found[f"{name}_largest"] = float(others.amax(-1).mean())
    return found


TEMPERATURE = Study(
    "temperature",
    cells,
    run,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "10 s", "cpu": "10 min", "paper": "GPU days"},
)
