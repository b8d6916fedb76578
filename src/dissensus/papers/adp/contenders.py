"""Who competes: ADP, the paper's baseline, and controls; and how each is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dissensus.data import AUGMENTATIONS
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.objectives import ADP, Independent, Objective, target_probability
from dissensus.papers.base import Cell
from dissensus.papers.collusion.parts import Parts
from dissensus.robustness import AdversarialBatches
from dissensus.training import Recipe, fit

__all__ = ["ALPHA", "BETA", "CONTENDERS", "Contender", "smoothed_labels", "train_ensemble"]

#: The paper's ADP₂,₀.₅.
ALPHA, BETA = 2.0, 0.5


@dataclass(frozen=True)
class Contender:
    """How an ensemble is trained; ``title`` is what tables call it.

    ``smoothed`` trains on labels smoothed as Eq. 7 says that ADP's entropy term does;
    ``adversarial`` names the attack of adversarial training; ``members`` replaces the cell's.
    """

    title: str
    objective: Objective
    smoothed: bool = False
    adversarial: str | None = None
    members: int | None = None


#: Everybody, by the name that cells use. The paper's baseline adds the members' losses up, ours
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


def smoothed_labels(labels: Tensor, members: int, classes: int) -> Tensor:
    """``F_y`` of Eq. 7 for the label and the rest shared evenly: Theorem 2's ensemble, as targets.

    >>> smoothed_labels(torch.tensor([1]), members=3, classes=10).round(decimals=3)[0, :2]
    tensor([0.0460, 0.5880])
    """
    right = target_probability(ALPHA, members, classes)
    soft = torch.full((len(labels), classes), (1 - right) / (classes - 1))
    return soft.scatter_(1, labels[:, None], right)


def train_ensemble(cell: Cell, parts: Parts) -> Ensemble:
    """The contender that ``cell`` names, trained on ``parts`` as the cell says."""
    contender = CONTENDERS[cell["contender"]]
    make = make_factory(
        cell["model"],
        parts.input_shape,
        parts.outputs,
        normalize=parts.normalize,
        **cell["model_options"],
    )
    members = contender.members or cell["members"]
    ens = Ensemble(make, members=members, seed=cell["seed"], execution=cell["execution"])
    if torch.cuda.is_available():
        ens = ens.to("cuda")
    x, y = parts.train
    if contender.smoothed:
        y = smoothed_labels(y, members, parts.outputs)
    recipe = Recipe(
        epochs=cell["epochs"],
        batch_size=cell["batch_size"],
        optimizer=cell["optimizer"],
        schedule=cell["schedule"],
        seed=cell["seed"],
    )
    objective = _objective(contender, cell)
    fit(
        ens,
        (x, y),
        objective,
        augment=_augmentation(contender, cell, ens),
        progress=False,
        recipe=recipe,
    )
    return ens


def _objective(contender: Contender, cell: Cell) -> Objective:
    """The contender's, with the temperature of Appendix B.2 where the cell has one."""
    temperature = cell.get("temperature", 1.0)
    if temperature == 1.0 or not isinstance(contender.objective, ADP):
        return contender.objective
    return ADP(contender.objective.alpha, contender.objective.beta, temperature)


def _augmentation(contender: Contender, cell: Cell, ens: Ensemble) -> Callable[..., Any] | None:
    augment = None if cell["augment"] == "none" else AUGMENTATIONS[cell["augment"]]
    if contender.adversarial is None:
        return augment
    attack = {"fgsm": "fgsm", "pgd": cell["trained_on"]}[contender.adversarial]
    return AdversarialBatches(ens, attack, eps=(0.01, 0.05), augment=augment)
