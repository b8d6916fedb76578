"""Markdown of a model card: text from files that stays text, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dissensus.tools.console import printable

#: What Markdown or HTML would take for markup; an underscore inside of a word is none.
_MARKUP = re.compile(r"[\\`*\[\]~!$|]|(?<!\w)_|_(?!\w)|^(?=[#+-])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def prose(text: object) -> str:
    r"""``text`` on one line, to be read as it is.

    >>> print(prose("a_b <img src=x> [b](http://c)\n# d"))
    a_b &lt;img src=x&gt; \[b\](http://c) # d
    """
    line = _MARKUP.sub(r"\\\g<0>", _line(text))
    return re.sub("[&<>]", lambda match: _HTML[match[0]], line)


def code(text: object) -> str:
    """``text`` on one line, as code.

    >>> print(code("mlp"), code("a`b"))
    `mlp` `` a`b ``
    """
    line = _line(text)
    runs = [len(run) for run in re.findall("`+", line)]
    fence = "`" * (max(runs, default=0) + 1)
    return f"{fence} {line} {fence}" if runs else f"{fence}{line}{fence}"


def table_row(cells: Iterable[str]) -> str:
    """A row of a table; its cells are Markdown already."""
    lines = (re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in cells)
    return f"| {' | '.join(lines)} |"


def _line(text: object) -> str:
    return printable(" ".join(str(text).split()))
