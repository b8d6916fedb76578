"""Sweeps over β with ResNets: Figures 6 (left), 17, 13 (larger ensembles) and 14 (score averaging).

Three experiments read one study: the same sweep with 5 members and averaged probabilities, with 10
members, and with averaged scores, so that they can be compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reproductions.collusion import images
from reproductions.comparisons import (
    Finding,
    Groups,
    Larger,
    Runs,
    Within,
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

_FEWER = (0.0, 0.4, 0.8, 1.0)
_MODELS = {"resnet18": "ResNet-18", "resnet34": "ResNet-34"}


# ---- the study ----------------------------------------------------------------------------------


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


# ---- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """Groups the records of one kind of ensemble by data and network.

    The largest ensembles or the smallest, those that were trained longer or the usual ones.
    """

    combine: str = "probability"
    larger: bool = False
    longer: bool = False

    def __call__(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        if not records:
            return {}
        members = cell_values(records, "members")[-1 if self.larger else 0]
        usual = cell_values(records, "epochs")[0]
        return group_records(
            (
                record
                for record in filter_records(records, combine=self.combine, members=members)
                if (record["cell"]["epochs"] > usual) == self.longer
            ),
            _data_and_model,
        )


def _data_and_model(record: Record) -> str:
    data, model = (record["cell"][key] for key in ("data", "model"))
    return f"{data_title(data)}, {_MODELS.get(model, 'small ResNet')}"


_BASE, _LARGE, _SCORE = Sweep(), Sweep(larger=True), Sweep("score")
_BASE_LONGER, _SCORE_LONGER = Sweep(longer=True), Sweep("score", longer=True)


def _joint_loss_larger(sweep: Sweep) -> Larger:
    return larger(images.QUANTITIES["error"], images.JOINT, images.INDEPENDENT, sweep)


def _larger_helps(records: list[Record]) -> Finding:
    """More members, better accuracy, at β = 0."""
    findings = {}
    for name, many in _LARGE(records).items():
        few = _BASE(records).get(name, [])
        sizes = [group[0]["cell"]["members"] for group in (many, few) if group]
        if len(set(sizes)) < 2:
            return Finding(CANNOT, "there are ensembles of one size only")
        sides = [Runs(f"{size} members", {"beta": 0.0, "members": size}) for size in sizes]
        findings[name] = larger(images.QUANTITIES["accuracy"], sides[0], sides[1])(many + few)
    return pooled(findings)


def _score_minus_probability(records: list[Record]) -> dict[str, list[float]]:
    """The difference in accuracy of both averages, at both ends of β."""
    differences = {}
    for name, scores in _SCORE(records).items():
        for end in (images.INDEPENDENT, images.JOINT):
            scored, other = (
                images.QUANTITIES["accuracy"].values(end.of(some))
                for some in (scores, _BASE(records).get(name, []))
            )
            both = sorted(scored.keys() & other.keys())
            differences[f"{name}, {end.name}"] = [scored[seed] - other[seed] for seed in both]
    return differences


# ---- experiments --------------------------------------------------------------------------------

_KEYS = ("accuracy", "error", "member_accuracy", "diversity")


def _table(groups: Groups, longer: Groups | None = None) -> Callable[[list[Record]], Table]:
    def table(records: list[Record]) -> Table:
        more = _labelled(longer(records), "longer") if longer else {}
        return images.beta_table({**groups(records), **more}, _KEYS)

    return table


def _labelled(groups: Mapping[str, list[Record]], label: str) -> dict[str, list[Record]]:
    return {f"{name}, {label}": runs for name, runs in groups.items()}


def _plot_base(records: list[Record]) -> Plot:
    """Figure 6 (left) and Figure 17: accuracy and ERR against β."""
    return images.plot_beta_curves(_BASE(records), ("accuracy", "error", "member_accuracy"))


def _plot_large(records: list[Record]) -> Plot:
    both = {
        f"{name}, {runs[0]['cell']['members']} members": runs
        for sweep in (_BASE, _LARGE)
        for name, runs in sweep(records).items()
    }
    return images.plot_beta_curves(both, ("accuracy", "error"))


def _plot_score(records: list[Record]) -> Plot:
    both = {**_labelled(_BASE(records), "probabilities"), **_labelled(_SCORE(records), "scores")}
    return images.plot_beta_curves(both, ("accuracy", "error"))


BETA_SWEEP = Experiment(
    "collusion/beta-sweep",
    "Figures 6 (left) and 17",
    "Test accuracy and loss as training goes from independent (β = 0) to joint (β = 1)",
    SWEEPS,
    (
        Claim(
            "β = 1 has the worst test accuracy of all β",
            "Section 6.3, Figure 6",
            images.InEach(_BASE, images.JointWorst("accuracy")),
        ),
        Claim(
            "β = 1 is less accurate than β = 0",
            "Section 6.3, Figure 6",
            images.independent_larger("accuracy", _BASE),
        ),
        Claim(
            "It is less accurate after three times as many epochs",
            "Section 6.3",
            images.independent_larger("accuracy", _BASE_LONGER),
            ours=True,
        ),
        Claim(
            "The ensemble's test loss, which β = 1 optimises, is worst at β = 1",
            "Section G.6, Figure 17",
            images.InEach(_BASE, images.JointWorst("error")),
        ),
        Claim(
            "Members are less accurate under joint training",
            "Section 6.3",
            images.independent_larger("member_accuracy", _BASE),
        ),
        Claim(
            "Accuracy falls more from the last β below 1 to 1 than from 0 to there",
            "Section 6.3, Figure 6",
            images.InEach(_BASE, images.LateDrop()),
        ),
    ),
    _table(_BASE, _BASE_LONGER),
    _plot_base,
)

LARGER_ENSEMBLES = Experiment(
    "collusion/larger-ensembles",
    "Figure 13",
    "The sweep over β with twice as many members",
    SWEEPS,
    (
        Claim(
            "With more members, joint training is still less accurate",
            "Section G.2, Figure 13",
            images.independent_larger("accuracy", _LARGE),
        ),
        Claim(
            "β = 1 is the worst of all β",
            "Section G.2, Figure 13",
            images.InEach(_LARGE, images.JointWorst("accuracy")),
        ),
        Claim("More members improve test accuracy a little", "Section G.2", _larger_helps),
    ),
    _table(_LARGE),
    _plot_large,
)

SCORE_AVERAGING = Experiment(
    "collusion/score-averaging",
    "Figure 14",
    "The sweep over β with averaged scores instead of averaged probabilities",
    SWEEPS,
    (
        Claim(
            "With averaged scores, joint training is less accurate too",
            "Section G.3, Figure 14",
            images.independent_larger("accuracy", _SCORE),
        ),
        Claim(
            "With averaged scores, its test loss is larger too",
            "Section G.3, Figure 14",
            _joint_loss_larger(_SCORE),
        ),
        Claim(
            "It is less accurate after three times as many epochs",
            "Section G.3",
            images.independent_larger("accuracy", _SCORE_LONGER),
            ours=True,
        ),
        Claim(
            "Its test loss is larger after three times as many epochs",
            "Section G.3",
            _joint_loss_larger(_SCORE_LONGER),
            ours=True,
        ),
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
    _table(_SCORE, _SCORE_LONGER),
    _plot_score,
)
