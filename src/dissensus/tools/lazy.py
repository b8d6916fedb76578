"""Lazy attributes of packages: names that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazy_attributes"]


def lazy_attributes(package: str, places: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of ``package``, for names that would be slow to import with it.

    ``places`` says where each name is: ``"module:name"``, or ``"module"`` for a module itself, both
    below the package. Once imported, a name is an ordinary attribute.

    >>> import dissensus
    >>> lazy_attributes("dissensus", {"parse": "tools.specs:parse_spec"})("parse").__name__
    'parse_spec'
    """

    def import_name(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        value: object = import_module(f"{package}.{module}")
        if attribute:
            value = getattr(value, attribute)
        setattr(sys.modules[package], name, value)
        return value

    return import_name
