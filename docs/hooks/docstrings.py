"""Docstrings as Markdown: doctests become code blocks, Sphinx's roles become links."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

__all__ = ["Docstrings", "as_markdown"]

ROLE = re.compile(r":(?P<role>func|class|meth|mod|data|attr|exc):`~?(?P<name>[^`]+)`")
PROMPT = re.compile(r"^ *>>> ")


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one docstring in place."""
        if obj.docstring is None and obj.is_attribute and (said := _comment_above(obj)):
            obj.docstring = griffe.Docstring(said, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value, _place(obj), _class(obj))


def as_markdown(text: str, module: str = "", owner: str = "") -> str:
    """``text`` in Markdown; bare names are looked up in ``module``, methods in ``owner``."""

    def link(found: re.Match[str]) -> str:
        name, role = found["name"].lstrip("."), found["role"]
        place = owner if role == "meth" and "." not in name else module
        known = "." in name or not place
        shown = name.rpartition(".")[2] if "~" in found[0] else name
        target = name if known else f"{place}.{name}"
        return f'<autoref optional identifier="{target}"><code>{shown}</code></autoref>'

    return ROLE.sub(link, "\n".join(_fenced(text.splitlines())))


def _fenced(lines: list[str]) -> list[str]:
    """``lines`` with a fence around each doctest, which lasts until an empty line."""
    found: list[str] = []
    inside = False
    for line in lines:
        if not inside and PROMPT.match(line):
            found += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            found.append("```")
            inside = False
        found.append(line)
    return [*found, "```"] if inside else found


def _comment_above(obj: griffe.Object) -> str:
    """The lines that begin ``#:`` above a registry or a constant."""
    if obj.lineno is None or not isinstance(obj.filepath, Path):
        return ""
    said: list[str] = []
    for line in reversed(_lines(obj.filepath)[: obj.lineno - 1]):
        if not line.strip().startswith("#:"):
            break
        said.insert(0, line.strip().removeprefix("#:").strip())
    return "\n".join(said)


@cache
def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _place(obj: griffe.Object) -> str:
    return obj.path if obj.is_module else obj.module.path


def _class(obj: griffe.Object) -> str:
    if obj.is_class:
        return obj.path
    return obj.parent.path if obj.parent is not None and obj.parent.is_class else ""
