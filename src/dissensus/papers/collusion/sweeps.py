"""Sweeps over β with ResNets: Figures 6 (left), 17, 13 (larger ensembles) and 14 (score averaging).

Three experiments read one study: the same sweep with 5 members and averaged probabilities, with 10
members, and with averaged scores, so that they can be compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dissensus.papers.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.papers.cells import SEEDS_OPTION, seeds_of
from dissensus.papers.collusion.comparing import (
    beta_table,
    compare,
    joint_is_worst,
    late_drop,
    values_at,
)
from dissensus.papers.collusion.images import (
    BETAS,
    CPU,
    PAPER_SWEEP,
    SMOKE,
    image_cell,
    run_image_cell,
)
from dissensus.papers.collusion.plots import draw_beta_curves
from dissensus.papers.comparisons import CANNOT, all_of, paired, where
from dissensus.papers.statistics import paired_difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BETA_SWEEP", "LARGER_ENSEMBLES", "SCORE_AVERAGING", "SWEEPS"]

#: Accuracies closer than this count as similar (Section G.3 says "similar" without a number).
SIMILAR = 0.03

_FEWER = (0.0, 0.4, 0.8, 1.0)
_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "digits"}
_MODELS = {"resnet18": "ResNet-18", "resnet34": "ResNet-34"}


# ---- the study ----------------------------------------------------------------------------------


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every (data, network, members, combination, β) of the scale, for one seed after another."""
    plan = {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[scale]()
    seeds = seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 6}[scale])
    return [
        image_cell(f"{name}-beta={beta:g}-seed={seed}", settings, beta=beta, seed=seed)
        for seed in seeds
        for name, (settings, betas) in plan.items()
        for beta in betas
    ]


Plan = dict[str, tuple[dict[str, Any], Sequence[float]]]


def _smoke() -> Plan:
    return {
        "members=3-probability": ({**SMOKE}, (0.0, 0.5, 1.0)),
        "members=4-probability": ({**SMOKE, "members": 4}, (0.0, 1.0)),
        "members=3-score": ({**SMOKE, "combine": "score"}, (0.0, 1.0)),
    }


def _cpu() -> Plan:
    # Twice the rate and half the decay, so that a member trains just as one of five does.
    ten = {**CPU, "members": 10, "optimizer": "sgd:lr=1.0,momentum=0.9,weight_decay=2.5e-4"}
    score = {**CPU, "combine": "score"}
    longer = {"epochs": 36, "schedule": "multistep:at=21/30,factor=0.2"}
    return {
        "members=5-probability": ({**CPU}, BETAS),
        "members=10-probability": (ten, _FEWER),
        "members=5-score": (score, _FEWER),
        "members=5-probability-longer": ({**CPU, **longer}, (0.0, 1.0)),
        "members=5-score-longer": ({**score, **longer}, (0.0, 1.0)),
    }


def _paper() -> Plan:
    plan: Plan = {}
    for data in ("cifar10", "cifar100"):
        base = {**PAPER_SWEEP, "data": data}
        plan |= {
            f"{data}-resnet18-members=5-probability": (base, BETAS),
            f"{data}-resnet34-members=5-probability": ({**base, "model": "resnet34"}, BETAS),
            f"{data}-resnet18-members=10-probability": ({**base, "members": 10}, BETAS),
            f"{data}-resnet18-members=5-score": ({**base, "combine": "score"}, BETAS),
        }
    return plan


SWEEPS = Study(
    "beta-sweep",
    cells,
    run_image_cell,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "10 s", "cpu": "40 min", "paper": "GPU weeks"},
)


# ---- reading ------------------------------------------------------------------------------------


def _groups(
    records: Sequence[Record], combine: str, *, larger: bool = False, longer: bool = False
) -> dict[str, list[Record]]:
    """The records of one kind of ensemble, by data and network."""
    sizes = sorted({record["cell"]["members"] for record in records})
    members = sizes[-1] if larger else sizes[0]
    usual = min((record["cell"]["epochs"] for record in records), default=0)
    found: dict[str, list[Record]] = {}
    for record in where(records, combine=combine, members=members):
        cell = record["cell"]
        if (cell["epochs"] > usual) != longer:
            continue
        model = _MODELS.get(cell["model"], "small ResNet")
        found.setdefault(f"{_NAMES.get(cell['data'], cell['data'])}, {model}", []).append(record)
    return found


def _base(records: list[Record]) -> dict[str, list[Record]]:
    return _groups(records, "probability")


