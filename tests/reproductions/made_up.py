"""A small experiment of the tests: two coins, thrown in a few cells."""

from collections.abc import Mapping
from typing import Any

from dissensus.show import Panel, Plot, Series, Text
from reproductions.base import Cell, Claim, Experiment, Finding, Record, Study
from reproductions.statistics import larger_than


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    count = {"smoke": 3, "cpu": 5, "paper": 9}[scale]
    bias = options.get("bias", 0.25)
    return [{"name": f"run={seed}", "seed": seed, "bias": bias} for seed in range(count)]


def run(cell: Cell) -> dict[str, Any]:
    if cell["bias"] == 13:
        raise RuntimeError("bad luck in /home/someone/coins/13.csv today")
    return {"heads": 1 / 3 + cell["bias"] + 0.01 * cell["seed"], "tails": 1 / 3}


def check(records: list[Record]) -> Finding:
    heads, tails = ([r["result"][side] for r in records] for side in ("heads", "tails"))
    return larger_than(heads, tails, ("heads", "tails"), "share", published="0.6 | 0.4")


def first_cell(records: list[Record]) -> Finding:
    names = {record["name"]: record for record in records}
    return Finding("holds", f"run 4 has {names['run=4']['result']['heads']:.3f}")


def plot(records: list[Record]) -> Plot:
    heads = [record["result"]["heads"] for record in records]
    low, high = [h - 0.1 for h in heads], [h + 0.1 for h in heads]
    line = Series("heads", range(len(heads)), heads, 0, low=low, high=high)
    return Plot([Panel("run", "share β", [line], "Coins", legend="best"), Text()])


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    return ["run", "heads"], [[r["name"], f"{r['result']['heads']:.3f}"] for r in records]


STUDY = Study(
    name="coins",
    cells=cells,
    run=run,
    jobs=1,
    options={"bias": "how much more often heads come up"},
    cost={"smoke": "1 s"},
)
COINS = Experiment(
    full_name="collusion/coins",
    shows="Figure 0",
    title="Heads come up more often",
    study=STUDY,
    claims=(Claim("Heads | tails", "Section 0", check), Claim("There", "Section 1", first_cell)),
    draw=plot,
    table=table,
)
