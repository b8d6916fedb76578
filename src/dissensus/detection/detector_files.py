"""Detector files: a score's name, its threshold and validation statistics as checked JSON."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from dissensus.tools.files import read_json, write_text

_FORMAT = "dissensus.detector/1"
_FIELDS: dict[str, Any] = {
    "score": str | None,
    "threshold": float,
    "accept": float,
    "count": int,
    "quantiles": dict,
    "space": str,
}

#: What only scores of features have: the module that gives these, the scales of a combination, and
#: the checksum of the file beside it; and how members were tuned, with the checksum of their file.
_OPTIONAL: dict[str, Any] = {"features": str, "scales": dict, "distance": str, "tuned": dict}


def write_detector(path: str | Path, fields: dict[str, Any]) -> None:
    """Write ``fields`` with their checksum, replacing ``path`` atomically."""
    record = {"format": _FORMAT, **fields}
    record["checksum"] = checksum_of(record)
    write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")


def file_checksum(path: Path) -> str:
    """The sha256 of a file; an empty text if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of(record: dict[str, Any]) -> str:
    """The sha256 of all other fields."""
    fields = {key: value for key, value in record.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read_record(path: Path) -> dict[str, Any]:
    """Read what :func:`write_detector` wrote; raise if it is damaged."""
    if not path.is_file():
        raise ValueError(f"no detector at {path}: there is no such file")
    record = read_json(path)
    fields: dict[str, Any] = record if isinstance(record, dict) else {}
    if fields.get("format") != _FORMAT:
        raise ValueError(
            f"{path} is not a detector of a known format: expected {_FORMAT!r}, got "
            f"{fields.get('format')!r}"
        )
    wrong = [key for key, kind in _FIELDS.items() if not isinstance(fields.get(key, ...), kind)]
    if not wrong and not math.isfinite(fields["threshold"]):
        wrong = ["threshold"]
    wrong += [key for key in _OPTIONAL if not isinstance(fields.get(key), _OPTIONAL[key] | None)]
    if wrong:
        raise ValueError(f"{path} is not a whole detector: bad or missing {', '.join(wrong)}")
    if fields.get("checksum", checksum := checksum_of(fields)) != checksum:
        raise ValueError(f"{path} is damaged: its content does not match its checksum")
    return fields
