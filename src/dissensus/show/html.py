"""HTML that is safe by default, and the parts that every section is made of.

Whatever is not :class:`Html` already is escaped.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dissensus.show.contents import Number, Reference
from dissensus.show.figure import Cell, Figure, format_number


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: Any) -> Html:
    """One element; a trailing ``_`` of an attribute is dropped, other ``_`` become ``-``.

    >>> element("a", "x < y", href="r.json", title='"q"', class_="num", hidden=False)
    '<a href="r.json" title="&quot;q&quot;" class="num">x &lt; y</a>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        plain = key.rstrip("_").replace("_", "-")
        words.append(plain if value is True else f'{plain}="{html.escape(str(value))}"')
    opened = f"<{' '.join(words)}>"
    if name in ("img", "input", "meta", "br"):
        return Html(opened)
    return Html(f"{opened}{join_html(*children)}</{name}>")


def join_html(*children: str | None) -> Html:
    """Children one after the other, text among them escaped.

    >>> join_html("a & b", Html("<br>"), None)
    'a &amp; b<br>'
    """
    return Html(
        "".join(
            child if isinstance(child, Html) else html.escape(child)
            for child in children
            if child is not None
        )
    )


def script_json(values: Any) -> Html:
    """JSON that may stand inside a ``<script>``: nothing in it can end the element.

    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    escapes = {"<": "\\u003c", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    for character, escape in escapes.items():
        text = text.replace(character, escape)
    return Html(text)


# ---- parts of sections --------------------------------------------------------------------------


@dataclass(frozen=True)
class Elements:
    """Makes elements for a page in the folder ``out``: links to files are relative to it."""

    out: Path

    def figure(self, figure: Figure) -> Html:
        """A figure with its controls, its text alternative, its numbers and sources."""
        name = figure.name
        canvas = {"class_": "canvas", "role": "img", "aria_labelledby": f"alt-{name}"}
        return element(
            "figure",
            element("h3", figure.title),
            element("p", figure.lead),
            element("div", *_selects(figure), save_buttons(name), class_="controls"),
            element("div", id=f"plot-{name}", **canvas),
            element("figcaption", figure.alt, id=f"alt-{name}"),
            self.details(self.table(figure.header, figure.rows, figure.title), figure.sources),
            id=f"figure-{name}",
        )

    def details(self, table: Html, sources: Sequence[Reference]) -> Html:
        """The numbers and sources of a figure, to be unfolded."""
        summary = element("summary", "Numbers and sources")
        return element("details", summary, table, self.sources(sources))

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Cell]], title: str) -> Html:
        """Rows in a box that scrolls by itself; numbers link to their records."""
        head = element("tr", *(element("th", text, scope="col") for text in header))
        body = [element("tr", *(self._table_cell(cell) for cell in row)) for row in rows]
        table = element("table", element("thead", head), element("tbody", *body))
        return scroll_box(table, f"Table: {title}", tall=len(rows) > 12)

    def _table_cell(self, cell: Cell) -> Html:
        """Text as it is; a number as a link to its record, with its mark."""
        if isinstance(cell, str):
            return element("td", cell)
        number, form = cell
        link = self.source_link(format_number(number, form), number.source, f"{number.value:.10g}")
        return element("td", link, best_mark(number), class_="best" if number.best else None)

    def source_link(self, text: str, source: Reference, value: str) -> Html:
        """``text`` as a link whose title names file, key and whole value."""
        title = f"{source.file} → {source.key} = {value}"
        return element("a", text, class_="num", href=self.link(source.file), title=title)

    def link(self, file: Path) -> str:
        """The address of ``file`` as seen from the page."""
        return quote(Path(os.path.relpath(file.resolve(), self.out.resolve())).as_posix())

    def sources(self, sources: Sequence[Reference]) -> Html:
        """A list of files and keys, each once."""
        items = [
            element("li", element("a", str(s.file), href=self.link(s.file)), f" → {s.key}")
            for s in dict.fromkeys(sources)
        ]
        return element("ul", *items, class_="sources")


def best_mark(number: Number) -> Html | None:
    """The mark of a number: words for screen readers, and a visible doubt."""
    if not number.best:
        return None
    doubt = element("span", f" {number.doubt}", class_="doubt") if number.doubt else None
    return join_html(element("span", " (best)", class_="hidden"), doubt)


def save_buttons(name: str) -> Html:
    """The buttons that download the figure called ``name``."""
    buttons = (
        f'<button type="button" data-save="{kind.lower()}" data-plot="{name}" '
        f'aria-label="Save this figure as {kind}">Save {kind}</button>'
        for kind in ("SVG", "PNG")
    )
    return element("span", Html("".join(buttons)), class_="save")


def _selects(figure: Figure) -> list[Html]:
    """One list for each choice of a figure; hidden where there is nothing to choose."""
    lists = []
    for index, name in enumerate(figure.choices):
        values = list(dict.fromkeys(view.choice[index] for view in figure.views))
        options = [element("option", value, value=value) for value in values]
        select = element("select", *options, data_plot=figure.name)
        lists.append(element("label", name, select, hidden=len(values) < 2))
    return lists


def scroll_box(table: Html, label: str, *, tall: bool = False) -> Html:
    """A table in a box that scrolls by itself, also with the keyboard."""
    kind = "scroll tall" if tall else "scroll"
    return element("div", table, class_=kind, tabindex=0, role="region", aria_label=label)


def missing(what: str, needs: str) -> Html:
    """A sentence in the place of missing content; ``needs`` has commands in backticks.

    >>> missing("No ROC curves", "`dissensus ood RUN`")
    '<p class="missing">No ROC curves yet. This needs <code>dissensus ood RUN</code>.</p>'
    """
    pieces = re.split(r"`([^`]*)`", needs)
    words = [element("code", text) if index % 2 else text for index, text in enumerate(pieces)]
    return element("p", f"{what} yet. This needs ", *words, ".", class_="missing")


def method_color(number: int) -> str:
    """The style that gives an element a method's colour."""
    return f"--own: var(--m{number % 8})"
