"""Reader of paths: run folders, sweep folders, records, and folders of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dissensus.show.contents import Contents, Method, Record, Sweep
from dissensus.show.run_files import (
    ATTACK,
    OOD,
    Log,
    read_attacks,
    read_detection,
    read_method,
)
from dissensus.show.sweep_files import read_experiment_sweeps, read_sweep
from dissensus.tools.records import read_record

#: How deep below a folder runs, sweeps and records are looked for.
_DEPTH = 4


def read(paths: Sequence[str | Path]) -> Contents:
    """Read everything at ``paths``; notes say what cannot be read, and why.

    A path is a run folder, a sweep folder, a JSON record (of ``ood``, ``attack``, ``reproduce``),
    or a folder with such things in it. Runs come in the order of ``paths``; those below a folder
    come in the order of their names.
    """
    reader = _Reader()
    for path in paths:
        reader.add(Path(path))
    contents = reader.contents()
    if not (contents.methods or contents.sweeps or contents.experiments):
        reasons = f" ({'; '.join(contents.notes)})" if contents.notes else ""
        raise ValueError(
            f"there is nothing to report in {', '.join(map(str, paths)) or 'no paths'}{reasons}; "
            "give run folders of `dissensus train`, sweep folders, or records"
        )
    return contents


class _Reader:
    """Collects what it finds at each path."""

    def __init__(self) -> None:
        self.seen: set[Path] = set()
        self.methods: list[Method] = []
        self.sweeps: list[Sweep] = []
        self.experiments: list[Record] = []
        self.loose: list[Record] = []  # records of ood and attack outside of their runs
        self.log = Log()

    def add(self, path: Path) -> None:
        """Read what is at ``path``, which must exist."""
        if not path.exists():
            raise ValueError(f"there is no file or folder {path}")
        kind = _kind(path)
        items = [(kind, path)] if kind else []
        if not items and path.is_file():
            raise ValueError(f"{path} is not a record: a report takes folders and .json files")
        items = items or list(_items_below(path, _DEPTH))
        if not items:
            raise ValueError(
                f"{path} is neither a run nor a sweep, and contains none; `dissensus runs` lists "
                "the runs there are"
            )
        for kind, place in items:
            if place.resolve() not in self.seen:
                self.seen.add(place.resolve())
                self.log.attempt(place, self._add_item, kind, place)

    def _add_item(self, kind: str, path: Path) -> None:
        if kind == "run":
            self.methods.append(read_method(path, self.log))
            return
        if kind == "sweep":
            self.sweeps.append(read_sweep(path, self.log))
            return
        if kind == "closed":
            raise ValueError("it cannot be opened")
        record = Record(path, read_record(path))
        if record.text("format") in (OOD, ATTACK):
            self.loose.append(self.log.add(record))
        elif record.text("study"):
            self.experiments.append(self.log.add(record))
            self.sweeps += read_experiment_sweeps(record)
        else:
            raise ValueError("a report does not read this record by itself; give its folder")

    def contents(self) -> Contents:
        """Everything that was read; methods of one name go by their paths."""
        names = [method.name for method in self.methods]
        self.methods = [
            replace(method, name=str(method.path)) if names.count(method.name) > 1 else method
            for method in self.methods
        ]
        for record in self.loose:
            self.log.attempt(record.file, self._attach, record)
        return Contents(
            tuple(self.methods),
            tuple(self.sweeps),
            tuple(self.experiments),
            tuple(self.log.records.values()),
            tuple(self.log.notes),
        )

    def _attach(self, record: Record) -> None:
        """Give each run its part of a record of ood or attack that is not in its folder."""
        owners = {Path(record.text("run")).name: record.text("run")}
        if record.text("format") == OOD:
            owners = dict(zip(record.at("id"), record.at("runs"), strict=True))
        for name, folder in owners.items():
            index = self._index_of(str(folder), name)
            if index is None:
                self.log.notes.append(
                    f"{record.file} has results of {name or 'a run'}, whose folder is not among "
                    "the paths"
                )
                continue
            method = self.methods[index]
            if record.text("format") == OOD:
                method = replace(method, detection=read_detection(record, name))
            else:
                classes = method.held_out.classes if method.held_out else ()
                attacks, images = read_attacks(record, classes)
                method = replace(method, attacks=attacks, attack_images=images)
            self.methods[index] = method

    def _index_of(self, path: str, name: str) -> int | None:
        """The method in the folder ``path``, or else the one called ``name``."""
        whole = Path(path).resolve()
        folders = [method.path.resolve() for method in self.methods]
        if whole in folders:
            return folders.index(whole)
        names = [method.name for method in self.methods]
        return names.index(name) if name in names else None


def _kind(path: Path) -> str:
    """``"run"``, ``"sweep"``, ``"record"``, or nothing for other files and folders.

    A folder without permission to open it is ``"closed"``.
    """
    if not path.is_dir():
        return "record" if path.suffix == ".json" and path.is_file() else ""
    if not os.access(path, os.R_OK | os.X_OK):
        return "closed"
    if (path / "config.toml").is_file():
        return "run"
    return "sweep" if (path / "sweep.toml").is_file() else ""


def _items_below(folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    """Runs, sweeps and records in ``folder``, by name; nothing inside of a run or a sweep."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        kind = _kind(path)
        if kind and (kind != "record" or _is_ours(path)):
            yield kind, path
        elif path.is_dir() and depth > 1:
            yield from _items_below(path, depth - 1)


def _is_ours(path: Path) -> bool:
    """Whether a JSON file that was not named itself is a record; others are passed over."""
    try:
        values = read_record(path)
    except ValueError:
        return False
    return values.get("format") in (OOD, ATTACK) or {"study", "paper", "cells"} <= values.keys()
