"""One run, one JSON record: what was asked, what came out, and on what machine.

Tables, figures and reports are built from these files alone.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dissensus._version import __version__
from dissensus.files import write_text

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "METRICS",
    "RECORD",
    "STATE",
    "environment",
    "read_record",
    "threads",
    "toml_text",
    "write_record",
]

# The files of a run folder; ``training.run_folder`` writes them.
CONFIG, METRICS, RECORD = "config.toml", "metrics.jsonl", "record.json"
CHECKPOINT, STATE = "checkpoint.safetensors", "state.json"


def write_record(path: str | Path, record: dict[str, Any]) -> None:
    """Write ``record`` as JSON, whole or not at all; a NaN or an infinity is refused."""
    try:
        text = json.dumps(record, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a record must be finite, plain JSON values: {error}") from error
    write_text(path, text + "\n")


def read_record(path: str | Path) -> dict[str, Any]:
    """Read a record; a damaged one is an error that names the file."""
    path = Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a record that can be read: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path} is not a record: it holds a {type(record).__name__}")
    return record


def environment() -> dict[str, Any]:
    """What a result depends on beside its settings: versions, machine, commit, time."""
    packages = {}
    for name in ("torch", "numpy", "scikit-learn", "scipy", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "dissensus": __version__,
        "python": platform.python_version(),
        "packages": packages,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": threads(),
        "commit": _commit(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def threads() -> int | None:
    """How many threads torch uses; None as long as nobody has loaded it."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _commit() -> str | None:
    """The commit of the source tree that this package runs from, marked where it was changed."""
    folder = Path(__file__).parent
    git = ["git", "-C", str(folder)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", "--", str(folder)],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if dirty else "")


def toml_text(values: dict[str, Any]) -> str:
    """Plain values and one level of sections as TOML; None is left out.

    >>> print(toml_text({"name": "a", "training": {"epochs": 3, "milestones": [1, 2]}}))
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
