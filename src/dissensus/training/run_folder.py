"""A training run on disk: what was asked, one line an epoch, the checkpoint, what came out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from dissensus.files import write_text
from dissensus.records import environment, toml_text, write_record
from dissensus.training.checkpoint import check_writable, read_checkpoint, write_checkpoint

__all__ = ["RunFolder"]

CONFIG, METRICS = "config.toml", "metrics.jsonl"


class RunFolder:
    """The files of one run under ``path``; see the README for their layout."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def start(self, config: dict[str, Any], needed: int, *, resume: bool) -> None:
        """Make or check the folder before any work is done."""
        check_writable(self.path, needed)
        exists = (self.path / METRICS).exists() or (self.path / CONFIG).exists()
        if exists and not resume:
            raise ValueError(
                f"there is a run in {self.path} already; pass resume=True (--resume) to go on with "
                "it, or choose another folder"
            )
        if resume and exists:
            self._check_same(config)
        write_text(self.path / CONFIG, toml_text(config))

    def _check_same(self, config: dict[str, Any]) -> None:
        import tomllib

        asked = tomllib.loads(toml_text(config))
        before = tomllib.loads((self.path / CONFIG).read_text())
        changed = [
            f"{section}.{key} was {before.get(section, {}).get(key)!r}, now {value!r}"
            for section, values in asked.items()
            for key, value in (values.items() if isinstance(values, dict) else ())
            if before.get(section, {}).get(key) != value and (section, key) not in _MAY_CHANGE
        ]
        if changed:
            raise ValueError(
                f"the run in {self.path} was started with other settings: " + "; ".join(changed)
            )

    def append(self, record: dict[str, Any]) -> None:
        """Add one epoch to the metrics."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keep_epochs(self, epochs: int) -> None:
        """Drop epochs that were written after the checkpoint; they will be run again."""
        path = self.path / METRICS
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                break  # cut short by a kill
            if record["epoch"] <= epochs:
                kept.append(line + "\n")
        write_text(path, "".join(kept))

    def save(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        write_checkpoint(self.path, tensors, values)

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The checkpoint, on the CPU; None where there is none."""
        return read_checkpoint(self.path)

    def finish(self, record: dict[str, Any]) -> None:
        """Write what came out."""
        write_record(self.path / "record.json", {**record, "environment": environment()})


#: Settings that a resumed run may have changed: training longer is going on.
_MAY_CHANGE = {("training", "epochs"), ("training", "patience")}
