"""Settings of the comparison: what is known, what is unknown, and what network learns it.

In each setting some classes are held out, others for each seed, and are unknown inputs that lie
near. So do mildly corrupted inputs; strongly corrupted ones and other data lie far. The seed draws
the rows, so that all contenders of one seed see the same ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from dissensus.data import corrupt_mixture, load, load_ood
from dissensus.data.strangers import STRANGERS, Strangers
from reproductions.tables.sources import load_table

Split = tuple[Tensor, Tensor]
Family = Callable[[Tensor, Generator], Tensor]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one seed.

    ``unknown`` are the sets that are tested, by name; ``foreign`` is real data to disagree on, of
    the set ``foreign_name``. ``strangers`` makes the inputs to disagree on from a batch,
    ``families`` those of validation, by name.
    """

    train: Split
    val: Split
    test: Split
    unknown: Mapping[str, Tensor]
    foreign: Tensor
    foreign_name: str
    outputs: int
    strangers: Family
    families: Mapping[str, Family]
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None


@dataclass(frozen=True)
class Setting:
    """A data set, its network and how that is trained.

    ``load(setting, seed)`` gives the rows: ``train`` to learn from, ``val`` to validate, and up to
    ``test`` of each set. ``near`` are the unknown sets that lie near; ``settled`` those on which
    recipes were settled, which prove nothing.
    """

    title: str
    kind: str  # images, features or table
    load: Callable[["Setting", int], Rows]
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    train: int = 4000
    val: int = 500
    test: int = 800
    epochs: int = 8
    batch_size: int = 128
    optimizer: str = "adam:lr=1e-3"
    schedule: str = "constant"
    augment: str = "none"
    members: int = 5
    contenders: tuple[str, ...] | None = None  # all of them if None
    near: tuple[str, ...] = ("held_out", "corrupt1")
    settled: tuple[str, ...] = ()
    confirms: bool = True


# ---- families of strangers ----------------------------------------------------------------------


def extrapolation(x: Tensor, generator: Generator) -> Tensor:
    """Rows beyond the data: ``x + (x − x')`` with x' another row of the batch."""
    return 2 * x - x[torch.randperm(len(x), generator=generator)]


def mixup(x: Tensor, generator: Generator) -> Tensor:
    """The mean of two inputs."""
    return (x + x[torch.randperm(len(x), generator=generator)]) / 2


def permuted_groups(groups: Tensor, x: Tensor, generator: Generator) -> Tensor:
    """Columns permuted over the batch, those of one category together; ``groups`` ``[columns]``."""
    order = torch.rand(len(x), int(groups.max()) + 1, generator=generator).argsort(0)
    return x.gather(0, order[:, groups])


_IMAGE_FAMILIES: dict[str, Family] = {
    **{name: STRANGERS[name] for name in ("mosaic", "phase", "permute")},
    "mixup": mixup,
}
_ROW_FAMILIES: dict[str, Family] = {
    "permute": STRANGERS["permute"],
    "extrapolation": extrapolation,
    "mixup": mixup,
}


# ---- images -------------------------------------------------------------------------------------


def _images(
    name: str, others: tuple[str, ...], foreign: str, held: int, setting: Setting, seed: int
) -> Rows:
    """An image set without ``held`` of its ten classes, against ``others``."""
    share = 10 / (10 - held)
    val, rows = round(setting.val * share), round((setting.train + setting.val) * share)
    if name == "digits":  # has no test part of its own
        data = load(name, seed=seed, val=setting.val, test=0.3)
    else:
        data = load(name, seed=seed, limit=rows, val=val, test_limit=min(10_000, 2 * setting.test))
    if held:
        data = _hold_out(data, [(2 * seed + place) % 10 for place in range(held)])
    shape = tuple(data.input_shape)
    x, y = data.test[0][: setting.test], data.test[1][: setting.test]
    unknown = {"held_out": _draw(data.extra["held_out"][0], setting.test, seed)} if held else {}
    if setting.confirms:
        unknown |= {f"corrupt{s}": corrupt_mixture(x, s, seed) for s in (1, 5)}
    for other in others:
        unknown[other] = load_ood(other, input_shape=shape, limit=setting.test, seed=seed)
    pixels = data.train[0].transpose(0, 1).flatten(1)
    return Rows(
        (_fast(data.train[0][: setting.train]), data.train[1][: setting.train]),
        (_fast(data.val[0]), data.val[1]),
        (_fast(x), y),
        {key: _fast(value) for key, value in unknown.items()},
        _fast(load_ood(foreign, input_shape=shape, limit=4000, seed=seed)),
        foreign,
        data.outputs,
        Strangers(),
        _IMAGE_FAMILIES,
        (tuple(pixels.mean(1).tolist()), tuple(pixels.std(1).clamp_min(1e-3).tolist())),
    )


