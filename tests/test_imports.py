"""The direction of dependencies: nothing imports upwards, and nothing imports the laboratory.

A room is the first path component below ``dissensus``: ``losses`` for ``losses.py``,
``objectives`` for everything in ``objectives/``. Rooms lie in four layers (``docs/architecture.md``
draws them). A room may import ``tools``, any lower layer, and in its own layer what ``ARROWS``
lists.
The sources are parsed, not run, so imports inside functions count as well.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "dissensus"

TENSOR = ("outputs", "losses", "diversity", "decomposition")
PURE = ("objectives", "scores", "calibration", "measures", "diagnostics")

LAYERS: tuple[tuple[str, ...], ...] = (
    ("_version", "tools", *TENSOR, *PURE),
    ("models", "ensemble", "data", "training", "detection", "robustness"),
    ("runs", "export", "sweeps", "show"),
    ("cli", "sklearn", "demo"),
)

ARROWS: dict[str, tuple[str, ...]] = {
    # the tensor
    "losses": ("outputs",),
    "diversity": ("outputs", "losses"),
    "decomposition": ("outputs", "losses", "diversity"),
    "objectives": TENSOR,
    "scores": TENSOR,
    "calibration": TENSOR,
    "diagnostics": TENSOR,
    # members, inputs, adversaries
    "data": ("models",),
    "ensemble": ("models",),
    "training": ("ensemble", "data"),
    "detection": ("ensemble", "training"),  # a Detector trains a copy of the members
    "robustness": ("ensemble",),
    # verbs and pictures
    "export": ("runs",),
    "sweeps": ("runs", "show"),
    "show": ("runs",),
    # faces
    "cli": ("demo",),
}

#: The exception: ``result.plot()``, the same method of every result, finds the plots, which lie
#: above most results.
EXCEPTIONS = {"dissensus.tools.tabular": {"show"}}
#: They stand above the rooms: the public names, loaded lazily, and the start of the program.
ABOVE = {"__init__", "__main__"}


def layer_of(room: str) -> int:
    """Return the layer of a room, counted from 0."""
    return next(level for level, rooms in enumerate(LAYERS) if room in rooms)


ROOMS = {room for rooms in LAYERS for room in rooms}


def allowed(room: str) -> set[str]:
    """Return the rooms that ``room`` may import."""
    lower = {other for rooms in LAYERS[: layer_of(room)] for other in rooms}
    return lower | set(ARROWS.get(room, ())) | {room, "_version", "tools"}


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
    return f"dissensus.{name}" if name in ROOMS else "dissensus"


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
    """Return one sentence for each import that the layers do not allow."""
    room = room_of(module)
    if room in ABOVE:
        return []
    if room not in ROOMS:
        return [f"room {room!r} is in no layer: add it to LAYERS, with its arrows"]
    may = allowed(room) | EXCEPTIONS.get(module, set())
    return [
        f"{module}, line {line}: {room} may not import {room_of(name)}"
        for line, name in imported_modules(source, module, is_package)
        if room_of(name) not in may
    ]


def test_no_module_imports_upwards() -> None:
    sources = sorted(PACKAGE.rglob("*.py"))
    assert PACKAGE / "cli" / "app.py" in sources
    wrong = [
        offence
        for path in sources
        for offence in offences(path.read_text(), module_name(path), path.name == "__init__.py")
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_the_laboratory() -> None:
    """``reproductions`` and ``benchmarks`` import the package; the package knows of neither."""
    wrong = [
        str(path)
        for path in sorted(PACKAGE.rglob("*.py"))
        if re.search(
            r"^\s*(from|import) (reproductions|benchmarks)\b", path.read_text(), re.MULTILINE
        )
    ]
    assert not wrong


def test_the_arrows_have_no_cycle() -> None:
    """Rooms can be laid out so that each imports only earlier ones."""
    remaining = {room: allowed(room) - {room, "_version", "tools"} for room in ROOMS}
    while remaining:
        lowest = {room for room, may in remaining.items() if not may & remaining.keys()}
        assert lowest, f"these rooms import each other: {sorted(remaining)}"
        for room in lowest:
            del remaining[room]


def test_planted_upward_imports_are_caught() -> None:
    planted = [
        ("dissensus.losses", "import dissensus.training"),
        ("dissensus.losses", "import numpy, dissensus.training.fit as fit"),
        ("dissensus.losses", "from dissensus import outputs, training"),
        ("dissensus.losses", "from dissensus import fit"),
        ("dissensus.losses", "from .training.fit import fit"),
        ("dissensus.objectives.adp", "from ..scores import SCORES"),
        ("dissensus.losses", "def late():\n    from dissensus.training import fit"),
        ("dissensus.losses", "import importlib\nimportlib.import_module('dissensus.training')"),
        ("dissensus.losses", "import_module(f'dissensus.training.{name}')"),
        ("dissensus.scores", "from dissensus.detection import Detector"),
        ("dissensus.detection", "from dissensus.show.results import plot_result"),
        ("dissensus.data.images", "from dissensus.training import fit"),
    ]
    for module, source in planted:
        (offence,) = offences(source, module)
        assert f"{room_of(module)} may not import" in offence, (module, source)


def test_imports_of_lower_rooms_pass() -> None:
    fine = [
        ("dissensus.losses", "from . import outputs"),
        ("dissensus.losses", "import torch, importlib\nimportlib.import_module('json')"),
        ("dissensus.objectives.adp", "from ..losses import cross_entropy"),
        ("dissensus.cli.app", "from dissensus.training import fit"),
    ]
    for module, source in fine:
        assert offences(source, module) == [], (module, source)


def test_relative_imports_of_a_package_start_at_the_package() -> None:
    """In ``objectives/__init__.py`` one dot is ``dissensus.objectives``, two are ``dissensus``."""
    assert offences("from .scores import x", "dissensus.objectives", is_package=True) == []
    assert offences("from ..scores import x", "dissensus.objectives", is_package=True)


def test_a_room_in_no_layer_is_reported() -> None:
    (offence,) = offences("", "dissensus.attic")
    assert offence == "room 'attic' is in no layer: add it to LAYERS, with its arrows"


def test_the_map_for_newcomers_shows_these_rooms_and_layers() -> None:
    """``docs/architecture.md`` has one line for each room, in its layer."""
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d) \| `(\w+)` \|", page, re.MULTILINE)
    expected = {(str(layer_of(room) + 1), room) for room in ROOMS - {"_version"}}
    assert set(rows) == expected
    assert len(rows) == len(expected)
    picture = page.partition("```")[2].partition("```")[0]
    assert {room for _, room in rows} <= set(re.findall(r"\w+", picture))
