"""Transfer of adversarial examples among the members of an ensemble: Figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dissensus.papers.adp.ensembles import ADP_RUNS, BASELINE, ENSEMBLES, contenders_in, runs_of
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparisons import (
    Larger,
    Quantity,
    Runs,
    data_title,
    filter_records,
    group_by_data,
    interval_text,
)
from dissensus.plots import Matrix, Plot, Text

__all__ = ["TRANSFER", "brief", "off_diagonal"]

_MODES = ("untargeted", "targeted")


def off_diagonal(matrix: Sequence[Sequence[float]]) -> float:
    """The mean over pairs of different members.

    >>> off_diagonal([[0.0, 0.5], [0.25, 0.0]])
    0.375
    """
    values = np.asarray(matrix, dtype=float)
    return float(values[~np.eye(len(values), dtype=bool)].mean())


def _transfer(name: str, keys: Sequence[str]) -> Quantity:
    """The mean over some attacks, ``"pgd targeted"``, of the mean over pairs of members."""

    def read(record: Record) -> float | None:
        matrices = record["result"].get("transfer", {})
        if any(key not in matrices for key in keys):
            return None
        return float(np.mean([off_diagonal(matrices[key]) for key in keys]))

    return Quantity(name, read, "{:.1%}")


def _long(records: Sequence[Record]) -> str:
    """``"pgd-50"``: the attack with more steps than the paper's."""
    names = [key for record in records for key in record["result"].get("transfer", {})]
    return next((name.split()[0] for name in names if name.startswith("pgd-")), "pgd-50")


@dataclass(frozen=True)
class LessTransfer:
    """Checks that less transfers among ADP's members than among those of ``other``.

    The mean over ``attacks``, where ``"long"`` is the attack with more steps than the paper's.
    """

    mode: str
    attacks: Sequence[str]
    data: str
    other: Runs = BASELINE

    def __call__(self, records: list[Record]) -> Finding:
        names = [_long(records) if attack == "long" else attack for attack in self.attacks]
        words = {
            "untargeted": "accuracy of other members",
            "targeted": "other members that predict the target",
        }[self.mode]
        tried = " and ".join(_attack_title(name) for name in names)
        quantity = _transfer(f"{words}, {tried}", [f"{name} {self.mode}" for name in names])
        sides = (ADP_RUNS, self.other) if self.mode == "untargeted" else (self.other, ADP_RUNS)
        return Larger(quantity, *sides)(filter_records(records, data=self.data))


def brief(records: list[Record]) -> list[str]:
    """How often a target transfers, and whether ADP lowers it everywhere."""
    parts, lower = [], []
    quantity = _transfer("", ["pgd targeted"])
    for title, group in group_by_data(records).items():
        sides = [runs.of(group) for runs in (BASELINE, ADP_RUNS)]
        if all(quantity.values(side) for side in sides):
            before, after = (100 * quantity.mean(side) for side in sides)
            parts.append(f"{title} {before:.0f} → {after:.0f}")
        if _falls(records, group[0]["cell"]["data"]):
            lower.append(title)
    if not parts:
        return []
    words = f" **ADP reduces transfer between members** ({', '.join(lower)})." if lower else ""
    return [
        "Targets that transfer from one member to another (PGD), in %, baseline → ADP₂,₀.₅: "
        f"{', '.join(parts)}.{words} That is diversity, not robustness: an attacker of the "
        "ensemble sees all members."
    ]


def _falls(records: list[Record], data: str) -> bool:
    """Whether transfer falls in both modes, under the paper's attacks and under the longer one."""
    return all(
        LessTransfer(mode, attacks, data)(records).verdict == "holds"
        for mode in _MODES
        for attacks in (("pgd", "mim"), ("long",))
    )


def _attack_title(name: str) -> str:
    kind, _, steps = name.partition("-")
    return f"{kind.upper()} of {steps} steps" if steps else kind.upper()


def plot(records: list[Record]) -> Plot:
    """The matrices of PGD, mean over seeds; high is good untargeted, low is good targeted."""
    panels: list[Matrix | Text] = []
    for title, group in group_by_data(r for r in records if "transfer" in r["result"]).items():
        for mode in _MODES:
            for runs in (BASELINE, ADP_RUNS):
                matrices = [row["result"]["transfer"][f"pgd {mode}"] for row in runs.of(group)]
                name = f"{title}, {runs.name}, {mode}"
                mean = np.mean(matrices, axis=0) if matrices else None
                panels.append(Text() if mean is None else Matrix(name, mean, y="made for member"))
    return Plot(panels, "Transfer of PGD among the members", columns=4)


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Means over pairs of different members, in %."""
    keys = list(
        dict.fromkeys(key for record in records for key in record["result"].get("transfer", {}))
    )
    rows = []
    for title, group in group_by_data(records).items():
        for runs in contenders_in(group):
            values = [_transfer(key, [key]).values(runs.of(group)).values() for key in keys]
            if values and all(values):
                shown = [interval_text([100 * v for v in column], "{:.0f}") for column in values]
                rows.append([title, runs.name, *shown])
    return ["data", "contender", *map(_header, keys)], rows


def _header(key: str) -> str:
    attack, mode = key.split()
    what = {"untargeted": "accuracy", "targeted": "targets hit"}[mode]
    return f"{_attack_title(attack)}, {mode}: {what}"


_WHERE = "Section 4.4, Figure 3"
#: The paper has CIFAR-10; the others are ours.
_SETS = ("cifar10", "mnist", "fashion_mnist", "digits")
_TEXTS = {
    "untargeted": "ADP's members stay more accurate on examples made for another member",
    "targeted": "ADP's members follow the target of another member less often",
}
_PROTOCOLS = (
    (("pgd", "mim"), "", "the paper's attacks (historical, weak)"),
    (("long",), ", under PGD with more steps, which crosses the ball", "strong attack"),
)

TRANSFER = Experiment(
    "transfer",
    "adp",
    "Figure 3",
    "Transfer of adversarial examples among the members of an ensemble",
    ENSEMBLES,
    (
        *(
            Claim(
                f"{data_title(data)}: {_TEXTS[mode]}{words}",
                f"{_WHERE}; {protocol}",
                LessTransfer(mode, attacks, data),
            )
            for attacks, words, protocol in _PROTOCOLS
            for data in _SETS
            for mode in _MODES
        ),
        *(
            Claim(
                f"{data_title(data)}: the determinant matters: targeted, examples transfer less "
                f"than "
                "with label smoothing",
                "our question; the paper's attacks (historical, weak)",
                LessTransfer("targeted", ("pgd", "mim"), data, runs_of("smoothed")),
            )
            for data in ("mnist", "fashion_mnist", "digits")
        ),
    ),
    plot,
    table,
    {
        **ENSEMBLE_SETTING,
        "cpu": ENSEMBLE_SETTING["cpu"]
        + " Transfer: ε = 0.2 on MNIST and digits, 0.08 on Fashion-MNIST, 0.05 (the paper's) on "
        "CIFAR-10; 80 images per seed (paper: 1,000); the paper prints Figure 3 as colours.",
    },
    brief,
)
