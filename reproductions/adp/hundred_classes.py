"""A hundred classes, and a temperature in training: Table 3 and Appendix B.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dissensus.data import fit_images
from dissensus.ensemble import Ensemble
from dissensus.training import predict
from reproductions.adp.accuracy import (
    accuracy_claim,
    accuracy_table,
    under,
    worst_case,
)
from reproductions.adp.ensembles import BASELINE, measure, train
from reproductions.adp.published import published_changes
from reproductions.adp.settings import (
    CIFAR100_WEAK,
    CPU,
    FEW_STEPS,
    MORE_STEPS,
    PAPER,
    SMOKE,
    gradient_attacks,
    standard,
)
from reproductions.cells import ImageData, Variants, load_images, seed_study
from reproductions.comparisons import Quantity, Runs, at, group_by_data, group_records, larger
from reproductions.experiment import Claim, Experiment, Table
from reproductions.study import Cell, Record

_WEAK = gradient_attacks((), (0.025, 0.05))


_SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {
        **SMOKE,
        "pairs": True,
        "attacks": _WEAK,
        "standard": standard((0.05,), 10, **FEW_STEPS),
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
        "standard": standard((0.005, 0.01), 1000, **MORE_STEPS),
    },
}


def _variants(settings: Mapping[str, Any]) -> Variants:
    """The baseline, and ADP at several temperatures; strong attacks only at temperature 1."""
    return {
        f"{contender}-temperature={temperature:g}": {
            **settings,
            "contender": contender,
            "standard": settings["standard"] if temperature == 1.0 else None,
            "temperature": temperature,
        }
        for contender, temperature in (("plain", 1.0), ("adp", 1.0), ("adp", 4.0))
    }


def run(cell: Cell) -> dict[str, Any]:
    """Train and measure; beside the rest, how much probability the wrong classes have."""
    data = load_images(cell)
    if cell["pairs"]:
        data = digit_pairs(data, cell["seed"])
    ens, _ = train(cell, data)
    wrong = _wrong_probability(ens, data, cell["temperature"])
    return {**measure(ens, cell, data), "wrong": wrong}


def digit_pairs(data: ImageData, seed: int) -> ImageData:
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

    train = pair(data.train, 0)
    pixels = train[0]
    return replace(
        data,
        train=train,
        test=pair(data.test, 1),
        input_shape=tuple(pixels.shape[1:]),
        outputs=10 * data.outputs,
        normalize=((float(pixels.mean()),), (float(pixels.std()),)),
    )


def _wrong_probability(ens: Ensemble, data: ImageData, temperature: float) -> dict[str, float]:
    """A member's probability for wrong classes on test data: of all, and of the largest."""
    logits = predict(ens, data.test).outputs.double()
    index = data.test[1].expand(logits.shape[:-1])[..., None]
    result = {}
    for name, divisor in (("in_training", temperature), ("in_use", 1.0)):
        others = (logits / divisor).softmax(-1).scatter(-1, index, 0.0)
        result[f"{name}_all"] = float(others.sum(-1).mean())
        result[f"{name}_largest"] = float(others.amax(-1).mean())
    return result


STUDY = seed_study(
    "temperature",
    {scale: _variants(settings) for scale, settings in _SETTINGS.items()},
    run,
    seeds=(2, 10, 3),
    cost=("10 s", "10 min", "GPU days"),
)


# ---- table --------------------------------------------------------------------------------------

_DIVERSITY = Quantity("median log diversity", at("histogram", "quartiles", 1), "{:.2f}")
_WRONG = Quantity(
    "probability of wrong classes in training", at("wrong", "in_training_all"), "{:.2f}"
)
_PGD = under("pgd")
_COLD, _HOT = (
    Runs(f"ADP₂,₀.₅, T = {one:g}", {"contender": "adp", "temperature": one}) for one in (1.0, 4.0)
)


def table(records: list[Record]) -> Table:
    """Accuracies in % by the temperature in training."""

    def name(record: Record) -> str:
        return f"a hundred classes, T = {record['cell']['temperature']:g}"

    return accuracy_table(records, lambda some: group_records(some, name))


# ---- claims -------------------------------------------------------------------------------------

HUNDRED_CLASSES = Experiment(
    "adp/temperature",
    "Table 3, Appendix B.2",
    "A hundred classes, and a temperature in training",
    STUDY,
    (
        *(
            accuracy_claim(
                f"ADP is more accurate than the baseline under {name.upper()}",
                (_COLD, BASELINE),
                under(name),
                where="Section 4.3, Table 3",
                changes=published_changes((name,), data="cifar100"),
            )
            for name in ("bim", "pgd", "mim")
        ),
        accuracy_claim(
            "ADP is more accurate than the baseline in the worst case",
            (_COLD, BASELINE),
            worst_case("smaller"),
        ),
        Claim(
            "A temperature above 1 in training raises the probability of wrong classes there",
            "Appendix B.2",
            larger(_WRONG, _HOT, _COLD),
        ),
        Claim(
            "A temperature above 1 makes members more diverse",
            "Appendix B.2, future work",
            larger(_DIVERSITY, _HOT, _COLD),
            ours=True,
        ),
        Claim(
            "A temperature above 1 makes the ensemble more accurate under PGD",
            "Appendix B.2, future work",
            larger(_PGD, _HOT, _COLD, group_by_data, share=True),
            ours=True,
        ),
    ),
    table,
)
