"""What Parquet shards hold: their columns, row groups and targets, from a look at all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.base import missing_extra
from dissensus.data.shards.index import Index, indexed
from dissensus.data.shards.labels import LabelScan
from dissensus.progress import ProgressBar

__all__ = ["column_kind", "index_parquet", "numbers_of", "opened"]

_LABELS = ("label", "labels", "target", "targets", "class", "cls", "y")
_IMAGES = ("image", "img", "jpg", "png", "picture")


def index_parquet(
    shards: Sequence[Path],
    columns: str | Sequence[str] | None,
    target: str | None,
    task: str | None,
) -> Index:
    """How many rows each row group has, and what the targets are."""
    asked = [columns] if isinstance(columns, str) else None if columns is None else list(columns)
    what = {"parquet": [str(path) for path in shards], "input": asked, "target": target}
    return indexed({**what, "task": task}, partial(_build, shards, asked, target, task))


def _build(
    shards: Sequence[Path],
    columns: list[str] | None,
    target: str | None,
    task: str | None,
    folder: Path,
) -> tuple[dict[str, Any], Sequence[Path]]:
    labels = LabelScan(values=task == "regression")
    groups, sizes, schema = [], 0, None
    with ProgressBar("looking at shards", len(shards)) as bar:
        for shard in shards:
            file = opened(shard)
            if schema is None:
                columns, target = _choose(file.schema_arrow, columns, target, shard)
                schema = _chosen(file.schema_arrow, columns, target, shard)
            elif _chosen(file.schema_arrow, columns or [], target, shard) != schema:
                raise ValueError(f"{shard} has columns of other kinds than {shards[0]}")
            own = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            sizes += sum(
                file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)
            )
            if target is not None:
                for number in range(len(own)):
                    _see(labels, file.read_row_group(number, [target]).column(0), shard)
            groups.append(own)
            bar.advance()
    rows = sum(map(sum, groups))
    if not rows:
        raise ValueError(f"{shards[0]} and its like hold no rows")
    facts = {"input": columns, "target": target, "groups": groups, "bytes": sizes // rows}
    return {**facts, "labels": None if target is None else labels.facts()}, shards


def opened(shard: Path | str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("a .parquet shard", "pyarrow", '"dissensus[tables]"') from error
    try:
        return pyarrow.parquet.ParquetFile(shard)
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{shard} cannot be read as Parquet ({error})") from error


# ---- columns ------------------------------------------------------------------------------------


def _choose(
    schema: Any, columns: list[str] | None, target: str | None, shard: Path
) -> tuple[list[str], str | None]:
    """The columns of input and target, where they are not given by their names and kinds."""
    names = list(schema.names)
    if target is None:
        own = [name for name in names if name.lower() in _LABELS and name not in (columns or [])]
        target = own[0] if len(own) == 1 else None
    for name in [*(columns or []), *([] if target is None else [target])]:
        if name not in names:
            raise ValueError(f"{shard} has no column {name!r}; it has {_listing(names)}")
    if columns is not None:
        return columns, target
    rest = [name for name in names if name != target]
    kinds = {name: column_kind(schema.field(name).type) for name in rest}
    images = [name for name in rest if kinds[name] == "image"]
    lists = [name for name in rest if kinds[name] == "list"]
    numbers = [name for name in rest if kinds[name] == "number"]
    named = [name for name in images if name.lower() in _IMAGES]
    if len(named or images) == 1:
        return named or images, target
    if not images and len(lists) == 1:
        return lists, target
    if not images and not lists and numbers:
        return numbers, target
    raise ValueError(
        f"{shard} has the columns {_listing(names)}: name the input with input= and the label "
        "with target="
    )


def _chosen(schema: Any, columns: Sequence[str], target: str | None, shard: Path) -> list[str]:
    """The chosen columns with their types, to compare shards by."""
    names = [*columns, *([] if target is None else [target])]
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise ValueError(f"{shard} has no column {missing[0]!r}; it has {_listing(schema.names)}")
    for name in columns:
        kind = column_kind(schema.field(name).type)
        if not kind or (len(columns) > 1 and kind != "number"):
            raise ValueError(
                f"{shard}: column {name!r} is {schema.field(name).type}; an input is one column of "
                "images or lists of numbers, or several of numbers"
            )
    return [str(schema.field(name).type) for name in names]


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return ", ".join(names[:30]) + more


def column_kind(kind: Any) -> str:
    from pyarrow import types

    if types.is_struct(kind):
        own = [kind.field(i).name for i in range(kind.num_fields)]
        return "image" if "bytes" in own else ""
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "image"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "list"
    plain = types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)
    return "number" if plain else ""


def _see(labels: LabelScan, column: Any, shard: Path) -> None:
    """Learn from the targets of a row group."""
    where = f"{shard}: column of targets"
    if column.null_count:
        raise ValueError(f"{where} lacks {column.null_count} values")
    if not len(column):
        return
    kind = column_kind(column.type)
    if labels.values or kind == "list" or str(column.type) in ("float", "double"):
        labels.add(numbers_of(column, where)[0].reshape(-1), where)
    elif kind == "number":
        labels.see(column.to_numpy().astype(np.int64), where)
    else:
        for name in column.unique().to_pylist():
            labels.add(str(name), where)


def numbers_of(column: Any, where: str) -> NDArray[Any]:
    """A column of numbers, or of lists that are all of one length, as an array."""
    from pyarrow.compute import list_value_length

    if column.null_count:
        raise ValueError(f"{where} lacks {column.null_count} values")
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if column_kind(column.type) == "number":
        plain: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return plain
    inner = numbers_of(column.flatten(), where)
    if len(column) and len(inner) % len(column) == 0:
        lengths = list_value_length(column).to_numpy(zero_copy_only=False)
        if (lengths == lengths[0]).all():
            return inner.reshape(len(column), int(lengths[0]), *inner.shape[1:])
    raise ValueError(f"{where} holds lists of different lengths")
