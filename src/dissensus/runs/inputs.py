"""New inputs from a file, in the units of the source, treated as the training inputs were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from dissensus.runs.facts import Facts

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Inputs", "read_inputs"]

Array = NDArray[Any]

_TABLES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True, eq=False)
class Inputs:
    """``x`` as the members take it, ``y`` if it was asked for, and columns that were not used."""

    x: Tensor
    y: Tensor | None = None
    ignored: tuple[str, ...] = ()


def read_inputs(
    path: str | Path,
    facts: Facts,
    *,
    target: str | None = None,
    header: bool = True,
    labelled: bool = False,
) -> Inputs:
    """Inputs for a run whose data were as ``facts`` say, from a file or shards.

    An ``.npz`` holds ``x`` (or one array of any name) and, if ``labelled``, ``y``; a table has the
    columns that the training table had (``header=False``: no names in its first line), and
    ``target`` is the one to be predicted. Numbers are in the units of the source: what was
    standardised in training is standardised here by the statistics of the training rows, and
    unsigned bytes for a model of images are divided by 255. Shards (``.tar``, or a pattern of
    ``.tar`` or ``.parquet``) stay on disk.
    """
    from dissensus.data import is_shards

    if is_shards(path):
        return _from_shards(path, facts, labelled=labelled)
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        x, y, ignored = _from_table(path, facts, target, header=header, labelled=labelled)
    elif suffix in (".npz", ".npy"):
        x, y = _from_arrays(path, labelled=labelled)
        ignored = ()
    else:
        raise ValueError(f"inputs must be .npz, .npy, .csv, .tsv or .parquet, got {path.name}")
    inputs = _tensor(_standardized(_checked(x, facts, path), facts))
    return Inputs(inputs, None if y is None else _targets(y, facts, path), ignored)


def _from_shards(path: str | Path, facts: Facts, *, labelled: bool) -> Inputs:
    """All examples of shards that have the fields or columns that training took."""
    from dissensus.data.shards import open_shards

    notes = facts.preprocessing
    x = open_shards(
        path,
        input=notes.get("input"),
        target=notes.get("target"),
        task=facts.task,
        classes=facts.classes,
        labelled=labelled,
        size=facts.input_shape[-1],
    )
    if list(x.shape[1:]) != facts.input_shape:
        raise ValueError(
            f"the examples of {path} have the shape {tuple(x.shape[1:])}, those of {facts.name} "
            f"{tuple(facts.input_shape)}"
        )
    # Examples on disk stand in for tensors; what takes inputs knows them.
    return Inputs(cast("Tensor", x), cast("Tensor | None", x.targets))


# ---- arrays -------------------------------------------------------------------------------------


def _from_arrays(path: Path, *, labelled: bool) -> tuple[Array, Array | None]:
    arrays = _read_arrays(path)
    y = arrays.get("y") if labelled else None
    if labelled and y is None:
        raise ValueError(f"{path} must hold x and y, got {', '.join(arrays) or 'nothing'}")
    if "x" in arrays:
        return arrays["x"], y
    if len(arrays) != 1:
        found = ", ".join(arrays) or "nothing"
        raise ValueError(f"{path} must hold the inputs as x, or one array alone, got {found}")
    return next(iter(arrays.values())), y


def _read_arrays(path: Path) -> dict[str, Array]:
    from dissensus.data.arrays import read_npz

    if path.suffix.lower() == ".npz":
        return read_npz(path)
    try:
        return {"x": np.load(path, allow_pickle=False)}
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be read as .npy: it is damaged, cut short, or holds Python objects, "
            f"which are never loaded ({error})"
        ) from error


def _checked(x: Array, facts: Facts, path: Path) -> Array:
    """``x`` as floating point; raise unless it is ``[rows, *input_shape]``."""
    wanted = tuple(facts.input_shape)
    if x.dtype.kind not in "fiub":
        raise ValueError(f"the inputs in {path} must be numbers, got {x.dtype}")
    if tuple(x.shape[1:]) != wanted or len(x) == 0:
        sizes = ", ".join(str(size) for size in wanted)
        hint = ""
        if tuple(x.shape) == wanted:
            hint = "; for one example pass x[None]"
        elif tuple(x.shape[1:]) == wanted[1:] and wanted[0] == 1:
            hint = "; add the channel axis with x[:, None]"
        elif x.ndim == 4 and (x.shape[3], *x.shape[1:3]) == wanted:
            hint = "; move the channels to the front with x.transpose(0, 3, 1, 2)"
        raise ValueError(
            f"the inputs in {path} must be [rows, {sizes}], as {facts.name} has them, got "
            f"{tuple(x.shape)}{hint}"
        )
    if x.dtype == np.uint8 and len(wanted) >= 2:
        return x.astype(np.float32) / 255
    return x.astype(np.float64)


def _standardized(x: Array, facts: Facts) -> Array:
    """Flat inputs scaled by the statistics of the training rows, where training did so."""
    from dissensus.data import Scaler

    notes = facts.preprocessing
    if "feature_mean" not in notes:
        _check_gaps(x)
        return x
    logged = set(notes.get("log_features", ()))
    log = np.array([name in logged for name in facts.features] or [False] * x.shape[1])
    mean, scale = np.array(notes["feature_mean"]), np.array(notes["feature_std"])
    fill = notes.get("feature_fill")
    if fill is None:
        _check_gaps(x)
    return Scaler(log, mean if fill is None else np.array(fill), mean, scale)(x)


def _check_gaps(x: Array) -> None:
    bad = int((~np.isfinite(x)).sum())
    if bad:
        raise ValueError(f"the inputs hold {bad} missing, NaN or infinite of {x.size} values")


def _tensor(x: Array) -> Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


# ---- tables -------------------------------------------------------------------------------------


def _from_table(
    path: Path, facts: Facts, target: str | None, *, header: bool, labelled: bool
) -> tuple[Array, Array | None, tuple[str, ...]]:
    from dissensus.data.own_table import _read

    if not facts.features:
        raise ValueError(
            f"{facts.name} was not a table with named columns, so that {path.name} cannot be "
            "matched with it; give the inputs as .npz"
        )
    columns = _read(path, header)
    used: set[str] = set()
    x = np.stack([_column(feature, columns, used, path) for feature in facts.features], 1)
    _check_levels(columns, used, facts.features, path)
    y = None
    if labelled:
        if target is None or target not in columns:
            raise ValueError(f"{path} lacks the column {target!r}, which is to be predicted")
        y = np.array(columns[target])
    return x, y, tuple(name for name in columns if name not in used and name != target)


def _column(
    feature: str, columns: Mapping[str, Sequence[str]], used: set[str], path: Path
) -> NDArray[np.float64]:
    """One input column: the numbers of a column, or 0 and 1 for one level of it."""
    from dissensus.data.columns import is_missing

    if feature in columns:
        used.add(feature)
        try:
            return np.array([np.nan if is_missing(v) else float(v) for v in columns[feature]])
        except ValueError as error:
            raise ValueError(f"{path}: column {feature!r} must hold numbers: {error}") from error
    owner = _owner(feature, columns)
    if owner is None:
        raise ValueError(
            f"{path} lacks the column {feature.partition('=')[0]!r}, which the run was trained "
            f"with; it has {', '.join(list(columns)[:30])}"
        )
    used.add(owner)
    level = feature.removeprefix(f"{owner}=")
    values = ["missing" if is_missing(value) else value for value in columns[owner]]
    return np.array([float(value == level) for value in values])


def _owner(feature: str, columns: Mapping[str, Sequence[str]]) -> str | None:
    """The column that a 0/1 feature such as ``town=Bonn`` is a level of."""
    owners = [name for name in columns if feature.startswith(f"{name}=")]
    return max(owners, key=len, default=None)


def _check_levels(
    columns: Mapping[str, Sequence[str]], used: set[str], features: Sequence[str], path: Path
) -> None:
    """Raise for a level that training never saw: no column would stand for it."""
    from dissensus.data.columns import is_missing

    for name in used - set(features):
        known = [f.removeprefix(f"{name}=") for f in features if _owner(f, columns) == name]
        values = {"missing" if is_missing(value) else value for value in columns[name]}
        strange = sorted(values - set(known))
        if strange:
            raise ValueError(
                f"{path}: column {name!r} holds {strange[0]!r}, which the training table did not; "
                f"it had {', '.join(known[:20])}"
            )


# ---- targets ------------------------------------------------------------------------------------


def _targets(y: Array, facts: Facts, path: Path) -> Tensor:
    import torch

    if facts.task == "classification":
        index = {name: number for number, name in enumerate(facts.classes)}
        labels = [str(value) for value in y.tolist()]
        strange = sorted(set(labels) - set(index))
        if strange:
            raise ValueError(
                f"{path} holds the class {strange[0]!r}, which the run does not know; it knows "
                f"{', '.join(facts.classes[:20])}"
            )
        return torch.tensor([index[label] for label in labels])
    try:
        values = torch.from_numpy(y.astype(np.float64)).reshape(len(y), -1)
    except ValueError as error:
        raise ValueError(f"{path}: the values to be predicted must be numbers: {error}") from error
    scale = torch.tensor(facts.preprocessing.get("target_std", [1.0]), dtype=torch.float64)
    mean = torch.tensor(facts.preprocessing.get("target_mean", [0.0]), dtype=torch.float64)
    return ((values - mean) / scale).float()
