"""Data sets by name, the user's own files and folders, and how they are loaded."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.data.array_files import load_features, load_npz
from dissensus.data.arrow import is_dataset
from dissensus.data.column_values import TABLE_SUFFIXES
from dissensus.data.dataset import Data, Request, data_places, hold_out_classes
from dissensus.data.feature_store import is_store, load_store
from dissensus.data.image_folder import load_folder
from dissensus.data.image_sets import (
    IMAGE_SETS,
    Pixels,
    load_digits_images,
    load_image_set,
    load_test_pixels,
)
from dissensus.data.images import fit_images, to_unit
from dissensus.data.shards import is_shards, load_dataset, load_shards
from dissensus.data.table import Table, read_table_file
from dissensus.data.table_sets import EMBEDDED_TABLES, UCI_TABLES, embedded_table, uci_table
from dissensus.tools.specs import check_integer, check_keys, check_name, nearest

#: Every data set by name: ``loader(request, **options)``; tables come whole.
DATASETS: dict[str, Callable[..., Data | Table]] = {
    "digits": load_digits_images,
    "breast_cancer": partial(embedded_table, "breast_cancer"),
    "wine": partial(embedded_table, "wine"),
    "diabetes": partial(embedded_table, "diabetes"),
    "abalone": partial(uci_table, "abalone"),
    "bioconcentration": partial(uci_table, "bioconcentration"),
    "facebook": partial(uci_table, "facebook"),
    "weather": partial(uci_table, "weather"),
    "mnist": partial(load_image_set, "mnist"),
    "fashion_mnist": partial(load_image_set, "fashion_mnist"),
    "kmnist": partial(load_image_set, "kmnist"),
    "cifar10": partial(load_image_set, "cifar10"),
    "cifar100": partial(load_image_set, "cifar100"),
    "svhn": partial(load_image_set, "svhn"),
    "features_effnetlite0": load_features,
}

#: The user's own files by their suffix: ``loader(path, request, **options)``.
FORMATS: dict[str, Callable[..., Data | Table]] = {
    ".csv": read_table_file,
    ".tsv": read_table_file,
    ".parquet": read_table_file,
    ".npz": load_npz,
}

#: Image sets whose test part can serve as unknown inputs: ``loader(request) -> Pixels``.
OOD_SETS: dict[str, Callable[..., Pixels]] = {
    name: partial(load_test_pixels, name) for name in IMAGE_SETS
}


def load(
    name_or_path: Any,
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
    by a pattern: ``train-{000..146}.tar``, ``part-*.parquet``, ``part-*.csv``. A folder of images
    stays on disk if it is large, or with ``stream=True``. A ``datasets.Dataset`` or
    ``DatasetDict`` of Hugging Face's stays where it is.

    ``test`` is the share (or number) of rows held out for testing, 0.2 by default;
    sets with an official test part keep it and take no ``test``. ``val`` is the share of the
    remaining rows that validates; 0 gives an empty part. The same ``seed`` gives the same rows.
    Files are looked for in ``data_dir``, or where ``DISSENSUS_DATA`` says, or in the user's cache,
    and downloaded if they are missing. A file or folder with the name of a data set must be
    given as a :class:`~pathlib.Path`. ``hold_out`` keeps classes from all splits, as unknown
    inputs (:func:`hold_out_classes`). ``options`` are those of the loader: ``target=`` for a table,
    ``limit=`` for images, and so on. A task that the targets leave open is guessed; the guess is
    logged (``dissensus.data``, level INFO) and stands in ``preprocessing["guess"]``.

    >>> load("wines")
    Traceback (most recent call last):
    ...
    ValueError: there is no data set 'wines'; did you mean 'wine'? (data of your own are files ...
    """
    request = Request(data_places(data_dir), seed, val, test, download)
    data = _find_loader(name_or_path, options)(request)
    if isinstance(data, Table):
        data = data.split(seed, val=val, test=request.test_share)
    if guess := data.preprocessing.get("guess"):
        logging.getLogger("dissensus.data").info(guess)
    return data if hold_out is None else hold_out_classes(data, hold_out)


def load_table(
    name_or_path: str | Path,
    *,
    data_dir: str | Path | None = None,
    download: bool = True,
    **options: Any,
) -> Table:
    """A table as it was read, to be split for many seeds with :meth:`Table.split`.

    >>> load_table("diabetes")
    Table('diabetes': regression, 442 rows, 10 columns)
    """
    request = Request(data_places(data_dir), download=download)
    table = _find_loader(name_or_path, options)(request)
    if not isinstance(table, Table):
        known = ", ".join([*EMBEDDED_TABLES, *UCI_TABLES, *TABLE_SUFFIXES])
        raise ValueError(f"{name_or_path} is no table; known are {known}")
    return table


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
    key = dataset_name(name) or name
    check_name(key, OOD_SETS, "image set")
    request = Request(data_places(data_dir), seed=seed, download=download)
    pixels = OOD_SETS[key](request, verify=verify).x
    if limit is not None:
        generator = torch.Generator().manual_seed(seed)
        check_integer("limit", limit, 1, len(pixels))
        pixels = pixels[torch.randperm(len(pixels), generator=generator)[:limit].numpy()]
    x = to_unit(pixels)
    return x if input_shape is None else fit_images(x, input_shape)


def dataset_name(name: str | Path) -> str | None:
    """The key of :data:`DATASETS` that ``name`` means, hyphens as underscores; None for a path."""
    key = str(name).lower().replace("-", "_")
    return key if key in DATASETS and not isinstance(name, Path) else None


def _find_loader(
    name_or_path: Any, options: Mapping[str, object]
) -> Callable[[Request], Data | Table]:
    """The loader of a name, file, folder or shards, with its ``options``."""
    loader: Callable[..., Data | Table]
    if is_dataset(name_or_path, "Dataset", "DatasetDict"):
        return _with_options(partial(load_dataset, name_or_path), "of Hugging Face's", options)
    name, path = dataset_name(name_or_path), Path(name_or_path)
    if name is not None:
        loader = DATASETS[name]
    elif is_shards(name_or_path):
        loader = partial(load_shards, name_or_path)
    elif path.suffix.lower() in FORMATS:
        loader = partial(FORMATS[path.suffix.lower()], path)
    elif path.is_dir():
        loader = partial(load_store if is_store(path) else load_folder, path)
    else:
        hint = nearest(str(name_or_path).lower(), DATASETS)
        own = f"data of your own are files ({', '.join(FORMATS)}), folders, or shards such as *.tar"
        raise ValueError(f"there is no data set {str(name_or_path)!r}; {hint} ({own})")
    return _with_options(loader, repr(str(name_or_path)), options)


def _with_options(
    loader: Callable[..., Data | Table], name: str, options: Mapping[str, object]
) -> Callable[[Request], Data | Table]:
    parameters = inspect.signature(loader).parameters.values()
    known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    check_keys(f"data set {name}", options, known)
    return partial(loader, **options)
