"""Made-up material: two coins, thrown in a few cells; and curves with planted effects."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reproductions.comparisons import Finding, Quantity, Within, at, exact
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot
from reproductions.study import Cell, Record, Study

HEADS = Quantity("heads", at("heads"))


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    count = {"smoke": 3, "cpu": 5, "paper": 9}[scale]
    bias = options.get("bias", 0.25)
    return [{"name": f"run={seed}", "seed": seed, "bias": bias} for seed in range(count)]


def run(cell: Cell) -> dict[str, Any]:
    if cell["bias"] == 13:
        raise RuntimeError("bad luck in /home/someone/coins/13.csv today")
    return {"heads": 1 / 3 + cell["bias"] + 0.01 * cell["seed"], "tails": 1 / 3}


def fifth(records: list[Record]) -> Finding:
    return exact(True, f"{records[4]['result']['heads']:.3f}")


def table(records: list[Record]) -> Table:
    return Table(["run", "heads"], [[r["name"], f"{r['result']['heads']:.3f}"] for r in records])


def plot(records: list[Record]) -> Plot:
    series = HEADS.series("heads", ["all"], [records], kind="points")
    return Plot([Panel("run", "share β", [series], "Coins")], "Coins")


STUDY = Study("coins", cells, run, 1, {"bias": "how often heads come up"}, {"smoke": "1 s"})
COINS = Experiment(
    "collusion/coins",
    "Figure 0",
    "Heads come up more often",
    STUDY,
    (
        Claim(
            "Heads | tails",
            "Section 0",
            Within("heads", lambda records: {"": list(HEADS.values(records).values())}, 0.5),
            "0.6",
        ),
        Claim(
            "Run 4 is there",
            "Section 1",
            fifth,
            ours=True,
            again="dice",
        ),
    ),
    table,
    plot,
)


def curves(joint: float, sign: float, wobble: float) -> dict[str, Any]:
    """A joint training that is slow, has its diversity early, and a larger gap (``sign`` 1)."""
    time = np.linspace(0, 1, 8)
    train = 2.0 - 1.8 * time + sign * 0.1 * joint + wobble
    test = train + 0.1 + time + sign * 0.3 * joint * (0.2 + time) + wobble
    bump = (1 - time) if sign > 0 else 0.02 * time
    diversity = 0.2 + sign * 0.05 * joint + joint * bump
    accuracy = (0.2 + 0.5 * time).tolist()
    keys = ("accuracy", "member_accuracy")
    return {
        "epoch": list(range(1, 9)),
        "train_error": train.tolist(),
        "test_error": test.tolist(),
        "train_member_error": (train + diversity).tolist(),
        "test_member_error": (test + 0.3 + sign * joint).tolist(),
        **{f"{part}_{key}": accuracy for part in ("train", "test") for key in keys},
    }
