"""Consoles: what they print is inert, whatever is in the files that it comes from.

Names of files, classes, columns and objectives may hold control characters, with which a terminal
can be made to change its title, its colours or the lines above. They are shown escaped, and no
text is taken for markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

__all__ = ["InertConsole", "printable"]

#: Control characters but tab and newline, marks that turn the direction of text or end a line, and
#: halves of characters, which cannot be encoded.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def printable(text: str) -> str:
    r"""``text`` with its control characters escaped; tabs and newlines stay.

    >>> print(printable("a\x1b[31mb\u202e"))
    a\x1b[31mb\u202e
    """
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class InertConsole(Console):
    """A console of rich that takes no markup and shows control characters escaped.

    Control codes that rich makes itself, such as colours and the moves of a progress bar, work.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of ``renderable``, their text escaped."""
        for segment in super().render(renderable, options):
            if segment.control or not _CONTROL.search(segment.text):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def render_str(self, text: str, **settings: Any) -> Text:
        """``text`` escaped, so that cells are as wide as what they show."""
        return super().render_str(printable(text), **settings)

    def say(self, text: str) -> None:
        """Print one line as it is, without wrapping, so that it can be copied."""
        self.print(Text(printable(text.replace("\n", "\\n"))), soft_wrap=True)
