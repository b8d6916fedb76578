"""Figure 3: do adversarial examples for one member fool the others?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dissensus.experiments.adp.contenders import CONTENDERS
from dissensus.experiments.adp.ensembles import ENSEMBLES
from dissensus.experiments.adp.reading import contenders_in, data_in, rows_of, title
from dissensus.experiments.adp.settings import ENSEMBLE_SETTING
from dissensus.experiments.base import Claim, Experiment, Finding, Record
from dissensus.experiments.comparing import (
    all_of,
    compare_values,
    paired,
)
from dissensus.experiments.statistics import mean_interval

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
    mode: str, attacks: Sequence[str], other: str = "plain"
) -> Callable[[list[Record]], Finding]:
    """Less transfer among ADP's members than among ``other``'s, for each attack and data set."""

    def check(records: list[Record]) -> Finding:
        findings = {}
        for data in data_in(records):
            for attack in attacks:
                name = _long(records) if attack == "long" else attack
                values = [
                    _values(rows_of(records, data, who), f"{name} {mode}") for who in ("adp", other)
                ]
                if not all(values):
                    continue
                titles = [CONTENDERS[who].title for who in ("adp", other)]
                adp, plain = paired(*values)
                quantity = {
                    "untargeted": "accuracy of the other members",
                    "targeted": "other members that predict the target",
                }[mode]
                if mode == "untargeted":
                    sides, order = (adp, plain), (titles[0], titles[1])
                else:
                    sides, order = (plain, adp), (titles[1], titles[0])
                key = f"{title(data)}, {_attack_title(name)}"
                findings[key] = compare_values(*sides, order, quantity, "{:.1%}")
        return all_of(findings)

    return check


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
    lower = all(_less("targeted", (name,))(records).verdict == "holds" for name in ("pgd", "long"))
    words = (
        "**ADP reduces transfer between members.**" if lower else "The claims say where it falls."
    )
    return [
        "Targets that transfer from one member to another (PGD), in %, baseline → ADP₂,₀.₅: "
        f"{', '.join(parts)}. {words} That is diversity, not robustness: an attacker of the "
        "ensemble sees all members."
    ]


def _attack_title(name: str) -> str:
    kind, _, steps = name.partition("-")
    return f"{kind.upper()} of {steps} steps" if steps else kind.upper()


def draw(records: list[Record]) -> Figure:
    """The matrices of PGD, mean over seeds; high is good untargeted, low is good targeted."""
    from dissensus.experiments.drawing import new_figure

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

TRANSFER = Experiment(
    "transfer",
    "adp",
    "Figure 3",
    "Transfer of adversarial examples among the members of an ensemble",
    ENSEMBLES,
    (
        Claim(
            "Untargeted, ADP's members stay more accurate on examples made for another member",
            f"{_WHERE}; the paper's attacks (historical, weak)",
            _less("untargeted", ("pgd", "mim")),
        ),
        Claim(
            "Targeted, ADP's members follow the target of another member less often",
            f"{_WHERE}; the paper's attacks (historical, weak)",
            _less("targeted", ("pgd", "mim")),
        ),
        Claim(
            "Untargeted, also under PGD with many more steps, which crosses the ball",
            f"{_WHERE}; strong attack",
            _less("untargeted", ("long",)),
        ),
        Claim(
            "Targeted, also under PGD with many more steps, which crosses the ball",
            f"{_WHERE}; strong attack",
            _less("targeted", ("long",)),
        ),
        Claim(
            "It is the determinant: targeted, examples transfer less than with label smoothing",
            "our question; the paper's attacks (historical, weak)",
            _less("targeted", ("pgd", "mim"), "smoothed"),
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
