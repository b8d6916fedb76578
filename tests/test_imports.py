"""The direction of dependencies: nothing imports upwards.

A room is the first path component below ``dissensus``: ``losses`` for ``losses.py``,
``objectives`` for everything in ``objectives/``. The table below says what each room may import.
The sources are parsed, not run, so imports inside functions count as well.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "dissensus"

EVERYTHING = None  # may import any room
BASE = {"outputs", "losses", "diversity", "decomposition"}

ALLOWED: dict[str, set[str] | None] = {
    "_version": set(),
    "files": set(),
    "specs": set(),
    "drawing": {"files"},
    "outputs": {"files"},
    "losses": {"outputs"},
    "diversity": {"outputs", "losses"},
    "decomposition": {"outputs", "losses", "diversity"},
    "objectives": BASE,
    "scores": BASE,
    "calibration": BASE,
    "diagnostics": BASE,
    "detection": BASE | {"scores", "files"},  # a Detector finds its score by name and saves itself
    "ensemble": {"outputs", "losses"},
    "models": set(),
    "data": {"files"},
    "features": {"data", "models", "files"},
    "records": {"files"},
    "cells": {"records", "files"},
    "training": BASE
    | {"objectives", "ensemble", "records", "data", "scores", "calibration", "files"},
    "runs": {"ensemble", "training", "objectives", "models", "data", "records", "files", "outputs"}
    | {"robustness"},
    "sweeps": BASE
    | {"training", "ensemble", "objectives", "data", "models", "runs"}
    | {"records", "cells", "files", "diagnostics"},
    "robustness": BASE | {"ensemble", "scores", "detection", "specs", "records", "files"},
    "shift": {"detection", "scores", "calibration", "ensemble", "training", "runs", "data"}
    | {"outputs"},
    "export": {"detection", "ensemble", "models", "outputs", "losses", "robustness", "runs"}
    | {"scores", "records", "files"},
    "report": {
        "diagnostics",
        "scores",
        "detection",
        "records",
        "calibration",
        "decomposition",
        "outputs",
        "losses",
        "objectives",
        "runs",
        "drawing",
        "files",
    },
    "cli": EVERYTHING,
    "experiments": BASE
    | {"training", "diagnostics", "sweeps", "data", "models", "ensemble", "objectives"}
    | {"scores", "detection", "calibration", "shift", "robustness"}
    | {"records", "cells", "files", "drawing"},
    "sklearn": EVERYTHING,
    "demo": EVERYTHING,
    "__init__": EVERYTHING,  # exports the public names, lazily
    "__main__": {"cli"},
}

FREE = {"_version"}  # any room may read it


def module_name(path: Path) -> str:
    """Return the dotted name of a source file: ``dissensus.objectives.adp``."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """Return the room of a dotted name; the package itself is the room ``__init__``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and dotted name of every ``dissensus`` module that ``source`` imports."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        for name in _names_imported_by(node, package):
            if name.split(".")[0] == "dissensus":
                yield node.lineno, name


