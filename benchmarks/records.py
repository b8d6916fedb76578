"""Records of comparisons: one JSON line for each cell, in files that go on where they were."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dissensus.tools.files import write_text

Record = dict[str, Any]


def read_lines(folder: Path) -> list[Record]:
    """The records of all files of a folder."""
    paths = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def put_record(path: Path, record: Record, cell_of: Callable[[Record], object]) -> None:
    """Write a record as a line, instead of the old one of its cell; the file is replaced whole."""
    old = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in old if cell_of(json.loads(line)) != cell_of(record)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n".join([*kept, json.dumps(record)]) + "\n")


def rounded(value: Any) -> Any:
    """Numbers to six digits, in dicts of dicts too.

    >>> rounded({"auroc": {"pds": 0.123456789}, "seed": 3})
    {'auroc': {'pds': 0.123457}, 'seed': 3}
    """
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
