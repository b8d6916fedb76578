"""All of CIFAR-10: Table 1 and Figures 5, 6, 10 to 12, 14 and 17 with accurate networks.

Claims about "these runs" have an interval over images: with one seed of ResNet-20 and two of the
small network they are findings about these networks. Others have the interval over seeds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reproductions.collusion import images
from reproductions.collusion.cifar10_runs import BETAS, STUDY, by_network
from reproductions.collusion.curves import PANELS, curve_claim, plot_training
from reproductions.collusion.images import INDEPENDENT, JOINT, joint_claim
from reproductions.collusion.joint_training import published
from reproductions.comparisons import (
    Finding,
    Groups,
    Larger,
    Quantity,
    Runs,
    cell_values,
    exact,
    groups_named,
    larger,
    pooled,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Plot
from reproductions.statistics import CANNOT, over_same_images
from reproductions.study import Record

_PROBABILITIES = groups_named(by_network, "scores", absent=True)
_SCORES, _SMALL = (groups_named(by_network, words) for words in ("scores", "small"))


# ---- numbers of images, and checks --------------------------------------------------------------


def _blocks(name: str, part: str, key: str, form: str = "{:.3f}") -> Quantity:
    """A quantity by block of images; all runs have the same images in the same blocks."""
    return Quantity(name, lambda record: _read(record, part, key), form)


def _read(record: Record, part: str, key: str) -> NDArray[np.float64]:
    return np.asarray(record["result"][part]["blocks"][key], dtype=np.float64)


_ACCURACY = _blocks("test accuracy", "test", "accuracy", "{:.1%}")
_MEMBER_ACCURACY = _blocks("test accuracy of a member", "test", "member_accuracy", "{:.1%}")
# The images of both parts have nothing to do with each other, so blocks may pair up anyhow.
_GAP = Quantity(
    "ERR test − ERR train",
    lambda record: _read(record, "test", "error") - _read(record, "train", "error"),
)
_BEHIND = Quantity(
    "test accuracy of the ensemble − that of a member",
    lambda record: _ACCURACY.read(record) - _MEMBER_ACCURACY.read(record),
    "{:.1%}",
)


def _here(
    quantity: Quantity,
    first: Runs = JOINT,
    second: Runs = INDEPENDENT,
    groups: Groups = _PROBABILITIES,
) -> Larger:
    """A check over the images of the runs that there are: a finding about these networks."""
    return larger(quantity, first, second, groups, interval=over_same_images)


def _accurate(records: list[Record]) -> Finding:
    """Whether every small ensemble that is trained independently reaches 80 %."""
    rows = [row for runs in _SMALL(records).values() for row in INDEPENDENT.of(runs)]
    if not rows:
        return Finding(CANNOT, "the small network was not trained at β = 0")
    right = [row["result"]["test"]["accuracy"] for row in rows]
    return exact(min(right) >= 0.8, ", ".join(f"{share:.1%}" for share in right))


def _joint_worst(records: list[Record]) -> Finding:
    """Whether β = 1 is less accurate than each smaller β, once all have been run."""
    small = [row for runs in _SMALL(records).values() for row in runs]
    if missing := sorted(set(BETAS) - set(cell_values(small, "beta"))):
        return Finding(CANNOT, f"β = {', '.join(map(str, missing))} was not run")
    others = (images.at_beta(beta) for beta in cell_values(small, "beta") if beta != 1)
    checks = {other.name: _here(_ACCURACY, other, JOINT, _SMALL) for other in others}
    return pooled({name: check(records) for name, check in checks.items()})


# ---- figures and table --------------------------------------------------------------------------

_KEYS = ("accuracy", "error", "member_accuracy", "diversity")
_ALL_PANELS = (
    *PANELS,
    ("test_accuracy", "accuracy", "Test: accuracy (Fig. 6)"),
    ("test_member_accuracy", "accuracy", "Test: accuracy of a member (Fig. 6)"),
)


def plot(records: list[Record]) -> Plot:
    """Figures 6 (left) and 17: accuracies and losses against β."""
    return images.plot_beta_curves(by_network(records), _KEYS)


def plot_curves(records: list[Record]) -> Plot:
    """Two rows for each network and average: Figures 5, 6 and 10 to 12 over epochs."""
    groups = by_network(records)
    named = {name.replace(", ", ",\n"): runs for name, runs in groups.items()}
    return plot_training(named, [images.at_beta(beta) for beta in sorted(BETAS)], _ALL_PANELS, 5)


def table(records: list[Record]) -> Table:
    """Every network, average and β in numbers."""
    return images.beta_table(by_network(records), ("accuracy", "top5", *_KEYS[1:]))


# ---- experiments --------------------------------------------------------------------------------

_HERE = "In these runs, "

CIFAR10 = Experiment(
    "collusion/cifar10",
    "Table 1 and Figures 6 (left), 14 and 17, on all of CIFAR-10",
    "Joint against independent training of accurate networks",
    STUDY,
    (
        Claim(
            "The small ensemble is at least 80 % accurate at β = 0",
            "a check of the setting",
            _accurate,
            ours=True,
        ),
        joint_claim(
            "less accurate", "Section 3, Table 1; Section 6.3, Figure 6", _SMALL, published(1)
        ),
        Claim(
            f"{_HERE}joint training is less accurate than independent training",
            "Section 3, Table 1; Section 6.3, Figure 6",
            _here(_ACCURACY, INDEPENDENT, JOINT),
            published(1),
        ),
        Claim(
            f"{_HERE}it is less accurate with averaged scores, too",
            "Section G.3, Figure 14",
            _here(_ACCURACY, INDEPENDENT, JOINT, _SCORES),
        ),
        Claim(
            f"{_HERE}β = 1 is less accurate than each smaller β",
            "Section 6.3, Figure 6",
            _joint_worst,
        ),
        joint_claim("late drop", "Section 6.3, Figure 6", _SMALL),
        Claim(
            f"{_HERE}members are less accurate under joint training",
            "Section 6.3",
            _here(_MEMBER_ACCURACY, INDEPENDENT, JOINT),
        ),
    ),
    table,
    plot,
)

CIFAR10_CURVES = Experiment(
    "collusion/cifar10-curves",
    "Figures 5, 6 (right) and 10 to 12, on all of CIFAR-10",
    "Losses, diversity and accuracy over the training of accurate networks",
    STUDY,
    (
        Claim(
            f"{_HERE}joint training ends with a larger generalisation gap",
            "Section 6.2, Figure 5",
            _here(_GAP),
        ),
        Claim(
            f"{_HERE}its gap is larger with averaged scores, too",
            "Section 6.2 with the average of Figure 14",
            _here(_GAP, groups=_SCORES),
            ours=True,
        ),
        curve_claim("late gap", _SMALL),
        curve_claim("slow", _SMALL),
        Claim(
            f"{_HERE}joint training reaches a larger test loss",
            "Section G.1, Figures 10 and 17",
            _here(_blocks("test ERR", "test", "error")),
        ),
        curve_claim("early diversity", _SMALL),
        curve_claim("diversity first", _SMALL),
        Claim(
            f"{_HERE}members of a jointly trained ensemble have a larger test loss",
            "Section G.1, Figure 12",
            _here(_blocks("mean test ERR of members", "test", "member_error")),
        ),
        Claim(
            f"{_HERE}members stay further behind their ensemble under joint training",
            "Section 6.3, Figure 6 (right)",
            _here(_BEHIND),
        ),
    ),
    draw=plot_curves,
)
