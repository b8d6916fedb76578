"""Checkpoints: one safetensors file with everything, replaced atomically.

Tensors (weights, moments, the best weights so far, the state of random numbers) and plain values
(as JSON in the file's header) are in **one** file, so that a kill at any moment leaves a checkpoint
that is consistent. ``state.json`` beside it is a copy of the plain values for people to read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.files import read_safetensors, write_safetensors, write_text

__all__ = ["check_writable", "read_checkpoint", "write_checkpoint"]

FILE, STATE, FORMAT = "checkpoint.safetensors", "state.json", "dissensus.checkpoint/1"


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Replace the checkpoint in ``folder``."""
    header = {"format": FORMAT, "values": json.dumps(values)}
    write_safetensors(folder / FILE, tensors, header)
    write_text(folder / STATE, json.dumps(values, indent=1) + "\n")


def read_checkpoint(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and values of the checkpoint in ``folder``; None where there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        tensors, header = read_safetensors(path, device)
        if header.get("format") != FORMAT:
            raise ValueError(f"its format is {header.get('format')!r}, not {FORMAT!r}")
        return tensors, json.loads(header["values"])
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is not a checkpoint that can be read: {error}") from error


def check_writable(folder: Path, needed: int) -> None:
    """Raise before training starts if ``folder`` cannot take ``needed`` bytes of checkpoints."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / ".writable", "yes\n")
        (folder / ".writable").unlink()
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror or error}") from error
    if hasattr(os, "statvfs"):
        stats = os.statvfs(folder)
        free = stats.f_bavail * stats.f_frsize
        if free < needed:
            raise ValueError(
                f"{folder} has {free / 2**20:.0f} MiB free, a run of this size needs about "
                f"{needed / 2**20:.0f} MiB; free some or choose another folder"
            )
