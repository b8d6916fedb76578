"""Grids on the command line: ``beta=0:1:0.1``, ``lr=0.001,0.01``; several make a product."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dissensus.tools.specs import parse_values

#: A number, text, a truth value, or a list of numbers (layer widths, one learning rate per member).
Value = Any
Grid = dict[str, list[Value]]
Point = dict[str, Value]

_LONGEST = 110  # characters of a file's name that name the point


def parse_axis(text: str, option: str = "--grid") -> tuple[str, list[Value]]:
    """A key and its values: values with commas between them, or ranges ``start:stop:step``.

    A range includes its end, if a step leads there, and its values are those of decimal
    arithmetic. A value with slashes is a list.

    >>> parse_axis("beta=0:0.4:0.1")
    ('beta', [0.0, 0.1, 0.2, 0.3, 0.4])
    >>> parse_axis("model.hidden=30/30,20")
    ('model.hidden', [[30, 30], 20])
    """
    key, equals, raw = (piece.strip() for piece in text.partition("="))
    items = [item.strip() for item in raw.split(",")]
    if not equals or not key or not all(items):
        raise ValueError(f"{option} must be key=value,value,… or key=start:stop:step, got {text!r}")
    values: list[Value] = parse_values(raw, f"{option} {key}")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"{option} {key}: {format_value(value)} is given twice")
    return key.replace("-", "_"), values


def parse_grid(texts: Iterable[str], option: str = "--grid") -> Grid:
    """Several axes, each with a key of its own.

    >>> parse_grid(["beta=0,1", "lr=0.001,0.01"])
    {'beta': [0, 1], 'lr': [0.001, 0.01]}
    """
    grid: Grid = {}
    for text in texts:
        key, values = parse_axis(text, option)
        if key in grid:
            raise ValueError(f"{option} {key} is given twice; write all its values in one")
        grid[key] = values
    return grid


def points(grid: Mapping[str, Sequence[Value]]) -> list[Point]:
    """Every combination of values, the last key fastest; an empty grid is one empty point.

    >>> points({"a": [1, 2], "b": ["x"]})
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def format_value(value: Value) -> str:
    """A value as users type it.

    >>> format_value(0.1), format_value(2.0), format_value([30, 30]), format_value(True)
    ('0.1', '2', '30/30', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, list | tuple):
        return "/".join(format_value(item) for item in value)
    return str(value)


def label(point: Point) -> str:
    """A point in words.

    >>> label({"beta": 0.1, "model.hidden": [30, 30]})
    'beta=0.1, model.hidden=30/30'
    """
    return ", ".join(f"{key}={format_value(value)}" for key, value in point.items()) or "as given"


def file_name(point: Point, repeat: int) -> str:
    """A name that every file system takes; what is cut or cleaned gets a few digits of a digest.

    >>> file_name({"beta": 0.1, "model.hidden": [30, 30]}, 4)
    'beta=0.1+model.hidden=30-30+repeat=4'
    """
    pairs = [f"{key}={format_value(value)}" for key, value in point.items()]
    whole = "+".join(pairs)
    name = re.sub(r"[^A-Za-z0-9._=+-]", "-", whole)
    if len(name) > _LONGEST or re.search(r"[^A-Za-z0-9._=+/-]", whole):
        name = f"{name[:_LONGEST]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    return f"{name}+repeat={repeat}" if name else f"repeat={repeat}"
