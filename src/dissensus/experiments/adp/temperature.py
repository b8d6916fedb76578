"""Table 3 and Appendix B.2: many classes, and a temperature in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dissensus.data import fit_images
from dissensus.ensemble import Ensemble
from dissensus.experiments.adp.contenders import train_ensemble
from dissensus.experiments.adp.ensembles import (
    CIFAR100_WEAK,
    CPU,
    PAPER,
    SMOKE,
    ensemble_cell,
    gradient_attacks,
    measure,
    standard,
)
from dissensus.experiments.adp.published import gains
from dissensus.experiments.adp.reading import (
    accuracy_text,
    attack_names,
    by_seed,
    compared,
    kept_by,
    standard_bits,
)
from dissensus.experiments.adp.settings import STRONG
from dissensus.experiments.adp.white_box import family, parameter, standard_eps
from dissensus.experiments.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.experiments.collusion.comparing import CANNOT, compare_values, paired
from dissensus.experiments.collusion.images import SEEDS_OPTION, seeds_of, where
from dissensus.experiments.collusion.parts import Parts, load_parts
from dissensus.experiments.statistics import mean_interval
from dissensus.training import predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MANY_CLASSES", "TEMPERATURE", "cells", "digit_pairs", "run"]

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
            "train": 10_000,
            "epochs": 10,
            "schedule": "multistep:at=8,factor=0.2",
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
    kinds = [("plain", 1.0), ("adp", 1.0), ("adp", 2.0), ("adp", 4.0)]
    if scale == "smoke":
        kinds = kinds[:3]
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


# ---- reading ------------------------------------------------------------------------------------


def _kinds(records: list[Record]) -> dict[str, list[Record]]:
    """Records by what tables call them."""
    found = {"baseline": where(records, contender="plain")}
    adp = where(records, contender="adp")
    for temperature in sorted({row["cell"]["temperature"] for row in adp}):
        found[f"ADP₂,₀.₅, T = {temperature:g}"] = where(adp, temperature=temperature)
    return found


def _pair(records: list[Record], temperature: float | None) -> dict[str, list[Record]]:
    """ADP at a temperature (None: the highest) before ADP at 1."""
    kinds = [name for name in _kinds(records) if name != "baseline"]
    first = kinds[-1] if temperature is None else f"ADP₂,₀.₅, T = {temperature:g}"
    return {name: _kinds(records).get(name, []) for name in (first, "ADP₂,₀.₅, T = 1")}


def _weak(name: str) -> Callable[[list[Record]], Finding]:
    """ADP at temperature 1 against the baseline under one of the paper's attacks."""

    def check(records: list[Record]) -> Finding:
        specs = [spec for spec in attack_names(records) if family(spec) == name]
        rows = (_kinds(records).get("ADP₂,₀.₅, T = 1", []), where(records, contender="plain"))
        runs = [by_seed(one, kept_by(specs)) for one in rows]
        words = f"accuracy under {name.upper()}"
        printed = {"bim", "pgd", "mim"} & {name} and f"CIFAR-100: {_cifar100(name)}"
        return compared(runs[0], runs[1], ("ADP₂,₀.₅", "baseline"), words, printed or None)

    return check


def _cifar100(name: str) -> str:
    return str(gains(name)).rpartition("CIFAR-100 ")[2]


def _strong(records: list[Record]) -> Finding:
    sizes = standard_eps(records)
    if not sizes:
        return Finding(CANNOT, "the standard protocol was not run")
    rows = (_kinds(records).get("ADP₂,₀.₅, T = 1", []), where(records, contender="plain"))
    runs = [by_seed(one, standard_bits(sizes[0])) for one in rows]
    words = f"worst case, ε = {sizes[0]:g}"
    return compared(runs[0], runs[1], ("ADP₂,₀.₅", "baseline"), words)


def _value(rows: list[Record], read: Callable[[Record], float]) -> dict[int, float]:
    return {row["cell"]["seed"]: read(row) for row in rows}


def _hotter(
    read: Callable[[Record], float], quantity: str, form: str
) -> Callable[[list[Record]], Finding]:
    """The highest temperature against 1."""

    def check(records: list[Record]) -> Finding:
        kinds = _pair(records, None)
        names = tuple(kinds)
        left, right = paired(*(_value(rows, read) for rows in kinds.values()))
        return compare_values(left, right, (names[0], names[1]), quantity, form)

    return check


def _more_robust(records: list[Record]) -> Finding:
    specs = [spec for spec in attack_names(records) if family(spec) == "pgd"]
    kinds = _pair(records, None)
    runs = [by_seed(rows, kept_by(specs)) for rows in kinds.values()]
    names = tuple(kinds)
    return compared(runs[0], runs[1], (names[0], names[1]), "accuracy under PGD")


