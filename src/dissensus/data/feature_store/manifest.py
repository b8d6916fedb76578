"""Manifests of feature stores: ``manifest.json``, checked before anything is read.

Files are found by rule, never by a path of the manifest: part ``train`` has ``train/labels.npy``
and, for each pass, the shards ``train/pass0-00000.npy``, ``train/pass0-00001.npy`` and so on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dissensus.files import read_json, write_text

__all__ = ["DTYPES", "MANIFEST", "UNFINISHED", "Manifest", "StorePart", "check_name", "digest"]

MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"  # stands where the manifest will, while a store is being written

_FORMAT, _VERSION = "dissensus-features", 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")

#: How features can be stored.
DTYPES: dict[str, type[np.floating[Any]]] = {"float16": np.float16, "float32": np.float32}


def check_name(name: object) -> str:
    """``name`` if it can name a part: it becomes a folder, which must not lie elsewhere.

    >>> check_name("../secrets")
    Traceback (most recent call last):
    ...
    ValueError: a part must be named with letters, digits and _ . + -, got '../secrets'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"a part must be named with letters, digits and _ . + -, got {name!r}")
    return name


@dataclass(frozen=True)
class StorePart:
    """One set of rows: ``train``, ``val``, ``test``, or another, such as unknown inputs."""

    rows: int
    passes: int
    labelled: bool
    shards: tuple[tuple[str, ...], ...]  # the checksum of each shard, by pass
    labels: str | None = None  # the checksum of the labels

    def __post_init__(self) -> None:
        for name in ("rows", "passes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        sums = [checksum for own in self.shards for checksum in own]
        sums += [] if self.labels is None else [self.labels]
        if not all(isinstance(c, str) and re.fullmatch(r"[0-9a-f]{64}", c) for c in sums):
            raise ValueError("checksums must be sha256 in hexadecimal digits")
        if len(self.shards) != self.passes or self.labelled != (self.labels is not None):
            raise ValueError("there must be one list of shards for each pass, and labels if any")


@dataclass(frozen=True)
class Manifest:
    """The whole store: the form of its rows, its parts, and where they come from.

    ``backbone``, ``transform``, ``data`` and ``versions`` are plain JSON, for people and to refuse
    to go on with something else.
    """

    dtype: str
    shape: tuple[int, ...]
    shard_rows: int
    parts: Mapping[str, StorePart]
    classes: tuple[str, ...] = ()
    backbone: Mapping[str, Any] = field(default_factory=dict)
    transform: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        sizes = (*self.shape, self.shard_rows)
        if not self.shape or not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError(
                f"shape and shard_rows must be positive whole numbers, got {list(self.shape)} and "
                f"{self.shard_rows!r}"
            )
        for name, part in self.parts.items():
            check_name(name)
            shards = self.shards_of(part.rows)
            if any(len(own) != shards for own in part.shards):
                raise ValueError(
                    f"{name} of {part.rows} rows must have {shards} shards in each pass"
                )

    def shards_of(self, rows: int) -> int:
        """The number of shards for ``rows`` rows."""
        return -(-rows // self.shard_rows)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a store; says what is wrong with a folder that is none."""
        file = folder / MANIFEST
        if not file.is_file():
            if (folder / UNFINISHED).is_file():
                raise ValueError(
                    f"the features in {folder} are not finished: run the command that makes them "
                    "again, it goes on where it stopped"
                )
            raise ValueError(f"{folder} holds no features: there is no {MANIFEST}")
        try:
            return cls._of(read_json(file))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file} is damaged or not of this format: {error}") from error

    @classmethod
    def _of(cls, content: Any) -> Manifest:
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        if content.get("version") != _VERSION:
            raise ValueError(f"version {content.get('version')!r} is not known, only {_VERSION}")
        values = {key: value for key, value in content.items() if key not in ("format", "version")}
        values["shape"] = tuple(values["shape"])
        values["classes"] = tuple(str(name) for name in values.get("classes", ()))
        values["parts"] = {
            name: StorePart(**{**part, "shards": tuple(tuple(own) for own in part["shards"])})
            for name, part in values["parts"].items()
        }
        return cls(**values)

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``, whole or not at all; the same content gives the same bytes."""
        values = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        write_text(folder / MANIFEST, json.dumps(values, indent=1) + "\n")


def digest(file: Path) -> str:
    """The sha256 of a file."""
    with file.open("rb") as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()
