"""Planted ensembles, whose collusion or lack of it is known, and the verdicts on them.

``python -m reproductions.diagnosis.verdict`` prints the rates, with ``--trained`` those of
networks too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dissensus.diagnostics.split import Split
from dissensus.diagnostics.verdict import LEVELS, THRESHOLDS, Thresholds, judge

#: Train and test split of a planted ensemble: from a generator, members and examples per split.
Planted = Callable[[torch.Generator, int, int], tuple[Split, Split]]

CLASSES = 10
NOISE = 0.5  # deviation of the ensemble's own error in the regressions


@dataclass(frozen=True)
class Rates:
    """Shares of verdicts on one family of ensembles."""

    healthy: float
    suspicious: float
    colluding: float

    @classmethod
    def of(cls, verdicts: Sequence[str]) -> Rates:
        """The share of each word among ``verdicts``."""
        return cls(*(verdicts.count(level) / len(verdicts) for level in LEVELS))


def calibrate(
    families: dict[str, Planted],
    *,
    repeats: int = 25,
    members: Iterable[int] = (3, 5, 10, 20),
    examples: int = 300,
    seed: int = 0,
    thresholds: Thresholds = THRESHOLDS,
) -> dict[str, Rates]:
    """How often each verdict is given, by family, over ``repeats`` ensembles of each size.

    >>> rates = calibrate({"offsets": COLLUDING["offsets, 4"]}, repeats=2, members=(5,))
    >>> rates["offsets"].colluding
    1.0
    """
    rates = {}
    for name, plant in families.items():
        random = torch.Generator().manual_seed(seed)
        splits = (plant(random, count, examples) for count in members for _ in range(repeats))
        rates[name] = Rates.of([judge(test, train, thresholds).word for train, test in splits])
    return rates


def _normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def _regression(
    *,
    unrelated: float,
    shared: float = NOISE,
    bias: float = 0.0,
    collusion: float = 0.0,
    changing: float = 0.0,
) -> Planted:
    """``f_j = y + shared + unrelated_j + bias_j + c_j``, with ``Σ_j c_j = 0`` where they collude.

    ``bias`` is the deviation of constant offsets drawn independently; ``collusion`` that of
    constant offsets that cancel, ``changing`` of offsets that cancel for each example anew. On
    training data the shared error has mean 0, as a fit with an intercept leaves it.
    """

    def plant(random: torch.Generator, members: int, examples: int) -> tuple[Split, Split]:
        constant = bias * _normal(random, members, 1, 1)
        constant = constant + collusion * _cancelling(_normal(random, members, 1, 1))

        def split(fitted: bool) -> Split:
            truth, common = _normal(random, examples, 1), _normal(random, examples, 1)
            common = common - common.mean() if fitted else common
            outputs = truth + shared * common + constant
            outputs = outputs + unrelated * _normal(random, members, examples, 1)
            moving = changing * _cancelling(_normal(random, members, examples, 1))
            return Split.of((outputs + moving, truth))

        return split(fitted=True), split(fitted=False)

    return plant


def _classifier(
    way: str,
    *,
    margin: float = 3.0,
    unrelated: float,
    shared: float = 1.5,
    bias: float = 0.0,
    collusion: float = 0.0,
    changing: float = 0.0,
    classes: int = CLASSES,
) -> Planted:
    """The same in the space of scores: logits that favour the true class by ``margin``."""

    def plant(random: torch.Generator, members: int, examples: int) -> tuple[Split, Split]:
        constant = bias * _normal(random, members, 1, classes)
        constant = constant + collusion * _cancelling(_normal(random, members, 1, classes))

        def split() -> Split:
            labels = torch.randint(classes, (examples,), generator=random)
            logits = margin * one_hot(labels, classes) + shared * _normal(random, examples, classes)
            logits = logits + constant + unrelated * _normal(random, members, examples, classes)
            moving = changing * _cancelling(_normal(random, members, examples, classes))
            return Split.of((logits + moving, labels), combine=way)

        return split(), split()

    return plant


def _learnt(seen: str) -> Planted:
    """Members that are sure of the training examples they have ``seen``.

    ``"all"``: every member all of them. ``"bootstrap"``: each example by 63% of the members, drawn
    independently, as bagging does; the others are as on test data. ``"left to one"``: all but a
    twentieth, and each of that by one member alone, while the others are sure of another class.
    """

    def plant(random: torch.Generator, members: int, examples: int) -> tuple[Split, Split]:
        def split(train: bool) -> Split:
            labels = torch.randint(CLASSES, (examples,), generator=random)
            truth = one_hot(labels, CLASSES)
            logits = 4 * truth + 1.5 * _normal(random, examples, CLASSES)
            logits = logits + 2 * _normal(random, members, examples, CLASSES)
            if train:
                draws = torch.rand(members, examples, 1, generator=random)
                known = {"all": draws >= 0, "bootstrap": draws < 1 - math.exp(-1)}
                hard = torch.rand(examples, 1, generator=random) < 0.05
                known["left to one"] = ~hard | (draws == draws.max(0).values)
                unknown = 6 * truth.roll(1, -1) if seen == "left to one" else logits
                logits = torch.where(known[seen], 10 * truth, unknown) + 0.1 * logits
            return Split.of((logits, labels), combine="probability")

        return split(train=True), split(train=False)

    return plant


def _cancelling(values: Tensor) -> Tensor:
    """Offsets of mean 0 over members (first axis) and a mean square of 1."""
    values = values - values.mean(0)
    return values / values.square().mean().sqrt()


#: Made-up ensembles whose members err on their own, by family.
INDEPENDENT: dict[str, Planted] = {
    "noise around the truth": _regression(unrelated=1.0, shared=0.0),
    "shared error and noise": _regression(unrelated=0.3),
    "poor members": _regression(unrelated=3.0, shared=2.0),
    "classes, noise, probability": _classifier("probability", unrelated=2.0, shared=0.0),
    "classes, noise, score": _classifier("score", unrelated=2.0, shared=0.0),
    "classes, shared error, score": _classifier("score", unrelated=0.5),
    "classes, very sure, probability": _classifier(
        "probability", margin=10.0, unrelated=5.0, shared=0.0
    ),
    "two classes, score": _classifier("score", unrelated=1.0, classes=2),
    "classes, overfit": _learnt("all"),
    "classes, bagged": _learnt("bootstrap"),
    "members each biased": _regression(unrelated=0.3, bias=0.5),
    "members each strongly biased": _regression(unrelated=0.3, bias=2.0),
    "classes, members each biased": _classifier("score", unrelated=0.5, bias=2.0),
}

#: Made-up ensembles whose members shift their predictions against each other, by family.
COLLUDING: dict[str, Planted] = {
    "offsets, 1": _regression(unrelated=0.1, collusion=1.0 * NOISE),
    "offsets, 2": _regression(unrelated=0.1, collusion=2.0 * NOISE),
    "offsets, 4": _regression(unrelated=0.1, collusion=4.0 * NOISE),
    "offsets, 16": _regression(unrelated=0.1, collusion=16.0 * NOISE),
    "by example, 4": _regression(unrelated=0.0, changing=4.0 * NOISE),
    "by example, 16": _regression(unrelated=0.0, changing=16.0 * NOISE),
    "scores, offsets, 3": _classifier("score", unrelated=0.3, collusion=3.0),
    "scores, offsets, 10": _classifier("score", unrelated=0.3, collusion=10.0),
    "scores, averaged as probabilities": _classifier("probability", unrelated=0.3, collusion=5.0),
    "two classes, offsets, 10": _classifier("score", unrelated=0.3, collusion=10.0, classes=2),
    "scores by example, 10": _classifier("score", unrelated=0.0, changing=10.0),
    "examples left to one member": _learnt("left to one"),
}
