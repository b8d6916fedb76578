"""Import paths of code from elsewhere: ``torchvision.models:resnet18``, ``my_file.py:Spread``."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from dissensus.tools.specs import close_names, nearest

__all__ = ["path_of", "resolve"]

#: How the names of modules begin that are files named by their paths.
_PREFIX = "_dissensus_"


def resolve(path: str) -> Callable[..., Any]:
    """Import and return the callable that ``path`` names: ``module:name`` or ``file.py:name``.

    Nothing is imported before it is asked for, so a broken or missing torchvision matters only to
    those who name it. The file or module runs with the rights of the caller: name only code that
    you trust. Every failure is a ValueError that says what to do.

    >>> resolve("torch.nn:Linear")
    <class 'torch.nn.modules.linear.Linear'>
    """
    place, colon, name = path.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"an import path is module:name or file.py:name, got {path!r}")
    module = _from_file(place) if place.endswith(".py") else _from_name(place)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            public = [known for known in dir(value) if not known.startswith("_")]
            raise ValueError(f"{place} has no {part!r}{_suggest(part, public)}")
        value = getattr(value, part)
    if not callable(value):
        raise ValueError(f"{path} must be a function or a class, got {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def path_of(value: Any) -> str:
    """The path that :func:`resolve` turns back into ``value``, a class or a function.

    For one made inside a function, or typed into a session, it is a description alone.

    >>> path_of(Path)
    'pathlib:Path'
    """
    named = value if hasattr(value, "__qualname__") else type(value)
    module = sys.modules.get(named.__module__)
    place = named.__module__
    if place == "__main__" or place.startswith(_PREFIX):
        place = str(Path(getattr(module, "__file__", None) or place).absolute())
        place = place if place.endswith(".py") else named.__module__
    return f"{place}:{named.__qualname__}"


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(_not_installed(name, error.name or name)) from error
    except Exception as error:  # an import may fail with anything, such as a missing operator
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"importing {name} failed: {reason}; does it fit your torch?") from error


def _not_installed(name: str, missing: str) -> str:
    top, lacks = name.split(".")[0], missing.split(".")[0]
    if lacks == top != missing:
        return f"{name} cannot be imported: {top} has no module {missing}; check the spelling"
    file = f", or write {top}.py:name for a file of yours" if missing == top else ""
    return f"{name} cannot be imported: there is no {missing}; `pip install {lacks}`{file}"


def _from_file(place: str) -> ModuleType:
    file = Path(place).expanduser().resolve()
    if not file.is_file():
        near = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise ValueError(f"there is no file {file}{_suggest(file.name, near)}")
    return _run_file(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=32)
def _run_file(file: Path, modified: int) -> ModuleType:
    """Run the file once for each version of it, with its own folder importable meanwhile."""
    name = f"{_PREFIX}{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} cannot be read as Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickled classes look their module up here
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name:
            hint = f"; `pip install {error.name.split('.')[0]}`"
        raise ValueError(f"running {file} failed: {type(error).__name__}: {error}{hint}") from error
    finally:
        sys.path.remove(str(file.parent))
    return module


def _suggest(name: str, known: list[str]) -> str:
    return f"; {nearest(name, known, 3)}" if close_names(name, known) else ""