def _hold_out(data: Any, classes: list[int]) -> Any:
    from dissensus.data.dataset import hold_out_classes

    return hold_out_classes(data, [data.classes[index] for index in classes])


def _fast(x: Tensor) -> Tensor:
    """Pixels before channels is what convolutions on a CPU are fastest with."""
    return x.contiguous(memory_format=torch.channels_last)


def _draw(x: Tensor, rows: int, seed: int) -> Tensor:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return x[order[:rows]]


# ---- features and tables ------------------------------------------------------------------------


def _features(setting: Setting, seed: int) -> Rows:
    """Heads on frozen features of Tiny ImageNet; 20 of the 200 classes are held out."""
    data = load("features_effnetlite0", seed=seed, val=setting.val)
    held = torch.arange(200)[seed % 10 :: 10]
    kept = _hold_out(data, held.tolist())
    unknown = {"held_out": _draw(kept.extra["held_out"][0], setting.test, seed)}
    for name in ("corrupt1", "corrupt5"):
        x, y = data.extra[name]
        assert y is not None
        unknown[name] = x[~torch.isin(y, held)][: setting.test]
    for name in ("svhn", "cifar10"):
        unknown[name] = _draw(data.extra[name][0], setting.test, seed)
    return Rows(
        kept.train,
        kept.val,
        (kept.test[0][: setting.test], kept.test[1][: setting.test]),
        unknown,
        data.extra["cifar10"][0],
        "cifar10",
        kept.outputs,
        Strangers(),
        _ROW_FAMILIES,
    )


def _table(name: str, held: str | None, other: str, setting: Setting, seed: int) -> Rows:
    """A table without one level of the column ``held``, or without one class where that is None.

    Numbers are standardised, missing ones have the median; categories are one-hot. Unknown are the
    rows held out; test rows with noise of half a deviation on all numbers; test rows with one
    number at ten deviations; and test rows whose numbers come from ``other``.
    """
    frame, y = load_table(name)
    generator = np.random.default_rng(seed)
    texts = frame.select_dtypes(exclude="number").fillna("missing").astype(str)
    labels = y if held is None else texts[held].to_numpy()
    levels, counts = np.unique(labels, return_counts=True)
    wanted = levels[np.argsort(-counts, kind="stable")][seed % min(5, len(levels))]
    order = generator.permutation(np.flatnonzero(labels != wanted))
    cut = len(order) - 2 * setting.test
    train, val, test = np.split(order, [cut, cut + setting.test])
    x, groups, width = encode(frame, train)
    classes = np.unique(y[order])
    numbered = torch.from_numpy(np.searchsorted(classes, y).astype(np.int64))
    known = x[test]
    unknown = {"held_out": _draw(x[labels == wanted], setting.test, seed)}
    unknown |= changed_rows(known, width, other, generator)
    permute: Family = partial(permuted_groups, torch.tensor(groups))
    foreign = _with_numbers(x[train], other_numbers("spam", width, len(train), generator))
    return Rows(
        (x[train], numbered[train]),
        (x[val], numbered[val]),
        (known, numbered[test]),
        unknown,
        foreign,
        "spam",
        len(classes),
        permute,
        {**_ROW_FAMILIES, "permute": permute},
    )


def encode(frame: Any, train: NDArray[np.int64]) -> tuple[Tensor, list[int], int]:
    """Inputs ``[rows, inputs]``, the column that each input belongs to, and how many are numbers.

    Numbers come first, standardised by the rows ``train``; then categories, one-hot.
    """
    numbers = frame.select_dtypes("number")
    texts = frame.select_dtypes(exclude="number").fillna("missing").astype(str)
    filled = numbers.fillna(numbers.iloc[train].median()).to_numpy(np.float64)
    mean, std = filled[train].mean(0), filled[train].std(0)
    parts, groups = [(filled - mean) / np.maximum(std, 1e-9)], list(range(numbers.shape[1]))
    for place, column in enumerate(texts):
        names = np.unique(texts[column])
        parts.append((texts[column].to_numpy()[:, None] == names).astype(np.float64))
        groups += [numbers.shape[1] + place] * len(names)
    return torch.from_numpy(np.concatenate(parts, 1)).float(), groups, numbers.shape[1]


