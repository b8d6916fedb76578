"""Studies: cells that are run once, and the compact record that is worth committing.

Below ``out``: ``<paper>/<study>.json`` is the compact record of a study, from which verdicts,
tables, pages and figures are built. It holds no path of the machine, and numbers with six
significant digits. Its cells are done as long as their settings are those of the plan. Cells that
an interrupted start has finished wait in ``<paper>/cells/<study>-<scale>/`` for the next one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dissensus.sweeps import Cell as Cell
from dissensus.sweeps import (
    CellFolder,
    LocalEngine,
    RayEngine,
    changed_settings,
    plain,
    run_cells,
)
from dissensus.tools.files import write_text
from dissensus.tools.records import read_record
from dissensus.tools.specs import nearest

#: A finished cell: ``{"name", "cell", "result", "seconds"}``.
Record = dict[str, Any]

#: ``smoke``: seconds, for tests; ``cpu``: two cores, real data; ``paper``: the paper's own sizes.
SCALES = ("smoke", "cpu", "paper")

_FORMAT = 1


@dataclass(frozen=True)
class Study:
    """Cells that one or more experiments read.

    ``cells(scale, options)`` plans them; ``options`` come from ``--set key=value``, numbers and
    true/false as such, the rest as text. ``run`` computes the result of one cell, as plain JSON
    values, from the cell's settings alone; for ``jobs > 1`` it must be a function of a module.
    Options named in ``parts`` choose some of the planned cells; the record keeps the others.
    """

    name: str
    cells: Callable[[str, Mapping[str, Any]], list[Cell]]
    run: Callable[[Cell], dict[str, Any]]
    jobs: int = 2
    options: Mapping[str, str] = field(default_factory=dict)  # name: one line of help
    cost: Mapping[str, str] = field(default_factory=dict)  # scale: roughly how long it takes
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyRecord:
    """A compact record; ``cells`` are the finished ones in the order planned."""

    study: str
    paper: str
    scale: str
    options: dict[str, Any]
    planned: int
    written: str
    environments: list[dict[str, Any]]
    failed: dict[str, str]
    cells: list[Record]

    @property
    def complete(self) -> bool:
        """Whether every planned cell has a result."""
        return len(self.cells) == self.planned

    @property
    def seconds(self) -> float:
        """The time of all cells together, in seconds of one process."""
        return float(sum(record["seconds"] for record in self.cells))


def study_path(out: str | Path, paper: str, study: str) -> Path:
    """The path of the compact record of a study."""
    return Path(out) / paper / f"{study}.json"


def read_study(path: str | Path) -> StudyRecord:
    """Read a compact record; one of another format is an error that names the file."""
    record = read_record(path)
    if record.pop("format", None) != _FORMAT:
        raise ValueError(f"{path} is not the record of a study that this version can read")
    return StudyRecord(**record)


def run_study(
    study: Study,
    paper: str,
    scale: str,
    options: Mapping[str, Any],
    out: str | Path,
    *,
    engine: LocalEngine | RayEngine | None = None,
    progress: bool = True,
    again: bool = False,
) -> StudyRecord:
    """Run what is missing of ``study`` and write its compact record.

    Without an ``engine`` it runs here, in as many processes as suit the study. A compact record of
    another scale or other options is an error before anything runs, unless ``again`` replaces it.
    Where options choose a part, ``again`` runs the cells of this part once more.
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    known = {key: value for key, value in options.items() if key in study.options}
    options = {key: value for key, value in known.items() if key not in study.parts}
    path = study_path(out, paper, study.name)
    earlier = read_study(path) if path.exists() else None
    if earlier is not None and (earlier.scale, earlier.options) != (scale, options):
        if not again:
            raise ValueError(
                f"{path} was made with --scale {earlier.scale} and {_words(earlier.options)}, not "
                f"--scale {scale} and {_words(options)}; choose another --out, or pass --again"
            )
        earlier = None
    plan, cells = study.cells(scale, options), study.cells(scale, known)
    chosen = {cell["name"] for cell in cells}
    folder = CellFolder(path.parent / "cells" / f"{study.name}-{scale}")
    done = {} if earlier is None else _still_valid(earlier, plan, chosen)
    if again and len(cells) < len(plan):
        done = {name: record for name, record in done.items() if name not in chosen}
        for name in chosen:
            folder.path(name).unlink(missing_ok=True)
    made = run_cells(
        [cell for cell in cells if cell["name"] not in done],
        study.run,
        folder,
        engine=engine or LocalEngine(study.jobs),
        progress=progress,
        title=f"{paper}/{study.name}",
        again=again,
    )
    done |= {record["name"]: record for record in made}
    records = [done[cell["name"]] for cell in plan if cell["name"] in done]
    record = _compact_record(study.name, paper, scale, options, records, len(plan))
    _write(path, record)
    return record


