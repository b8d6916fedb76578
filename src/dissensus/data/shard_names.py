"""Names of shards: patterns such as ``train-{000..146}.tar``, and folders with parts of a set."""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

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
