"""Figures of the page: a plot for each choice of the reader, its numbers and their sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dissensus.measures import Estimate, among_best
from dissensus.show.contents import Number, Reference
from dissensus.show.plot import AnyPanel, Plot

#: A cell of a table: text, or a number that can be traced (a dash if None), with its format.
Cell = str | tuple[Number | None, str]


# ---- numbers and names as text ------------------------------------------------------------------


def percent(value: float) -> str:
    """A share in percent.

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


def format_number(number: Number, form: str) -> str:
    """A number as tables show it: ``short``, ``percent``, or either with its interval.

    >>> format_number(Number(0.9123, Reference(None), 0.9, 0.93), "estimate")
    '0.912 [0.900, 0.930]'
    """
    if form in ("short", "percent"):
        return percent(number.value) if form == "percent" else short(number.value)
    value, end = (".3f", ".3f") if form == "estimate" else (".1%", ".0%")
    ends = "" if number.low is None else f" [{number.low:{end}}, {number.high:{end}}]"
    return f"{number.value:{value}}{ends}"


def join_names(names: Sequence[str]) -> str:
    """Names as in a sentence.

    >>> join_names(["a", "b", "c"]), join_names(["a"])
    ('a, b and c', 'a')
    """
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


# ---- views ---------------------------------------------------------------------------------------


class PlotView(NamedTuple):
    """One plot of a figure, the choices that lead to it, and one value of each method in it."""

    plot: Plot
    choice: Sequence[str]
    values: Mapping[str, str]


class Figure(NamedTuple):
    """Plots, the records that they come from, and the rows of a table that needs computing."""

    views: Sequence[PlotView]
    sources: Sequence[Reference]
    rows: Sequence[Sequence[Cell]] = ()

    def view(self, words: str | None = None) -> Plot:
        """The plot whose choices contain all of the comma-separated ``words``; else the first."""
        wanted = [word.strip() for word in (words or "").split(",")]
        for plot, choice, _ in self.views:
            if not words or all(any(word in name for name in choice) for word in wanted):
                return plot
        known = "; ".join(", ".join(view.choice) for view in self.views[:12])
        raise ValueError(f"the figure has no view {words!r}; it has: {known}")


def plot_view(
    panels: Sequence[AnyPanel],
    what: str,
    values: Mapping[str, float],
    choice: Sequence[str] = (),
    form: Callable[[float], str] = short,
) -> PlotView:
    """A view whose text alternative says for whom ``what``, one of ``values``, is highest."""
    texts = {name: form(value) for name, value in values.items()}
    alt = " ".join(f"{what} is {texts[name]} for {name}." for name in values)
    if len(values) > 1:
        high, low = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
        ends = f"highest for {high} ({texts[high]}) and lowest for {low} ({texts[low]})"
        alt = f"{what} is {ends}."
    return PlotView(Plot(panels, alt), choice, texts)


# ---- the best of a column -----------------------------------------------------------------------


def mark_best(
    numbers: Sequence[Number | None],
    verdicts: Sequence[str],
    groups: Sequence[str] | None = None,
    *,
    highest: bool = True,
) -> list[Number | None]:
    """``numbers``, the best of each group marked by the rule of ``detection.among_best``.

    ``verdicts`` are those on the ensembles; the mark of a colluding one comes with a doubt.
    """
    marked, groups = list(numbers), groups or [""] * len(numbers)
    for group in dict.fromkeys(groups):
        known = {
            place: number
            for place, number in enumerate(numbers)
            if number is not None and groups[place] == group
        }
        estimates = [Estimate(n.value, _or_nan(n.low), _or_nan(n.high)) for n in known.values()]
        parts = [number.parts for number in known.values()]
        best = among_best(estimates, parts, highest=highest)
        for (place, number), mark in zip(known.items(), best, strict=True):
            words = [number.doubt, "colluding" if verdicts[place] == "colluding" else ""]
            doubt = ", ".join(filter(None, words))
            marked[place] = replace(number, best=True, doubt=doubt) if mark else number
    return marked


def _or_nan(end: float | None) -> float:
    return math.nan if end is None else end
