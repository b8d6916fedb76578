"""Cells: their settings and seeds, their image data, and the training that studies share.

The cell's seed draws and divides the rows, so that runs of one seed see the same images whatever
their objective and can be compared in pairs. Statistics come from the training rows alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from dissensus.data import (
    AUGMENTATIONS,
    DATASETS,
    Augment,
    ImageFolder,
    data_places,
    fit_images,
    load,
    split_rows,
)
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.tools.specs import check_name
from dissensus.training import Optimizer, Recipe
from reproductions.study import SCALES, Cell, Study

#: Settings by the name of a variant; a cell adds its seed to both.
Variants = Mapping[str, Mapping[str, Any]]

SEEDS_OPTION = {"seeds": "how many runs of each setting, each with its own seed and data split"}


class Inputs(Protocol):
    """The facts about its data that a network is built from."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> int: ...
    @property
    def normalize(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None: ...


def count_option(options: Mapping[str, Any], name: str, default: int) -> int:
    """The number of seeds, draws, … of a study: that of ``--set NAME=``, or the default."""
    count = options.get(name, default)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {count!r}")
    return count


def names_option(options: Mapping[str, Any], name: str, known: Iterable[str]) -> list[str]:
    """The names of ``--set NAME=a+b``, or all that are ``known``.

    >>> names_option({"tables": "wine+ames"}, "tables", ["ames", "pima", "wine"])
    ['ames', 'wine']
    """
    everyone = list(known)
    given = str(options[name]).split("+") if name in options else everyone
    for one in given:
        check_name(one, everyone, f"one among the {name}")
    return [one for one in everyone if one in given]


def seeds_of(options: Mapping[str, Any], default: int) -> range:
    return range(count_option(options, "seeds", default))


def make_cell(name: str, settings: Mapping[str, Any], **changes: Any) -> Cell:
    """A cell of ``settings`` with ``changes``; an unknown setting is an error."""
    unknown = sorted(set(changes) - set(settings))
    if unknown:
        raise ValueError(f"the cell has no setting {', '.join(unknown)}")
    return {"name": name, **settings, **changes}


def seed_cells(variants: Variants, seeds: Iterable[int]) -> list[Cell]:
    """A cell for each variant, seed after seed; all must have the same settings.

    >>> seed_cells({"a": {"seed": 0, "epochs": 2}, "b": {"seed": 0, "epoch": 3}}, [0])
    Traceback (most recent call last):
    ...
    ValueError: the variants differ in more than values: not all have epoch, epochs
    """
    every = {key for settings in variants.values() for key in settings}
    odd = sorted(key for key in every if not all(key in own for own in variants.values()))
    if odd:
        raise ValueError(f"the variants differ in more than values: not all have {', '.join(odd)}")
    return [
        make_cell(f"{name}-seed={seed}", settings, seed=seed)
        for seed in seeds
        for name, settings in variants.items()
    ]


def seed_study(
    name: str,
    variants: Mapping[str, Variants],
    run: Callable[[Cell], dict[str, Any]],
    *,
    seeds: tuple[int, int, int],
    cost: tuple[str, str, str],
) -> Study:
    """A study that runs the variants of each scale with several seeds.

    ``seeds`` and ``cost`` are those of ``smoke``, ``cpu`` and ``paper``.
    """
    counts = dict(zip(SCALES, seeds, strict=True))

    def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
        return seed_cells(variants[scale], seeds_of(options, counts[scale]))

    costs = dict(zip(SCALES, cost, strict=True))
    return Study(name, cells, run, options=SEEDS_OPTION, cost=costs)


def new_ensemble(cell: Cell, data: Inputs, **options: Any) -> Ensemble:
    """An untrained ensemble of the cell's network, on the GPU where there is one."""
    make = make_factory(
        cell["model"],
        data.input_shape,
        data.outputs,
        normalize=data.normalize,
        **cell["model_options"],
    )
    ens = Ensemble(make, **{"members": cell["members"], "seed": cell["seed"], **options})
    return ens.to("cuda") if torch.cuda.is_available() else ens


def recipe(cell: Cell, **changes: Any) -> Recipe:
    keys = ("epochs", "batch_size", "optimizer", "schedule", "seed")
    return Recipe(**{**{key: cell[key] for key in keys}, **changes})


def rates_of_mean(text: str, members: int) -> Optimizer:
    """An optimiser for ``fit`` that trains as ``text`` does on the mean over ``members``.

    The authors' scripts step on the mean, where a member's own gradient counts 1/members; ``fit``
    steps each member on its own loss. So the same training has another rate and decay there.
    """
    given = Optimizer.parse(text)
    assert isinstance(given.lr, float)
    assert isinstance(given.weight_decay, float)
    lr = given.lr / members if given.name == "sgd" else given.lr  # Adam does not see the factor
    decay = given.weight_decay * (1 if given.name == "adamw" else members)
    return replace(given, lr=lr, weight_decay=decay)


def augmentation(cell: Cell) -> Augment | None:
    """One of ``AUGMENTATIONS`` by name, or one with the settings that the cell has."""
    wanted = cell["augment"]
    if wanted == "none":
        return None
    return AUGMENTATIONS[wanted] if isinstance(wanted, str) else Augment(**wanted)


#: Mean and standard deviation of ImageNet's pixels, as everybody uses them.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class ImageData:
    """Three parts that ``fit`` and ``predict`` take, and the facts a network is built from.

    ``measured`` names the parts whose predictions fit into memory and are measured after training.
    """

    train: Any
    val: Any
    test: Any
    input_shape: tuple[int, ...]
    outputs: int
    normalize: tuple[tuple[float, ...], tuple[float, ...]]
    measured: tuple[str, ...]


def load_images(cell: Cell) -> ImageData:
    """The data that ``cell`` names, with ``train``, ``val`` and ``test`` rows (None for all)."""
    if cell["data"] in DATASETS:
        wanted = (cell["data"], cell["train"], cell["val"], cell["test"], cell["size"])
        return _in_memory(*wanted, cell["seed"])
    return _from_folder(_folder(cell["data"]), cell)


@lru_cache(maxsize=1)  # cells of one seed follow each other; the paper's sizes allow for no more
def _in_memory(
    name: str, train: int | None, val: int | float, test: int | None, size: int | None, seed: int
) -> ImageData:
    if name == "digits":  # comes with scikit-learn, without a test part of its own
        data = load(name, seed=seed, val=val, test=test)
    else:
        limit = None if train is None else train + (val if isinstance(val, int) else 0)
        data = load(name, seed=seed, val=val, limit=limit, test_limit=test)

    def part(split: tuple[Tensor, Tensor], rows: int | None = None) -> tuple[Tensor, Tensor]:
        x, y = split[0][:rows], split[1][:rows]
        if size is not None:
            x = fit_images(x, (x.shape[1], size, size))
        return x, y

    seen = part(data.train, train)
    channels = seen[0].transpose(0, 1).flatten(1)
    mean, std = channels.mean(1).tolist(), channels.std(1).clamp_min(1e-3).tolist()
    return ImageData(
        seen,
        part(data.val) if val else None,
        part(data.test),
        tuple(seen[0].shape[1:]),
        data.outputs,
        (tuple(mean), tuple(std)),
        ("train", "val", "test") if val else ("train", "test"),
    )


def _folder(name: str) -> Path:
    """A folder in ImageNet's layout, by its path or by its name where data sets are."""
    for place in (Path(), *data_places()):
        if (place / name / "train").is_dir():
            return place / name
    raise ValueError(
        f"there is no data set {name!r}: neither a name of dissensus.data.DATASETS nor a folder "
        "with train/ and val/ below it, here or where DISSENSUS_DATA says"
    )


def _from_folder(folder: Path, cell: Cell) -> ImageData:
    """Images read batch by batch; val/ tests, and validation is cut from train/."""
    size = cell["size"] or 224
    images = ImageFolder(folder / "train", size)
    tested = ImageFolder(folder / "val", size, images.classes)
    train, val, _ = split_rows(len(images), val=cell["val"], test=0, seed=cell["seed"])
    workers = min(8, os.cpu_count() or 1) if len(images) > 10_000 else 0

    def loader(data: Any, *, shuffle: bool) -> DataLoader[Any]:
        return DataLoader(data, cell["batch_size"], shuffle=shuffle, num_workers=workers)

    return ImageData(
        loader(Subset(images, train.tolist()), shuffle=True),
        loader(Subset(images, val.tolist()), shuffle=False),
        loader(tested, shuffle=False),
        (3, size, size),
        len(images.classes),
        _IMAGENET,
        ("val", "test"),
    )
