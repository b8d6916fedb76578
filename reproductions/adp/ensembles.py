"""Ensembles of the adp paper: the contenders, their training, and the study that most tables read.

A cell is one ensemble: one data set, one contender, one seed. It is trained once, and everything
that tables and figures need is measured at once, so that no experiment trains it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import ADP, Independent, Objective, target_probability
from dissensus.robustness import AdversarialBatches
from dissensus.training import History, fit
from reproductions import cells as shared
from reproductions import regime
from reproductions.adp import measurements
from reproductions.adp.settings import DATA_SETTINGS
from reproductions.cells import SEEDS_OPTION, ImageData, load_images, seed_cells, seeds_of
from reproductions.comparisons import Runs
from reproductions.study import Cell, Record, Study

#: The paper's ADP₂,₀.₅.
ALPHA, BETA = 2.0, 0.5


# ---- contenders ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """A way to train an ensemble; ``title`` is its name in tables.

    ``smoothed`` trains on labels smoothed as ADP's entropy term does according to Eq. 7;
    ``adversarial`` names the attack of adversarial training; ``members`` replaces the cell's.
    """

    title: str
    objective: Objective
    smoothed: bool = False
    adversarial: str | None = None
    members: int | None = None


#: All contenders by the name that cells use. The paper's baseline adds the members' losses up, ours
#: takes their mean: Adam does not notice.
CONTENDERS: dict[str, Contender] = {
    "plain": Contender("baseline", Independent()),
    "adp-entropy": Contender("ADP₂,₀", ADP(ALPHA, 0.0)),
    "adp": Contender("ADP₂,₀.₅", ADP(ALPHA, BETA)),
    "smoothed": Contender("label smoothing", Independent(), smoothed=True),
    "single": Contender("single network", Independent(), members=1),
    "fgsm": Contender("AdvT (FGSM)", Independent(), adversarial="fgsm"),
    "fgsm-adp": Contender("AdvT (FGSM) + ADP", ADP(ALPHA, BETA), adversarial="fgsm"),
    "pgd": Contender("AdvT (PGD)", Independent(), adversarial="pgd"),
    "pgd-adp": Contender("AdvT (PGD) + ADP", ADP(ALPHA, BETA), adversarial="pgd"),
}
PAIR = ("plain", "adp")
CONTROLS = ("adp-entropy", "smoothed", "single")
TRAINED = ("fgsm", "fgsm-adp", "pgd", "pgd-adp")


def runs_of(contender: str) -> Runs:
    """The runs of a contender, under its title."""
    return Runs(CONTENDERS[contender].title, {"contender": contender})


BASELINE, ADP_RUNS = runs_of("plain"), runs_of("adp")


def style_of(runs: Runs) -> int:
    """A contender's colour and marker, the same in all figures."""
    return (*PAIR, *CONTROLS, *TRAINED).index(runs.settings["contender"])


def contenders_in(records: list[Record]) -> list[Runs]:
    """The contenders of ``records``, in the order of :data:`CONTENDERS`."""
    names = {record["cell"]["contender"] for record in records}
    return [runs_of(name) for name in CONTENDERS if name in names]


def smoothed_labels(labels: Tensor, members: int, classes: int) -> Tensor:
    """``F_y`` of Eq. 7 for the label and the rest shared evenly: Theorem 2's ensemble, as targets.

    >>> smoothed_labels(torch.tensor([1]), members=3, classes=10).round(decimals=3)[0, :2]
    tensor([0.0460, 0.5880])
    """
    right = target_probability(ALPHA, members, classes)
    soft = torch.full((len(labels), classes), (1 - right) / (classes - 1))
    return soft.scatter_(1, labels[:, None], right)


def train(
    cell: Cell, data: ImageData, folder: Path | None = None, callbacks: Sequence[Any] = ()
) -> tuple[Ensemble, History]:
    """The contender that ``cell`` names, trained; with a ``folder`` it goes on from there."""
    contender = CONTENDERS[cell["contender"]]
    members = contender.members or cell["members"]
    if "kernel_decay" in cell:  # the regime of the authors' code
        ens, recipe = regime.new_ensemble(cell, data, members=members), regime.recipe(cell)
    else:
        ens = shared.new_ensemble(cell, data, members=members, execution=cell["execution"])
        recipe = shared.recipe(cell)
    x, y = data.train
    if contender.smoothed:
        y = smoothed_labels(y, members, data.outputs)
    history = fit(
        ens,
        (x, y),
        objective_of(contender, cell),
        val=data.val,
        augment=_augmentation(contender, cell, ens),
        callbacks=callbacks,
        out=folder,
        resume=folder is not None and folder.exists(),
        progress=False,
        recipe=recipe,
    )
    return ens, history


def objective_of(contender: Contender, cell: Cell) -> Objective:
    """The contender's objective, with the temperature of Appendix B.2 where the cell has one."""
    temperature = cell.get("temperature", 1.0)
    if temperature == 1.0 or not isinstance(contender.objective, ADP):
        return contender.objective
    return ADP(contender.objective.alpha, contender.objective.beta, temperature)


def _augmentation(contender: Contender, cell: Cell, ens: Ensemble) -> Callable[..., Any] | None:
    augment = shared.augmentation(cell)
    if contender.adversarial is None:
        return augment
    attack = {"fgsm": "fgsm", "pgd": cell["trained_on"]}[contender.adversarial]
    return AdversarialBatches(ens, attack, eps=(0.01, 0.05), augment=augment)


