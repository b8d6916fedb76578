"""Predictions: the one tensor with its targets, in memory and on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.outputs.checks import check_outputs, check_tensor
from dissensus.tools.files import parse_json, read_npz, read_safetensors, write_safetensors
from dissensus.tools.specs import check_keys

_FORMAT = "dissensus.predictions/1"


@dataclass(frozen=True, repr=False)
class Predictions:
    """Member outputs, their targets and metadata; saved as safetensors.

    ``outputs`` is ``[members, batch, outputs]``; ``targets`` is ``[batch]`` integer labels,
    ``[batch, outputs]`` floats, or None where the truth is not known; ``meta`` is a JSON mapping.
    ``meta={"space": "probs"}`` says that the outputs are probabilities; an ``.npz`` says it with an
    array called ``space``.
    A file never holds code: safetensors, or an ``.npz`` read with ``allow_pickle=False``.
    """

    outputs: Tensor
    targets: Tensor | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_outputs(self.outputs, finite=False)
        if self.targets is None:
            return
        check_tensor(self.targets)
        if self.targets.ndim not in (1, 2) or len(self.targets) != len(self):
            got = tuple(self.targets.shape)
            raise ValueError(f"targets must be [batch, …] with a batch of {len(self)}, got {got}")

    @property
    def members(self) -> int:
        """How many members there are."""
        return self.outputs.shape[0]

    @property
    def space(self) -> str:
        """What the outputs of a classifier are, a key of :data:`SPACES`."""
        return str(self.meta.get("space", "logits"))

    def __len__(self) -> int:
        return self.outputs.shape[1]

    def __repr__(self) -> str:
        targets = "None" if self.targets is None else str(list(self.targets.shape))
        return f"Predictions(outputs={list(self.outputs.shape)}, targets={targets})"

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, replacing ``path`` atomically."""
        tensors = {"outputs": self.outputs}
        if self.targets is not None:
            tensors["targets"] = self.targets
        try:
            meta = json.dumps(dict(self.meta), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"meta must be plain JSON values: {error}") from error
        write_safetensors(path, tensors, {"format": _FORMAT, "meta": meta})

    @classmethod
    def load(cls, path: str | Path, keys: Mapping[str, str] | None = None) -> Predictions:
        """Read safetensors, or an ``.npz`` with ``outputs`` and ``targets``.

        ``keys`` gives their names in a file that has others: ``{"outputs": "logits"}``.
        """
        path, names = Path(path), array_names(keys)
        if not path.is_file():
            raise ValueError(f"no predictions at {path}: there is no such file")
        if path.suffix == ".npz":
            tensors, meta = _read_npz(path, names.values())
        else:
            tensors, header = read_safetensors(path)
            meta = _read_meta(path, header)
        for name in ("outputs", *(keys or {})):
            if names[name] not in tensors:
                got = ", ".join(sorted(tensors)) or "nothing"
                raise ValueError(f"{path} must hold {names[name]!r}, got {got}; {KEY_HINT}")
        try:
            return cls(tensors[names["outputs"]], tensors.get(names["targets"]), meta)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


#: What to do where a file has other names for its arrays.
KEY_HINT = "pass --key outputs=NAME or targets=NAME (keys=) if it has another name there"


def array_names(keys: Mapping[str, str] | None = None) -> dict[str, str]:
    """The names that outputs and targets have in a file, their own or those in ``keys``."""
    names = {"outputs": "outputs", "targets": "targets"}
    check_keys("a predictions file", keys or (), names, "array")
    return names | dict(keys or {})


def _read_meta(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    meta = parse_json(header.get("meta", "{}"), f"{path}: its metadata")
    return meta if isinstance(meta, dict) else {"meta": meta}


def _read_npz(path: Path, wanted: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ``wanted`` arrays of a file as tensors; others are not read."""
    names: list[str] = []

    def choose(headers: Iterable[str]) -> list[str]:
        names.extend(headers)
        return [name for name in names if name in {*wanted, "space"}]

    read = read_npz(path, choose=choose)
    arrays: dict[str, Any] = {name: read.get(name) for name in names}
    try:
        tensors = {name: torch.as_tensor(arrays[name]) for name in wanted if name in arrays}
    except TypeError as error:
        raise ValueError(f"{path} must hold numbers: {error}") from error
    return arrays | tensors, {"space": str(arrays["space"])} if "space" in arrays else {}


def stored_space(path: str | Path) -> str:
    """What a file of predictions says that its outputs are; ``"logits"`` where it says nothing."""
    path = Path(path)
    meta: dict[str, Any] = {}
    if path.is_file() and path.suffix == ".npz":
        _, meta = _read_npz(path, ())
    elif path.is_file():
        meta = _read_meta(path, read_safetensors(path, ())[1])
    return str(meta.get("space", "logits"))
