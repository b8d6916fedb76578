"""Distance files: fitted scores of features as safetensors, kinds and settings in the header."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from dissensus.tools.files import parse_json, read_safetensors, write_safetensors

_FORMAT = "dissensus.distance/1"

#: The tensors and the settings that a fitted score is made of.
State = tuple[dict[str, Tensor], dict[str, Any]]


class Distance(ABC):
    """A score of features that is fitted: higher means more out of distribution.

    Its file holds tensors with so many ``axes``; the ``optional`` ones are there together or not at
    all.
    """

    kind: ClassVar[str]
    axes: ClassVar[dict[str, int]]
    optional: ClassVar[dict[str, int]] = {}

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor:
        """The score of each row, ``[rows]``."""

    @abstractmethod
    def state(self) -> State:
        """What :meth:`from_state` makes it from again."""

    @classmethod
    @abstractmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Self:
        """Back from :meth:`state`."""

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, replacing ``path`` atomically."""
        write_distances(path, [self])

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote."""
        (distance,) = read_distances(path, [cls])
        assert isinstance(distance, cls)
        return distance


def write_distances(path: str | Path, distances: Sequence[Distance]) -> None:
    """Write one file; the names of tensors begin with a number where there is more than one."""
    kinds, states = [each.kind for each in distances], [each.state() for each in distances]
    tensors = {
        _start(place, len(states)) + name: tensor
        for place, (own, _) in enumerate(states)
        for name, tensor in own.items()
    }
    settings = [own for _, own in states] if len(states) > 1 else states[0][1]
    header = {"kind": "+".join(kinds), "settings": json.dumps(settings, allow_nan=False)}
    write_safetensors(path, tensors, {"format": _FORMAT, **header})


def read_distances(path: str | Path, classes: Sequence[type[Distance]]) -> list[Distance]:
    """Read what :func:`write_distances` wrote of these classes."""
    tensors, header = read_safetensors(path)
    kind = "+".join(each.kind for each in classes)
    if header.get("format") != _FORMAT or header.get("kind") != kind:
        raise ValueError(
            f"{path} is not a {kind} of a known format: expected {_FORMAT!r}, got "
            f"{header.get('format')!r} of kind {header.get('kind')!r}"
        )
    try:
        found = parse_json(header["settings"], path)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a whole {kind}: its settings cannot be read") from error
    settings = found if isinstance(found, list) else [found]
    distances: list[Distance] = []
    for place, each in enumerate(classes):
        start = _start(place, len(classes))
        own = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        shapes = {name: tensor.ndim for name, tensor in own.items()}
        whole = shapes in (each.axes, each.axes | each.optional) and place < len(settings)
        if not whole or not all(bool(torch.isfinite(tensor).all()) for tensor in own.values()):
            raise ValueError(f"{path} is not a whole {kind}: bad, missing or infinite tensors")
        distances.append(each.from_state(own, settings[place]))
    return distances


def _start(place: int, count: int) -> str:
    return f"{place}." if count > 1 else ""
