"""The data of an ldr cell: what it trains on, what it is tested on, and what is unknown to it.

Four kinds of inputs are kept apart: training data (with a planted share from elsewhere, if asked),
validation data of the same distribution, *mixed* inputs that stand in for the unknown when
hyperparameters are chosen, and the sets on which detection is tested. Disagreement data for A2D
and DivDis come from rows that are never tested on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from dissensus.data import Data, corrupt_mixture, load, load_ood
from dissensus.experiments.base import Cell

__all__ = ["SOURCES", "Setting", "load_setting", "mixed"]

Split = tuple[Tensor, Tensor]
Normalize = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Setting:
    """``unknown`` are the sets of detection, with labels where the classes are those of training.

    ``mixed`` are the unknown inputs of validation, ``disagreement`` unlabelled sets by name,
    ``planted`` marks the training rows that come from elsewhere, ``groups`` those of the test rows.
    """

    train: Split
    val: Split
    test: Split
    mixed: Tensor
    unknown: Mapping[str, tuple[Tensor, Tensor | None]]
    disagreement: Mapping[str, Tensor]
    outputs: int
    normalize: Normalize | None = None
    planted: Tensor | None = None
    groups: Tensor | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train[0].shape[1:])


def load_setting(cell: Cell) -> Setting:
    """The data that ``cell`` names; cells of one seed share their rows."""
    made = _source(cell["data"], cell["train"], cell["val"], cell["test"], cell["seed"])
    if cell["planted"]:
        made = _plant(made, cell["planted"], cell["planted_labels"], cell["seed"])
    return made


@lru_cache(maxsize=2)  # cells of one seed follow each other
def _source(name: str, train: int, val: int, test: int, seed: int) -> Setting:
    return SOURCES[name](train, val, test, seed)


def mixed(x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Each input averaged with one of another class: unlike any, and made of what is at hand.

    A stand-in for unknown inputs that needs no other data set, for choosing hyperparameters.

    >>> x = torch.tensor([[0.0], [2.0], [4.0]])
    >>> mixed(x, torch.tensor([0, 1, 1]), seed=0).flatten().tolist() in ([1.0, 1.0, 2.0],
    ...                                                                  [2.0, 1.0, 2.0])
    True
    """
    generator = torch.Generator().manual_seed(seed)
    others = []
    for label in y.tolist():
        choices = (y != label).nonzero().flatten()
        others.append(choices[torch.randint(len(choices), (1,), generator=generator)])
    return (x + x[torch.cat(others)]) / 2


# ---- sources ------------------------------------------------------------------------------------


def _features(train: int, val: int, test: int, seed: int) -> Setting:
    """Heads on frozen features (200 classes): the paper's own kind of task, on a small scale.

    The first half of the SVHN and CIFAR-10 rows is disagreement data, the second half is tested on.
    """
    data = load("features_effnetlite0", seed=seed, val=val)
    unknown = {name: data.extra[name] for name in ("corrupt1", "corrupt5")}
    halves = {name: data.extra[name][0].tensor_split(2) for name in ("svhn", "cifar10")}
    unknown |= {name: (half[1], None) for name, half in halves.items()}
    return Setting(
        _first(data.train, train),
        data.val,
        _first(data.test, test),
        mixed(*data.val, seed),
        unknown,
        {name: half[0] for name, half in halves.items()},
        data.outputs,
    )


