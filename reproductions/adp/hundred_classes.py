"""A hundred classes, and a temperature in training: Table 3 and Appendix B.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dissensus.data import fit_images
from dissensus.ensemble import Ensemble
from dissensus.show import Panel, Plot, Series
from dissensus.training import predict
from reproductions.adp.accuracy import (
    MoreRight,
    accuracy_text,
    attack_names,
    attack_title,
    right_after,
    right_in_worst_case,
    specs_of,
    standard_eps,
    weak,
    worst_case,
)
from reproductions.adp.ensembles import BASELINE, measure, train_ensemble
from reproductions.adp.published import gains
from reproductions.adp.settings import (
    CIFAR100_WEAK,
    CPU,
    FEW_STEPS,
    MORE_STEPS,
    PAPER,
    SMOKE,
    WEAK_PROTOCOL,
    gradient_attacks,
    standard,
)
from reproductions.cells import ImageData, Variants, load_images, seed_study
from reproductions.old.base import Cell, Claim, Experiment, Finding, Record, Table
from reproductions.old.comparisons import Larger, Quantity, Runs, at, cell_values, filter_records
from reproductions.old.per_image import PerImage

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
    ens = train_ensemble(cell, data)
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


# ---- claims -------------------------------------------------------------------------------------

_DIVERSITY = Quantity("median log diversity", at("histogram", "quartiles", 1), "{:.2f}")
_WRONG = Quantity(
    "probability of wrong classes in training", at("wrong", "in_training_all"), "{:.2f}"
)
_AT_1 = Runs("ADP₂,₀.₅", {"contender": "adp", "temperature": 1.0})


def _kinds(records: list[Record]) -> list[Runs]:
    """The baseline and ADP at each temperature, as tables call them."""
    temperatures = cell_values(filter_records(records, contender="adp"), "temperature")
    return [
        BASELINE,
        *(
            Runs(f"ADP₂,₀.₅, T = {one:g}", {"contender": "adp", "temperature": one})
            for one in temperatures
        ),
    ]


def _more_right_in_worst_case(records: list[Record]) -> Finding:
    smallest = "".join(f", ε = {eps:g}" for eps in standard_eps(records)[:1])
    attacks = PerImage(f"worst case{smallest}", worst_case(0).reader)
    return MoreRight(_AT_1, BASELINE, attacks)(records)


@dataclass(frozen=True)
class HottestLarger:
    """Checks that a quantity, or the accuracy under attacks, is larger at the highest temperature.

    Compared with a temperature of 1.
    """

    quantity: Quantity | PerImage

    def __call__(self, records: list[Record]) -> Finding:
        pair = _kinds(records)[-1], Runs("ADP₂,₀.₅, T = 1", _AT_1.settings)
        if isinstance(self.quantity, PerImage):
            return MoreRight(*pair, self.quantity)(records)
        return Larger(self.quantity, *pair)(records)


# ---- figure and table ---------------------------------------------------------------------------


def plot(records: list[Record]) -> Plot:
    """Diversity, wrong-class probabilities and accuracy, by temperature."""
    kinds = [runs for runs in _kinds(records) if runs.of(records)]
    quantities = {
        "median log diversity": _DIVERSITY,
        "probability of wrong classes, in training": _WRONG,
        "accuracy under the paper's PGD": _pgd_accuracy(records),
    }
    panels = []
    for label, quantity in quantities.items():
        series = []
        for number, runs in enumerate(kinds):
            values = list(quantity.values(runs.of(records)).values())
            x = [runs.name.replace("ADP₂,₀.₅, ", "")] * len(values)
            series.append(Series(runs.name, x, values, number, "points", legend=False))
        panels.append(Panel("", label, series))
    return Plot(panels, "Diversity, wrong classes and accuracy by temperature", 3)


def _pgd_accuracy(records: list[Record]) -> Quantity:
    read_bits = right_after(specs_of(records, ("pgd",)))

    def read(record: Record) -> float:
        bits = read_bits(record)
        return 0.0 if bits is None else float(bits.mean())

    return Quantity("accuracy under PGD", read)


def table(records: list[Record]) -> Table:
    specs, sizes = attack_names(records), standard_eps(records)
    header = ["training", "clean error", "median log diversity", "wrong classes in training"]
    header += [attack_title(spec) for spec in specs]
    header += [f"worst case, standard, ε = {eps:g}" for eps in sizes]
    clean = Quantity("clean error", at("clean", "error"), "{:.1%}")
    readers = [*(right_after([spec]) for spec in specs), *map(right_in_worst_case, sizes)]
    rows = []
    for runs in _kinds(records):
        some = runs.of(records)
        if some:
            shown = [quantity.text(some) for quantity in (clean, _DIVERSITY, _WRONG)]
            rows.append([runs.name, *shown, *(accuracy_text(some, read) for read in readers)])
    return header, rows


HUNDRED_CLASSES = Experiment(
    "adp/temperature",
    "Table 3, Appendix B.2",
    "A hundred classes, and a temperature in training",
    STUDY,
    (
        *(
            Claim(
                f"With a hundred classes, ADP₂,₀.₅ is more accurate than the baseline under "
                f"{name.upper()}",
                f"Section 4.3, Table 3; {WEAK_PROTOCOL}",
                MoreRight(
                    _AT_1,
                    BASELINE,
                    weak((name,)),
                    f"CIFAR-100: {str(gains(name)).rpartition('CIFAR-100 ')[2]}",
                ),
            )
            for name in ("bim", "pgd", "mim")
        ),
        Claim(
            "With a hundred classes, ADP₂,₀.₅ is more accurate than the baseline in the worst case",
            "Section 4.3, Table 3; standard protocol",
            _more_right_in_worst_case,
        ),
        Claim(
            "A temperature above 1 in training raises the probability of wrong classes there",
            "Appendix B.2",
            HottestLarger(_WRONG),
        ),
        Claim(
            "It makes members more diverse (the paper leaves this to future work)",
            "our question",
            HottestLarger(_DIVERSITY),
        ),
        Claim(
            "It makes the ensemble more robust to the paper's PGD (left to future work)",
            "our question; the paper's attack (historical, weak)",
            HottestLarger(weak(("pgd",))),
        ),
    ),
    plot,
    table,
)
