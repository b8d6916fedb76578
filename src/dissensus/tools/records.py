"""Records: one JSON file for each run, with its settings, its results and the machine.

Tables, figures and reports are built from these files alone.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dissensus._version import __version__
from dissensus.tools.files import parse_json, read_json, read_text, write_text

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "HUB_CONFIG",
    "HUB_FORMAT",
    "HUB_WEIGHTS",
    "METRICS",
    "PREVIOUS",
    "RECORD",
    "STATE",
    "TRACKING",
    "environment",
    "read_metrics",
    "read_record",
    "threads",
    "write_record",
]

# The files of a run folder; ``training.run_folder`` writes them.
CONFIG, METRICS, RECORD = "config.toml", "metrics.jsonl", "record.json"
CHECKPOINT, STATE = "checkpoint.safetensors", "state.json"
PREVIOUS = "checkpoint.previous.safetensors"
TRACKING = "tracking.json"  # what trackers call the run

# The files of a hub folder, and the format that its config names.
HUB_CONFIG, HUB_WEIGHTS, HUB_FORMAT = "config.json", "model.safetensors", "dissensus.model/1"


def write_record(path: str | Path, record: dict[str, Any]) -> None:
    """Write ``record`` as JSON, whole or not at all; a NaN or an infinity is refused."""
    try:
        text = json.dumps(record, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a record must be finite, plain JSON values: {error}") from error
    write_text(path, text + "\n")


def read_record(path: str | Path) -> dict[str, Any]:
    """Read a record; a damaged one is an error that names the file."""
    try:
        record = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is not a record that can be read: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path} is not a record: it holds a {type(record).__name__}")
    return record


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, one for each epoch, up to one that a kill cut short."""
    file = Path(run) / METRICS
    epochs = []
    for line in read_text(file).splitlines() if os.path.lexists(file) else ():
        try:
            record = parse_json(line, file)
        except ValueError:
            break
        if isinstance(record, dict) and type(record.get("epoch")) is int:
            epochs.append(record)
    _check_numbers([record["epoch"] for record in epochs], file)
    return epochs


def _check_numbers(epochs: list[int], file: Path) -> None:
    """Raise unless the epochs are 1, 2, 3 and so on, each once."""
    for line, epoch in enumerate(epochs, start=1):
        if epoch != line:
            what = f"epoch {epoch} twice" if epoch in epochs[: line - 1] else f"no epoch {line}"
            raise ValueError(f"{file} is damaged: it has {what}; train anew (--overwrite)")


def environment() -> dict[str, Any]:
    """What a result depends on besides its settings: versions, machine, commit, time."""
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
    folder = str(Path(__file__).parent)

    def git(*words: str) -> str:
        command = ["git", "-C", folder, *words]
        process = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return process.stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        changes = git("status", "--porcelain", "--untracked-files=no", "--", folder)
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if changes else "")
