"""Small trainings that any number of processes must come to the same end with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.robustness import AdversarialBatches
from dissensus.training import History, fit

FEATURES, CLASSES = 4, 7


@dataclass(frozen=True)
class Case:
    """A training, all in float64, where what order additions have hardly matters.

    ``mesh`` are settings of ``Distributed`` by the number of ranks it is run on; the empty ones
    leave it to the library.
    """

    name: str
    objective: str
    meshes: dict[int, dict[str, Any]]
    members: int = 5
    network: str = "dense"
    settings: dict[str, Any] = field(default_factory=dict)
    regression: bool = False
    disagreement: bool | str = False  # data to disagree on, or what makes strangers
    adversarial: str | None = None
    exact: bool = True  # whether one process comes to the same numbers


def _dense(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, outputs))


def _norm(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs)
    )


def _dropout(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, outputs)
    )


def _convolutional(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 3, 2, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(27, outputs),
    )


#: Networks by name: written-out gradients, vmap, the loop, and layers with statistics or chance.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "dense": _dense,
    "norm": _norm,
    "dropout": _dropout,
    "convolutional": _convolutional,
    "head": lambda outputs: make_factory("ldr_head", (FEATURES,), outputs)(),
}

BOTH: dict[int, dict[str, Any]] = {2: {}, 4: {}}
ROWS: dict[int, dict[str, Any]] = {2: {"data": 2}, 4: {"data": 2}}

CASES = [
    *(
        Case(name, text, BOTH)
        for name, text in {
            "independent": "independent:label_smoothing=0.1",
            "joint": "joint",
            "augmented": "augmented:beta=0.7",
            "gncl": "gncl",
            "adp": "adp",
            "jsd": "jsd",
            "ldr": "ldr:active=2",
            "ldr_all": "ldr:active=none,regularizer=jsd",
            "learner_dropout": "learner_dropout:drop=0.4/joint",
            "learner_dropout_independent": "learner_dropout:drop=0.4/independent",
            "learner_dropout_ldr": "learner_dropout:drop=0.2/ldr:active=3",
        }.items()
    ),
    *(
        Case(name, name, BOTH, regression=True)
        for name in ("gat", "ncl", "independent:loss=mse", "augmented:loss=mse,beta=0.5")
    ),
    *(
        Case(name, name, BOTH, disagreement=True)
        for name in ("a2d", "divdis", "sequential:stage=3/a2d", "learner_dropout:drop=0.4/a2d")
    ),
    *(
        Case(f"rows_{text.partition(':')[0]}", text, ROWS, disagreement=text == "divdis")
        for text in ("independent", "adp", "ldr:active=2", "divdis")
    ),
    Case("strangers", "a2d", BOTH, disagreement="strangers"),
    Case("rows_strangers", "a2d", ROWS, disagreement="strangers"),
    Case("rows_only", "augmented:beta=0.5", {4: {"data": 4}}, members=2),
    Case("more_ranks_than_members", "adp", {4: {}}, members=3),
    Case("head", "ldr:active=3", ROWS, network="head"),
    Case("convolutional", "adp", BOTH, network="convolutional"),
    Case("norm", "joint", BOTH, network="norm"),
    Case("backbone", "adp", {2: {}, 4: {"data": 2}}, network="backbone"),
    Case("half", "ldr:active=2", BOTH, settings={"amp": True}),
    Case(
        "synchronised",
        "adp",
        {2: {"data": 2, "sync_batchnorm": True}, 4: {"data": 2, "sync_batchnorm": True}},
        network="convolutional",
    ),
    Case(
        "norm_by_rank",
        "joint",
        ROWS,
        network="norm",
        settings={"optimizer": "sgd:lr=0.05"},
        exact=False,
    ),
    Case("dropout", "joint", BOTH, network="dropout", exact=False),
    Case("unlike", "adp", BOTH, network="unlike"),
    Case("unlike_ldr", "ldr:active=2", BOTH, network="unlike"),
    Case("adversarial", "adp", BOTH, adversarial="pgd:steps=2,eps=0.05"),
    Case("adversarial_rows", "independent", {4: {"data": 2}}, adversarial="fgsm:eps=0.1"),
    Case(
        "settings",
        "augmented:beta=0.3",
        BOTH,
        settings={
            "optimizer": "sgd:lr=0.5/0.4/0.3/0.2/0.1,momentum=0.9,weight_decay=0.01",
            "schedule": "cosine:warmup=1",
            "clip": 0.05,
            "exact_train": True,
        },
    ),
    Case("adam", "adp", ROWS, settings={"optimizer": "adamw:lr=0.01,weight_decay=0.1"}),
    Case(
        "decisions",
        "independent",
        ROWS,
        settings={"optimizer": "adam:lr=0.1", "patience": 3, "freeze_patience": 1, "epochs": 12},
    ),
]


def data(seed: int, examples: int, *, regression: bool) -> tuple[Tensor, Tensor]:
    """Points in the unit cube, and classes or two values that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(examples, FEATURES, generator=generator, dtype=torch.float64)
    if regression:
        return x, torch.stack([x.sum(1), x.prod(1)], 1)
    noise = torch.rand(examples, generator=generator, dtype=torch.float64)
    return x, ((x.sum(1) / FEATURES + 0.3 * noise) * CLASSES).long().clamp_max(CLASSES - 1)


def make(case: Case) -> Ensemble:
    """The ensemble as it starts."""
    outputs = 2 if case.regression else CLASSES
    combine = "mean" if case.regression else "probability"
    if case.network == "unlike":
        kinds = (_dense, _norm, _dense, _dense, _norm)[: case.members]
        modules = []
        for number, kind in enumerate(kinds):
            torch.manual_seed(number)
            modules.append(kind(outputs).double())
        return Ensemble.from_members(modules, combine=combine)
    if case.network == "backbone":
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh()).double()
        ens = Ensemble.on_features(
            backbone, lambda: nn.Linear(6, outputs).double(), case.members, combine=combine
        )
        return ens.set_weights(torch.tensor([0.4, 0.3, 0.1, 0.1, 0.1], dtype=torch.float64))
    network = NETWORKS[case.network]
    return Ensemble(lambda: network(outputs).double(), case.members, seed=3, combine=combine)


def _disagreement(case: Case) -> Tensor | str | None:
    if isinstance(case.disagreement, str):
        return case.disagreement
    return data(2, 39, regression=False)[0] if case.disagreement else None


def train(case: Case, **more: Any) -> tuple[Ensemble, History]:
    """Train; 67 examples in batches of 16 leave three for the last one.

    With SGD, as Adam would not notice gradients that are too large by a factor.
    """
    ens = make(case)
    if case.adversarial:
        more["augment"] = AdversarialBatches(ens, case.adversarial)
    plain = {"epochs": 2, "batch_size": 16, "seed": 5, "optimizer": "sgd:lr=0.3"}
    settings = {**plain, **case.settings, **more}
    history = fit(
        ens,
        data(0, 67, regression=case.regression),
        case.objective,
        val=data(1, 41, regression=case.regression),
        disagreement=_disagreement(case),
        progress=False,
        **settings,
    )
    return ens, history
