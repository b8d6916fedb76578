"""All of CIFAR-10: Table 1 and Figures 5, 6, 10 to 12, 14 and 17 with accurate networks.

Claims about "these runs" have an interval over images: with one seed of ResNet-20 and two of the
small network they are findings about these networks. Others have the interval over seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproductions.collusion import images
from reproductions.collusion.cifar10_runs import BETAS, STUDY, by_network
from reproductions.collusion.curves import (
    PANELS,
    diversity_epoch,
    error_epoch,
    first_third,
    mean,
    plot_training,
    second_half,
    summary,
)
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


def _blocks(record: Record, part: str, key: str) -> NDArray[np.float64]:
    """A quantity by block of images; all runs have the same images in the same blocks."""
    return np.asarray(record["result"][part]["blocks"][key], dtype=np.float64)


def _accuracy(record: Record) -> NDArray[np.float64]:
    return _blocks(record, "test", "accuracy")


def _member_accuracy(record: Record) -> NDArray[np.float64]:
    return _blocks(record, "test", "member_accuracy")


def _gap(record: Record) -> NDArray[np.float64]:
    # The images of both parts have nothing to do with each other, so blocks may pair up anyhow.
    return _blocks(record, "test", "error") - _blocks(record, "train", "error")


def _here(
    quantity: str,
    read: Any,
    first: Runs,
    second: Runs,
    groups: Groups = _PROBABILITIES,
    form: str = "{:.3f}",
) -> Larger:
    """A check over the images of the runs that there are: a finding about these networks."""

    def pairs(records: list[Record]) -> dict[str, Any]:
        return {
            name: tuple(
                {row["cell"]["seed"]: read(row) for row in side.of(runs)}
                for side in (first, second)
            )
            for name, runs in groups(records).items()
            if first.of(runs) and second.of(runs)
        }

    names = (first.name, second.name)
    return Larger(quantity, names, pairs, form, interval=over_same_images)


def _independent_larger(quantity: str, read: Any, groups: Groups = _PROBABILITIES) -> Larger:
    return _here(quantity, read, images.INDEPENDENT, images.JOINT, groups, "{:.1%}")


def _joint_larger_here(
    quantity: str, read: Any, groups: Groups = _PROBABILITIES, form: str = "{:.3f}"
) -> Larger:
    return _here(quantity, read, images.JOINT, images.INDEPENDENT, groups, form)


def _joint_larger(quantity: Quantity) -> Larger:
    """A check over the seeds of the small network."""
    return larger(quantity, images.JOINT, images.INDEPENDENT, _SMALL)


def _accurate(records: list[Record]) -> Finding:
    """Whether every small ensemble that is trained independently reaches 80 %."""
    rows = [row for runs in _SMALL(records).values() for row in images.INDEPENDENT.of(runs)]
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
    checks = {
        other.name: _here("test accuracy", _accuracy, other, images.JOINT, _SMALL, "{:.1%}")
        for other in others
    }
    found = {name: check(records) for name, check in checks.items()}
    return pooled(found)


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
        Claim(
            "The small network is less accurate under joint training",
            "Section 3, Table 1; Section 6.3, Figure 6",
            images.independent_larger("accuracy", _SMALL),
            published(1),
        ),
        Claim(
            f"{_HERE}joint training is less accurate than independent training",
            "Section 3, Table 1; Section 6.3, Figure 6",
            _independent_larger("test accuracy", _accuracy),
            published(1),
        ),
        Claim(
            f"{_HERE}it is less accurate with averaged scores, too",
            "Section G.3, Figure 14",
            _independent_larger("test accuracy", _accuracy, _SCORES),
        ),
        Claim(
            f"{_HERE}β = 1 is less accurate than each smaller β",
            "Section 6.3, Figure 6",
            _joint_worst,
        ),
        Claim(
            "Accuracy falls more from the last β below 1 to 1 than from 0 to there",
            "Section 6.3, Figure 6",
            images.InEach(_SMALL, images.LateDrop()),
        ),
        Claim(
            f"{_HERE}members are less accurate under joint training",
            "Section 6.3",
            _independent_larger("test accuracy of a member", _member_accuracy),
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
            _joint_larger_here("ERR test − ERR train", _gap),
        ),
        Claim(
            f"{_HERE}its gap is larger with averaged scores, too",
            "Section 6.2 with the average of Figure 14",
            _joint_larger_here("ERR test − ERR train", _gap, _SCORES),
            ours=True,
        ),
        Claim(
            "Its gap is larger over the second half of training",
            "Section 6.2, Figure 5",
            _joint_larger(summary("gap", second_half, "mean gap over the second half")),
        ),
        Claim(
            "Joint training converges more slowly on the training set",
            "Section G.1, Figure 10",
            _joint_larger(summary("train_error", mean, "training ERR, mean over training")),
        ),
        Claim(
            f"{_HERE}joint training reaches a larger test loss",
            "Section G.1, Figures 10 and 17",
            _joint_larger_here("test ERR", lambda record: _blocks(record, "test", "error")),
        ),
        Claim(
            "Its training DIV is inflated early",
            "Section G.1, Figure 11",
            _joint_larger(
                summary("train_diversity", first_third, "training DIV, mean over the first third")
            ),
        ),
        Claim(
            "Its DIV is largest before its mean ERR is least",
            "Section G.1, Figure 11",
            larger(
                error_epoch(),
                Runs("of least mean ERR", images.JOINT.settings),
                Runs("of largest DIV", images.JOINT.settings),
                _SMALL,
                against=diversity_epoch(),
            ),
        ),
        Claim(
            f"{_HERE}members of a jointly trained ensemble have a larger test loss",
            "Section G.1, Figure 12",
            _joint_larger_here(
                "mean test ERR of members", lambda record: _blocks(record, "test", "member_error")
            ),
        ),
        Claim(
            f"{_HERE}members stay further behind their ensemble under joint training",
            "Section 6.3, Figure 6 (right)",
            _joint_larger_here(
                "test accuracy of the ensemble − that of a member",
                lambda record: _accuracy(record) - _member_accuracy(record),
                form="{:.1%}",
            ),
        ),
    ),
    draw=plot_curves,
)
