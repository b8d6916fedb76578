"""Detector files: checked JSON, and fitted scores of features as safetensors beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dissensus.detection.distances import FeatureScore
from dissensus.detection.registry import parse_score, score_spec
from dissensus.tools.files import (
    check_types,
    parse_json,
    read_json,
    read_safetensors,
    write_safetensors,
    write_text,
)

_FORMAT = "dissensus.detector/1"

#: ``features`` is a module of the members, ``"inputs"``, or ``"<function>"``; ``distance`` and
#: ``tuned`` belong to the files beside this one.
_SCHEMA: dict[str, Any] = {
    "score": str | None,
    "threshold": float,
    "accept": float,
    "count": int,
    "quantiles": {str: float},
    "space": str,
    "features": str | None,
    "scales": list | None,
    "distance": str | None,
    "tuned": dict | None,
}


def write_detector(path: str | Path, fields: dict[str, Any]) -> None:
    """Write ``fields`` with their checksum, replacing ``path`` atomically."""
    record = {"format": _FORMAT, **fields}
    record["checksum"] = _checksum(record)
    write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")


def read_detector(path: str | Path) -> dict[str, Any]:
    """Read what :func:`write_detector` wrote; raise if it is damaged."""
    if not Path(path).is_file():
        raise ValueError(f"no detector at {path}: there is no such file")
    fields = read_json(path)
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        got = fields.get("format") if isinstance(fields, dict) else None
        raise ValueError(f"{path} is not a detector: expected {_FORMAT!r}, got {got!r}")
    check_types(fields, _SCHEMA, path)
    if fields.get("checksum") != _checksum(fields):
        raise ValueError(f"{path} is damaged: its content does not match its checksum")
    return fields


def _checksum(record: dict[str, Any]) -> str:
    """The sha256 of all other fields."""
    fields = {key: value for key, value in record.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def write_distances(path: str | Path, scores: Sequence[FeatureScore]) -> str:
    """Write fitted scores of features, replacing ``path`` atomically; return its checksum."""
    tensors = {
        f"{place}.{name}": getattr(score, name)
        for place, score in enumerate(scores)
        for name in score.axes()
    }
    specs = json.dumps([score_spec(score) for score in scores])
    write_safetensors(path, tensors, {"format": _FORMAT, "scores": specs})
    return file_checksum(path)


def read_distances(path: str | Path) -> list[FeatureScore]:
    """Read what :func:`write_distances` wrote."""
    tensors, header = read_safetensors(path)
    if header.get("format") != _FORMAT:
        raise ValueError(f"{path} holds no scores of features, got {header.get('format')!r}")
    specs = parse_json(header.get("scores", "[]"), path, [str])
    scores: list[FeatureScore] = [parse_score(spec) for spec in specs]
    for place, score in enumerate(scores):
        for name, axes in score.axes().items():
            tensor = tensors.get(f"{place}.{name}")
            if tensor is None or tensor.ndim != axes or not bool(tensor.isfinite().all()):
                raise ValueError(f"{path} is not whole: {name} is bad, missing or infinite")
            setattr(score, name, tensor)
    return scores


def file_checksum(path: str | Path) -> str:
    """The sha256 of a file; an empty text if there is none."""
    if not Path(path).is_file():
        return ""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_together(path: str | Path, file: Path, checksum: str) -> None:
    """Raise unless ``file``, beside the detector at ``path``, is the one that was saved with it."""
    if checksum != file_checksum(file):
        raise ValueError(
            f"{path} and {file.name} do not belong together; copy both, or save it again"
        )
