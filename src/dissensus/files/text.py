"""JSON, TOML and CSV."""

from __future__ import annotations

import csv
import json
import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dissensus.files.atomic import replace_atomically
from dissensus.files.opening import unreadable

__all__ = ["format_toml", "read_json", "read_toml", "write_csv"]


def read_json(path: str | Path) -> Any:
    """The value of a JSON file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise unreadable(path, "JSON", error) from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise unreadable(path, "TOML", error) from error


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
    lines = [
        f"{_toml_key(key)} = {_toml_value(key, value)}"
        for key, value in values.items()
        if value is not None and not isinstance(value, dict)
    ]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += ["", f"[{_toml_key(key)}]"]
            lines += [
                f"{_toml_key(inner)} = {_toml_value(inner, item)}"
                for inner, item in value.items()
                if item is not None
            ]
    return "\n".join(lines).lstrip("\n") + "\n"


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
