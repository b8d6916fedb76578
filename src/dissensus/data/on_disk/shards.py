"""Shards as data sets whose examples stay on disk, and the patterns and folders that name them."""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from dissensus.data.dataset import Data, Request, Split, check_task, part_sizes
from dissensus.data.formats import MAX_PIXELS
from dissensus.data.on_disk.examples import Examples, Reading, Source
from dissensus.data.on_disk.fields import Labels, class_names
from dissensus.data.on_disk.index import Index
from dissensus.data.on_disk.order import Part, whole
from dissensus.data.on_disk.parquet import ParquetSource, index_parquet
from dissensus.data.on_disk.tar import TarSource, index_tar


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
    window: int | None = None,
    workers: int = 0,
    on_error: str = "raise",
    max_pixels: int = MAX_PIXELS,
) -> Data:
    """Shards in webdataset's tar form, or of Parquet; the examples are read as they are used.

    ``path`` is a folder with the folders ``train``, ``val`` and ``test``, or with shards that begin
    with these words; without a test part the validation shards of a folder are it. Or it is a
    pattern such as ``train-{000..146}.tar`` for train, beside which ``val_shards`` and
    ``test_shards`` may stand. What is missing is cut from train by ``request``. ``input`` and
    ``target`` are the fields of a sample (``jpg``, ``json:label``) or the columns of a table, found
    by their names and kinds if they are not given. Images are brought to ``size`` × ``size``;
    one of more than ``max_pixels`` is not decoded.
    """
    reading = Reading(size, window, workers, on_error, max_pixels)
    if task is not None:
        check_task(task)
    parts = with_test(find_parts(path))
    for part, pattern in (("val", val_shards), ("test", test_shards)):
        if pattern is not None:
            parts[part] = expand(pattern)
    indexes = _indexes(parts, input, target, task, str(path))
    facts = indexes["train"].facts
    if facts["labels"] is None:
        raise ValueError(f"{path} has no field or column for a label; name it with target=")
    task = task or ("regression" if facts["labels"]["kind"] == "values" else "classification")
    classes = class_names(facts["labels"]) if task == "classification" else ()
    sources = {
        part: _source(shards, indexes[part], task, classes, reading)
        for part, shards in parts.items()
    }
    shape = () if task == "classification" else (int(facts["labels"]["outputs"]),)
    notes = {"input": facts["input"], "target": facts["target"], "split_seed": request.seed}
    return examples_data(str(path), task, classes, sources, request, reading, shape, notes)


def open_shards(
    path: str | Path,
    *,
    input: str | Sequence[str] | None = None,
    target: str | None = None,
    task: str = "classification",
    classes: Sequence[str] = (),
    labelled: bool = True,
    size: int = 64,
) -> Examples:
    """All examples that ``path`` names, undivided, for a model that knows ``classes``."""
    reading = Reading(size)
    parts = find_parts(path)
    if len(parts) > 1:
        raise ValueError(f"{path} has the parts {', '.join(parts)}; name the shards by a pattern")
    index = _indexes(parts, input, target if labelled else None, task, str(path))["train"]
    labels = index.facts["labels"]
    if labelled and labels is None:
        raise ValueError(f"{path} has no field or column for a label; name it with target=")
    source = _source(parts["train"], index, task if labelled else "", classes, reading)
    shape = () if task == "classification" else (int(labels["outputs"]) if labels else 1,)
    return Examples(source, whole(source.count), reading, shape if labelled else None)


def _indexes(
    parts: dict[str, list[Path]],
    input: str | Sequence[str] | None,
    target: str | None,
    task: str | None,
    path: str,
) -> dict[str, Index]:
    kinds = sorted({shard.suffix for shards in parts.values() for shard in shards})
    if kinds == [".parquet"]:
        return {part: index_parquet(shards, input, target, task) for part, shards in parts.items()}
    if kinds != [".tar"]:
        raise ValueError(f"{path} names files of other kinds than shards: {', '.join(kinds)}")
    if not (input is None or isinstance(input, str)):
        raise ValueError(f"samples in tar files have one field as input, got {input!r}")
    return {part: index_tar(shards, input, target, task) for part, shards in parts.items()}


