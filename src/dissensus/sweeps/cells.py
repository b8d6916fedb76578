"""Cells: units of work, each with a JSON record, so that a long job can stop and resume.

A cell is a dict of plain settings with a name; its record is one file, written atomically. Ctrl-C,
a kill or a power cut costs at most the cells that were running; a second start runs what is missing
and what failed.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dissensus.tools.records import environment, read_record, threads, write_record

Cell = dict[str, Any]
Record = dict[str, Any]

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,149}")
_TRACEBACK_LINES = 12


class CellFolder:
    """A folder with one JSON record for each cell; several processes may write at once."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, name: str) -> Path:
        """The file of the cell ``name``."""
        return self.folder / f"{name}.json"

    def records(self) -> dict[str, Record]:
        """Every record by the name of its cell, failed ones as well."""
        return {path.stem: _read(path) for path in sorted(self.folder.glob("[!.]*.json"))}

    def done(self) -> dict[str, Record]:
        """The records of cells that have a result, by name."""
        return {name: record for name, record in self.records().items() if "result" in record}

    def write(self, record: Record) -> None:
        """Write ``record`` atomically, in place of an older one of that cell."""
        write_record(self.path(record["name"]), record)


def _read(path: Path) -> Record:
    record = read_record(path)
    if record.get("name") != path.stem or not {"result", "error"} & record.keys():
        raise ValueError(f"{path} is not the record of a cell of that name; move it away")
    return record


def execute(cell: Cell, run: Callable[[Cell], dict[str, Any]]) -> Record:
    """Run one cell and return its record; an exception becomes the record's ``error``."""
    began = time.perf_counter()
    record: Record = {"name": cell["name"], "cell": plain(cell)}
    try:
        record["result"] = plain(run(dict(cell)))
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}".strip()
        record["traceback"] = traceback.format_exc().splitlines()[-_TRACEBACK_LINES:]
    record["seconds"] = round(time.perf_counter() - began, 3)
    written = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    record["facts"] = {**_environment(), "threads": threads(), "written": written}
    return record


#: Versions, machine and commit, found once in each process: finding the commit starts git.
_environment = cache(environment)


def plain(value: Any) -> Any:
    """``value`` as it comes back from a JSON file; what JSON cannot hold is an error.

    >>> plain({"betas": (0.0, 0.5)})
    {'betas': [0.0, 0.5]}
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cells and results must be finite, plain JSON values: {error}") from error


def check_cells(cells: Sequence[Cell]) -> None:
    """Raise unless the names of cells are safe, different file names."""
    names = [cell.get("name") for cell in cells]
    for name in names:
        if not isinstance(name, str) or not _SAFE_NAME.fullmatch(name):
            raise ValueError(f"a cell needs a name of letters, digits and . _ = + -, got {name!r}")
    if len({str(name).casefold() for name in names}) < len(names):
        raise ValueError(f"names of cells must differ, not only in case, got {names}")


def changed_settings(record: Record, cell: Cell) -> str:
    """How the settings of ``record`` differ from those of ``cell``; empty if they do not.

    >>> changed_settings({"cell": {"name": "a", "beta": 0.1}}, {"name": "a", "beta": 0.2})
    'beta 0.1, not 0.2'
    """
    old, new = record.get("cell", {}), plain(cell)
    pairs = {key: (old.get(key, UNSET), new.get(key, UNSET)) for key in {**old, **new}}
    return ", ".join(
        f"{key} {brief(was)}, not {brief(now)}" for key, (was, now) in pairs.items() if was != now
    )


UNSET = object()  # the value of a setting that is missing


def brief(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    text = "unset" if value is UNSET else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def find_missing(
    cells: Sequence[Cell], folder: CellFolder, *, again: bool = False
) -> tuple[dict[str, Record], list[Cell]]:
    """The records that can be used as they are, and the cells still to run.

    A record made with other settings is an error; with ``again``, its cell runs again.
    """
    check_cells(cells)
    records, missing, done = {}, [], folder.done()
    for cell in cells:
        record = done.get(cell["name"])
        change = "" if record is None else changed_settings(record, cell)
        if change and not again:
            raise ValueError(
                f"{folder.path(cell['name'])} was made with other settings ({change}); choose "
                "another folder, or run changed cells again (--again)"
            )
        if record is None or change:
            missing.append(cell)
        else:
            records[cell["name"]] = record
    return records, missing
