"""Distance scores: checks of features ``[rows, features]``, pieces of them, and files.

A file is safetensors with the kind of score and its settings in the header, so that it cannot hold
code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.files import read_safetensors, write_safetensors
from dissensus.outputs import check_finite

__all__ = ["check_features", "pieces", "read_distance", "write_distance"]

_FORMAT = "dissensus.distance/1"

#: Numbers in one piece of a computation over many rows; a few such arrays are alive at a time.
PIECE = 2**22


def check_features(features: Tensor, width: int | None = None) -> None:
    """Raise unless ``features`` is finite, floating ``[rows, features]``, and ``width`` wide."""
    if not isinstance(features, Tensor):
        raise ValueError(
            f"features must be a torch.Tensor [rows, features], got {type(features).__name__}; "
            "convert them with torch.as_tensor"
        )
    shape = tuple(features.shape)
    if features.ndim != 2:
        hint = "; pass features.flatten(1)" if features.ndim > 2 else ""
        raise ValueError(f"features must be [rows, features], got {shape}{hint}")
    if 0 in shape:
        raise ValueError(f"features must hold at least one row and one feature, got {shape}")
    if not features.is_floating_point():
        raise ValueError(
            f"features must be floating point, got {features.dtype}; pass features.float()"
        )
    if width is not None and shape[1] != width:
        raise ValueError(f"features must be {width} wide, as those fitted on were, got {shape}")
    for part in pieces(features, shape[1]):
        check_finite(part.float() if part.element_size() < 4 else part, name="features")


def pieces(features: Tensor, width: int) -> Iterator[Tensor]:
    """Rows of ``features``, so few at a time that ``rows * width`` numbers are a piece."""
    yield from features.split(max(1, PIECE // max(1, width)))


def write_distance(
    path: str | Path, kind: str, tensors: dict[str, Tensor], settings: dict[str, Any]
) -> None:
    """Write one safetensors file, replacing ``path`` atomically."""
    header = {"format": _FORMAT, "kind": kind, "settings": json.dumps(settings, allow_nan=False)}
    write_safetensors(path, tensors, header)


def read_distance(
    path: str | Path, kind: str, axes: dict[str, int], optional: dict[str, int] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and settings of a file of ``kind``; ``axes`` says how many each tensor has.

    The ``optional`` tensors are there together or not at all.
    """
    tensors, header = read_safetensors(path)
    if header.get("format") != _FORMAT or header.get("kind") != kind:
        raise ValueError(
            f"{path} is not a {kind} of a known format: expected {_FORMAT!r}, got "
            f"{header.get('format')!r} of kind {header.get('kind')!r}"
        )
    shapes = {name: tensor.ndim for name, tensor in tensors.items()}
    whole = shapes in (axes, axes | (optional or {}))
    if not whole or not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
        raise ValueError(f"{path} is not a whole {kind}: bad, missing or infinite tensors")
    try:
        settings = json.loads(header["settings"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a whole {kind}: its settings cannot be read") from error
    return tensors, settings if isinstance(settings, dict) else {}