def _source(
    shards: list[Path], index: Index, task: str, classes: Sequence[str], reading: Reading
) -> Source:
    """The examples of an index; without a task, without targets."""
    labels = None
    if task:
        where = f"{shards[0].name} and the other shards"
        if index.facts["labels"] is None:
            raise ValueError(f"{where} have no targets")
        labels = Labels(index.facts["labels"], task, classes, where)
    if shards[0].suffix == ".tar":
        return TarSource(shards, index, labels, reading)
    return ParquetSource(shards, index, labels, reading)


# ---- parts --------------------------------------------------------------------------------------


def with_test(parts: dict[str, Any]) -> dict[str, Any]:
    """Without a test part, that of validation is the test part, as it is for ImageNet."""
    if "test" in parts or "val" not in parts:
        return parts
    return {"train": parts["train"], "test": parts["val"]}


def examples_data(
    path: str,
    task: str,
    classes: tuple[str, ...],
    sources: dict[str, Source],
    request: Request,
    reading: Reading,
    target_shape: tuple[int, ...],
    notes: dict[str, Any],
) -> Data:
    """The data set of these sources; parts that are missing are cut from train."""
    for part, source in sources.items():
        if source.shape != sources["train"].shape:
            raise ValueError(
                f"examples of {part} have the shape {source.shape}, those of train "
                f"{sources['train'].shape}"
            )

    def split(source: Source, part: Part) -> Split:
        x = Examples(source, part, reading, target_shape)
        # Examples on disk stand in for tensors; what takes inputs knows them.
        return cast(Tensor, x), cast(Tensor, x.targets)

    empty = (
        torch.empty(0, *sources["train"].shape),
        torch.empty(0, *target_shape, dtype=torch.float32 if target_shape else torch.int64),
    )
    splits: dict[str, Any] = {
        part: split(source, rows) if len(rows) else empty
        for part, (source, rows) in _parts(sources, request, path).items()
    }
    name = Path(path).expanduser().resolve().name
    return Data(name, task, **splits, classes=classes, preprocessing=notes, source=path)


def _parts(
    sources: dict[str, Source], request: Request, path: str
) -> dict[str, tuple[Source, Part]]:
    """For each part its own source, or a share of train's."""
    if "test" in sources and request.test is not None:
        raise ValueError(f"{path} has a test part of its own; leave test out")
    train = sources["train"]
    count, seed = train.count, request.seed
    val = 0 if "val" in sources else request.val
    test = 0 if "test" in sources else request.test_share
    val_size, test_size = part_sizes(count, val=val, test=test)
    held_out = test_size + val_size
    parts = {
        "train": (train, Part(count, held_out, count, seed)),
        "val": (train, Part(count, test_size, held_out, seed)),
        "test": (train, Part(count, 0, test_size, seed)),
    }
    for part in sources.keys() - {"train"}:
        parts[part] = sources[part], whole(sources[part].count)
    return parts


# ---- the names of shards ------------------------------------------------------------------------

#: The suffixes of shards.
SUFFIXES = (".tar", ".parquet")

#: The words with which the shards of a part begin, or the names of their folder.
_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
_RANGE = re.compile(r"\{([^{}]*)\}")
_MOST = 1_000_000


def is_shards(name: str | Path) -> bool:
    """Whether ``name`` means shards: a pattern, a .tar, or a folder that holds shards.

    A folder that has folders other than those of parts is one of classes, whatever lies beside.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        places = [path, *(path / name for names in _NAMES.values() for name in names)]
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
        for part, names in _NAMES.items()
        for folder in names
        if (path / folder).is_dir() and (shards := _shards_in(path / folder))
    }
    if "train" in parts:
        return parts
    every = _shards_in(path)
    for shard in every:
        word = re.split(r"[^a-z]", shard.name.lower())[0]
        for part, names in _NAMES.items():
            if word in names:
                parts.setdefault(part, []).append(shard)
    if "train" not in parts:
        return {"train": every}
    strange = [shard for shard in every if not any(shard in shards for shards in parts.values())]
    if strange:
        raise ValueError(
            f"{path} holds shards that begin with train and others that begin with none of train, "
            f"val and test, such as {strange[0].name}; name the shards by a pattern"
        )
    return parts


def _shards_in(folder: Path) -> list[Path]:
    return [path.resolve() for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES]


def _only_shards_in(folder: Path) -> bool:
    known = [name for names in _NAMES.values() for name in names]
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