# ---- the study ----------------------------------------------------------------------------------

#: Which contenders run on which data sets, the main rows first. Adversarial training has the
#: paper's ε, which are CIFAR's and suit Fashion-MNIST too.
_ENTRIES: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "smoke": ((("digits",), (*PAIR, *CONTROLS, *TRAINED)),),
    "cpu": (
        (("mnist", "fashion_mnist", "digits"), PAIR),
        (("mnist", "fashion_mnist", "digits"), CONTROLS),
        (("fashion_mnist",), TRAINED),
        (("cifar10",), ("plain", "adp-entropy", "adp")),
    ),
    "paper": (
        (("mnist", "cifar10", "cifar100"), PAIR),
        (("mnist", "cifar10"), CONTROLS),
        (("cifar10",), TRAINED),
    ),
}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every contender on every data set, for each seed; the main rows of all seeds come first.

    At scale ``cpu`` the pair that most claims are about gets two more seeds, at the end.
    """
    seeds = seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 3}[scale])
    plan = [(seeds, sets, contenders) for sets, contenders in _ENTRIES[scale]]
    if scale == "cpu" and "seeds" not in options:
        plan.append((range(3, 5), *_ENTRIES[scale][0]))
    return [
        cell
        for some_seeds, sets, contenders in plan
        for cell in seed_cells(
            {
                f"{data}-{contender}": _settings(scale, data, contender)
                for data in sets
                for contender in contenders
            },
            some_seeds,
        )
    ]


def _settings(scale: str, data: str, contender: str) -> dict[str, Any]:
    """Those of a contender, without the measurements that no table reads; they cost the most."""
    settings = {**DATA_SETTINGS[scale][data], "data": data, "contender": contender}
    if contender not in PAIR:
        settings |= {"slow_attacks": [], "curve": None, "detection": None, "features": 0}
    if contender in ("single", *TRAINED):
        settings["transfer"] = None
    if contender in ("fgsm", "fgsm-adp"):
        settings["standard"] = None
    elif contender in CONTROLS and settings["standard"]:
        strong = settings["standard"]
        settings["standard"] = {**strong, "eps": strong["eps"][:1]}
    return settings


def run(cell: Cell) -> dict[str, Any]:
    """Train the ensemble of ``cell`` and measure all that it asks for."""
    data = load_images(cell)
    folder = regime.work_folder(cell, "adp") if "kernel_decay" in cell else None
    return measure(train(cell, data, folder)[0], cell, data)


def test_images(cell: Cell, data: ImageData) -> tuple[Tensor, Tensor]:
    """The test images, shuffled by the seed, so that the first of them are no easier kind."""
    x, y = data.test
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(cell["seed"]))
    return x[order], y[order]


def measure(
    ens: Ensemble, cell: Cell, data: ImageData, folder: Path | None = None
) -> dict[str, Any]:
    """The measurements that tables and figures read, as far as the cell asks for them.

    With a ``folder`` each of them is kept there once it is made, and is not made again.
    """
    making = _measurements(ens, cell, data)
    if folder is None:
        return {name: make() for name, make in making.items()}
    return {
        name: regime.cached(folder / f"{name}.json", cell, make) for name, make in making.items()
    }


def _measurements(ens: Ensemble, cell: Cell, data: ImageData) -> dict[str, Callable[[], Any]]:
    """What makes each measurement, by its name in a record."""
    x, y = test_images(cell, data)

    def some(count: int) -> tuple[Tensor, Tensor]:
        return x[:count], y[:count]

    making: dict[str, Callable[[], Any]] = {
        "parameters": lambda: sum(p.numel() for p in ens.member(0).parameters()),
        "clean": lambda: measurements.errors(ens, (x, y)),
    }
    if specs := cell["attacks"]:
        making["weak"] = lambda: measurements.attack_each(ens, *some(cell["images"]), specs)
    if slow := cell["slow_attacks"]:
        making["slow"] = lambda: measurements.attack_each(ens, *some(cell["slow_images"]), slow)
    if strong := cell["standard"]:
        hard = some(strong["images"])
        making["standard"] = lambda: measurements.worst_case(ens, *hard, strong)
        making["at_half"] = lambda: measurements.accuracy_at_half(ens, *hard, strong["steps"])
    if curve := cell["curve"]:
        making["curve"] = lambda: measurements.accuracy_over_eps(
            ens, *some(curve["images"]), curve["eps"]
        )
    if transfer := cell["transfer"]:
        making["transfer"] = lambda: measurements.transfer_matrices(
            ens, *some(transfer["images"]), transfer
        )
    if detection := cell["detection"]:
        making["detection"] = lambda: measurements.detection(
            ens, *some(detection["images"]), detection
        )
    if ens.members > 1:
        making["histogram"] = lambda: measurements.diversity_histogram(ens, (x, y))
    if cell["features"]:
        shown, labels = some(cell["features"])
        features = cache(lambda: measurements.hidden_features(ens, shown))
        making["similarity"] = lambda: measurements.similarity(features())
        if cell["seed"] == 0:
            making["tsne"] = lambda: measurements.tsne(features(), labels, cell["seed"])
    return making


ENSEMBLES = Study(
    "ensembles",
    cells,
    run,
    options=SEEDS_OPTION,
    cost={"smoke": "1 min", "cpu": "1 h", "paper": "GPU days"},
)
