"""Figures of the page: a plot for each choice of the reader, its text, its numbers and sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dissensus.plots import Plot
from dissensus.report.found import Number, Source

__all__ = ["Cell", "Figure", "View", "listed", "percent", "short"]

#: A cell of a table: text, or a number that can be traced, with the form it is written in.
Cell = str | tuple[Number, str]


class View(NamedTuple):
    """One plot of a figure, and for which of the figure's choices it is."""

    plot: Plot
    choice: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure with its text: what it is (``lead``), what is seen (``alt``), and its numbers."""

    name: str
    title: str
    lead: str
    views: Sequence[View]
    alt: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sources: Sequence[Source]
    choices: tuple[str, ...] = ()

    def view(self, words: str | None = None) -> Plot:
        """The plot whose choices contain all of the comma-separated ``words``; else the first."""
        if words is None:
            return self.views[0].plot
        for plot, choice in self.views:
            if all(any(word.strip() in name for name in choice) for word in words.split(",")):
                return plot
        known = "; ".join(", ".join(choice) for _, choice in self.views[:12])
        raise ValueError(f"{self.name} has no view {words!r}; it has: {known}")


def percent(value: float) -> str:
    """A share as it is read.

    >>> percent(0.9637)
    '96.4%'
    """
    return f"{value:.1%}"


def short(value: float) -> str:
    """A number with three significant digits.

    >>> short(0.20685), short(0.6), short(1234.5), short(0), short(2e-7)
    ('0.207', '0.600', '1234', '0', '2.00e-07')
    """
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:#.3g}"


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