def _words(options: Mapping[str, Any]) -> str:
    return " ".join(f"--set {key}={value}" for key, value in options.items()) or "no --set"


def _still_valid(
    earlier: StudyRecord, plan: Sequence[Cell], chosen: Collection[str]
) -> dict[str, Record]:
    """The planned records that have not to be run, as ``run_cells`` returns them.

    Those are the ones that were not ``chosen``, and of these the ones of unchanged settings.
    """
    cells = {cell["name"]: compact(plain(cell)) for cell in plan}  # settings have six digits, too
    return {
        record["name"]: {
            **record,
            "facts": {**earlier.environments[record["environment"]], "written": earlier.written},
        }
        for record in earlier.cells
        if record["name"] in cells
        and (record["name"] not in chosen or not changed_settings(record, cells[record["name"]]))
    }


def _compact_record(
    study: str,
    paper: str,
    scale: str,
    options: dict[str, Any],
    made: Sequence[Record],
    planned: int,
) -> StudyRecord:
    """The compact record; ``made`` has the cells that failed, too."""
    environments: list[dict[str, Any]] = []
    cells, failed, written = [], {}, ""
    for record in made:
        if "error" in record:
            failed[record["name"]] = _without_paths(record["error"].splitlines()[0])
            continue
        environment = {key: value for key, value in record["facts"].items() if key != "written"}
        if environment not in environments:
            environments.append(environment)
        written = max(written, record["facts"]["written"])
        short = {key: compact(record[key]) for key in ("name", "cell", "result", "seconds")}
        cells.append({**short, "environment": environments.index(environment)})
    return StudyRecord(study, paper, scale, options, planned, written, environments, failed, cells)


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


def _without_paths(text: str) -> str:
    """``text`` with paths cut to their last part, for records that other people will read.

    >>> _without_paths("FileNotFoundError: no file /home/ann/data/abalone.csv there")
    'FileNotFoundError: no file abalone.csv there'
    """
    return re.sub(r"(?:[A-Za-z]:)?(?:[/\\][\w.\-]+)+[/\\]([\w.\-]+)", r"\1", text)


def _write(path: Path, record: StudyRecord) -> None:
    """One line for each cell: small, and a change of one cell is a change of one line."""
    head = {"format": _FORMAT, **asdict(record)}
    lines = [
        json.dumps(cell, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        for cell in head.pop("cells")
    ]
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    write_text(path, f'{text},\n "cells": [\n' + ",\n".join(lines) + "\n ]\n}\n")


# ---- options ------------------------------------------------------------------------------------


def option_values(texts: Sequence[str]) -> dict[str, Any]:
    """``key=value`` words as a dict; numbers, true and false as such, the rest as text.

    >>> option_values(["seeds=3", "model=resnet18"])
    {'seeds': 3, 'model': 'resnet18'}
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key or not value:
            raise ValueError(f"an option is written key=value, got {text!r}")
        try:
            given = json.loads(value)
        except ValueError:
            given = value
        plain_value = given if isinstance(given, bool | int | float) else value
        values[key.replace("-", "_")] = plain_value
    return values


def check_options(given: Mapping[str, Any], studies: Sequence[Study]) -> None:
    """Raise for an option that none of ``studies`` knows."""
    known = sorted({name for study in studies for name in study.options})
    for name in given:
        if name not in known:
            names = ", ".join(sorted({study.name for study in studies}))
            hint = nearest(name, known) if known else "it takes none"
            raise ValueError(f"there is no option {name!r} of {names}; {hint}")
