"""JSMA, C&W and EAD of Table 2, on networks that come near the published accuracy.

They look for small changes in L0, L2 and L1, take a thousand steps, and are judged here as the
paper judges them: by the images that stay right at a fixed strength. ``l2`` says how far the others
were moved. Networks are those of ``adp/mnist`` in the authors' scaling, and the pair of
``adp/resnet20``: a training that one study has made serves the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reproductions import regime
from reproductions.adp import ensembles, measurements, mnist
from reproductions.adp.accuracy import (
    FAMILIES,
    GRADIENT,
    MoreRight,
    accuracy_change,
    accuracy_table,
    attack_names,
    attack_title,
    right_after,
    weak,
)
from reproductions.adp.comparable import paper_experiment
from reproductions.adp.ensembles import ADP_RUNS, BASELINE, PAIR, contenders_in, runs_of
from reproductions.adp.published import effects, gains, published_row
from reproductions.adp.settings import PAPER, WEAK_PROTOCOL, slow_attacks
from reproductions.cells import load_images, seed_cells, seeds_of
from reproductions.old.base import Cell, Claim, Record, Study, Table
from reproductions.old.comparisons import filter_records, group_by_data, interval_text
from reproductions.old.per_image import InTheseRuns

#: The names of the cells that are trained alike in the studies of MNIST and of ResNet-20.
_ALIKE = {"mnist": "mnist-mean-{contender}-seed={seed}", "cifar10": "{contender}-seed={seed}"}
#: The paper's JSMA stays on a pixel that is at its bound; this one does not, and goes both ways.
_UNSTUCK = "jsma:theta=0.2,gamma=0.3,direction=both"
_NOTHING = {key: PAPER[key] for key in ("attacks", "standard")}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The pair of all seeds on MNIST, then on CIFAR-10 (one seed), then label smoothing."""
    smoke, cpu = scale == "smoke", scale == "cpu"
    digits = {**mnist.SETTINGS[scale], **_NOTHING, "scaling": "mean", "contender": "plain"}
    digits["slow_attacks"] = [*slow_attacks("mnist"), _UNSTUCK]
    digits["slow_images"] = 5 if smoke else 100 if cpu else 1000
    seeds = seeds_of(options, {"smoke": 2, "cpu": 5, "paper": 5}[scale])
    name = digits["data"]
    plan = seed_cells({f"{name}-{one}": {**digits, "contender": one} for one in PAIR}, seeds)
    if not smoke:
        large = {**PAPER, **regime.RESNET20[scale], "slow_attacks": slow_attacks("cifar10")}
        large["slow_images"] = digits["slow_images"]
        plan += seed_cells({f"cifar10-{one}": {**large, "contender": one} for one in PAIR}, [0])
    return plan + seed_cells({f"{name}-smoothed": {**digits, "contender": "smoothed"}}, seeds)


def run(cell: Cell) -> dict[str, Any]:
    """Train the ensemble of ``cell``, or take it from its folder, and attack it.

    What an attack has left is kept once it is made, so that a kill costs one attack.
    """
    data, folder = load_images(cell), work_folder(cell)
    kept = [regime.keep_checkpoints(folder, cell["every"])] if "every" in cell else []
    ens, _ = ensembles.train(cell, data, folder, kept)
    x, y = ensembles.test_images(cell, data)
    few = slice(cell["slow_images"])
    slow: dict[str, Any] = {}
    for number, spec in enumerate(cell["slow_attacks"]):
        attack = partial(measurements.attack_each, ens, x[few], y[few], [spec])
        slow |= regime.cached(folder / "slow" / f"{number}.json", cell, attack)
    return {"clean": measurements.errors(ens, (x, y)), "slow": slow}


def work_folder(cell: Cell) -> Path:
    """The folder of the training: that of the study which trains the same network."""
    same = _ALIKE.get(cell["data"], "{name}").format(**cell)
    return regime.work_folder(cell, "adp", same)


STUDY = Study(
    "distortion",
    cells,
    run,
    options=regime.OPTIONS,
    cost={"smoke": "20 s", "cpu": "30 min per ensemble on MNIST", "paper": "GPU days"},
)


# ---- reading ------------------------------------------------------------------------------------


def brief(records: list[Record]) -> list[str]:
    """Accuracy under each attack; that of a JSMA which cannot stick stands beside the paper's."""
    sentences = []
    for title, group in group_by_data(records).items():
        before, after = BASELINE.of(group), ADP_RUNS.of(group)
        parts = [
            f"{attack_title(spec)} {change}"
            for spec in attack_names(group, "slow")
            if (change := accuracy_change(before, after, right_after([spec], "slow")))
        ]
        if parts:
            sentences.append(f"Accuracy in %, baseline → ADP₂,₀.₅, {title}: {'; '.join(parts)}.")
    return sentences


def table(records: list[Record]) -> Table:
    """Accuracies in % with the published ones, and how far the images that broke were moved."""
    everybody = [runs.settings["contender"] for runs in contenders_in(records)]
    header, rows = accuracy_table(records, everybody, ("slow",), published=published_row)
    for title, group in group_by_data(records).items():
        for spec in attack_names(group, "slow"):
            moved = [
                [record["result"]["slow"][spec]["l2"] for record in runs_of(name).of(group)]
                for name in everybody
            ]
            texts = [interval_text([l2 for l2 in some if l2 is not None]) for some in moved]
            rows.append([title, f"{attack_title(spec)}: mean L2 of broken images", *texts])
    return header, rows


_FAMILIES = [name for name in FAMILIES if name not in GRADIENT]
_WHERE = f"Section 4.3, Table 2; {WEAK_PROTOCOL}"
_SMOOTHED = runs_of("smoothed")


def _cifar10(records: list[Record]) -> dict[str, list[Record]]:
    return {"": filter_records(records, data="cifar10")}


DISTORTION = paper_experiment(
    "adp/distortion",
    "Table 2, JSMA, C&W and EAD",
    "Accuracy under attacks that look for small changes",
    STUDY,
    (
        *(
            Claim(
                f"MNIST: under {FAMILIES[name]}, ADP₂,₀.₅ is more accurate than the baseline",
                _WHERE,
                MoreRight(
                    ADP_RUNS,
                    BASELINE,
                    weak((name,), "slow"),
                    gains(name),
                    "mnist",
                    effects((name,)),
                ),
            )
            for name in _FAMILIES
        ),
        *(
            Claim(
                f"In these runs, CIFAR-10: under {FAMILIES[name]}, ADP₂,₀.₅ is more accurate than "
                "the baseline",
                _WHERE,
                InTheseRuns(
                    ADP_RUNS,
                    BASELINE,
                    weak((name,), "slow"),
                    gains(name),
                    effects((name,)),
                    _cifar10,
                ),
            )
            for name in _FAMILIES
        ),
        *(
            Claim(
                f"MNIST: under {FAMILIES[name]}, ADP₂,₀.₅ is more accurate than label smoothing "
                "with the F_y of Eq. 7",
                f"our question; {WEAK_PROTOCOL}",
                MoreRight(ADP_RUNS, _SMOOTHED, weak((name,), "slow"), data="mnist"),
            )
            for name in _FAMILIES
        ),
    ),
    None,
    table,
    brief,
)
