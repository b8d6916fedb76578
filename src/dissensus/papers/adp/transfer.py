"""Figure 3: do adversarial examples for one member fool the others?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dissensus.papers.adp.contenders import CONTENDERS
from dissensus.papers.adp.ensembles import ENSEMBLES
from dissensus.papers.adp.reading import contenders_in, data_in, rows_of, title
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparing import (
    compare_values,
    paired,
)
from dissensus.papers.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TRANSFER", "off_diagonal"]

_MODES = ("untargeted", "targeted")


def off_diagonal(matrix: Sequence[Sequence[float]]) -> float:
    """The mean over pairs of different members.

    >>> off_diagonal([[0.0, 0.5], [0.25, 0.0]])
    0.375
    """
    found = np.asarray(matrix, dtype=float)
    return float(found[~np.eye(len(found), dtype=bool)].mean())


def _long(records: Sequence[Record]) -> str:
    """``"pgd-50"``: the attack with more steps than the paper's."""
    names = [key for record in records for key in record["result"].get("transfer", {})]
    return next((name.split()[0] for name in names if name.startswith("pgd-")), "pgd-50")


def _values(rows: Sequence[Record], key: str) -> dict[int, float]:
    return {
        row["cell"]["seed"]: off_diagonal(row["result"]["transfer"][key])
        for row in rows
        if key in row["result"].get("transfer", {})
    }


def _less(
    mode: str, attacks: Sequence[str], data: str, other: str = "plain"
) -> Callable[[list[Record]], Finding]:
    """Less transfer among ADP's members than among ``other``'s, mean over ``attacks``."""
    titles = (CONTENDERS["adp"].title, CONTENDERS[other].title)

    def check(records: list[Record]) -> Finding:
        names = [_long(records) if attack == "long" else attack for attack in attacks]
        sides = [
            _mean_values(rows_of(records, data, who), [f"{name} {mode}" for name in names])
            for who in ("adp", other)
        ]
        adp, theirs = paired(*sides)
        tried = " and ".join(_attack_title(name) for name in names)
        if mode == "untargeted":
            words = f"accuracy of other members, {tried}"
            return compare_values(adp, theirs, titles, words, "{:.1%}")
        words = f"other members that predict the target, {tried}"
        return compare_values(theirs, adp, (titles[1], titles[0]), words, "{:.1%}")

    return check


def _mean_values(rows: Sequence[Record], keys: Sequence[str]) -> dict[int, float]:
    found = [_values(rows, key) for key in keys]
    seeds = set.intersection(*(set(one) for one in found))
    return {seed: float(np.mean([one[seed] for one in found])) for seed in sorted(seeds)}


def brief(records: list[Record]) -> list[str]:
    """How often a target transfers, and whether ADP lowers it everywhere."""
    parts = []
    for data in data_in(records):
        values = [
            list(_values(rows_of(records, data, who), "pgd targeted").values())
            for who in ("plain", "adp")
        ]
        if all(values):
            before, after = (100 * float(np.mean(one)) for one in values)
            parts.append(f"{title(data)} {before:.0f} → {after:.0f}")
    if not parts:
        return []
    lower = [title(data) for data in data_in(records) if _falls(records, data)]
    words = f" **ADP reduces transfer between members** ({', '.join(lower)})." if lower else ""
    return [
        "Targets that transfer from one member to another (PGD), in %, baseline → ADP₂,₀.₅: "
        f"{', '.join(parts)}.{words} That is diversity, not robustness: an attacker of the "
        "ensemble sees all members."
    ]


def _falls(records: list[Record], data: str) -> bool:
    """Whether transfer falls in both modes, under the paper's attacks and under the longer one."""
    return all(
        _less(mode, attacks, data)(records).verdict == "holds"
        for mode in _MODES
        for attacks in (("pgd", "mim"), ("long",))
    )


def _attack_title(name: str) -> str:
    kind, _, steps = name.partition("-")
    return f"{kind.upper()} of {steps} steps" if steps else kind.upper()


def draw(records: list[Record]) -> Figure:
    """The matrices of PGD, mean over seeds; high is good untargeted, low is good targeted."""
    from dissensus.plots.style import new_figure

    chosen = [record for record in records if "transfer" in record["result"]]
    sets = data_in(chosen)
    kinds = [(who, mode) for mode in _MODES for who in ("plain", "adp")]
    figure, axes = new_figure(max(1, len(sets)), len(kinds), width=2.3, height=2.3)
    for line, data in zip(axes, sets, strict=True):
        for panel, (who, mode) in zip(line, kinds, strict=True):
            rows = rows_of(chosen, data, who)
            panel.grid(False)
            panel.set_xticks([])
            panel.set_yticks([])
            if not rows:
                panel.set_axis_off()
                continue
            mean = np.mean([row["result"]["transfer"][f"pgd {mode}"] for row in rows], axis=0)
            panel.imshow(mean, cmap="Blues", vmin=0, vmax=1)
            for (i, j), value in np.ndenumerate(mean):
                color = "white" if value > 0.6 else "black"
                panel.text(j, i, f"{value:.2f}", ha="center", va="center", color=color)
            panel.set_title(f"{CONTENDERS[who].title}, {mode}", fontsize=8.0)
            if panel is line[0]:
                panel.set_ylabel(title(data))
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Means over pairs of different members, in %."""
    keys = list(
        dict.fromkeys(key for record in records for key in record["result"].get("transfer", {}))
    )
    header = ["data", "contender", *(_header(key) for key in keys)]
    rows = []
    for data in data_in(records):
        for who in contenders_in(records):
            found = rows_of(records, data, who)
            values = [list(_values(found, key).values()) for key in keys]
            if not values or not all(values):
                continue
            shown = [mean_interval([100 * v for v in one]).shown("{:.0f}") for one in values]
            rows.append([title(data), CONTENDERS[who].title, *shown])
    return header, rows


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
                f"{title(data)}: {_TEXTS[mode]}{words}",
                f"{_WHERE}; {protocol}",
                _less(mode, attacks, data),
            )
            for attacks, words, protocol in _PROTOCOLS
            for data in _SETS
            for mode in _MODES
        ),
        *(
            Claim(
                f"{title(data)}: it is the determinant: targeted, examples transfer less than with "
                "label smoothing",
                "our question; the paper's attacks (historical, weak)",
                _less("targeted", ("pgd", "mim"), data, "smoothed"),
            )
            for data in ("mnist", "fashion_mnist", "digits")
        ),
    ),
    draw,
    table,
    {
        **ENSEMBLE_SETTING,
        "cpu": ENSEMBLE_SETTING["cpu"]
        + " Transfer: ε = 0.2 on MNIST and digits, 0.08 on Fashion-MNIST, 0.05 (the paper's) on "
        "CIFAR-10; 80 images a seed (paper: 1,000); the paper prints Figure 3 as colours.",
    },
    brief,
)
