"""Inputs from files: in the units of the source, treated as the training inputs were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.column_values import (
    TABLE_SUFFIXES,
    find_gaps,
    list_names,
    raw_columns,
    read_columns,
    text_column,
)
from dissensus.data.encoder import Encoder, Scaler
from dissensus.data.preparation import Preparation
from dissensus.data.shards import is_shards, open_shards
from dissensus.tools.files import ArrayHeader, read_npy, read_npz
from dissensus.tools.specs import check_integer

Array = NDArray[Any]


class InputSpec(Protocol):
    """The form of a data set's inputs and targets, as :class:`~dissensus.data.Data` has it."""

    @property
    def name(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def input_shape(self) -> Sequence[int]: ...
    @property
    def outputs(self) -> int: ...
    @property
    def classes(self) -> Sequence[str]: ...
    @property
    def features(self) -> Sequence[str]: ...
    @property
    def preprocessing(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs ``x`` ``[rows, …]``, in memory or read by slices, under a ``name``.

    ``y`` are their targets where they are known and those of the training data, ``groups`` a number
    for each row where a file gives them. Of a table, ``ignored`` are the columns that training did
    not know, and ``remarks`` sentences about values that it did not know.
    """

    name: str
    x: Tensor
    y: Tensor | None = None
    groups: Tensor | None = None
    ignored: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield self.x[rows], None if self.y is None else self.y[rows]

    def limited(self, limit: int | None, seed: int = 0) -> Inputs:
        """At most ``limit`` rows, drawn at random and the same for the same seed."""
        if limit is None or limit >= len(self):
            return self
        check_integer("limit", limit)
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(self), generator=generator)[:limit].sort().values
        y, groups = (None if each is None else each[rows] for each in (self.y, self.groups))
        return replace(self, x=self.x[rows], y=y, groups=groups)


def read_inputs(
    source: Any,
    like: InputSpec,
    *,
    target: str | None = None,
    header: bool = True,
    labelled: bool = False,
) -> Inputs:
    """Inputs from a file, shards or a DataFrame, treated as those of ``like`` were.

    An ``.npz`` holds ``x`` (or one array of any name) and, if ``labelled``, ``y``; a table has the
    columns that the training table had (``header=False``: no names in its first line), and
    ``target`` is the one to be predicted. A DataFrame, or a dict of columns, is a table too.
    Numbers are in the units of the source: they are filled, encoded and standardised as in
    training, by the statistics of the training rows, and unsigned bytes for a model of images are
    divided by 255. Shards (``.tar``, or a pattern of ``.tar`` or ``.parquet``) stay on disk.
    """
    is_path = isinstance(source, str | Path)
    if is_path and is_shards(source):
        return _open_shards(source, like, labelled=labelled)
    path = Path(source).expanduser() if is_path else Path("table")
    if is_path and not path.is_file():
        raise ValueError(f"there is no file {path}")
    unknown: dict[str, Any] = {}
    if not is_path or path.suffix.lower() in TABLE_SUFFIXES:
        table = path if is_path else source
        rows, targets, unknown = _read_table(table, like, target, header=header, labelled=labelled)
    else:
        rows, targets = read_arrays(path, like, labelled=labelled)
    _check_form(rows, like, path)
    pixels = rows.dtype == np.uint8 and len(like.input_shape) >= 2
    rows = rows.astype(np.float32) / 255 if pixels else rows.astype(np.float64)
    x = torch.from_numpy(np.ascontiguousarray(_standardize(rows, like), dtype=np.float32))
    y = None if targets is None else _encode_targets(targets, like, path)
    return Inputs(path.stem, x, y, **unknown)


def _open_shards(path: str | Path, like: InputSpec, *, labelled: bool) -> Inputs:
    """All examples of shards that have the fields or columns that training took."""
    notes = like.preprocessing
    x, y = open_shards(
        path,
        input=notes.get("input"),
        target=notes.get("target"),
        task=like.task,
        classes=like.classes,
        labelled=labelled,
        size=like.input_shape[-1],
    )
    if list(x.shape[1:]) != list(like.input_shape):
        raise ValueError(f"{path} has examples {tuple(x.shape[1:])}, not {tuple(like.input_shape)}")
    return Inputs(Path(path).stem, cast(Tensor, x), y)  # rows on disk stand in for a tensor


# ---- arrays -------------------------------------------------------------------------------------


def read_arrays(
    path: Path, like: InputSpec | None = None, *, labelled: bool
) -> tuple[Array, Array | None]:
    """``x`` (or the only array) of an .npz or .npy, and ``y`` if it is asked for.

    Of an .npz, names and shapes are checked before the numbers are read, and no other array is.
    """
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".npy"):
        raise ValueError(f"inputs must be .npz, .npy, .csv, .tsv or .parquet, got {path.name}")

    def choose(headers: Mapping[str, Any]) -> list[str]:
        names = ", ".join(headers) or "nothing"
        if labelled and "y" not in headers:
            raise ValueError(f"{path} must hold x and y, got {names}")
        if "x" not in headers and len(headers) != 1:
            raise ValueError(f"{path} must hold the inputs as x, or one array alone, got {names}")
        x = "x" if "x" in headers else next(iter(headers))
        if like is not None:
            _check_form(headers[x], like, path)
        return [x, "y"] if labelled else [x]

    if suffix == ".npz":
        x, *y = read_npz(path, choose=choose).values()
        return x, y[0] if y else None
    array = read_npy(path)
    choose({"x": array})
    return array, None


def _check_form(x: Array | ArrayHeader, like: InputSpec, path: Path) -> None:
    """Raise unless ``x`` is ``[rows, *input_shape]``; its header is enough."""
    # Of a table, as Preparation.encode makes it: one number for each feature.
    wanted = (len(like.features),) if "encoder" in like.preprocessing else tuple(like.input_shape)
    if x.dtype.kind not in "fiub":
        raise ValueError(f"the inputs in {path} must be numbers, got {x.dtype}")
    if tuple(x.shape[1:]) != wanted or 0 in x.shape[:1]:
        sizes = ", ".join(str(size) for size in wanted)
        hint = ""
        if tuple(x.shape) == wanted:
            hint = "; for one example pass x[None]"
        elif tuple(x.shape[1:]) == wanted[1:] and wanted[0] == 1:
            hint = "; add the channel axis with x[:, None]"
        elif len(x.shape) == 4 and (x.shape[3], *x.shape[1:3]) == wanted:
            hint = "; move the channels to the front with x.transpose(0, 3, 1, 2)"
        known = f"[rows, {sizes}], as {like.name} has them"
        raise ValueError(f"the inputs in {path} must be {known}, got {tuple(x.shape)}{hint}")


def _standardize(x: Array, like: InputSpec) -> Array:
    """Flat inputs filled, encoded and scaled as in training, where training did."""
    notes = like.preprocessing
    filled = notes.get("preparation", {}).get("missing") == "fill"
    bad = np.isinf(x) if filled else ~np.isfinite(x)
    if bad.any():
        kinds = "infinite" if filled else "missing, NaN or infinite"
        raise ValueError(f"the inputs hold {int(bad.sum())} {kinds} of {x.size} values")
    if "encoder" in notes:
        return Encoder.from_dict(notes["encoder"])(x, np.float32)
    if "feature_mean" in notes:
        mean, scale = np.array(notes["feature_mean"]), np.array(notes["feature_std"])
        return Scaler(mean, mean, scale)(x)
    return x


# ---- tables -------------------------------------------------------------------------------------


def _read_table(
    table: Any, like: InputSpec, target: str | None, *, header: bool, labelled: bool
) -> tuple[Array, Array | None, dict[str, Any]]:
    """Inputs, targets if ``labelled``, and the columns and values that training did not know."""
    is_file = isinstance(table, Path)
    where = table.name if is_file else f"the {type(table).__name__}"
    if "preparation" not in like.preprocessing:
        raise ValueError(f"{like.name} was no table; give the inputs as .npz, not as {where}")
    preparation = Preparation.from_dict(like.preprocessing["preparation"])
    if is_file:
        columns = read_columns(table, header=header)
        raw = {name: text_column(values) for name, values in columns.items()}
    else:
        raw = raw_columns(table)
    x = preparation.encode(raw, where)
    known = {target, *(column.name for column in preparation.columns)}
    ignored = tuple(name for name in raw if name not in known)
    unknown = {"ignored": ignored, "remarks": preparation.remarks(raw)}
    if not labelled:
        return x, None, unknown
    if target is None or target not in raw:
        raise ValueError(f"{where} lacks the column {target!r}, which is to be predicted")
    y = raw[target]
    if gaps := int(find_gaps(y).sum()):
        raise ValueError(f"{where}: the target {target!r} is missing in {gaps} of {len(y)} rows")
    return x, y, unknown


# ---- targets ------------------------------------------------------------------------------------


def _encode_targets(y: Array, like: InputSpec, path: Path) -> Tensor:
    if like.task == "classification":
        index = {name: number for number, name in enumerate(like.classes)}
        labels = [str(value) for value in y.tolist()]
        strange = sorted(set(labels) - set(index))
        if strange:
            known = list_names(like.classes)
            raise ValueError(f"{path} holds the class {strange[0]!r}; the run knows {known}")
        return torch.tensor([index[label] for label in labels])
    try:
        values = torch.from_numpy(y.astype(np.float64)).reshape(len(y), -1)
    except ValueError as error:
        raise ValueError(f"{path}: the values to be predicted must be numbers: {error}") from error
    scale = torch.tensor(like.preprocessing.get("target_std", [1.0]), dtype=torch.float64)
    mean = torch.tensor(like.preprocessing.get("target_mean", [0.0]), dtype=torch.float64)
    return ((values - mean) / scale).float()
