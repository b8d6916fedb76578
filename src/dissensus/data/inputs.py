"""Inputs by name: data sets, files, folders, corrupted images and extra sets, found in one place.

>>> from dissensus.data import load
>>> data = load("digits", hold_out="7,8")
>>> find_inputs("corrupt:5", data).x.shape, len(find_inputs("held_out", data))
(torch.Size([276, 1, 8, 8]), 353)
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dissensus.data.corruptions import corrupt, corrupt_mixture, parse_corruption
from dissensus.data.dataset import Data, OnDisk
from dissensus.data.feature_store import is_store
from dissensus.data.image_folder import ImageFiles
from dissensus.data.images import fit_images, to_unit
from dissensus.data.input_files import Inputs, InputSpec, read_arrays, read_inputs
from dissensus.data.sets import DATASETS, OOD_SETS, dataset_name, load, load_ood
from dissensus.data.shards import is_shards
from dissensus.tools.files import read_npz
from dissensus.tools.specs import nearest

_SPLITS = ("test", "val", "train")


def find_inputs(
    name: str | Path,
    like: InputSpec,
    *,
    part: str | None = None,
    labelled: bool | None = None,
    target: str | None = None,
    header: bool = True,
    groups: str | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
    match: bool = True,
    size: int | None = None,
    **options: Any,
) -> Inputs:
    """The inputs that ``name`` means, in the form that a model takes that was trained on ``like``.

    ``like`` is a :class:`~dissensus.data.Data`, or the summary that a run keeps. In this order:

    - ``corrupt:SEVERITY`` (all kinds mixed) or ``corrupt:KIND:SEVERITY``: its test images;
    - ``test``, ``val``, ``train``, or one of its extra sets, such as ``held_out``;
    - a data set of :data:`~dissensus.data.DATASETS`: its test part, or ``part``;
    - a file (.npz, .npy, .csv, .tsv, .parquet) or shards, see :func:`read_inputs`;
    - a folder of images in any layout (with ``part``: in that of a data set), features or shards.

    Images of other sizes are brought to the size of ``like``. Without ``match`` all inputs stay as
    they are, folders of images are read in ``size`` × ``size`` pixels (224), and images are
    corrupted as they are read. ``labelled`` asks for targets (True) or leaves them out (False);
    None keeps them if they are of the same classes. ``target`` and ``header`` are for tables,
    ``groups`` names an array of an .npz; ``seed``, ``data_dir`` and ``options`` go to
    :func:`~dissensus.data.load`.
    """
    text, path = str(name), Path(name).expanduser()
    own = like if isinstance(like, Data) else None
    if text.startswith("corrupt:"):
        return _corrupted(text, own, seed, stream=not match)
    if own is not None and text in (*own.extra, *_SPLITS):
        return take_part(own, text, labelled=bool(labelled))
    key = dataset_name(name)
    everything = part is None and not labelled  # not one part in the layout of a data set
    if everything and key in OOD_SETS:
        return _known_images(key, like, data_dir, match=match)
    if key is None and (path.is_file() or (is_shards(name) and not path.is_dir())):
        if not match:
            x, _ = read_arrays(path, labelled=False)
            stored = to_unit(x) if x.dtype == np.uint8 else torch.from_numpy(x).float()
            return Inputs(path.stem, stored)
        columns = {"target": target, "header": header}
        return _from_file(path, like, labelled=labelled, groups=groups, **columns)
    takes_images = not match or len(like.input_shape) == 3
    holds_images = path.is_dir() and not is_shards(path) and not is_store(path)
    if key is None and everything and takes_images and holds_images:
        return _from_images(path, like, size or 224, match=match)
    if key is not None or path.is_dir():
        if size is not None and key is None and not is_store(path):
            options["size"] = size
        data = load(name, seed=seed, data_dir=data_dir, **options)
        return _from_data(data, like, part or "test", labelled=labelled, match=match)
    known = [] if own is None else [*_SPLITS, *own.extra]
    hint = nearest(text.lower(), [*known, "corrupt:SEVERITY", *DATASETS])
    raise ValueError(f"there is no set {text!r}; {hint} (your own are .npz, .npy, .csv, folders)")


def take_part(data: Data, name: str, *, labelled: bool = False) -> Inputs:
    """A split of ``data``, or one of its extra sets."""
    sets = {**data.extra, **data.splits()}
    if name not in sets:
        raise ValueError(f"{data.name} has no split {name!r}; it has {', '.join(sets)}")
    x, y = sets[name]
    if not len(x) or (labelled and y is None):
        lacks = "no labels" if len(x) else "no rows"
        raise ValueError(f"the split {name!r} of {data.name} has {lacks}; choose another")
    return Inputs(name, x, y)


class CorruptedImages:
    """Images corrupted as they are read, by slices; all kinds mixed where ``kind`` is None.

    The noise of a slice follows from the seed and its first row.
    """

    def __init__(self, x: Tensor, kind: str | None, severity: int, seed: int) -> None:
        self.x, self.kind, self.severity, self.seed = x, kind, severity, seed
        self.shape = x.shape

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice) -> Tensor:
        return self.corrupt(self.x[rows], rows.indices(len(self))[0])

    def corrupt(self, x: Tensor, first: int) -> Tensor:
        """``x``, the images from row ``first`` on, corrupted."""
        seed = (self.seed + first) % 2**40
        if self.kind is None:
            return corrupt_mixture(x, self.severity, seed)
        return corrupt(x, self.kind, self.severity, seed)


# ---- the kinds of inputs ------------------------------------------------------------------------


def _corrupted(text: str, data: Data | None, seed: int, *, stream: bool) -> Inputs:
    kind, severity = parse_corruption(text)
    if data is None:
        raise ValueError(f"{text} changes test images, and there is no data set to take them from")
    if len(data.input_shape) != 3:
        raise ValueError(f"{text} needs images, and {data.name} has inputs {data.input_shape}")
    x, y = data.test
    if not len(x):
        raise ValueError(f"{data.name} has no test images to corrupt")
    if stream:
        images = CorruptedImages(x, kind, severity, seed * 1_000_003)
        return Inputs(f"{kind or 'corrupt'}{severity}", cast(Tensor, images), y)
    if isinstance(x, OnDisk):
        x = x[:]
    return Inputs(text, CorruptedImages(x, kind, severity, seed)[:], y)


def _known_images(
    name: str, like: InputSpec, data_dir: str | Path | None, *, match: bool
) -> Inputs:
    """Test images of a known set, of which the training part need not be there."""
    if match and len(like.input_shape) != 3:
        raise ValueError(f"{name} needs a run on images, and {like.name} has none")
    shape = like.input_shape if match else None
    return Inputs(name, load_ood(name, data_dir=data_dir, input_shape=shape))


def _from_data(
    data: Data, like: InputSpec, part: str, *, labelled: bool | None, match: bool
) -> Inputs:
    inputs = take_part(data, part, labelled=bool(labelled))
    x, y = inputs.x, inputs.y
    shape, wanted = tuple(x.shape[1:]), tuple(like.input_shape)
    if not labelled:
        same = labelled is None and list(data.classes) == list(like.classes)
        y = y if same and data.task == like.task else None
        if match and len(shape) == len(wanted) == 3 and isinstance(x, Tensor):
            x, shape = fit_images(x, wanted), wanted
    outputs = data.outputs if labelled else like.outputs
    if match and (shape, outputs) != (wanted, like.outputs):
        own = f"inputs of shape {shape} and {data.outputs} outputs"
        raise ValueError(f"{data.name} has {own}, the run takes {wanted} and gives {like.outputs}")
    return Inputs(data.name, x, y)


def _from_images(path: Path, like: InputSpec, size: int, *, match: bool) -> Inputs:
    """All images below a folder; the names of its folders are labels if all are classes."""
    if not match:
        return Inputs(path.resolve().name, cast(Tensor, ImageFiles.below(path, size)))
    shape = tuple(like.input_shape)
    images = ImageFiles.below(path, max(shape[1:]), shape)
    number = {name: index for index, name in enumerate(like.classes)}
    labels = [number.get(Path(os.fsdecode(file)).parts[0]) for file in images.files]
    y = None if None in labels else torch.tensor(labels)
    return Inputs(path.name, cast(Tensor, images), y)


def _from_file(
    path: Path, like: InputSpec, *, labelled: bool | None, groups: str | None, **columns: Any
) -> Inputs:
    optional = labelled is None and like.task == "classification"
    try:
        inputs = read_inputs(path, like, labelled=optional or bool(labelled), **columns)
    except ValueError:  # perhaps without labels, or with those of other classes
        if not optional:
            raise
        inputs = read_inputs(path, like, **columns)
    return replace(inputs, groups=_groups(path, groups, len(inputs)))


def _groups(path: Path, name: str | None, rows: int) -> Tensor | None:
    """The array ``name`` of an ``.npz``, its values numbered; None where there is none."""
    if name is None or path.suffix.lower() != ".npz":
        return None
    arrays = read_npz(path, choose=lambda headers: [key for key in headers if key == name])
    if not arrays:
        return None
    values = arrays[name]
    if values.shape != (rows,):
        raise ValueError(f"{name} in {path} must be [rows] = ({rows},), got {values.shape}")
    if values.dtype.kind not in "iu":
        values = np.unique(values, return_inverse=True)[1]
    return torch.from_numpy(values.astype(np.int64))
