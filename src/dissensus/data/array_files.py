"""Arrays in ``.npz`` files, among them frozen features with sets of unknown inputs.

The file holds ``x`` and ``y``, or ``train_x`` and ``train_y`` with ``val_x``/``val_y`` and
``test_x``/``test_y`` as far as they exist. Every further ``name_x`` is an extra set, labelled if
there is a ``name_y``. Arrays of Python objects are never loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.dataset import PARTS, Data, Request, Split, check_task, divide, guess_task
from dissensus.data.encoder import Scaler
from dissensus.tools.files import read_npz
from dissensus.tools.guards import check_finite
from dissensus.tools.specs import check_choice

Array = NDArray[Any]
_FEATURES = "features-effnetlite0/tinyimagenet_effnetlite0_pca256.npz"


def load_npz(
    path: Path,
    request: Request,
    *,
    task: str | None = None,
    standardize: bool | None = None,
    val_as: str = "val",
) -> Data:
    """Arrays of an ``.npz`` as a :class:`~dissensus.data.dataset.Data`.

    Unsigned bytes of three axes or more are images: divided by 255, channels moved to the second
    axis. Whole-number, text or yes/no targets are classes, others regression, unless ``task`` says
    otherwise. Flat inputs ``[rows, features]``, and then regression targets, are standardised by
    the statistics of train, as those of a table are; ``standardize=False`` leaves them. A file with
    ``val_x`` and no ``test_x`` leaves open what results are reported on: ``val_as="val"`` takes it
    for validation and cuts test from train, ``val_as="test"`` keeps it as the test set and cuts
    validation from train.
    """
    check_choice("data", "val_as", val_as, ["val", "test"])
    return _from_arrays(path.name, read_npz(path), request, task, standardize, val_as, path)


def load_features(request: Request, *, standardize: bool = False) -> Data:
    """EfficientNet-lite0 features of Tiny ImageNet: 256 dimensions, 200 classes, 10,000 rows.

    A small stand-in for ldr's setting, shallow heads on a frozen backbone. The 4,000 validation
    images are the test set here; validation is cut from train. ``extra`` holds ``corrupt1`` and
    ``corrupt5`` (the first 2,000 test images at severity 1 and 5, with their labels), ``svhn`` and
    ``cifar10``. The file is made, not official: it has no download.
    """
    name, task = "features_effnetlite0", "classification"
    paths = [place / _FEATURES for place in request.places]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        folders = ", ".join(str(path.parent) for path in paths)
        raise ValueError(f"{name} has no download: put {Path(_FEATURES).name} into {folders}")
    arrays = read_npz(path)
    for corrupted in ("corrupt1", "corrupt5"):
        if f"{corrupted}_x" in arrays:
            arrays[f"{corrupted}_y"] = arrays["val_y"][: len(arrays[f"{corrupted}_x"])]
    return _from_arrays(name, arrays, request, task, standardize, "test", path)


def _from_arrays(
    name: str,
    arrays: dict[str, Array],
    request: Request,
    task: str | None,
    standardize: bool | None,
    val_as: str,
    source: Path,
) -> Data:
    renamed = {}
    if "x" in arrays and "train_x" not in arrays:
        renamed = {"x": "train_x", "y": "train_y"}
    if val_as == "test" and "val_x" in arrays and "test_x" not in arrays:
        renamed |= {"val_x": "test_x", "val_y": "test_y"}
    arrays = {renamed.get(key, key): value for key, value in arrays.items()}
    if "train_x" not in arrays or "train_y" not in arrays:
        names = ", ".join(arrays) or "nothing"
        raise ValueError(f"{source} must hold x and y, or train_x and train_y, got {names}")
    for part in ("val", "test"):
        if f"{part}_x" in arrays and f"{part}_y" not in arrays:
            raise ValueError(f"{source} holds {part}_x without {part}_y")

    x = {key[:-2]: _inputs(a, key) for key, a in arrays.items() if key.endswith("_x")}
    targets = {key[:-2]: a for key, a in arrays.items() if key.endswith("_y")}
    task, guess = _guess_task(targets) if task is None else (task, "")
    y, classes = _encode_targets(targets, task)
    ids: dict[str, NDArray[np.int64]] = {}
    for part in (part for part in PARTS if part in x):
        ids[part] = np.arange(len(x[part])) + sum(map(len, ids.values()))

    def pick(part: str, rows: NDArray[np.int64]) -> Split:
        chosen = torch.from_numpy(rows) if part == "train" else slice(None)
        return x[part][chosen], y[part][chosen]

    data = divide(
        name,
        task,
        ids,
        pick,
        request,
        classes=classes,
        extra={key: (value, y.get(key)) for key, value in x.items() if key not in PARTS},
        preprocessing={
            "split_seed": request.seed,
            "ignored": [key for key in arrays if not key.endswith(("_x", "_y"))],
            **({"guess": guess} if guess else {}),
        },
        source=str(source),
    )
    flat = len(data.input_shape) == 1
    return _standardize(data) if standardize or (standardize is None and flat) else data


def _inputs(array: Array, key: str) -> Tensor:
    if array.dtype.kind not in "fiub" or array.ndim < 2:
        raise ValueError(f"{key} must be numbers [rows, …], got {array.dtype} {array.shape}")
    x = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    if array.dtype == np.uint8 and array.ndim >= 3:
        x = x / 255
        if x.ndim == 3:
            x = x[:, None]
        elif x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
            x = x.permute(0, 3, 1, 2).contiguous()
    check_finite(x, name=key)
    return x


def _guess_task(arrays: Mapping[str, Array]) -> tuple[str, str]:
    """Integers, text and yes/no are classes; for numbers also a sentence that says so."""
    kinds = {array.dtype.kind for array in arrays.values()}
    if kinds <= set("bU"):
        return "classification", ""
    if not kinds <= set("iuf"):
        return "classification" if kinds <= set("iubU") else "regression", ""
    values = np.concatenate([array.ravel() for array in arrays.values()])
    return guess_task("y", values, most_classes=None if kinds <= set("iu") else 0)


def _encode_targets(
    arrays: Mapping[str, Array], task: str
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Targets by part, and the names of the classes."""
    check_task(task)
    if task == "regression":
        if not all(array.dtype.kind in "iubf" for array in arrays.values()):
            raise ValueError("regression targets must be numbers, got text")
        floats = {k: torch.from_numpy(a.astype(np.float32)) for k, a in arrays.items()}
        return {k: y if y.ndim > 1 else y[:, None] for k, y in floats.items()}, ()
    for key, array in arrays.items():
        if array.ndim != 1:
            raise ValueError(f"{key}_y must be labels [rows], got {array.shape}")
    # The labels of the three parts are the classes; an extra set may have labels of its own.
    known = np.unique(np.concatenate([a for k, a in arrays.items() if k in PARTS]))
    labels = {
        key: torch.from_numpy(np.searchsorted(known, array).astype(np.int64))
        for key, array in arrays.items()
        if np.isin(array, known).all()
    }
    return labels, tuple(str(value) for value in known.tolist())


def _standardize(data: Data) -> Data:
    """Flat inputs, and regression targets, scaled by the statistics of train."""
    train, targets = data.train
    if train.ndim != 2:
        raise ValueError(f"standardize takes [rows, features], got {tuple(train.shape)}")
    scaler = Scaler.fit(train.double().numpy(), np.ones(train.shape[1], dtype=bool))
    notes = {"feature_mean": scaler.mean.tolist(), "feature_std": scaler.scale.tolist()}
    mean, std = torch.tensor(0.0), torch.tensor(1.0)
    if data.task == "regression":
        mean, std = targets.mean(0), targets.std(0, correction=0)
        std = torch.where(std > 0, std, torch.ones_like(std))
        notes |= {"target_mean": mean.tolist(), "target_std": std.tolist()}

    def scale(x: Tensor) -> Tensor:
        return torch.from_numpy(scaler(x.double().numpy())).float()

    splits: dict[str, Any] = {
        part: (scale(x), (y - mean) / std if data.task == "regression" else y)
        for part, (x, y) in data.splits().items()
    }
    return replace(
        data,
        **splits,
        extra={name: (scale(x), y) for name, (x, y) in data.extra.items()},
        preprocessing={**data.preprocessing, **notes},
    )
