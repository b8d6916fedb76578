"""Data sets that stay on disk: shards of tar, Parquet or CSV, and any ``datasets.Dataset``.

Shards are read once into memory-mapped Arrow tables under ``$XDG_CACHE_HOME/dissensus/arrow``;
after that any row is one read at a known place. The tables are made again when a shard changes.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from dissensus.data.arrow import (
    Examples,
    Reading,
    TargetColumn,
    choose_columns,
    require_datasets,
)
from dissensus.data.column_values import open_parquet
from dissensus.data.dataset import Data, Request, Rows, Split, cache_folder, check_task, divide
from dissensus.data.images import MAX_PIXELS
from dissensus.data.tar import choose_fields, read_samples
from dissensus.tools.files import check_regular, check_size
from dissensus.tools.progress import ProgressBar

#: The suffixes of shards in a folder; a pattern may also name CSV files.
FOLDER_SUFFIXES = (".tar", ".parquet")
SUFFIXES = (*FOLDER_SUFFIXES, ".csv")

#: The words with which the shards of a part begin, or the names of their folder.
PART_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
_RANGE = re.compile(r"\{([^{}]*)\}")
_MOST = 1_000_000
_NUMBER_BYTES = 16  # of a number while a row group is read: as stored, and in an array


def load_shards(
    path: str | Path,
    request: Request,
    *,
    input: str | Sequence[str] | None = None,
    target: str | None = None,
    task: str | None = None,
    val_shards: str | None = None,
    test_shards: str | None = None,
    size: int = 64,
    workers: int = 0,
    on_error: str = "raise",
    max_pixels: int = MAX_PIXELS,
) -> Data:
    """Shards in webdataset's tar form, of Parquet or of CSV; examples are read as they are used.

    ``path`` is a folder with the folders ``train``, ``val`` and ``test``, or with shards that begin
    with these words; without a test part the validation shards of a folder are it. Or it is a
    pattern such as ``train-{000..146}.tar`` for train, beside which ``val_shards`` and
    ``test_shards`` may stand. What is missing is cut from train by ``request``. ``input`` and
    ``target`` are the fields of a sample (``jpg``, ``json:label``) or the columns of a table, found
    by their names and kinds if they are not given. Images are brought to ``size`` × ``size``;
    one of more than ``max_pixels`` is not decoded.
    """
    reading = Reading(size, workers, on_error, max_pixels)
    shards = with_test(find_parts(path))
    for part, pattern in (("val", val_shards), ("test", test_shards)):
        if pattern is not None:
            shards[part] = expand(pattern)
    tables: dict[str, _Table] = {}
    for part in sorted(shards, key=["train", "val", "test"].index):
        tables[part] = _open(shards[part], input, target, str(path))
        input, target = tables[part].input, tables[part].target  # as found in train
    return _as_data(str(path), tables, request, reading, task)


def load_dataset(
    dataset: Any,
    request: Request,
    *,
    input: str | Sequence[str] | None = None,
    target: str | None = None,
    task: str | None = None,
    size: int = 64,
    workers: int = 0,
    on_error: str = "raise",
    max_pixels: int = MAX_PIXELS,
) -> Data:
    """A ``datasets.Dataset``, or a ``DatasetDict`` with train and perhaps validation and test.

    The options are those of :func:`load_shards`.
    """
    reading = Reading(size, workers, on_error, max_pixels)
    whole = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    named = {
        part: whole[name] for part, names in PART_NAMES.items() for name in names if name in whole
    }
    if "train" not in named:
        raise ValueError(f"the dataset has the splits {', '.join(whole)}, and no train")
    schema = named["train"].features.arrow_schema
    columns, target = choose_columns(schema, input, target, "the dataset")
    tables = {part: _Table(each, columns, target) for part, each in with_test(named).items()}
    name = named["train"].info.dataset_name or "dataset"
    return _as_data(name, tables, request, reading, task)


def open_shards(
    path: str | Path,
    *,
    input: str | Sequence[str] | None = None,
    target: str | None = None,
    task: str = "classification",
    classes: Sequence[str] = (),
    labelled: bool = True,
    size: int = 64,
) -> tuple[Examples, Tensor | None]:
    """All examples that ``path`` names, undivided, for a model that knows ``classes``."""
    parts = find_parts(path)
    if len(parts) > 1:
        raise ValueError(f"{path} has the parts {', '.join(parts)}; name the shards by a pattern")
    table = _open(parts["train"], input, target if labelled else None, str(path))
    x = table.examples(str(path), Reading(size))
    return x, table.targets(task, str(path)).tensor(task, classes, str(path)) if labelled else None


class _Table:
    """A table of examples on disk, and its columns of inputs and targets.

    ``input`` and ``target`` name the columns as the user would; of a tar file its fields.
    """

    def __init__(
        self,
        dataset: Any,
        columns: list[str],
        target: str | None,
        digest: str = "",
        field: str = "",
    ) -> None:
        self.dataset, self.columns, self.digest, self.field = dataset, columns, digest, field
        self.input: str | list[str] = field or columns
        self.target, self.label = target, "y" if field else target

    def examples(self, name: str, reading: Reading) -> Examples:
        settings = {"field": self.field, "name": name, "digest": self.digest}
        return Examples(self.dataset, self.columns, reading, **settings)

    def targets(self, task: str | None, where: str) -> TargetColumn:
        if self.label is None or self.target is None:
            raise ValueError(f"{where} has no field or column for a label; name it with target=")
        return TargetColumn.read(self.dataset, self.label, task, where)


def _as_data(
    name: str,
    tables: Mapping[str, _Table],
    request: Request,
    reading: Reading,
    task: str | None,
) -> Data:
    """The parts as a data set, what is missing cut from train; rows in their order on disk."""
    if task is not None:
        check_task(task)
    targets = {part: table.targets(task, name) for part, table in tables.items()}
    task = task or ("regression" if targets["train"].values else "classification")
    classes = targets["train"].classes() if task == "classification" else ()
    x = {part: table.examples(name, reading) for part, table in tables.items()}
    y = {part: own.tensor(task, classes, f"{name}, {part}") for part, own in targets.items()}
    first, ids = 0, {}
    for part, own in x.items():
        ids[part] = np.arange(first, first + len(own))
        first += len(own)

    def pick(part: str, rows: Rows) -> Split:
        rows = np.sort(rows)
        kept = x[part] if len(rows) == len(x[part]) else x[part].part(rows)
        return cast(Tensor, kept), y[part][rows]

    train = tables["train"]
    notes = {"input": train.input, "target": train.target, "split_seed": request.seed}
    facts = {"classes": classes, "preprocessing": notes, "source": name}
    return divide(Path(name).expanduser().resolve().name, task, ids, pick, request, **facts)


# ---- shards as tables ---------------------------------------------------------------------------


def _open(
    shards: Sequence[Path], input: str | Sequence[str] | None, target: str | None, path: str
) -> _Table:
    """The table of some shards, made if it is missing or they have changed."""
    kinds = sorted({shard.suffix for shard in shards})
    if len(kinds) != 1 or kinds[0] not in SUFFIXES:
        raise ValueError(f"{path} must name shards of one kind, got {', '.join(kinds)}")
    for shard in shards:
        check_regular(shard)
    names = [str(shard) for shard in shards]
    datasets = require_datasets(f"reading {kinds[0]} shards")
    cache = {"cache_dir": str(cache_folder() / "arrow")}
    if kinds == [".tar"]:
        if not (input is None or isinstance(input, str)):
            raise ValueError(f"samples in tar files have one field as input, got {input!r}")
        field, target = choose_fields(shards[0], input, target)
        stamps = [[*_stamp(shard), shard.stat().st_mtime_ns] for shard in shards]
        given = {"shards": names, "field": field, "target": target, "stamps": stamps}
        with _reading(path):
            dataset = datasets.Dataset.from_generator(
                _samples, gen_kwargs=given, writer_batch_size=_TAR_BATCH, **cache
            )
        return _Table(dataset, ["x"], target, _digest(shards, field, target), field)
    if kinds == [".parquet"]:
        for shard in shards:
            _check_groups(shard)
        columns, target = choose_columns(open_parquet(shards[0]).schema_arrow, input, target, path)
        used = [*columns, *([] if target is None else [target])]
        with _reading(path), ProgressBar(f"reading {path}"):
            dataset = datasets.Dataset.from_parquet(names, columns=used, **cache)
    else:
        with _reading(path), ProgressBar(f"reading {path}"):
            dataset = datasets.Dataset.from_csv(names, **cache)
        columns, target = choose_columns(dataset.features.arrow_schema, input, target, path)
    return _Table(dataset, columns, target, _digest(shards, columns, target))


_TAR_BATCH = 100  # samples that are held while a table is made


def _samples(
    shards: Sequence[str], field: str, target: str | None, stamps: object
) -> Iterator[dict[str, Any]]:
    """The samples of shards; with other ``stamps`` the table is another one."""
    return read_samples(shards, field, target)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Read without bars of another look, and say in one sentence what cannot be read."""
    import datasets

    shown = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    except datasets.exceptions.DatasetGenerationError as error:
        cause = error.__cause__ or error
        own = isinstance(cause, ValueError) and type(cause) is ValueError
        text = " ".join(str(cause).split())[:300]
        raise ValueError(text if own else f"{path} cannot be read: {text}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    finally:
        if not shown:
            datasets.enable_progress_bars()


def _check_groups(shard: Path) -> None:
    """Raise for a row group that needs more memory than a file may take."""
    metadata = open_parquet(shard).metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    rows, columns = max(sizes, default=0), metadata.num_columns
    what = f"{shard}: a row group of {rows} rows and {columns} columns"
    check_size(rows * columns * _NUMBER_BYTES, what, "write smaller row groups")


def _stamp(shard: Path) -> list[Any]:
    return [shard.name, shard.stat().st_size]


def _digest(shards: Sequence[Path], *facts: object) -> str:
    """A digest of the names and sizes of shards, and of what is read of them."""
    text = json.dumps([[_stamp(shard) for shard in shards], facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- names of shards ----------------------------------------------------------------------------


def is_shards(name: str | Path) -> bool:
    """Whether ``name`` means shards: a pattern, a .tar, or a folder that holds shards.

    A folder that has folders other than those of parts is one of classes, whatever lies beside.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        places = [path, *(path / name for names in PART_NAMES.values() for name in names)]
        return any(_only_shards_in(place) for place in places if place.is_dir())
    if path.is_file():
        return path.suffix == ".tar"
    is_pattern = re.search(r"[*?[{]", str(name)) is not None
    return path.suffix == ".tar" or (is_pattern and path.suffix in SUFFIXES)


def expand(pattern: str | Path) -> list[Path]:
    """The shards that a pattern names, in order: ``*``, ``?``, ``[…]``, ``{000..146}``, ``{a,b}``.

    >>> [path.name for path in _braces("train-{08..10}.tar")]
    ['train-08.tar', 'train-09.tar', 'train-10.tar']
    """
    shards: list[Path] = []
    for path in _braces(str(Path(pattern).expanduser())):
        if re.search(r"[*?[]", str(path)):
            shards += sorted(Path(name) for name in glob.glob(str(path)))  # noqa: PTH207 - whole paths
        elif not path.is_file():
            raise ValueError(f"there is no shard {path}, which {str(pattern)!r} names")
        else:
            shards.append(path)
    if not shards:
        raise ValueError(f"no file fits {str(pattern)!r}")
    return list(dict.fromkeys(path.resolve() for path in shards))


def find_parts(name: str | Path) -> dict[str, list[Path]]:
    """The shards of each part; a pattern, or a folder that does not tell them apart, is train."""
    path = Path(name).expanduser()
    if not path.is_dir():
        return {"train": expand(name)}
    parts = {
        part: shards
        for part, names in PART_NAMES.items()
        for folder in names
        if (path / folder).is_dir() and (shards := _shards_in(path / folder))
    }
    if "train" in parts:
        return parts
    every = _shards_in(path)
    for shard in every:
        word = re.split(r"[^a-z]", shard.name.lower())[0]
        for part, names in PART_NAMES.items():
            if word in names:
                parts.setdefault(part, []).append(shard)
    if "train" not in parts:
        return {"train": every}
    strange = [shard for shard in every if not any(shard in shards for shards in parts.values())]
    if strange:
        raise ValueError(f"{path} holds other shards, such as {strange[0].name}; name a pattern")
    return parts


def with_test(parts: dict[str, Any]) -> dict[str, Any]:
    """Without a test part, that of validation is the test part, as it is for ImageNet."""
    if "test" in parts or "val" not in parts:
        return parts
    return {"train": parts["train"], "test": parts["val"]}


def _shards_in(folder: Path) -> list[Path]:
    return [path.resolve() for path in sorted(folder.iterdir()) if path.suffix in FOLDER_SUFFIXES]


def _only_shards_in(folder: Path) -> bool:
    known = [name for names in PART_NAMES.values() for name in names]
    classes = any(path.is_dir() and path.name not in known for path in folder.iterdir())
    return not classes and bool(_shards_in(folder))


def _braces(pattern: str) -> Iterator[Path]:
    """The pattern with each ``{…}`` replaced by each of its choices."""
    pieces = _RANGE.split(pattern)  # text and insides of braces in turn
    choices = [_choices(inside, pattern) for inside in pieces[1::2]]
    count = math.prod(map(len, choices))
    if count > _MOST:
        raise ValueError(f"{pattern!r} names {count} shards; at most {_MOST} make sense")
    for chosen in product(*choices):
        between = [*chosen, ""]
        yield Path("".join(a + b for a, b in zip(pieces[::2], between, strict=True)))


def _choices(inside: str, pattern: str) -> list[str]:
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if ends is None:
        return inside.split(",")
    low, high = ends.groups()
    if not int(low) <= int(high) < int(low) + _MOST:
        raise ValueError(f"{{{inside}}} in {pattern!r} must rise, to at most {_MOST} numbers")
    return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
