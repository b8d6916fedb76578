"""All of CIFAR-10: Table 1 and Figures 5, 6, 10 to 12, 14 and 17 with accurate networks.

Claims about "these runs" have an interval over images: with one seed of ResNet-20 and two of the
small network they are findings about these networks. Others have the interval over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dissensus.show import Plot
from reproductions.collusion import images
from reproductions.collusion.cifar10_runs import BETAS, STUDY, by_network
from reproductions.collusion.joint_training import TABLE_1
from reproductions.old.base import CANNOT, Claim, Experiment, Finding, Record, Table, join_cases
from reproductions.old.comparisons import (
    Groups,
    Quantity,
    all_of,
    at,
    cell_values,
    decide,
    groups_named,
)
from reproductions.old.curves import (
    PANELS,
    early_diversity,
    larger_gap_late,
    plot_training,
    slow_convergence,
)
from reproductions.old.per_image import ImageValues, InTheseRuns, PerImage, Reader

_PROBABILITIES = groups_named(by_network, "scores", absent=True)
_SCORES, _SMALL = (groups_named(by_network, words) for words in ("scores", "small"))


# ---- numbers of images, and checks --------------------------------------------------------------


def _blocks(record: Record, part: str, key: str) -> ImageValues:
    return np.asarray(record["result"][part]["blocks"][key], dtype=np.float64)


def _per_block(quantity: str, read: Reader, form: str = "{:.1%}") -> PerImage:
    return PerImage(quantity, lambda _: read, form, "blocks of images", same_images=True)


_ACCURACY = _per_block("test accuracy", lambda record: _blocks(record, "test", "accuracy"))
_MEMBERS = _per_block(
    "test accuracy of a member", lambda record: _blocks(record, "test", "member_accuracy")
)
_BEHIND = _per_block(
    "test accuracy of the ensemble − that of a member",
    lambda record: _blocks(record, "test", "accuracy") - _blocks(record, "test", "member_accuracy"),
)
_ERROR = _per_block("test ERR", lambda record: _blocks(record, "test", "error"), "{:.3f}")
_MEMBER_ERROR = _per_block(
    "mean test ERR of members", lambda record: _blocks(record, "test", "member_error"), "{:.3f}"
)
# The images of both parts have nothing to do with each other, so that blocks may pair up anyhow.
_GAP = _per_block(
    "ERR test − ERR train",
    lambda record: _blocks(record, "test", "error") - _blocks(record, "train", "error"),
    "{:.3f}",
)


def _independent_larger(
    values: PerImage, groups: Groups, published: str | None = None
) -> InTheseRuns:
    return InTheseRuns(images.INDEPENDENT, images.JOINT, values, published, groups=groups)


def _joint_larger_here(values: PerImage, groups: Groups = _PROBABILITIES) -> InTheseRuns:
    return InTheseRuns(images.JOINT, images.INDEPENDENT, values, groups=groups)


def _accurate(records: list[Record]) -> Finding:
    """Whether every small ensemble that is trained independently reaches 80 %."""
    rows = [row for runs in _SMALL(records).values() for row in images.INDEPENDENT.of(runs)]
    if not rows:
        return Finding(CANNOT, "the small network was not trained at β = 0")
    right = [row["result"]["test"]["accuracy"] for row in rows]
    shown = ", ".join(f"{share:.1%}" for share in right)
    return decide(min(right) >= 0.8, f"test accuracy at β = 0: {shown}")


def _joint_worst(records: list[Record]) -> Finding:
    """Whether β = 1 is less accurate than each smaller β, once all have been run."""
    small = [row for runs in _SMALL(records).values() for row in runs]
    if missing := sorted(set(BETAS) - set(cell_values(small, "beta"))):
        return Finding(CANNOT, f"β = {', '.join(map(str, missing))} was not run")
    return all_of(
        {
            other.name: InTheseRuns(other, images.JOINT, _ACCURACY)(runs)
            for runs in _SMALL(records).values()
            for other in map(images.at_beta, cell_values(runs, "beta"))
            if other != images.JOINT
        }
    )


# ---- in short, as figures and as a table --------------------------------------------------------

_TEST_ACCURACY, _OF_A_MEMBER, _TEST_ERR, _TRAIN_ERR = (
    Quantity(path[-1], at(*path), form)
    for path, form in (
        (("test", "accuracy"), "{:.1%}"),
        (("test", "member_accuracies"), "{:.1%}"),
        (("test", "error"), "{:.3f}"),
        (("train", "error"), "{:.3f}"),
    )
)


def brief(records: list[Record]) -> list[str]:
    """What joint training costs each network, and how much of it is there on training images."""
    costs, learnt = {}, {}
    for name, runs in by_network(records).items():
        pair = [side.of(runs) for side in (images.INDEPENDENT, images.JOINT)]
        if not all(pair):
            continue

        def change(quantity: Quantity, pair: Sequence[list[Record]] = pair) -> str:
            return " → ".join(quantity.form.format(quantity.mean(side)) for side in pair)

        costs[name] = f"{change(_TEST_ACCURACY)} (a member: {change(_OF_A_MEMBER)})"
        learnt[name] = f"{change(_TEST_ERR)} and {change(_TRAIN_ERR)}"
    if not costs:
        return []
    return [
        f"Test accuracy, independent → joint training: {join_cases(costs)}.",
        "ERR on test images, and on training images, where a rise is not a matter of "
        f"generalisation: {join_cases(learnt)}.",
    ]


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
_PUBLISHED = "ImageNet, %: " + ", ".join(
    f"{name} {TABLE_1[name][1]:.2f} against {TABLE_1[name][3]:.2f}"
    for name in ("ResNet-18", "ResNet-34")
)

CIFAR10 = Experiment(
    "collusion/cifar10",
    "Table 1 and Figures 6 (left), 14 and 17, on all of CIFAR-10",
    "Joint against independent training of accurate networks",
    STUDY,
    (
        Claim(
            "The small ensemble is at least 80 % accurate at β = 0",
            "our check",
            _accurate,
        ),
        Claim(
            "Joint training of the small network is less accurate than independent training",
            "Section 3, Table 1; Section 6.3, Figure 6",
            images.independent_larger("accuracy", _SMALL, _PUBLISHED),
        ),
        Claim(
            f"{_HERE}joint training is less accurate than independent training",
            "Section 3, Table 1; Section 6.3, Figure 6",
            _independent_larger(_ACCURACY, _PROBABILITIES, _PUBLISHED),
        ),
        Claim(
            f"{_HERE}it is less accurate with averaged scores, too",
            "Section G.3, Figure 14",
            _independent_larger(_ACCURACY, _SCORES),
        ),
        Claim(
            f"{_HERE}β = 1 is less accurate than each smaller β",
            "Section 6.3, Figure 6",
            _joint_worst,
        ),
        Claim(
            "Collusion emerges as β → 1: accuracy falls more from the last β below 1 to 1 than "
            "from 0 to there",
            "Section 6.3, Figure 6",
            images.InEach(_SMALL, images.LateDrop()),
        ),
        Claim(
            f"{_HERE}base learners perform poorly under joint training",
            "Section 6.3",
            _independent_larger(_MEMBERS, _PROBABILITIES),
        ),
    ),
    plot,
    table,
    brief,
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
            _joint_larger_here(_GAP),
        ),
        Claim(
            f"{_HERE}joint training of averaged scores ends with a larger generalisation gap",
            "Section 6.2 with the average of Figure 14 (asked after the runs had been read)",
            _joint_larger_here(_GAP, _SCORES),
        ),
        larger_gap_late(_SMALL),
        slow_convergence(_SMALL),
        Claim(
            f"{_HERE}joint training reaches a larger test loss",
            "Section G.1, Figures 10 and 17",
            _joint_larger_here(_ERROR),
        ),
        *early_diversity(_SMALL),
        Claim(
            f"{_HERE}the members of a jointly trained ensemble have a larger test loss",
            "Section G.1, Figure 12",
            _joint_larger_here(_MEMBER_ERROR),
        ),
        Claim(
            f"{_HERE}members stay further behind their ensemble under joint training",
            "Section 6.3, Figure 6 (right)",
            _joint_larger_here(_BEHIND),
        ),
    ),
    plot_curves,
)
