"""Sweeps over β, from independent (β = 0) to joint training (β = 1), with several networks.

ResNets are Figures 6 (left) and 17, 13 (larger ensembles) and 14 (score averaging): three
experiments that read one study, so that they can be compared seed by seed. The vanilla CNN is
Figure 15 and a VGG on SVHN Figure 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reproductions.collusion import images
from reproductions.collusion.images import in_each, joint_claim
from reproductions.comparisons import (
    Finding,
    Groups,
    Quantity,
    Runs,
    Within,
    at,
    cell_values,
    data_title,
    filter_records,
    group_records,
    larger,
    pooled,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Plot
from reproductions.statistics import CANNOT
from reproductions.study import Record

#: Accuracies closer than this count as similar (Section G.3 says "similar" without a number).
SIMILAR = 0.03

_KEYS = ("accuracy", "error", "member_accuracy", "diversity")


def _draw(groups: Groups, keys: Sequence[str] = _KEYS[:3]) -> Callable[[list[Record]], Plot]:
    return lambda records: images.plot_beta_curves(groups(records), keys)


def _tabulate(groups: Groups, keys: Sequence[str] = _KEYS) -> Callable[[list[Record]], Table]:
    return lambda records: images.beta_table(groups(records), keys)


# ---- ResNets ------------------------------------------------------------------------------------

_FEWER = (0.0, 0.4, 0.8, 1.0)
_SMOKE, _CPU = images.SMOKE, images.CPU
# Twice the rate and half the decay, so that a member trains just as one of five does.
_TEN = {**_CPU, "members": 10, "optimizer": "sgd:lr=1.0,momentum=0.9,weight_decay=2.5e-4"}
_LONGER = {"epochs": 36, "schedule": "multistep:at=21/30,factor=0.2"}


def _paper_plan(data: str) -> images.Plan:
    base = {**images.PAPER_SWEEP, "data": data}
    changes: dict[str, dict[str, Any]] = {
        "resnet18-members=5-probability": {},
        "resnet34-members=5-probability": {"model": "resnet34"},
        "resnet18-members=10-probability": {"members": 10},
        "resnet18-members=5-score": {"combine": "score"},
    }
    return {f"{data}-{name}": ({**base, **own}, images.BETAS) for name, own in changes.items()}


_PLANS: dict[str, images.Plan] = {
    "smoke": {
        "members=3-probability": (_SMOKE, (0.0, 0.5, 1.0)),
        "members=4-probability": ({**_SMOKE, "members": 4}, (0.0, 1.0)),
        "members=3-score": ({**_SMOKE, "combine": "score"}, (0.0, 1.0)),
    },
    "cpu": {
        "members=5-probability": (_CPU, images.BETAS),
        "members=10-probability": (_TEN, _FEWER),
        "members=5-score": ({**_CPU, "combine": "score"}, _FEWER),
        "members=5-probability-longer": ({**_CPU, **_LONGER}, (0.0, 1.0)),
        "members=5-score-longer": ({**_CPU, "combine": "score", **_LONGER}, (0.0, 1.0)),
    },
    "paper": {**_paper_plan("cifar10"), **_paper_plan("cifar100")},
}

SWEEPS = images.beta_study(
    "beta-sweep", _PLANS, seeds=(2, 3, 6), cost=("10 s", "40 min", "GPU weeks")
)


@dataclass(frozen=True)
class Sweep:
    """Groups the records of one kind of ensemble by data and network.

    The largest ensembles or the smallest, those that were trained longer or the usual ones;
    ``label`` ends the name of each group.
    """

    combine: str = "probability"
    larger: bool = False
    longer: bool = False
    label: str = ""

    def __call__(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        if not records:
            return {}
        members = cell_values(records, "members")[-1 if self.larger else 0]
        usual = cell_values(records, "epochs")[0]
        kept = (
            record
            for record in filter_records(records, combine=self.combine, members=members)
            if (record["cell"]["epochs"] > usual) == self.longer
        )
        return group_records(kept, self._name)

    def _name(self, record: Record) -> str:
        names = {"resnet18": "ResNet-18", "resnet34": "ResNet-34"}
        data, model = (record["cell"][key] for key in ("data", "model"))
        return f"{data_title(data)}, {names.get(model, 'small ResNet')}{self.label}"


_BASE, _LARGE, _SCORE = Sweep(), Sweep(larger=True), Sweep("score")
_BASE_LONGER, _SCORE_LONGER = Sweep(longer=True), Sweep("score", longer=True)


def _both(*sweeps: Sweep) -> Groups:
    """The groups of several sweeps, whose labels tell them apart."""
    return lambda records: {name: runs for sweep in sweeps for name, runs in sweep(records).items()}


def _larger_helps(records: list[Record]) -> Finding:
    """More members, better accuracy, at β = 0."""
    findings = {}
    for name, many in _LARGE(records).items():
        few = _BASE(records).get(name, [])
        sizes = [group[0]["cell"]["members"] for group in (many, few) if group]
        if len(set(sizes)) < 2:
            return Finding(CANNOT, "there are ensembles of one size only")
        larger_one, other = (
            Runs(f"{size} members", {"beta": 0.0, "members": size}) for size in sizes
        )
        findings[name] = larger(images.QUANTITIES["accuracy"], larger_one, other)(many + few)
    return pooled(findings)


def _score_minus_probability(records: list[Record]) -> dict[str, list[float]]:
    """The difference in accuracy of both averages, at both ends of β."""
    accuracy, base = images.QUANTITIES["accuracy"], _BASE(records)
    return {
        f"{name}, {end.name}": list(
            accuracy.differences(end.of(scores), end.of(base.get(name, []))).values()
        )
        for name, scores in _SCORE(records).items()
        for end in (images.INDEPENDENT, images.JOINT)
    }


_LONGER_WORDS = ", after three times as many epochs"

BETA_SWEEP = Experiment(
    "collusion/beta-sweep",
    "Figures 6 (left) and 17",
    "Test accuracy and loss as training goes from independent (β = 0) to joint (β = 1)",
    SWEEPS,
    (
        joint_claim("least accurate", "Section 6.3, Figure 6", _BASE),
        joint_claim("less accurate", "Section 6.3, Figure 6", _BASE),
        joint_claim("less accurate", "Section 6.3", _BASE_LONGER, more=_LONGER_WORDS, ours=True),
        joint_claim("largest loss", "Section G.6, Figure 17", _BASE),
        joint_claim("members", "Section 6.3", _BASE),
        joint_claim("late drop", "Section 6.3, Figure 6", _BASE),
    ),
    _tabulate(_both(_BASE, Sweep(longer=True, label=", longer"))),
    _draw(_BASE),
)

LARGER_ENSEMBLES = Experiment(
    "collusion/larger-ensembles",
    "Figure 13",
    "The sweep over β with twice as many members",
    SWEEPS,
    (
        joint_claim("less accurate", "Section G.2, Figure 13", _LARGE),
        joint_claim("least accurate", "Section G.2, Figure 13", _LARGE),
        Claim("More members improve test accuracy a little", "Section G.2", _larger_helps),
    ),
    _tabulate(_LARGE),
    _draw(_both(_BASE, Sweep(larger=True, label=", twice the members")), _KEYS[:2]),
)

SCORE_AVERAGING = Experiment(
    "collusion/score-averaging",
    "Figure 14",
    "The sweep over β with averaged scores instead of averaged probabilities",
    SWEEPS,
    (
        joint_claim("less accurate", "Section G.3, Figure 14", _SCORE),
        joint_claim("larger loss", "Section G.3, Figure 14", _SCORE),
        joint_claim("less accurate", "Section G.3", _SCORE_LONGER, more=_LONGER_WORDS, ours=True),
        joint_claim("larger loss", "Section G.3", _SCORE_LONGER, more=_LONGER_WORDS, ours=True),
        Claim(
            f"Accuracy is similar (here: within {SIMILAR:.0%}) with both averages",
            "Section G.3",
            Within(
                "accuracy with averaged scores − with averaged probabilities",
                _score_minus_probability,
                -SIMILAR,
                SIMILAR,
                "{:+.1%}",
            ),
        ),
    ),
    _tabulate(_both(_SCORE, Sweep("score", longer=True, label=", longer"))),
    _draw(_both(_BASE, Sweep("score", label=", scores")), _KEYS[:2]),
)


# ---- the vanilla CNN ----------------------------------------------------------------------------

#: Section G.4: Adam 1e-3 and early stopping with a patience of 5; else as the other sweeps.
_ADAM = {"optimizer": "adam:lr=1e-3", "schedule": "constant", "patience": 5}
_TINY_CNN = {"model": "small_cnn", "model_options": {"width": 4, "hidden": 16}}
_SMOKE_CNN = {**_SMOKE, **_ADAM, **_TINY_CNN}
_CPU_CNN = {**_CPU, **_ADAM, "model": "cnn", "model_options": {}, "epochs": 20}
_CPU_CNN["optimizer"] = "adam:lr=2e-3"
_PAPER_CNN = {**images.PAPER_SWEEP, **_ADAM, "model": "cnn"}

CNNS = images.beta_study(
    "cnn",
    {
        "smoke": {f"members={m}": ({**_SMOKE_CNN, "members": m}, (0.0, 0.5, 1.0)) for m in (2, 3)},
        "cpu": {
            "members=5": (_CPU_CNN, images.BETAS),
            "members=10": ({**_CPU_CNN, "members": 10}, (0.0, 0.4, 1.0)),
        },
        "paper": {f"members={m}": ({**_PAPER_CNN, "members": m}, images.BETAS) for m in (5, 10)},
    },
    seeds=(2, 10, 3),
    cost=("5 s", "40 min", "GPU hours"),
)


def _by_size(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {
        f"M = {size}": filter_records(records, members=size)
        for size in cell_values(records, "members")
    }


def _best_between(records: list[Record]) -> Finding:
    """Whether some β between 0 and 1 has a lower test ERR than both ends.

    That β is the one with the least mean ERR on validation data, so the test data do not choose.
    """
    inner = [images.at_beta(beta) for beta in cell_values(records, "beta") if 0 < beta < 1]
    if not inner:
        return Finding(CANNOT, "no β between 0 and 1 was run")
    validated = Quantity("validation ERR", at("val", "error"))
    best = min(inner, key=lambda runs: validated.estimate(runs.of(records)).mean)
    error = images.QUANTITIES["error"]
    return pooled(
        {
            f"against {end.name}": larger(error, end, best)(records)
            for end in (images.INDEPENDENT, images.JOINT)
        }
    )


CNN = Experiment(
    "collusion/cnn",
    "Figure 15",
    "Ensembles of the vanilla CNN of Table 3 over β",
    CNNS,
    (
        joint_claim("largest loss", "Section G.4, Figure 15", _by_size),
        joint_claim("less accurate", "Section G.4, Figure 15", _by_size),
        Claim(
            "The lowest test loss is at a β between 0 and 1",
            "Section G.4, Figure 15",
            in_each(_best_between, _by_size),
        ),
    ),
    _tabulate(_by_size),
    _draw(_by_size),
)


# ---- VGG on SVHN --------------------------------------------------------------------------------

_SMALL_VGG = f"{images.NETWORKS}:small_vgg"
_CPU_VGG = {
    **images.CPU,
    "data": "fashion_mnist",
    "size": 14,
    "train": 2000,
    "model": _SMALL_VGG,
    "model_options": {"width": 8, "groups": 2, "dropout": 0.1},
    "schedule": "multistep:at=6/8,factor=0.2",
    "epochs": 10,
}
_SMOKE_VGG = {**images.SMOKE, "model": _SMALL_VGG, "model_options": {"width": 4, "groups": 2}}
_PAPER_VGG = {**images.PAPER_SWEEP, "data": "svhn", "model": "vgg"}

VGGS = images.beta_study(
    "vgg-svhn",
    {
        "smoke": {"vgg": (_SMOKE_VGG, (0.0, 0.5, 1.0))},
        "cpu": {"vgg": (_CPU_VGG, images.BETAS)},
        "paper": {"vgg": (_PAPER_VGG, images.BETAS)},
    },
    seeds=(2, 10, 3),
    cost=("5 s", "15 min", "GPU days"),
)


def _by_data(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records under a name that says what was trained, as it stands in for VGG on SVHN."""
    return group_records(
        records,
        lambda record: (
            f"{'VGG' if record['cell']['model'] == 'vgg' else 'small VGG'} on "
            f"{data_title(record['cell']['data'])}"
        ),
    )


VGG_SVHN = Experiment(
    "collusion/vgg-svhn",
    "Figure 16",
    "The sweep over β with a VGG-style network on SVHN",
    VGGS,
    (
        joint_claim("less accurate", "Section G.5, Figure 16", _by_data),
        joint_claim("least accurate", "Section G.5, Figure 16", _by_data),
        joint_claim("largest loss", "Section G.5, Figure 16", _by_data),
        joint_claim("members", "Section 6.3", _by_data),
    ),
    _tabulate(_by_data),
    _draw(_by_data),
)
