"""Studies on disk: cells in working files, and one compact record that is worth committing.

Below ``out``: ``collusion/cells/<study>-<scale>/*.json`` are the working files, one for each cell;
``collusion/<study>.json`` is the compact record of the study, from which pages and figures are
built. It holds no path of the machine, and numbers with six significant digits. It is enough to go
on from: its cells are done as long as their settings are those of the plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dissensus.sweeps.engines import (
    Cell,
    CellFolder,
    Engine,
    LocalEngine,
    changed_settings,
    plain,
    run_cells,
)
from dissensus.tools.files import write_text
from dissensus.tools.records import read_record
from reproductions.base import SCALES, Record, Study

_FORMAT = 1
#: The keys of a compact record, in the order of the fields of :class:`StudyRecord`.
_KEYS = (
    *("study", "paper", "scale", "options", "planned", "written", "environments", "failed"),
    "cells",
)


@dataclass(frozen=True)
class StudyRecord:
    """A compact record as it is read: finished cells in ``records``, in the order planned."""

    name: str
    paper: str
    scale: str
    options: dict[str, Any]
    planned: int
    written: str
    environments: list[dict[str, Any]]
    failed: dict[str, str]
    records: list[Record]

    @property
    def complete(self) -> bool:
        """Whether every planned cell has a result."""
        return len(self.records) == self.planned

    @property
    def seconds(self) -> float:
        """The time of all cells together, in seconds of one process."""
        return float(sum(record["seconds"] for record in self.records))


def study_path(out: str | Path, paper: str, study: str) -> Path:
    """The path of the compact record of a study."""
    return Path(out) / paper / f"{study}.json"


def cells_folder(out: str | Path, paper: str, study: str, scale: str) -> CellFolder:
    """The folder of the working files of a study at a scale."""
    return CellFolder(Path(out) / paper / "cells" / f"{study}-{scale}")


def run_study(
    study: Study,
    paper: str,
    scale: str,
    options: Mapping[str, Any],
    out: str | Path,
    *,
    engine: Engine | None = None,
    progress: bool = True,
    again: bool = False,
) -> StudyRecord:
    """Run what is missing of ``study`` and write its compact record.

    Without an ``engine`` it runs here, in as many processes as suit the study.

    A compact record of another scale or other options is refused before anything runs; the cells of
    one that is of the same kind are done, also where their working files are gone. An interrupt
    keeps finished cells in the working files, and in the compact record unless that would replace
    a fuller one.
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    options = {key: value for key, value in options.items() if key in study.options}
    path = study_path(out, paper, study.name)
    earlier = _earlier(path, scale, options, again=again)
    cells = study.cells(scale, options)
    folder = cells_folder(out, paper, study.name, scale)
    if earlier is not None:
        _restore(earlier, cells, folder)

    def save() -> StudyRecord:
        record = _record_of(study.name, paper, scale, options, cells, folder)
        if earlier is None or len(record.records) >= len(earlier.records):
            _write(path, record)
        return record

    try:
        run_cells(
            cells,
            study.run,
            folder,
            engine=engine or LocalEngine(study.jobs),
            progress=progress,
            title=f"{paper}/{study.name}",
            again=again,
        )
    except KeyboardInterrupt:
        save()
        raise
    return save()


def read_study(path: str | Path) -> StudyRecord:
    """Read a compact record; one of another format is an error that names the file."""
    record = read_record(path)
    if record.get("format") != _FORMAT:
        raise ValueError(f"{path} is not the record of a study that this version can read")
    return StudyRecord(*(record[key] for key in _KEYS))


def compact(value: Any) -> Any:
    """``value`` with every float rounded to six significant digits.

    >>> compact({"loss": [0.123456789, 1e-20, 3]})
    {'loss': [0.123457, 1e-20, 3]}
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: compact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [compact(item) for item in value]
    return value


# ---- making and writing -------------------------------------------------------------------------


def _earlier(
    path: Path, scale: str, options: Mapping[str, Any], *, again: bool
) -> StudyRecord | None:
    """The record that is there already, if it is of the same kind; else an error."""
    if not path.exists():
        return None
    record = read_study(path)
    if (record.scale, record.options) == (scale, dict(options)):
        return record
    if again:
        return None
    raise ValueError(
        f"{path} was made with --scale {record.scale} and {_options_text(record.options)}, not "
        f"--scale {scale} and {_options_text(options)}; choose another --out, or replace it with "
        "--again"
    )


def _restore(earlier: StudyRecord, cells: Iterable[Cell], folder: CellFolder) -> None:
    """Write the working files that are missing of cells whose results a compact record holds.

    A cell whose settings have changed since is left to be run again.
    """
    done = folder.done()
    records = {record["name"]: record for record in earlier.records}
    for cell in cells:
        record = records.get(cell["name"])
        # Settings, too, have six significant digits in a compact record.
        if record is None or cell["name"] in done or changed_settings(record, compact(plain(cell))):
            continue
        facts = {**earlier.environments[record["environment"]], "written": earlier.written}
        measured = {"result": record["result"], "seconds": record["seconds"], "facts": facts}
        folder.write({"name": cell["name"], "cell": plain(cell), **measured})


def _options_text(options: Mapping[str, Any]) -> str:
    return " ".join(f"--set {key}={value}" for key, value in options.items()) or "no --set"


def _record_of(
    name: str,
    paper: str,
    scale: str,
    options: dict[str, Any],
    cells: list[Cell],
    folder: CellFolder,
) -> StudyRecord:
    """The compact record, from the working files."""
    on_disk = folder.records()
    environments: list[dict[str, Any]] = []
    records, failed, times = [], {}, [""]
    for cell in cells:
        record = on_disk.get(cell["name"])
        if record is None or changed_settings(record, cell):
            continue
        if "error" in record:
            failed[cell["name"]] = _without_paths(record["error"].splitlines()[0])
            continue
        environment = {k: v for k, v in record["facts"].items() if k != "written"}
        if environment not in environments:
            environments.append(environment)
        times.append(record["facts"]["written"])
        short = {key: compact(record[key]) for key in ("name", "cell", "result", "seconds")}
        records.append({**short, "environment": environments.index(environment)})
    return StudyRecord(
        name, paper, scale, options, len(cells), max(times), environments, failed, records
    )


def _without_paths(text: str) -> str:
    """``text`` with paths cut to their last part, for records that other people will read.

    >>> _without_paths("FileNotFoundError: no file /home/ann/data/abalone.csv there")
    'FileNotFoundError: no file abalone.csv there'
    """
    return re.sub(r"(?:[A-Za-z]:)?(?:[/\\][\w.\-]+)+[/\\]([\w.\-]+)", r"\1", text)


def _write(path: Path, record: StudyRecord) -> None:
    """One line for each cell: small, and a change of one cell is a change of one line."""
    head = {"format": _FORMAT, **dict(zip(_KEYS, asdict(record).values(), strict=True))}
    lines = [
        json.dumps(cell, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        for cell in head.pop("cells")
    ]
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    write_text(path, f'{text},\n "cells": [\n' + ",\n".join(lines) + "\n ]\n}\n")
