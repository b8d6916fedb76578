"""Rates of right verdicts of ``diagnostics.judge``.

``python -m reproductions.diagnosis.verdict [--trained]`` prints them: on planted ensembles, and
with ``--trained`` on small networks on scikit-learn's data too. The loop is the shortest that
trains several ensembles of one shape at once; :mod:`dissensus.training` is the real one. The
thresholds were chosen with other seeds (planted: 0 and 1; trained: 0 to 5 and 100 to 109) than are
printed here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dissensus.diagnostics import THRESHOLDS, Split, Thresholds, judge
from reproductions.diagnosis.planted_ensembles import COLLUDING, INDEPENDENT, Rates, calibrate

__all__ = ["JOINT", "SEPARATE", "Family", "train", "trained_rates"]

PLANTED_SEED = 3
TRAINED_SEEDS = range(300, 310)
BATCH, RATE = 64, 2e-3


@dataclass(frozen=True)
class Family:
    """Ensembles of multilayer perceptrons, and what they are trained on, by what and how long.

    ``way`` is how the members are averaged; ``beta`` weighs the ensemble's loss against the mean of
    the members'. ``rows`` is the share of the training data used; ``bagged`` gives each member a
    bootstrap sample; ``unequal`` learning rates run from a 300th of the usual up to it.
    """

    data: str
    way: str
    epochs: int
    beta: float = 0.0
    members: int = 5
    hidden: int = 32
    decay: float = 0.0
    smoothing: float = 0.0
    rows: float = 1.0
    bagged: bool = False
    unequal: bool = False


#: Trained independently: whatever else is done to them, they do not know each other.
SEPARATE: dict[str, Family] = {
    "digits, probability": Family("digits", "probability", 60),
    "digits, 20 members": Family("digits", "probability", 60, members=20),
    "digits, score": Family("digits", "score", 60),
    "digits, one epoch": Family("digits", "probability", 1),
    "digits, few rows": Family("digits", "probability", 200, rows=0.15),
    "digits, decay": Family("digits", "probability", 60, decay=0.3),
    "digits, smoothing": Family("digits", "probability", 60, smoothing=0.3),
    "digits, unequal members": Family("digits", "probability", 60, unequal=True),
    "digits, bagged": Family("digits", "probability", 60, bagged=True),
    "made classes": Family("made classes", "probability", 100),
    "made classes, score": Family("made classes", "score", 100),
    "made classes, bagged": Family("made classes", "probability", 100, bagged=True),
    "breast cancer": Family("breast cancer", "probability", 200),
    "breast cancer, score": Family("breast cancer", "score", 200),
    "wine": Family("wine", "probability", 200),
    "diabetes": Family("diabetes", "mean", 60),
    "diabetes, overfit": Family("diabetes", "mean", 600, rows=0.2),
    "diabetes, bagged": Family("diabetes", "mean", 200, bagged=True),
    "friedman": Family("friedman", "mean", 200),
    "friedman, unequal members": Family("friedman", "mean", 200, unequal=True),
    "digits, beta 0.5": Family("digits", "probability", 60, beta=0.5),
    "digits, score, beta 0.5": Family("digits", "score", 60, beta=0.5),
    "diabetes, beta 0.5": Family("diabetes", "mean", 60, beta=0.5),
}

#: Trained jointly, on the ensemble's own loss.
JOINT: dict[str, Family] = {
    "digits, score": Family("digits", "score", 60, beta=1.0),
    "made classes, score": Family("made classes", "score", 100, beta=1.0),
    "breast cancer, score": Family("breast cancer", "score", 200, beta=1.0),
    "wine, score": Family("wine", "score", 200, beta=1.0),
    "diabetes": Family("diabetes", "mean", 60, beta=1.0),
    "diabetes, overfit": Family("diabetes", "mean", 300, beta=1.0),
    "friedman": Family("friedman", "mean", 200, beta=1.0),
    "friedman, 20 members": Family("friedman", "mean", 200, beta=1.0, members=20),
    "digits, probability": Family("digits", "probability", 150, beta=1.0),
    "digits, probability, width 64": Family("digits", "probability", 60, beta=1.0, hidden=64),
    "digits, probability, 10 members": Family("digits", "probability", 150, beta=1.0, members=10),
    "digits, probability, 20 members": Family("digits", "probability", 150, beta=1.0, members=20),
    "digits, probability, 15 epochs": Family("digits", "probability", 15, beta=1.0),
    "made classes, probability": Family("made classes", "probability", 100, beta=1.0),
    "breast cancer, probability": Family("breast cancer", "probability", 200, beta=1.0),
    "wine, probability": Family("wine", "probability", 200, beta=1.0),
}


def trained_rates(
    families: dict[str, Family], seeds: Sequence[int], thresholds: Thresholds = THRESHOLDS
) -> dict[str, Rates]:
    """How often each verdict is given, by family, over ensembles of these ``seeds``."""
    return {
        name: Rates.of([judge(test, fit, thresholds).word for fit, test in train(family, seeds)])
        for name, family in families.items()
    }


def train(family: Family, seeds: Sequence[int]) -> list[tuple[Split, Split]]:
    """Train and test split of one ensemble a seed; the seed draws split, weights and batches.

    >>> (fit, test), = train(Family("wine", "probability", epochs=1), seeds=[0])
    >>> fit.outputs.shape, test.outputs.shape
    (torch.Size([5, 106, 3]), torch.Size([5, 72, 3]))
    """
    parts = [_data(family.data, seed) for seed in seeds]
    x, y, x_test, y_test = (torch.stack(column) for column in zip(*parts, strict=True))
    rows = int(family.rows * x.shape[1])
    x, y = x[:, :rows], y[:, :rows]
    outputs = 1 if family.way == "mean" else int(y_test.max()) + 1
    draw = [torch.Generator().manual_seed(seed) for seed in seeds]
    shape = (x.shape[2], family.hidden, family.hidden, outputs)
    network = _weights(shape, family.members, draw)
    optimizer = _Adam(network, family)
    known = _known(family, rows, draw)
    which = torch.arange(len(seeds))[:, None, None]
    for _ in range(family.epochs):
        order = torch.stack([torch.randperm(rows, generator=random) for random in draw])
        for batch in order.split(BATCH, 1):
            index = known.gather(2, batch[:, None].expand(-1, known.shape[1], -1))
            loss = _loss(_outputs(network, x[which, index]), y[which, index], family)
            optimizer.step(torch.autograd.grad(loss, network))
    with torch.no_grad():
        before, after = (_outputs(network, part[:, None]) for part in (x, x_test))
    pairs = zip(before, y, after, y_test, strict=True)
    return [
        (Split.of((a, b), combine=family.way), Split.of((c, d), combine=family.way))
        for a, b, c, d in pairs
    ]


def _data(name: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """60% for training, the rest for testing; standardised, labels or standardised targets."""
    from sklearn import datasets

    made = {"n_samples": 800, "n_features": 20, "n_informative": 8, "n_classes": 5, "flip_y": 0.03}
    load = {
        "digits": lambda: datasets.load_digits(return_X_y=True),
        "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
        "wine": lambda: datasets.load_wine(return_X_y=True),
        "made classes": lambda: datasets.make_classification(
            **made, class_sep=1.5, random_state=seed
        ),
        "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
        "friedman": lambda: datasets.make_friedman1(600, noise=1.0, random_state=seed),
    }
    inputs, targets = (torch.as_tensor(part) for part in load[name]())
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    cut = int(0.6 * len(order))
    x, y = inputs[order].float(), targets[order]
    scale = x[:cut].std() if name == "digits" else x[:cut].std(0)  # pixels share one scale
    x = (x - x[:cut].mean(0)) / scale.clamp_min(1e-6)
    if y.is_floating_point():
        y = ((y - y[:cut].mean()) / y[:cut].std()).float()[:, None]
    return x[:cut], y[:cut], x[cut:], y[cut:]


def _weights(shape: tuple[int, ...], members: int, draw: list[torch.Generator]) -> list[Tensor]:
    """Weights and biases by turns, ``[seeds, members, in, out]``, as torch draws them."""
    network = []
    for inputs, outputs in pairwise(shape):
        for rows in (inputs, 1):
            uniform = [torch.rand(members, rows, outputs, generator=random) for random in draw]
            network.append(((2 * torch.stack(uniform) - 1) / math.sqrt(inputs)).requires_grad_())
    return network


def _outputs(network: list[Tensor], x: Tensor) -> Tensor:
    """``[seeds, members, batch, outputs]``."""
    for layer, (weight, bias) in enumerate(zip(network[::2], network[1::2], strict=True)):
        x = (x.relu() if layer else x) @ weight + bias
    return x


def _known(family: Family, rows: int, draw: list[torch.Generator]) -> Tensor:
    """The rows that each member is given, ``[seeds, members or 1, rows]``."""
    if not family.bagged:
        return torch.arange(rows).expand(len(draw), 1, rows)
    samples = [torch.randint(rows, (family.members, rows), generator=random) for random in draw]
    return torch.stack(samples)


def _loss(outputs: Tensor, targets: Tensor, family: Family) -> Tensor:
    """``(1 − β) · mean member loss + β · ensemble loss``; targets ``[seeds, members or 1, …]``."""
    if family.way == "mean":
        own = (outputs - targets).square().mean()
        joint = (outputs.mean(1) - targets[:, 0]).square().mean()
    else:
        logs = outputs.log_softmax(-1)
        own = -logs.gather(-1, targets[..., None].expand(*outputs.shape[:3], 1)).mean()
        own = (1 - family.smoothing) * own - family.smoothing * logs.mean()
        combined = logs.logsumexp(1) if family.way == "probability" else outputs.mean(1)
        joint = -combined.log_softmax(-1).gather(-1, targets[:, 0, :, None]).mean()
    return (1 - family.beta) * own + family.beta * joint


class _Adam:
    """Adam with decoupled weight decay and a learning rate for each member."""

    def __init__(self, network: list[Tensor], family: Family) -> None:
        self.network, self.decay, self.steps = network, family.decay, 0
        self.first, self.second = ([torch.zeros_like(p) for p in network] for _ in range(2))
        low = -2.5 if family.unequal else 0.0
        self.rate = RATE * torch.logspace(low, 0, family.members)[None, :, None, None]

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...]) -> None:
        self.steps += 1
        right_first, right_second = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        for weight, gradient, first, second in zip(
            self.network, gradients, self.first, self.second, strict=True
        ):
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.001)
            # The loss is a mean over seeds and members, so gradients are small and so is epsilon.
            move = first / right_first / ((second / right_second).sqrt() + 1e-10)
            weight.sub_(self.rate * (move + self.decay * weight))


def show(title: str, tables: Iterable[Mapping[str, Rates]]) -> None:
    """One table, its rows printed as they come."""
    print(f"{title:<36}{'healthy':>10}{'suspicious':>12}{'colluding':>11}")
    for table in tables:
        for family, rates in table.items():
            cells = f"{rates.healthy:>10.0%}{rates.suspicious:>12.0%}{rates.colluding:>11.0%}"
            print(f"  {family:<34}{cells}", flush=True)


def main(trained: bool) -> None:
    """Print two tables, or four."""
    for title, planted in (
        ("planted, independent", INDEPENDENT),
        ("planted, colluding", COLLUDING),
    ):
        show(title, [calibrate(planted, seed=PLANTED_SEED)])
    if trained:
        torch.set_num_threads(1)  # networks this small are slower on two
        for title, families in (("trained independently", SEPARATE), ("trained jointly", JOINT)):
            show(title, (trained_rates({name: f}, TRAINED_SEEDS) for name, f in families.items()))


if __name__ == "__main__":
    main(trained="--trained" in sys.argv[1:])
