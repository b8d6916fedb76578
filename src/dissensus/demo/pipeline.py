"""The stages of the demo: train, sweep, diagnose, detect, attack, report and summarise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus import runs
from dissensus.data import HELD_OUT
from dissensus.demo import plan
from dissensus.demo.summary import ContenderResult, sentences, table
from dissensus.detection import MARKED, Estimate, default_score
from dissensus.show import report
from dissensus.sweeps import Cell, Record, Watcher, sweep
from dissensus.tools.console import InertConsole
from dissensus.tools.files import write_text
from dissensus.tools.progress import ProgressBar
from dissensus.tools.records import read_record

#: The file that marks a folder as made by a demo, which a later demo may replace.
MARK = "demo.json"

Tick = Callable[[float], None]
_RUNS, _SWEEP, _REPORT = "runs", "sweep", "report"


def run(
    out: str | Path = "demo",
    *,
    epochs: int = plan.EPOCHS,
    limit: int = plan.ATTACKED,
    attacks: Sequence[str] = plan.STRONG,
    seed: int = 0,
) -> dict[str, ContenderResult]:
    """Train and test every contender, print the comparison and write the page to ``out``.

    The folder then holds a run folder for each method and a sweep over β, as the commands of
    ``dissensus`` write them, and the page made of them.
    """
    place, console, contenders = Path(out), InertConsole(), plan.CONTENDERS
    folders = {key: place / _RUNS / key for key in contenders}
    _clear(place)
    runs.use_threads(1)  # networks this small are slower on more
    console.print(
        f"Dissensus: {len(contenders)} ways to train {plan.SETTINGS['members']} small "
        "networks on the digits 0 to 7; 8 and 9 are held out"
    )
    with ProgressBar("demo", total=4 * len(contenders) + 2) as bar:
        for key, folder in folders.items():
            contender = contenders[key]
            _train(contender, folder, epochs, seed, bar.begin(f"train {contender.name}"))
            bar.begin(f"diagnose {contender.name}")
            runs.diagnose(folder, device="cpu").save()
            bar.begin(f"detect with {contender.name}")
            _detect(folder, contender.objective, seed)
            bar.begin(f"attack {contender.name}")
            _attack(folder, limit, attacks, seed)
        _sweep(place / _SWEEP, epochs, seed, bar.begin("sweep β"))
        bar.begin("report")
        page = _page(place, folders)
    outcomes = _outcomes(folders)
    _print_summary(console, outcomes, page, len(attacks) + 1)
    return outcomes


# ---- the stages ---------------------------------------------------------------------------------


def _train(contender: plan.Contender, out: Path, epochs: int, seed: int, tick: Tick) -> None:
    def advance(record: dict[str, Any], ens: Any) -> None:
        tick(record["epoch"] / epochs)

    settings = {
        **plan.SETTINGS,
        "objective": contender.objective,
        "disagreement": contender.disagreement,
    }
    runs.train(**settings, epochs=epochs, seed=seed, out=out, callbacks=[advance])


class _SweepTicks(Watcher):
    """Moves the bar with the cells of a sweep."""

    def __init__(self, tick: Tick) -> None:
        self.tick, self.done, self.total = tick, 0, 1

    def begin(self, cells: Sequence[Cell], records: Sequence[Record]) -> None:
        self.done, self.total = len(records), len(cells)

    def record(self, record: Record) -> None:
        self.done += 1
        self.tick(self.done / self.total)


def _sweep(out: Path, epochs: int, seed: int, tick: Tick) -> None:
    settings = {**plan.SWEEP, "epochs": min(epochs, plan.SWEEP["epochs"]), "seed": seed}
    grid = {"beta": list(plan.BETAS)}
    sweep(**settings, grid=grid, repeats=plan.REPEATS, out=out, watcher=_SweepTicks(tick))


def _detect(folder: Path, objective: str, seed: int) -> None:
    scores = list(dict.fromkeys([default_score(objective), "mutual_information", "pds", "energy"]))
    unknown = [HELD_OUT, plan.CORRUPTED]
    runs.detect(folder, unknown=unknown, scores=scores, seed=seed, device="cpu").save()


def _attack(folder: Path, limit: int, attacks: Sequence[str], seed: int) -> None:
    settings: dict[str, Any] = {"limit": limit, "curve": plan.CURVE, "checks": False}
    specs = (plan.PAPER, *attacks)
    runs.attack(folder, attacks=specs, **settings, seed=seed, device="cpu").save()


def _page(place: Path, folders: dict[str, Path]) -> Path | None:
    """The report page; None if plotly, an extra, is not installed."""
    if find_spec("plotly") is None:
        return None
    title = "Dissensus: six ways to train an ensemble on digits"
    paths = [*folders.values(), place / _SWEEP]
    return report.build(paths, out=place / _REPORT, title=title)


# ---- results ------------------------------------------------------------------------------------


def _outcomes(folders: dict[str, Path]) -> dict[str, ContenderResult]:
    """The numbers of all methods, from the records that this demo has just written."""
    methods = report.read(list(folders.values())).methods
    return {
        key: _outcome(key, folder, method.numbers["accuracy"].parts)
        for (key, folder), method in zip(folders.items(), methods, strict=True)
    }


def _outcome(key: str, folder: Path, correct: NDArray[np.float64] | None) -> ContenderResult:
    record, ood = read_record(folder / "record.json"), read_record(folder / "ood" / "ood.json")
    attacks = read_record(folder / "robustness" / "record.json")
    (paper,) = (row for row in attacks["attacks"] if row["attack"] == plan.PAPER)
    worst = attacks["worst_case"]
    aurocs = {
        row["set"]: Estimate(row["auroc"], row["auroc_low"], row["auroc_high"])
        for row in ood["detection"]
        if row["score"] == ood["detection"][0]["score"]  # the default of the method leads
    }
    shares = ood["accuracy"][key]["test"]["overall"]
    return ContenderResult(
        Estimate(**shares["ensemble"]),
        Estimate(**shares["mean_member"]),
        record["test"]["diversity"],
        read_record(folder / "diagnosis.json")["verdict"],
        aurocs[HELD_OUT],
        aurocs[plan.CORRUPTED],
        Estimate(paper["accuracy"], *paper["interval"]),
        Estimate(worst["accuracy"], worst["low"], worst["high"]),
        correct,
    )


def _print_summary(
    console: InertConsole, outcomes: dict[str, ContenderResult], page: Path | None, attacks: int
) -> None:
    console.print(table(outcomes))
    console.print(f"*: {MARKED} (*): the same, of a colluding ensemble.\n")
    for sentence in sentences(outcomes):
        console.print(f"- {sentence}")
    console.print(
        "\nVerdicts come from `dissensus diagnose`. The column of strong attacks is the worst case "
        f"of {attacks} attacks with ε = 0.1. All runs, the sweep and their records are kept in the "
        "folder for other commands."
    )
    if page is None:
        console.print("The page needs plotly: pip install 'dissensus[report]'")
    else:
        console.say(f"Open the page in a browser: {page}")


# ---- setup --------------------------------------------------------------------------------------


def _clear(place: Path) -> None:
    """Empty the folder if a demo made it; refuse any other folder that is not empty."""
    if place.is_dir() and any(place.iterdir()) and not (place / MARK).is_file():
        raise ValueError(f"{place} contains other files; choose another --out for the demo")
    for name in (_RUNS, _SWEEP, _REPORT):
        shutil.rmtree(place / name, ignore_errors=True)
    write_text(place / MARK, json.dumps({"made by": "dissensus demo"}) + "\n")
