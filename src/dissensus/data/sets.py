"""Data sets by name, the user's own files and folders, and how they are loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.data.array_files import load_features, load_npz
from dissensus.data.dataset import Data, Request, data_places, hold_out_classes
from dissensus.data.feature_store import is_store, load_store
from dissensus.data.folder import load_folder
from dissensus.data.image_sets import (
    IMAGE_SETS,
    load_digits_images,
    load_image_set,
    load_test_pixels,
)
from dissensus.data.images import Pixels, fit_images, to_unit
from dissensus.data.on_disk import is_shards, load_shards
from dissensus.data.table import Table
from dissensus.data.table_files import load_table_file, read_table_file
from dissensus.data.table_sets import (
    EMBEDDED_TABLES,
    UCI_TABLES,
    load_embedded,
    load_uci,
    uci_table,
)
from dissensus.specs import check_name, nearest

__all__ = ["DATASETS", "FORMATS", "OOD_SETS", "load", "load_ood", "load_table"]

#: Every data set by name: ``loader(request, **options) -> Data``.
DATASETS: dict[str, Callable[..., Data]] = {
    "digits": load_digits_images,
    "breast_cancer": partial(load_embedded, "breast_cancer"),
    "wine": partial(load_embedded, "wine"),
    "diabetes": partial(load_embedded, "diabetes"),
    "abalone": partial(load_uci, "abalone"),
    "bioconcentration": partial(load_uci, "bioconcentration"),
    "facebook": partial(load_uci, "facebook"),
    "weather": partial(load_uci, "weather"),
    "mnist": partial(load_image_set, "mnist"),
    "fashion_mnist": partial(load_image_set, "fashion_mnist"),
    "kmnist": partial(load_image_set, "kmnist"),
    "cifar10": partial(load_image_set, "cifar10"),
    "cifar100": partial(load_image_set, "cifar100"),
    "svhn": partial(load_image_set, "svhn"),
    "features_effnetlite0": load_features,
}

#: The user's own files by their suffix: ``loader(path, request, **options) -> Data``.
FORMATS: dict[str, Callable[..., Data]] = {
    ".csv": load_table_file,
    ".tsv": load_table_file,
    ".parquet": load_table_file,
    ".npz": load_npz,
}

#: Image sets whose test part can serve as unknown inputs: ``loader(request) -> Pixels``.
OOD_SETS: dict[str, Callable[..., Pixels]] = {
    name: partial(load_test_pixels, name) for name in IMAGE_SETS
}


def load(
    name_or_path: str | Path,
    *,
    data_dir: str | Path | None = None,
    seed: int = 0,
    val: float | int = 0.2,
    test: float | int | None = None,
    download: bool = True,
    hold_out: str | Sequence[str | int] | None = None,
    **options: Any,
) -> Data:
    """Load a set of :data:`DATASETS`, a file of :data:`FORMATS`, a folder, or shards.

    A folder holds images, or the features that ``dissensus features`` made, which stay on disk, or
    shards (``.tar`` as webdataset has them, ``.parquet``), which do so too. Shards are also named
    by a pattern: ``train-{000..146}.tar``, ``part-*.parquet``. A folder of images stays on disk if
    it is large, or with ``stream=True``.

    ``test`` is the share (or number) of rows held out for testing, 0.2 where nothing is said;
    sets with an official test part keep it and take no ``test``. ``val`` is the share of the
    remaining rows that validates; 0 gives an empty part. The same ``seed`` gives the same rows.
    Files are looked for in ``data_dir``, or where ``DISSENSUS_DATA`` says, or in the user's cache,
    and downloaded if they are missing. A file or folder called like a data set is meant only when
    it is given as a :class:`~pathlib.Path`. ``hold_out`` keeps classes from all splits, as unknown
    inputs (:func:`hold_out_classes`). ``options`` are those of the loader: ``target=`` for a table,
    ``limit=`` for images, and so on.

    >>> load("wines")
    Traceback (most recent call last):
    ...
    ValueError: there is no data set 'wines'; did you mean 'wine'? (data of your own are files ...
    """
    request = Request(data_places(data_dir), seed, val, test, download)
    loader = _loader(name_or_path)
    _check_options(name_or_path, loader, options)
    data = loader(request, **options)
    return data if hold_out is None else hold_out_classes(data, hold_out)


def load_table(
    name_or_path: str | Path,
    *,
    data_dir: str | Path | None = None,
    download: bool = True,
    **options: Any,
) -> Table:
    """A table in raw units, to be split for many seeds with :meth:`Table.split`.

    >>> load_table("diabetes")
    Table('diabetes': regression, 442 rows, 10 columns)
    """
    name = _key(name_or_path)
    reader: Callable[..., Table]
    if name in EMBEDDED_TABLES:
        reader = EMBEDDED_TABLES[name]
    elif name in UCI_TABLES:
        reader = partial(uci_table, name, Request(data_places(data_dir), download=download))
    elif FORMATS.get(Path(name_or_path).suffix.lower()) is load_table_file:
        reader = partial(read_table_file, name_or_path)
    else:
        tables = [*EMBEDDED_TABLES, *UCI_TABLES]
        raise ValueError(
            f"there is no table {str(name_or_path)!r}; {nearest(name, tables)} (files end in "
            ".csv, .tsv or .parquet)"
        )
    _check_options(name_or_path, reader, options)
    return reader(**options)


def load_ood(
    name: str,
    *,
    data_dir: str | Path | None = None,
    input_shape: Sequence[int] | None = None,
    limit: int | None = None,
    seed: int = 0,
    download: bool = True,
    verify: bool = True,
) -> Tensor:
    """Test images of :data:`OOD_SETS` as unknown inputs ``[rows, channels, height, width]``.

    In [0, 1]; brought to ``input_shape`` where one is given; ``limit`` draws that many at random.
    Only the test files have to be there.
    """
    key = _key(name)
    check_name(key, OOD_SETS, "image set")
    request = Request(data_places(data_dir), seed=seed, download=download)
    pixels = OOD_SETS[key](request, verify=verify).x
    if limit is not None:
        generator = torch.Generator().manual_seed(seed)
        if not 0 < limit <= len(pixels):
            raise ValueError(f"limit must be from 1 to {len(pixels)}, got {limit!r}")
        pixels = pixels[torch.randperm(len(pixels), generator=generator)[:limit].numpy()]
    x = to_unit(pixels)
    return x if input_shape is None else fit_images(x, input_shape)


def _loader(name_or_path: str | Path) -> Callable[..., Data]:
    name, path = _key(name_or_path), Path(name_or_path)
    if name in DATASETS and not isinstance(name_or_path, Path):
        return DATASETS[name]
    if is_shards(name_or_path):
        return partial(load_shards, name_or_path)
    if path.suffix.lower() in FORMATS:
        return partial(FORMATS[path.suffix.lower()], path)
    if path.is_dir():
        return partial(load_store if is_store(path) else load_folder, path)
    raise ValueError(
        f"there is no data set {str(name_or_path)!r}; {nearest(name, DATASETS)} (data of your "
        f"own are files ending in {', '.join(FORMATS)}, folders of images or features, or shards: "
        ".tar, or a pattern of .tar or .parquet)"
    )


def _check_options(
    name: str | Path, loader: Callable[..., object], options: Mapping[str, object]
) -> None:
    known = [
        parameter.name
        for parameter in inspect.signature(loader).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for option in options:
        if option not in known:
            raise ValueError(
                f"data set {str(name)!r} has no option {option!r}; {nearest(option, known)}"
            )


def _key(name: str | Path) -> str:
    """Names are written with hyphens as well as underscores."""
    return str(name).lower().replace("-", "_")
