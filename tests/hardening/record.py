"""The record of the counted suite, ``results/reliability.json``: tries and failures by category."""

import json
from pathlib import Path
from typing import Any

from dissensus.tools.files import lock_folder, write_text

FILE = Path(__file__).parents[2] / "results" / "reliability.json"


def read() -> dict[str, dict[str, Any]]:
    """All categories so far."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


def keep(category: str, tries: int, failures: list[str], **more: Any) -> None:
    """Put the counts of a category into the record; the first failures are kept in words."""
    with lock_folder(FILE.parent):
        record = read() | {
            category: {"tries": tries, "failures": len(failures), "first": failures[:5], **more}
        }
        text = json.dumps(dict(sorted(record.items())), indent=1, ensure_ascii=False)
        write_text(FILE, text + "\n")
