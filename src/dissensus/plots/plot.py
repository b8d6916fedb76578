"""Figures before they are drawn: what stands where, in which style, and what is seen.

A :class:`Plot` knows nothing of its medium. :mod:`~dissensus.plots.render_plotly` makes the page's
interactive figures of it, :mod:`~dissensus.plots.render_matplotlib` those for papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dissensus.report.found import Floats, Number, Source

__all__ = ["Cell", "Matrix", "Panel", "Plot", "Series", "View", "listed", "percent", "short"]

#: A cell of a table: text, or a number that can be traced, with the form it is written in.
Cell = str | tuple[Number, str]


@dataclass(frozen=True)
class Series:
    """One line of a panel: ``kind`` is line, steps, bars, or points (which may have intervals).

    ``style`` is the number of the method, or the name of a neutral ink: ink, muted, accent. ``low``
    and ``high`` are the edges of a band, or of the intervals of points.
    """

    name: str
    x: Sequence[float | str]
    y: Sequence[float]
    style: int | str
    kind: str = "line"
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False
    told: Sequence[str] | None = None
    legend: bool = True
    markers: bool = True


@dataclass(frozen=True)
class Panel:
    """One pair of axes; ``rules`` are thin lines at a value, ``("x" or "y", value, text)``.

    ``method`` is the number of the method that the whole panel belongs to.
    """

    x: str
    y: str
    series: Sequence[Series]
    title: str = ""
    shares: bool = False
    x_shares: bool = False
    zero: bool = False
    square: bool = False
    y_range: tuple[float, float] | None = None
    rules: Sequence[tuple[str, float, str]] = ()
    method: int | None = None


@dataclass(frozen=True, eq=False)
class Matrix:
    """Members by members: row i, column j, between ``low`` and ``high``; NaN is left empty."""

    title: str
    values: Floats
    low: float
    high: float
    diverging: bool = False
    x: str = "member"
    y: str = ""
    method: int | None = None


@dataclass(frozen=True)
class View:
    """Panels side by side; ``choice`` says for which of the plot's choices they are.

    ``alt`` says what is seen here, where it is not the same for all views.
    """

    panels: Sequence[Panel | Matrix]
    choice: tuple[str, ...] = ()
    alt: str = ""


@dataclass(frozen=True)
class Plot:
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


def percent(value: float) -> str:
    """A share as it is read.

    >>> percent(0.9637)
    '96.4%'
    """
    return f"{value:.1%}"


def short(value: float) -> str:
    """A number with three digits that count.

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