def _names_imported_by(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            origin = _absolute("." * node.level + (node.module or ""), package)
            if origin == "dissensus":  # `from dissensus import scores` names a room
                return [_room_or_export(alias.name) for alias in node.names]
            return [origin]
        case ast.Call() if _called_name(node) in {"import_module", "__import__"} and node.args:
            return [_absolute(_leading_text(node.args[0]), package)]
        case _:
            return []


def _absolute(name: str, package: str) -> str:
    """Resolve a relative name, as the import system does, against the importing package."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    parents = package.split(".")
    kept = parents[: len(parents) - level + 1]
    return ".".join([*kept, name.lstrip(".")]).rstrip(".")


def _room_or_export(name: str) -> str:
    """A room imported from the package is that room; any other name comes through ``__init__``."""
    return f"dissensus.{name}" if name in ALLOWED else "dissensus"


def _called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _leading_text(argument: ast.expr) -> str:
    """Return the text of a string; of an f-string what comes before its first hole."""
    match argument:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str() as text), *_]):
            return text.rpartition(".")[0]
        case _:
            return ""


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return one sentence for each import that the table does not allow."""
    room = room_of(module)
    if room not in ALLOWED:
        return [f"room {room!r} is not in ALLOWED: add it there with the rooms it may import"]
    allowed = ALLOWED[room]
    if allowed is EVERYTHING:
        return []
    return [
        f"{module}, line {line}: {room} may not import {room_of(name)}"
        for line, name in imported_modules(source, module, is_package)
        if room_of(name) not in allowed | FREE | {room}
    ]


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=[module_name(path) for path in SOURCES])
def test_no_module_imports_upwards(path: Path) -> None:
    found = offences(path.read_text(), module_name(path), path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_the_table_has_no_cycle() -> None:
    """Rooms can be laid out so that each imports only earlier ones."""
    remaining = {room: set(may) for room, may in ALLOWED.items() if may is not EVERYTHING}
    del remaining["__main__"]  # the start of the program, above the rooms that may import anything
    while remaining:
        lowest = {room for room, may in remaining.items() if not may & remaining.keys()}
        assert lowest, f"these rooms import each other: {sorted(remaining)}"
        for room in lowest:
            del remaining[room]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dissensus.losses", "import dissensus.training"),
        ("dissensus.losses", "import numpy, dissensus.training.fit as fit"),
        ("dissensus.losses", "from dissensus.training import fit"),
        ("dissensus.losses", "from dissensus import outputs, training"),
        ("dissensus.losses", "from dissensus import fit"),
        ("dissensus.losses", "import dissensus"),
        ("dissensus.losses", "from . import training"),
        ("dissensus.losses", "from .training.fit import fit"),
        ("dissensus.objectives.adp", "from ..scores import SCORES"),
        ("dissensus.objectives.adp", "from .. import scores"),
        ("dissensus.losses", "def late():\n    from dissensus.training import fit"),
        ("dissensus.losses", "import importlib\nimportlib.import_module('dissensus.training')"),
        ("dissensus.losses", "import_module('.training', 'dissensus')"),
        ("dissensus.losses", "__import__('dissensus.training')"),
        ("dissensus.losses", "import_module(f'dissensus.{name}')"),
        ("dissensus.losses", "import_module(f'dissensus.training.{name}')"),
        ("dissensus.scores", "from dissensus.detection import Detector"),
        ("dissensus.scores", "from dissensus.objectives import ADP"),
    ],
)
def test_a_planted_upward_import_is_caught(module: str, source: str) -> None:
    (offence,) = offences(source, module)
    assert f"{room_of(module)} may not import" in offence


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dissensus.losses", "from dissensus.outputs import combine"),
        ("dissensus.losses", "from . import outputs"),
        ("dissensus.losses", "from dissensus._version import __version__"),
        ("dissensus.losses", "import torch, importlib\nimportlib.import_module('json')"),
        ("dissensus.objectives.adp", "from .base import Terms"),
        ("dissensus.objectives.adp", "from dissensus.objectives.base import Terms"),
        ("dissensus.objectives.adp", "from ..losses import cross_entropy"),
        ("dissensus.detection", "from dissensus.scores import SCORES"),
        ("dissensus.cli.app", "from dissensus.training import fit"),
    ],
)
def test_a_downward_import_passes(module: str, source: str) -> None:
    assert offences(source, module) == []


def test_relative_imports_of_a_package_start_at_the_package() -> None:
    """In ``objectives/__init__.py`` one dot is ``dissensus.objectives``, two are ``dissensus``."""
    assert offences("from .scores import x", "dissensus.objectives", is_package=True) == []
    assert offences("from ..scores import x", "dissensus.objectives", is_package=True)


def test_a_room_missing_from_the_table_is_reported() -> None:
    (offence,) = offences("", "dissensus.attic")
    assert offence == "room 'attic' is not in ALLOWED: add it there with the rooms it may import"


def test_every_source_file_is_read() -> None:
    assert PACKAGE / "cli" / "app.py" in SOURCES