def _median(record: Record) -> float:
    return float(record["result"]["histogram"]["quartiles"][1])


def _in_training(record: Record) -> float:
    return float(record["result"]["wrong"]["in_training_all"])


def draw(records: list[Record]) -> Figure:
    """What a temperature does to diversity, to wrong-class probabilities and to accuracies."""
    from dissensus.experiments.drawing import COLORS, label, new_figure

    pgd = [spec for spec in attack_names(records) if family(spec) == "pgd"]

    def attacked(record: Record) -> float:
        bits = kept_by(pgd)(record)
        return 0.0 if bits is None else float(bits.mean())

    panels: dict[str, Callable[[Record], float]] = {
        "median log diversity": _median,
        "probability of wrong classes, in training": _in_training,
        "accuracy under the paper's PGD": attacked,
    }
    figure, axes = new_figure(1, len(panels), width=3.4, height=2.8)
    kinds = {name: rows for name, rows in _kinds(records).items() if rows}
    short = [name.replace("ADP₂,₀.₅, ", "") for name in kinds]
    for panel, (words, read) in zip(axes[0], panels.items(), strict=True):
        for number, rows in enumerate(kinds.values()):
            values = list(_value(rows, read).values())
            panel.plot([number] * len(values), values, "o", color=COLORS[number])
        panel.set_xticks(range(len(kinds)), short)
        label(panel, "", words)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Everything in numbers."""
    specs, sizes = attack_names(records), standard_eps(records)
    header = ["training", "clean error", "median log diversity", "wrong classes in training"]
    header += [f"{family(spec).upper()}, ε = {parameter(spec):g}" for spec in specs]
    header += [f"worst case, standard, ε = {eps:g}" for eps in sizes]
    rows = []
    for name, found in _kinds(records).items():
        if not found:
            continue
        clean = mean_interval([row["result"]["clean"]["error"] for row in found]).shown("{:.1%}")
        spread = mean_interval(list(_value(found, _median).values())).shown("{:.2f}")
        wrong = mean_interval(list(_value(found, _in_training).values())).shown("{:.2f}")
        attacked = [accuracy_text(found, kept_by([spec])) for spec in specs]
        worst = [accuracy_text(found, standard_bits(eps)) for eps in sizes]
        rows.append([name, clean, spread, wrong, *attacked, *worst])
    return header, rows


MANY_CLASSES = Experiment(
    "temperature",
    "adp",
    "Table 3, Appendix B.2",
    "A hundred classes, and a temperature in training",
    TEMPERATURE,
    (
        *(
            Claim(
                f"With a hundred classes, ADP₂,₀.₅ is more accurate than the baseline under "
                f"{name.upper()}",
                "Section 4.3, Table 3; the paper's attacks (historical, weak)",
                _weak(name),
            )
            for name in ("bim", "pgd", "mim")
        ),
        Claim(
            "With a hundred classes, ADP₂,₀.₅ is more accurate than the baseline in the worst case",
            "Section 4.3, Table 3; standard protocol",
            _strong,
        ),
        Claim(
            "A temperature above 1 in training raises the probability of wrong classes there",
            "Appendix B.2",
            _hotter(_in_training, "probability of wrong classes in training", "{:.2f}"),
        ),
        Claim(
            "It makes members more diverse (the paper leaves this to future work)",
            "our question",
            _hotter(_median, "median log diversity", "{:.2f}"),
        ),
        Claim(
            "It makes the ensemble more robust to the paper's PGD (left to future work)",
            "our question; the paper's attack (historical, weak)",
            _more_robust,
        ),
    ),
    draw,
    table,
    {
        "smoke": "Pairs of 300 digits of scikit-learn, a tiny CNN, 3 epochs: no claim can show.",
        "cpu": (
            "CIFAR-100 was not at hand: a hundred classes are made of MNIST, two digits side by "
            "side at 14 × 14 pixels each; 10,000 pairs for training, 2,000 for testing; three "
            "members of the CNN of the other ensembles, Adam 2e-3, 10 epochs, 3 seeds; α = 2, "
            "β = 0.5, T = 1, 2 and 4 in training and 1 in use. The paper's attacks on 200 test "
            f"images a seed. {STRONG}; on 30 test images a seed, for T = 1."
        ),
        "paper": (
            "CIFAR-100 whole, three ResNet-20, the paper's schedule, 3 seeds; T = 1, 2 and 4; "
            "attacks on 1,000 images."
        ),
    },
)
