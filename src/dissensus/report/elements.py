"""Parts that every section is made of: figures, tables, numbers with their source."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dissensus.report.figure import Cell, Figure
from dissensus.report.found import Number, Source
from dissensus.report.html import Html, element, joined
from dissensus.report.overview import written

__all__ = ["Elements", "controls", "labelled", "missing", "own_color", "saving", "scrolling"]


@dataclass(frozen=True)
class Elements:
    """Makes elements for a page in the folder ``out``: files are linked to as seen from there."""

    out: Path

    def figure(self, plot: Figure) -> Html:
        """A figure with its controls, its text alternative, its numbers and sources."""
        name = plot.name
        canvas = {"class_": "canvas", "role": "img", "aria_labelledby": f"alt-{name}"}
        return element(
            "figure",
            element("h3", plot.title),
            element("p", plot.lead),
            controls(*_selects(plot), saving(name)),
            element("div", id=f"plot-{name}", **canvas),
            element("figcaption", plot.alt, id=f"alt-{name}"),
            self.behind(self.table(plot.header, plot.rows, plot.title), plot.sources),
            id=f"figure-{name}",
        )

    def behind(self, table: Html, sources: Sequence[Source]) -> Html:
        """What a figure was made of, to be unfolded."""
        return element(
            "details", element("summary", "Numbers and sources"), table, self.sources(sources)
        )

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Cell]], title: str) -> Html:
        """Rows in a box that scrolls by itself; numbers lead to their records."""
        head = element("tr", *(element("th", text, scope="col") for text in header))
        body = [element("tr", *(element("td", self.cell(cell)) for cell in row)) for row in rows]
        table = element("table", element("thead", head), element("tbody", *body))
        return scrolling(table, f"Numbers: {title}", tall=len(rows) > 12)

    def cell(self, cell: Cell) -> str:
        """Text as it is; a number as a link to where it comes from."""
        if isinstance(cell, str):
            return cell
        number, form = cell
        return self.number(number, written(number, form))

    def number(self, number: Number, text: str) -> Html:
        """``text`` as a link whose title names file, key and whole value."""
        return self.traced(text, number.source, f"{number.value:.10g}")

    def traced(self, text: str, source: Source, value: str) -> Html:
        """``text`` as a link to its record."""
        told = f"{source.file} → {source.key} = {value}"
        return element("a", text, class_="num", href=self.link(source.file), title=told)

    def link(self, file: Path) -> str:
        """The address of ``file`` as seen from the page."""
        return quote(Path(os.path.relpath(file.resolve(), self.out.resolve())).as_posix())

    def sources(self, sources: Sequence[Source]) -> Html:
        """The files and keys that something was made of, each once."""
        items = [
            element("li", element("a", str(one.file), href=self.link(one.file)), f" → {one.key}")
            for one in dict.fromkeys(sources)
        ]
        return element("ul", *items, class_="sources")


def controls(*children: Html | None) -> Html:
    """A row of things to choose and press."""
    return element("div", *children, class_="controls")


def labelled(text: str, control: Html) -> Html:
    """A control with its name above it."""
    return element("label", text, control)


def saving(name: str) -> Html:
    """The buttons that download a figure."""
    buttons = [
        element(
            "button",
            f"Save {kind.upper()}",
            type="button",
            data_save=kind,
            data_plot=name,
            aria_label=f"Save this figure as {kind.upper()}",
        )
        for kind in ("svg", "png")
    ]
    return element("span", *buttons, class_="save")


def _selects(plot: Figure) -> list[Html]:
    """One list for each choice of a plot; nothing to choose, no list."""
    found = []
    for place, name in enumerate(plot.choices):
        values = list(dict.fromkeys(view.choice[place] for view in plot.views))
        options = [element("option", value, value=value) for value in values]
        hidden = len(values) < 2
        select = element("select", *options, data_plot=plot.name)
        found.append(element("label", name, select, hidden=hidden))
    return found


def scrolling(table: Html, label: str, *, tall: bool = False) -> Html:
    """A table in a box that scrolls by itself, also with the keyboard."""
    kind = "scroll tall" if tall else "scroll"
    return element("div", table, class_=kind, tabindex=0, role="region", aria_label=label)


def missing(what: str, needs: str) -> Html:
    """A sentence in the place of what is not there; ``needs`` has commands in backticks.

    >>> missing("No ROC curves", "`dissensus ood RUN`")
    '<p class="missing">No ROC curves yet. What fills this: <code>dissensus ood RUN</code>.</p>'
    """
    pieces = re.split(r"`([^`]*)`", needs)
    told = [element("code", text) if place % 2 else text for place, text in enumerate(pieces)]
    return element("p", f"{what} yet. What fills this: ", joined(*told), ".", class_="missing")


def own_color(number: int) -> str:
    """The style that gives an element a method's colour."""
    return f"--own: var(--m{number % 8})"
