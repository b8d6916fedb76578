"""JSON, TOML and CSV."""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from dissensus.tools.files.access import damaged, read_regular, replace_atomically

#: The most bytes of a JSON or a TOML file, how deep values may be nested, and the largest number.
MAX_JSON_BYTES, MAX_TOML_BYTES, MAX_DEPTH, MAX_INTEGER = 1 << 28, 1 << 20, 100, (1 << 64) - 1

#: A key of many parts; tomllib takes a time for it that grows with the square of their number.
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_DEPTH}}}")


def read_text(path: str | Path) -> str:
    """The text of a file; what is not UTF-8 in it is replaced."""
    return read_regular(path, MAX_JSON_BYTES).decode("utf-8", errors="replace")


def read_json(path: str | Path, schema: Any = None) -> Any:
    """The value of a JSON file; with a ``schema``, of the types that it says."""
    return parse_json(read_regular(path, MAX_JSON_BYTES), path, schema)


def parse_json(
    text: str | bytes, where: str | Path, schema: Any = None, *, finite: bool = True
) -> Any:
    """The value of JSON text that a file holds; errors call it ``where``.

    Values that are nested deeper than :data:`MAX_DEPTH` are refused, and so are whole numbers of
    more than 64 bits and, if ``finite``, NaN and infinities.
    """
    try:
        value = json.loads(text)
        _check_values(value, finite=finite)
    except (ValueError, RecursionError) as error:
        raise damaged(where, "JSON", error) from error
    if schema is not None:
        check_types(value, schema, where)
    return value


def read_toml(path: str | Path) -> dict[str, Any]:
    """The values of a TOML file."""
    raw = read_regular(path, MAX_TOML_BYTES)
    try:
        text = raw.decode("utf-8")
        if _LONG_KEY.search(text):
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        values = tomllib.loads(text)
        _check_values(values)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "TOML", error) from error
    return values


def _check_values(value: Any, *, finite: bool = True) -> None:
    """Raise for nesting that is too deep, and for numbers that arithmetic cannot take."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        for item in level:
            if isinstance(item, float) and finite and not math.isfinite(item):
                raise ValueError(f"it holds the number {item}")
            if isinstance(item, int) and abs(item) > MAX_INTEGER:
                raise ValueError("it holds a whole number of more than 64 bits")
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def check_types(value: Any, schema: Any, where: str | Path) -> None:
    """Raise unless ``value`` is as ``schema`` says; errors call it ``where``.

    A schema is a type or a union of types; ``[schema]`` for a list; ``{key: schema}`` for a mapping
    with these keys and any others, which may lack a key that can be None; ``{str: schema}`` for a
    mapping of any keys. A whole number will do for a ``float``; true and false are no numbers.

    >>> check_types({"members": 5, "names": ["a"]}, {"members": int, "names": [str]}, "a.json")
    >>> check_types({"members": [5]}, {"members": int}, "a.json")
    Traceback (most recent call last):
    ...
    ValueError: a.json: members must be a whole number, got a list
    """
    kind = type(schema)
    if kind in (dict, list) and not isinstance(value, kind):
        raise ValueError(f"{where} must be {_kind_name(kind)}, got {_kind_name(type(value))}")
    if isinstance(schema, list):
        for item in value:
            check_types(item, schema[0], f"{where}: an item")
    elif isinstance(schema, dict) and str in schema:
        for key, item in value.items():
            check_types(item, schema[str], f"{where}: {key}")
    elif isinstance(schema, dict):
        for key, inner in schema.items():
            check_types(value.get(key), inner, f"{where}: {key}")
    else:
        kinds = get_args(schema) or (schema,)
        if type(value) not in kinds and not (type(value) is int and float in kinds):
            names = " or ".join(map(_kind_name, kinds))
            raise ValueError(f"{where} must be {names}, got {_kind_name(type(value))}")


def _kind_name(kind: type) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    names |= {list: "a list", dict: "a mapping", NoneType: "nothing"}
    return names.get(kind, kind.__name__)


def format_toml(values: dict[str, Any]) -> str:
    """Plain values and one level of sections as TOML; None is left out.

    >>> print(format_toml({"name": "a", "training": {"epochs": 3, "milestones": [1, 2]}}))
    name = "a"
    <BLANKLINE>
    [training]
    epochs = 3
    milestones = [1, 2]
    <BLANKLINE>
    """
    lines = _toml_lines({k: value for k, value in values.items() if not isinstance(value, dict)})
    for key, section in values.items():
        if isinstance(section, dict):
            lines += ["", f"[{_toml_key(key)}]", *_toml_lines(section)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_lines(values: dict[str, Any]) -> list[str]:
    return [f"{_toml_key(k)} = {_toml_value(k, v)}" for k, v in values.items() if v is not None]


def _toml_key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
    return key if bare else _toml_string(key)


def _toml_string(text: str) -> str:
    # JSON's escapes are TOML's, but for pairs of surrogates and a control character it leaves.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{key} must be finite, got {value}")
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str | Path):
        return _toml_string(str(value))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(key, item) for item in value) + "]"
    raise ValueError(f"{key} cannot be written to TOML, got {type(value).__name__}")


def write_csv(path: str | Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table as CSV, whole or not at all."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)

    replace_atomically(path, write)
