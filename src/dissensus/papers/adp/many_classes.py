"""Table 3 and Appendix B.2: a hundred classes, and a temperature in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dissensus.papers.adp.judging import attack_title, family, standard_eps
from dissensus.papers.adp.published import gains
from dissensus.papers.adp.reading import (
    accuracy_text,
    attack_names,
    by_seed,
    compared,
    kept_by,
    standard_bits,
)
from dissensus.papers.adp.settings import STRONG
from dissensus.papers.adp.temperature import TEMPERATURE
from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparing import (
    CANNOT,
    compare_values,
    paired,
    where,
)
from dissensus.papers.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MANY_CLASSES"]


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
    from dissensus.plots.style import COLORS, label, new_figure

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
    header += [attack_title(spec) for spec in specs]
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
        "smoke": "Pairs of 300 digits of scikit-learn, a tiny CNN, 8 epochs: no claim can show.",
        "cpu": (
            "CIFAR-100 was not at hand: a hundred classes are made of MNIST, two digits side by "
            "side at 14 × 14 pixels each; 8,000 pairs for training, 2,000 for testing; three "
            "members of the CNN of the other ensembles, Adam 2e-3, 15 epochs, 3 seeds; α = 2, "
            "β = 0.5, T = 1 and 4 in training and 1 in use. The paper's attacks on 200 test "
            f"images a seed. {STRONG}; on 30 test images a seed, for T = 1."
        ),
        "paper": (
            "CIFAR-100 whole, three ResNet-20, the paper's schedule, 3 seeds; T = 1 and 4; "
            "attacks on 1,000 images."
        ),
    },
)