def _images(name: str, train: int, val: int, test: int, seed: int) -> Setting:
    """MNIST or Fashion-MNIST against corruptions of itself, KMNIST, and the other of the two."""
    data = load(name, seed=seed, limit=train + val, val=val, test_limit=test)
    shape = data.input_shape
    other = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}[name]
    kmnist = load_ood("kmnist", input_shape=shape)
    strangers = {
        "kmnist": kmnist[len(kmnist) // 2 :][:test],
        other: load_ood(other, input_shape=shape, limit=test, seed=seed),
    }
    disagreement = {
        "svhn": load_ood("svhn", input_shape=shape, limit=2000, seed=seed),
        "kmnist": kmnist[: len(kmnist) // 2],
    }
    return _from_images(data, strangers, disagreement, seed)


def _digits(train: int, val: int, test: int, seed: int) -> Setting:
    """The embedded digits against corruptions, negatives and digits on their side; for tests."""
    data = load("digits", seed=seed, val=val, test=test)
    x = data.test[0]
    strangers = {"negative": 1 - x, "turned": x.rot90(1, (2, 3))}
    disagreement = {
        "turned": data.val[0].rot90(3, (2, 3)),
        "negative": 1 - data.val[0],
    }
    data = replace(data, train=_first(data.train, train))
    return _from_images(data, strangers, disagreement, seed)


def _from_images(
    data: Data, strangers: Mapping[str, Tensor], disagreement: Mapping[str, Tensor], seed: int
) -> Setting:
    x, y = data.test
    unknown: dict[str, tuple[Tensor, Tensor | None]] = {
        f"corrupt{severity}": (corrupt_mixture(x, severity, seed), y) for severity in (1, 5)
    }
    unknown |= {name: (_fast(images), None) for name, images in strangers.items()}
    pixels = data.train[0]
    return Setting(
        _fast_split(data.train),
        _fast_split(data.val),
        _fast_split(data.test),
        _fast(mixed(*data.val, seed)),
        {name: (_fast(images), labels) for name, (images, labels) in unknown.items()},
        {name: _fast(images) for name, images in disagreement.items()},
        data.outputs,
        ((float(pixels.mean()),), (float(pixels.std()),)),
    )


def _colored(train: int, val: int, test: int, seed: int) -> Setting:
    """Coloured MNIST, a stand-in for Waterbirds: a class that colour gives away in training.

    The class is whether a digit is 5 or more; 95% of the training digits of class 0 are red and of
    class 1 green, while validation and test digits have either colour in each class. Groups are
    ``2 · class + colour``; the validation digits are disagreement data, as in the paper.
    """
    data = load("mnist", seed=seed, limit=train + val, val=val, test_limit=test)
    parts = {
        name: _colour(split, share, seed + number)
        for number, (name, split, share) in enumerate(
            (("train", data.train, 0.95), ("val", data.val, 0.5), ("test", data.test, 0.5))
        )
    }
    x, y, _ = parts["train"]
    seen = x.transpose(0, 1).flatten(1)
    mean, std = float(seen.mean()), float(seen.std())
    return Setting(
        (x, y),
        parts["val"][:2],
        parts["test"][:2],
        mixed(*parts["val"][:2], seed),
        {},
        {"val": parts["val"][0]},
        2,
        ((mean, mean), (std, std)),
        groups=parts["test"][2],
    )


def _colour(split: Split, share: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Digits of 14 × 14 pixels in one of two colour channels, their class, and their group."""
    generator = torch.Generator().manual_seed(1000 + seed)
    pixels = torch.nn.functional.avg_pool2d(split[0], 2)
    label = (split[1] >= 5).long()
    usual = torch.rand(len(label), generator=generator) < share
    colour = torch.where(usual, label, 1 - label)
    x = torch.zeros(len(label), 2, *pixels.shape[2:])
    x[torch.arange(len(label)), colour] = pixels[:, 0]
    return x, label, 2 * label + colour


#: Every source by name: ``source(train, val, test, seed) -> Setting``, sizes in rows.
SOURCES: dict[str, Callable[[int, int, int, int], Setting]] = {
    "features": _features,
    "fashion_mnist": partial(_images, "fashion_mnist"),
    "mnist": partial(_images, "mnist"),
    "colored_mnist": _colored,
    "digits": _digits,
}


# ---- planting -----------------------------------------------------------------------------------


def _plant(setting: Setting, share: float, labels: str, seed: int) -> Setting:
    """Training data from ``(1 − ε) P + ε Q`` (Section A.4.1): rows replaced by ones from Q.

    Q is the second disagreement set (KMNIST for images), of rows that are never tested on. Its
    ``labels`` are drawn at random (``"random"``) or all the same (``"one"``).
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = setting.train[0].clone(), setting.train[1].clone()
    strangers = list(setting.disagreement.values())[-1]
    count = round(share * len(x))
    if not 0 < count <= len(strangers):
        raise ValueError(f"planted must give 1 to {len(strangers)} rows, got {count}")
    rows = torch.randperm(len(x), generator=generator)[:count]
    x[rows] = strangers[torch.randperm(len(strangers), generator=generator)[:count]]
    drawn = torch.randint(setting.outputs, (count,), generator=generator)
    y[rows] = drawn if labels == "random" else torch.zeros_like(drawn)
    planted = torch.zeros(len(x), dtype=torch.bool)
    planted[rows] = True
    return replace(setting, train=(x, y), planted=planted)


# ---- tensors ------------------------------------------------------------------------------------


def _first(split: Split, rows: int) -> Split:
    return split[0][:rows], split[1][:rows]


def _fast(x: Tensor) -> Tensor:
    """Pixels before channels is what convolutions on a CPU are fastest with."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _fast_split(split: Split) -> Split:
    return _fast(split[0]), split[1]
