"""Reader of paths: run folders, sweep folders, records of ood and attack, and folders of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dissensus.show.contents import Contents, Method, Record, SweepLine
from dissensus.show.run_files import ATTACK, OOD, Log, add_attacks, add_detection, read_method
from dissensus.show.sweep_files import read_sweep
from dissensus.tools.records import CONFIG, read_record

#: How deep below a folder runs, sweeps and records are looked for.
_DEPTH = 4


def read(paths: Sequence[str | Path]) -> Contents:
    """Read everything at ``paths``; notes say what cannot be read, and why.

    A path is a run folder, a sweep folder, a record of ``ood`` or ``attack``, or a folder with such
    things in it. Runs come in the order of ``paths``; those below a folder come in the order of
    their names.
    """
    log = Log()
    places = {at.resolve(): at for path in paths for at in _places(Path(path))}
    found = [log.attempt(at, _read_one, at, log) for at in places.values()]
    methods = [each for each in found if isinstance(each, Method)]
    sweeps = [line for each in found if isinstance(each, list) for line in each]
    for record in (each for each in found if isinstance(each, Record)):
        log.attempt(record.file, _attach, record, methods, log)
    if not (methods or sweeps):
        reasons = f" ({'; '.join(log.notes)})" if log.notes else ""
        raise ValueError(
            f"there is nothing to report in {', '.join(map(str, paths)) or 'no paths'}{reasons}; "
            "give folders of `dissensus train` or `dissensus sweep`"
        )
    names = [method.name for method in methods]
    methods = [  # runs of one name go by their paths
        replace(method, name=str(method.path)) if names.count(method.name) > 1 else method
        for method in methods
    ]
    return Contents(methods, sweeps, list(log.records.values()), log.notes)


def _read_one(path: Path, log: Log) -> Method | list[SweepLine] | Record:
    kind = _kind(path)
    if kind == "closed":
        raise ValueError("it cannot be opened")
    if kind == "record":
        record = Record(path, read_record(path))
        if record.text("format") not in (OOD, ATTACK):
            raise ValueError("a report does not read this record by itself; give its folder")
        return log.add(record)
    return read_method(path, log) if kind == "run" else read_sweep(path, log)


def _attach(record: Record, methods: list[Method], log: Log) -> None:
    """Give each run its part of a record of ood or attack that is not in its folder."""
    is_ood = record.text("format") == OOD
    owners = {Path(record.text("run")).name: record.text("run")}
    if is_ood:
        owners = dict(zip(record.at("id"), record.at("runs"), strict=True))
    for name, folder in owners.items():
        fits = [m for m in methods if m.path.resolve() == Path(folder).resolve()]
        fits = fits or [method for method in methods if method.name == name]
        if not fits:
            log.notes.append(
                f"{record.file} has results of {name or 'a run'}, whose folder is not among the "
                "paths"
            )
            continue
        add = partial(add_detection, name=name) if is_ood else add_attacks
        methods[methods.index(fits[0])] = add(fits[0], record)


# ---- what is where ------------------------------------------------------------------------------


def _places(path: Path) -> list[Path]:
    """The runs, sweeps and records at or below ``path``, which must exist."""
    if not path.exists():
        raise ValueError(f"there is no file or folder {path}")
    if not _kind(path) and path.is_file():
        raise ValueError(f"{path} is not a record: a report takes folders and .json files")
    places = [path] if _kind(path) else list(_places_below(path, _DEPTH))
    if not places:
        raise ValueError(
            f"{path} is neither a run nor a sweep, and contains none; `dissensus runs` lists the "
            "runs there are"
        )
    return places


def _kind(path: Path) -> str:
    """``"run"``, ``"sweep"``, ``"record"``, or nothing for other files and folders.

    A folder without permission to open it is ``"closed"``.
    """
    if not path.is_dir():
        return "record" if path.suffix == ".json" and path.is_file() else ""
    if not os.access(path, os.R_OK | os.X_OK):
        return "closed"
    if (path / CONFIG).is_file():
        return "run"
    return "sweep" if (path / "sweep.toml").is_file() else ""


def _places_below(folder: Path, depth: int) -> Iterator[Path]:
    """Runs, sweeps and records in ``folder``, by name; nothing inside of a run or a sweep."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        kind = _kind(path)
        if kind and (kind != "record" or _is_ours(path)):
            yield path
        elif path.is_dir() and depth > 1:
            yield from _places_below(path, depth - 1)


def _is_ours(path: Path) -> bool:
    """Whether a JSON file that was not named itself is a record; others are passed over."""
    try:
        return read_record(path).get("format") in (OOD, ATTACK)
    except ValueError:
        return False
