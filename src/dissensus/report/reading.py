"""From paths to :class:`Contents`: run folders, sweep folders, records, and folders of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dissensus.records import read_record
from dissensus.report.found import Contents, Method, Record, StudyFound, Sweep
from dissensus.report.reading_records import ATTACKED, OOD, read_attacked, read_detected, tried
from dissensus.report.reading_runs import read_method
from dissensus.report.reading_sweeps import read_study_sweeps, read_sweep

__all__ = ["read"]

#: How deep below a folder things are looked for.
_DEPTH = 4


def read(paths: Sequence[str | Path]) -> Contents:
    """Everything at ``paths``; what cannot be read is left out, with a note that says why.

    A path is a run folder, a sweep folder, a JSON record (of ``ood``, ``attack``, ``reproduce``),
    or a folder with such things in it. The order of runs is that of ``paths``; runs below a folder
    come in the order of their names.
    """
    collected = _Collected()
    for path in paths:
        collected.add(Path(path))
    found = collected.contents()
    if not (found.methods or found.sweeps or found.studies):
        reasons = f" ({'; '.join(found.notes)})" if found.notes else ""
        raise ValueError(
            f"there is nothing to report in {', '.join(map(str, paths)) or 'no paths'}{reasons}; "
            "give run folders of `dissensus train`, sweep folders, or records"
        )
    return found


class _Collected:
    """Fills up while paths are looked at."""

    def __init__(self) -> None:
        self.seen: set[Path] = set()
        self.methods: list[Method] = []
        self.sweeps: list[Sweep] = []
        self.studies: list[StudyFound] = []
        self.loose: list[Record] = []
        self.records: dict[Path, Record] = {}
        self.notes: list[str] = []

    # ---- what a path is -------------------------------------------------------------------------

    def add(self, path: Path) -> None:
        """Take in what is at ``path``, which must exist."""
        if not path.exists():
            raise ValueError(f"there is no file or folder {path}")
        kind = _kind(path)
        if kind is not None:
            self._take(kind, path)
            return
        if path.is_file():
            raise ValueError(f"{path} is no record: a report is made of folders and .json files")
        inside = list(_below(path, _DEPTH))
        if not inside:
            raise ValueError(
                f"{path} is neither a run nor a sweep, and there is none in it; `dissensus runs` "
                "lists the runs there are"
            )
        for kind, place in inside:
            self._take(kind, place)

    def _take(self, kind: str, path: Path) -> None:
        whole = path.resolve()
        if whole in self.seen:
            return
        self.seen.add(whole)
        note = self.notes.append
        if kind == "run":
            method = tried(partial(read_method, path, self._keep, note), path, note)
            self.methods += [] if method is None else [method]
        elif kind == "sweep":
            sweep = tried(partial(read_sweep, path, self._keep), path, note)
            self.sweeps += [] if sweep is None else [sweep]
        else:
            tried(partial(self._take_record, path), path, note)

    def _take_record(self, path: Path) -> None:
        record = Record(path, read_record(path))
        if record.text("format") in (OOD, ATTACKED):
            self.loose.append(self._keep(record))
        elif record.text("study"):
            self._keep(record)
            done = len(record.rows("cells"))
            planned = record.number("planned")
            self.studies.append(
                StudyFound(
                    *(record, record.text("paper"), record.text("study"), record.text("scale")),
                    done,
                    done if planned is None else int(planned.value),
                )
            )
            self.sweeps += read_study_sweeps(record)
        else:
            raise ValueError("it is no record that a report reads by itself; give its folder")

    def _keep(self, record: Record) -> Record:
        self.records[record.file.resolve()] = record
        return record

    # ---- put together ---------------------------------------------------------------------------

    def contents(self) -> Contents:
        """What was found, each method under a name of its own."""
        methods = _named_apart(self.methods)
        for record in self.loose:
            attach = self._detected if record.text("format") == OOD else self._attacked
            methods = (
                tried(partial(attach, record, methods), record.file, self.notes.append) or methods
            )
        return Contents(
            tuple(methods),
            tuple(self.sweeps),
            tuple(self.studies),
            tuple(self.records.values()),
            tuple(self.notes),
        )

    def _detected(self, record: Record, methods: list[Method]) -> list[Method]:
        """``methods`` with what an ``ood.json`` of several runs says of each."""
        names = record.at("id")
        runs = record.at("runs")
        places = dict(zip(names, runs, strict=True))
        for name in names:
            chosen = _belonging(str(places[name]), str(name), methods)
            if chosen is None:
                self.notes.append(
                    f"{record.file} tells of {name}, whose run folder is not among the paths"
                )
                continue
            found = read_detected(record, str(name))
            methods = [replace(m, detected=found) if m is chosen else m for m in methods]
        return methods

    def _attacked(self, record: Record, methods: list[Method]) -> list[Method]:
        run = record.text("run")
        chosen = _belonging(run, Path(run).name, methods)
        if chosen is None:
            self.notes.append(f"{record.file} belongs to {run or 'a run'}, not among the paths")
            return methods
        found = read_attacked(record, chosen.held_out.classes if chosen.held_out else ())
        return [replace(m, attacked=found) if m is chosen else m for m in methods]


def _kind(path: Path) -> str | None:
    if path.is_dir():
        if (path / "config.toml").is_file():
            return "run"
        return "sweep" if (path / "sweep.toml").is_file() else None
    if path.suffix == ".json" and path.is_file():
        return "record"
    return None


def _below(folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    """Runs, sweeps and records in ``folder``, by name; nothing inside of a run or a sweep."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        kind = _kind(path)
        if kind == "record":
            if _is_record(path):
                yield kind, path
        elif kind is not None:
            yield kind, path
        elif path.is_dir() and depth > 1:
            yield from _below(path, depth - 1)


def _is_record(path: Path) -> bool:
    """Whether a file found on the way is one of ours: others are passed over in silence."""
    try:
        values: dict[str, Any] = read_record(path)
    except ValueError:
        return False
    return values.get("format") in (OOD, ATTACKED) or {"study", "paper", "cells"} <= values.keys()


def _named_apart(methods: list[Method]) -> list[Method]:
    """Folder names where they differ, whole paths where they do not."""
    names = [method.name for method in methods]
    return [
        replace(method, name=str(method.path)) if names.count(method.name) > 1 else method
        for method in methods
    ]


def _belonging(path: str, name: str, methods: list[Method]) -> Method | None:
    whole = Path(path).resolve()
    for method in methods:
        if method.path.resolve() == whole:
            return method
    return next((method for method in methods if method.name == name), None)