def _large(records: list[Record]) -> dict[str, list[Record]]:
    return _groups(records, "probability", larger=True)


def _score(records: list[Record]) -> dict[str, list[Record]]:
    return _groups(records, "score")


def _base_longer(records: list[Record]) -> dict[str, list[Record]]:
    return _groups(records, "probability", longer=True)


def _score_longer(records: list[Record]) -> dict[str, list[Record]]:
    return _groups(records, "score", longer=True)


Groups = Callable[[list[Record]], dict[str, list[Record]]]


def _each(groups: Groups, check: Callable[[list[Record]], Finding]) -> Any:
    """A check of every group: it holds if it holds in each."""

    def checked(records: list[Record]) -> Finding:
        found = groups(records)
        if not found:
            return Finding(CANNOT, "no such runs are part of this scale")
        return all_of({name: check(runs) for name, runs in found.items()})

    return checked


def _independent_better(key: str) -> Callable[[list[Record]], Finding]:
    def check(records: list[Record]) -> Finding:
        ends = where(records, beta=0.0), where(records, beta=1.0)
        return compare(*ends, ("β = 0", "β = 1"), key)

    return check


def _joint_loses(records: list[Record]) -> Finding:
    ends = where(records, beta=1.0), where(records, beta=0.0)
    return compare(*ends, ("β = 1", "β = 0"), "error")


def _larger_helps(records: list[Record]) -> Finding:
    """More members, better accuracy, at β = 0."""
    found = {}
    for name, many in _large(records).items():
        few = _base(records).get(name, [])
        sizes = [group[0]["cell"]["members"] for group in (many, few) if group]
        if len(set(sizes)) < 2:
            return Finding(CANNOT, "there are ensembles of one size only")
        names = f"{sizes[0]} members", f"{sizes[1]} members"
        found[name] = compare(where(many, beta=0.0), where(few, beta=0.0), names, "accuracy")
    return all_of(found)


def _similar_to_probability(records: list[Record]) -> Finding:
    """The interval of the difference in accuracy lies within ±SIMILAR, at both ends."""
    found = {}
    for name, scores in _score(records).items():
        other = _base(records).get(name, [])
        for beta in (0.0, 1.0):
            pair = paired(values_at(scores, beta, "accuracy"), values_at(other, beta, "accuracy"))
            if len(pair[0]) < 2:
                return Finding(CANNOT, "fewer than two pairs of runs")
            difference = paired_difference(*pair)
            close = max(abs(difference.low), abs(difference.high)) < SIMILAR
            found[f"{name}, β = {beta:g}"] = Finding(
                "holds" if close else "does not hold",
                f"accuracy of scores − probabilities {difference.shown('{:+.1%}')}",
            )
    return all_of(found)


# ---- experiments --------------------------------------------------------------------------------

_CPU_SETTING = (
    "CIFAR-10, 2,500 training images, 1,000 for validation, 5,000 of the official test images; "
    "a ResNet of two blocks, width 16, after a stem of stride 4 (21 thousand parameters, batch "
    "norm); SGD with momentum 0.9, learning rate 0.1 times the members (for the mean over members; "
    "× 0.2 at epochs 7 and 10), weight decay 5e-4 (half of it for 10 members, so that each trains "
    "as one of 5 does), 12 epochs, batch 64, no augmentation; "
    "best epoch by validation ERR; 3 seeds, each with its own images and split. Two cores cannot "
    "train ResNet-18 on CIFAR: data, network and schedule are the smallest in which both ends of "
    "the sweep learn well beyond chance. β in {0, 0.4, 0.8, 1} for 10 members and for scores; "
    "β = 0 and 1 once more with 36 epochs (× 0.2 at 21 and 30)."
)
_PAPER_SETTING = (
    "Appendix B: CIFAR-10 and CIFAR-100, ResNet-18 and -34 with a CIFAR stem, 80 epochs of SGD "
    "0.1 (× 0.2 at 30, 50, 70), batch 128, crops, flips and rotations, 80/20 split for the best "
    "epoch; 6 runs (the paper has 3 in the appendix)."
)
_SETTING = {
    "smoke": "256 digits of scikit-learn, a tiny ResNet, 2 epochs, 2 seeds: no claim can show.",
    "cpu": _CPU_SETTING,
    "paper": _PAPER_SETTING,
}
_KEYS = ("accuracy", "error", "member_accuracy", "diversity")