def changed_rows(
    known: Tensor, width: int, other: str, generator: np.random.Generator
) -> dict[str, Tensor]:
    """Test rows with other numbers, the first ``width`` inputs: near and far unknowns."""
    noise = generator.normal(0.0, 0.5, (len(known), width))
    far = known[:, :width].clone()
    rows = torch.arange(len(far))
    far[rows, torch.from_numpy(generator.integers(width, size=len(far)))] = 10.0
    elsewhere = other_numbers(other, width, len(known), generator)
    return {
        "noise": _with_numbers(known, known[:, :width] + torch.from_numpy(noise).float()),
        "extreme": _with_numbers(known, far),
        "other_table": _with_numbers(known, elsewhere[: len(known)]),
    }


def _with_numbers(x: Tensor, numbers: Tensor) -> Tensor:
    return torch.cat([numbers, x[: len(numbers), numbers.shape[1] :]], 1)


def other_numbers(name: str, width: int, rows: int, generator: np.random.Generator) -> Tensor:
    """Rows of another table, standardised by its own statistics, with ``width`` drawn columns."""
    numbers = load_table(name)[0].select_dtypes("number")
    filled = numbers.fillna(numbers.median()).to_numpy(np.float64)
    scaled = (filled - filled.mean(0)) / np.maximum(filled.std(0), 1e-9)
    columns = generator.choice(scaled.shape[1], width, replace=width > scaled.shape[1])
    return torch.from_numpy(scaled[generator.choice(len(scaled), rows)][:, columns]).float()


# ---- all settings -------------------------------------------------------------------------------

_CNN: dict[str, Any] = {"model": "cnn", "options": {"dropout": 0.0}}

_FASHION = Setting(
    "Fashion-MNIST",
    "images",
    partial(_images, "fashion_mnist", ("kmnist", "svhn", "mnist"), "svhn", 2),
    settled=("kmnist", "svhn"),
    **_CNN,
)


def _settling_table(name: str, held: str | None, other: str, test: int) -> Setting:
    """A table on which the combination of scores was settled."""
    return Setting(
        f"{name} (table)",
        "table",
        partial(_table, name, held, other),
        "mlp",
        {"hidden": (64, 64)},
        test=test,
        epochs=20,
        near=("held_out", "noise"),
        confirms=False,
    )


SETTINGS: dict[str, Setting] = {
    "settling": replace(
        _FASHION,
        title="Fashion-MNIST, all classes",
        load=partial(_images, "fashion_mnist", ("kmnist", "svhn"), "mnist", 0),
        near=(),
        confirms=False,
    ),
    "letters": _settling_table("letters", None, "spam", 800),
    "vowel": _settling_table("vowel", None, "letters", 150),
    "hpc": _settling_table("hpc", None, "letters", 600),
    "churn": _settling_table("churn", "state", "letters", 600),
    "attrition": _settling_table("attrition", "JobRole", "letters", 200),
    "fashion_mnist": _FASHION,
    "mnist": Setting(
        "MNIST",
        "images",
        partial(_images, "mnist", ("kmnist", "svhn", "fashion_mnist"), "svhn", 2),
        **_CNN,
    ),
    "digits": Setting(
        "digits",
        "images",
        partial(_images, "digits", ("kmnist", "svhn", "fashion_mnist"), "svhn", 2),
        "small_cnn",
        val=250,
        test=400,
        epochs=20,
        batch_size=32,
    ),
    "features": Setting(
        "Tiny ImageNet features",
        "features",
        _features,
        "ldr_head",
        {"expansion": 1},
        train=8000,
        val=2000,
        epochs=6,
        batch_size=256,
        optimizer="adamw:lr=1e-3,weight_decay=0.01",
    ),
    "satellite": Setting(
        "satellite (table)",
        "table",
        partial(_table, "satellite", None, "letters"),
        "mlp",
        {"hidden": (64, 64)},
        epochs=20,
        near=("held_out", "noise"),
    ),
    "credit": Setting(
        "credit (table)",
        "table",
        partial(_table, "credit", "Home", "letters"),
        "mlp",
        {"hidden": (64, 64)},
        test=600,
        epochs=20,
        near=("held_out", "noise"),
    ),
    "cifar10": Setting(
        "CIFAR-10",
        "images",
        partial(_images, "cifar10", ("kmnist", "svhn"), "fashion_mnist", 2),
        "reproductions.networks:small_resnet",
        {"width": 16, "stages": (1, 1, 1), "stem": 2},
        train=36_000,
        val=4000,
        epochs=12,
        optimizer="sgd:lr=0.1,momentum=0.9,weight_decay=5e-4",
        schedule="cosine:warmup=1",
        augment="adp",
        members=3,
        contenders=("deep_ensemble", "longer", "exposure_tuned", "scratch", "tuned"),
    ),
}
