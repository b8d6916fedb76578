"""Run folders: the files of a training run, and how they are written and read.

``config.toml`` is what was asked, ``metrics.jsonl`` has one line for each epoch, and
``record.json`` is what came out. ``checkpoint.safetensors`` holds tensors (weights, moments, the
best weights so far if they are of an earlier epoch, the state of random numbers) and plain values
(as JSON in its header) in **one** file that is replaced atomically, so that a kill at any moment
leaves a consistent checkpoint. ``checkpoint.previous.safetensors`` is the one before it, in case
that one is damaged.
``state.json`` is a copy of the plain values for people to read.
"""

from __future__ import annotations

import json
import os
import tomllib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from dissensus.tools.files import (
    format_toml,
    keep_copy,
    lock_folder,
    parse_json,
    read_safetensors,
    read_toml,
    remove_parts,
    write_safetensors,
    write_text,
)
from dissensus.tools.records import (
    CHECKPOINT,
    CONFIG,
    METRICS,
    PREVIOUS,
    RECORD,
    STATE,
    environment,
    read_metrics,
    write_record,
)

_FORMAT = "dissensus.checkpoint/1"


class RunFolder:
    """The files of one run under ``path``; see the README for their layout."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def lock(self) -> AbstractContextManager[None]:
        """While entered, no other process may write to the folder."""
        return lock_folder(self.path)

    def start(self, config: dict[str, Any], needed: int, *, resume: bool) -> str:
        """Make or check the folder before any work; returns what was mended, "" if nothing was."""
        prepare_folder(self.path, needed)
        exists = (self.path / METRICS).exists() or (self.path / CONFIG).exists()
        if exists and not resume:
            raise ValueError(
                f"there is a run in {self.path} already; pass resume=True (--resume) to go on"
            )
        if resume and (self.path / CONFIG).exists():
            before = self._checked_before(config)
            # What config= left out now stays as it was written.
            kept = {name: before[name] for name in before if name != "training"}
            config = {**kept, **{name: _over(kept.get(name), config[name]) for name in config}}
        write_text(self.path / CONFIG, format_toml(config))
        return self._mend_checkpoint() if resume else ""

    def _checked_before(self, config: dict[str, Any]) -> dict[str, Any]:
        """The settings that the run was started with; raises unless ``config`` says the same."""
        asked, before = tomllib.loads(format_toml(config)), read_toml(self.path / CONFIG)
        changed = []
        for section, values in asked.items():
            was = before.get(section, {})
            if not isinstance(values, dict) or not isinstance(was, dict):
                continue
            # What stood in config= may be left out; a setting of training that is, is another one.
            for key in {**was, **values} if section == "training" else values:
                if was.get(key) != values.get(key) and not _may_change(section, key, was.get(key)):
                    old, new = was.get(key, "not set"), values.get(key, "not set")
                    changed.append(f"{section}.{key} was {old!r}, now {new!r}")
        if changed:
            raise ValueError(
                f"the run in {self.path} was started with other settings: " + "; ".join(changed)
            )
        return before

    def append(self, record: dict[str, Any]) -> None:
        """Add one epoch to the metrics."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keep_epochs(self, epochs: int) -> list[dict[str, Any]]:
        """Records of the first ``epochs`` epochs; later ones are dropped, and will be run again."""
        path = self.path / METRICS
        records = [record for record in read_metrics(self.path) if record["epoch"] <= epochs]
        if len(records) < epochs:
            raise ValueError(
                f"{path} has {len(records)} epochs, the checkpoint beside it is of epoch {epochs}"
            )
        write_text(path, "".join(json.dumps(record) + "\n" for record in records))
        return records

    def save(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        header = {"format": _FORMAT, "values": json.dumps(values)}
        keep_copy(self.path / CHECKPOINT, self.path / PREVIOUS)
        write_safetensors(self.path / CHECKPOINT, tensors, header)
        write_text(self.path / STATE, json.dumps(values, indent=1) + "\n")

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and values of the checkpoint; None where there is none."""
        return read_checkpoint(self.path)

    def _mend_checkpoint(self) -> str:
        """Put the previous checkpoint in the place of a damaged one, and say so; "" if all is well.

        Where that is damaged too, nothing is changed, and reading the checkpoint will fail.
        """
        newest, previous = self.path / CHECKPOINT, self.path / PREVIOUS
        try:
            read_safetensors(newest)
            return ""
        except ValueError as damage:
            sentence = f"{damage}; going on from the checkpoint before it"
        try:
            read_safetensors(previous)
        except ValueError:
            return ""
        keep_copy(previous, newest)
        return sentence

    def finish(self, record: dict[str, Any]) -> None:
        """Write what came out."""
        write_record(self.path / RECORD, {**record, "environment": environment()})


def _over(before: Any, now: Any) -> Any:
    return {**before, **now} if isinstance(before, dict) and isinstance(now, dict) else now


def _may_change(section: str, key: str, was: Any) -> bool:
    """Training longer is going on, and what a measurement chose stands in the checkpoint.

    How often it is saved, and by how many processes data are read, changes no number.
    """
    longer = section == "training" and key in ("epochs", "patience", "checkpoint_every")
    longer = longer or (section == "data_options" and key == "workers")
    return longer or (section, key, was) == ("ensemble", "execution", "tune")


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors, on the CPU, and values of the checkpoint in ``folder``; None where there is none."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    try:
        tensors, header = read_safetensors(path)
        if header.get("format") != _FORMAT:
            raise ValueError(f"its format is {header.get('format')!r}, not {_FORMAT!r}")
        return tensors, parse_json(header["values"], "its state", {}, finite=False)
    except (ValueError, KeyError) as error:
        hint = "; resume the run, to go back to the checkpoint before it"
        hint = hint if (folder / PREVIOUS).is_file() else ""
        raise ValueError(f"{path} is not a checkpoint that can be read: {error}{hint}") from error


def prepare_folder(folder: Path, needed: int) -> None:
    """Make ``folder`` ready for a run, and raise if it cannot take ``needed`` bytes of checkpoints.

    What kills left half written goes first, so that one start leaves no more than one such file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_parts(folder)
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