def _table(
    groups: Groups, longer: Groups | None = None
) -> Callable[[list[Record]], tuple[list[str], list[list[str]]]]:
    def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
        more = _labelled(longer(records), "longer") if longer else {}
        return beta_table({**groups(records), **more}, _KEYS)

    return table


def _draw_base(records: list[Record]) -> Figure:
    """Figure 6 (left) and Figure 17: accuracy and ERR against β."""
    return draw_beta_curves(_base(records), ("accuracy", "error", "member_accuracy"))


def _labelled(groups: Mapping[str, list[Record]], label: str) -> dict[str, list[Record]]:
    return {f"{name}, {label}": found for name, found in groups.items()}


def _draw_large(records: list[Record]) -> Figure:
    both = {
        f"{name}, {found[0]['cell']['members']} members": found
        for groups in (_base(records), _large(records))
        for name, found in groups.items()
    }
    return draw_beta_curves(both, ("accuracy", "error"))


def _draw_score(records: list[Record]) -> Figure:
    both = {**_labelled(_base(records), "probabilities"), **_labelled(_score(records), "scores")}
    return draw_beta_curves(both, ("accuracy", "error"))


BETA_SWEEP = Experiment(
    "beta-sweep",
    "collusion",
    "Figures 6 (left) and 17",
    "Test accuracy and loss as training goes from independent (β = 0) to joint (β = 1)",
    SWEEPS,
    (
        Claim(
            "Joint training (β = 1) has the worst test accuracy of all β",
            "Section 6.3, Figure 6",
            _each(_base, lambda records: joint_is_worst(records, "accuracy")),
        ),
        Claim(
            "Joint training (β = 1) is less accurate than independent training (β = 0)",
            "Section 6.3, Figure 6",
            _each(_base, _independent_better("accuracy")),
        ),
        Claim(
            "It is so not only for lack of training: also after three times as many epochs",
            "Section 6.3 (our question: joint training converges more slowly)",
            _each(_base_longer, _independent_better("accuracy")),
        ),
        Claim(
            "The test loss of the ensemble, which β = 1 optimises, is worst at β = 1",
            "Section G.6, Figure 17",
            _each(_base, lambda records: joint_is_worst(records, "error")),
        ),
        Claim(
            "Base learners perform poorly under joint training",
            "Section 6.3",
            _each(_base, _independent_better("member_accuracy")),
        ),
        Claim(
            "Collusion emerges as β → 1: accuracy falls more from the last β below 1 to 1 than "
            "from 0 to there",
            "Section 6.3, Figure 6",
            _each(_base, late_drop),
        ),
    ),
    _draw_base,
    _table(_base, _base_longer),
    _SETTING,
)

LARGER_ENSEMBLES = Experiment(
    "larger-ensembles",
    "collusion",
    "Figure 13",
    "The sweep over β with twice as many members",
    SWEEPS,
    (
        Claim(
            "With more members, joint training is still less accurate than independent training",
            "Section G.2, Figure 13",
            _each(_large, _independent_better("accuracy")),
        ),
        Claim(
            "The trend is the same: β = 1 is the worst of all β",
            "Section G.2, Figure 13",
            _each(_large, lambda records: joint_is_worst(records, "accuracy")),
        ),
        Claim(
            "More members bring a small improvement in test accuracy",
            "Section G.2",
            _larger_helps,
        ),
    ),
    _draw_large,
    _table(_large),
    _SETTING,
)

SCORE_AVERAGING = Experiment(
    "score-averaging",
    "collusion",
    "Figure 14",
    "The sweep over β with averaged scores instead of averaged probabilities",
    SWEEPS,
    (
        Claim(
            "Joint training is less accurate than independent training with averaged scores too",
            "Section G.3, Figure 14",
            _each(_score, _independent_better("accuracy")),
        ),
        Claim(
            "Its test loss is larger with averaged scores too",
            "Section G.3, Figure 14",
            _each(_score, _joint_loses),
        ),
        Claim(
            "It is less accurate after three times as many epochs",
            "Section G.3 (our question)",
            _each(_score_longer, _independent_better("accuracy")),
        ),
        Claim(
            "Its test loss is larger after three times as many epochs",
            "Section G.3 (our question)",
            _each(_score_longer, _joint_loses),
        ),
        Claim(
            f"Test accuracy is similar (within {SIMILAR:.0%}) to that of averaged probabilities",
            "Section G.3",
            _similar_to_probability,
        ),
    ),
    _draw_score,
    _table(_score, _score_longer),
    _SETTING,
)
