"""Figures of the page: a plot for each choice of the reader, its text, its numbers and sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dissensus.measures import Estimate, among_best
from dissensus.show import Plot
from dissensus.show.contents import Number, Reference

#: A cell of a table: text, or a number that can be traced, with its format.
Cell = str | tuple[Number, str]


class View(NamedTuple):
    """One plot of a figure, with the choices that lead to it."""

    plot: Plot
    choice: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Figure:
    """Plots with their text: ``lead`` explains the figure, ``header`` and ``rows`` its numbers.

    ``choices`` names what the reader can choose; there is nothing to choose with one view.
    """

    name: str
    title: str
    lead: str
    views: Sequence[View]
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sources: Sequence[Reference]
    choices: tuple[str, ...] = ()

    @property
    def alt(self) -> str:
        """A sentence on what the first view shows."""
        return self.views[0].plot.alt

    def view(self, words: str | None = None) -> Plot:
        """The plot whose choices contain all of the comma-separated ``words``; else the first."""
        if words is None:
            return self.views[0].plot
        for plot, choice in self.views:
            if all(any(word.strip() in name for name in choice) for word in words.split(",")):
                return plot
        known = "; ".join(", ".join(choice) for _, choice in self.views[:12])
        raise ValueError(f"{self.name} has no view {words!r}; it has: {known}")


# ---- the best of a column -----------------------------------------------------------------------


def mark_best(
    numbers: Sequence[Number | None], verdicts: Sequence[str], *, highest: bool = True
) -> list[Number | None]:
    """``numbers``, the best marked by the rule of :func:`~dissensus.detection.among_best`.

    ``verdicts`` are those on the ensembles; the mark of a colluding one comes with a doubt.
    """
    known = [number for number in numbers if number is not None]
    estimates = [Estimate(n.value, _or_nan(n.low), _or_nan(n.high)) for n in known]
    marks = iter(among_best(estimates, [n.parts for n in known], highest=highest))
    return [
        replace(number, best=True, doubt="colluding" if verdict == "colluding" else "")
        if number is not None and next(marks)
        else number
        for number, verdict in zip(numbers, verdicts, strict=True)
    ]


def _or_nan(end: float | None) -> float:
    return math.nan if end is None else end


def cell(number: Number | None, form: str) -> Cell:
    """The cell of ``number``; a dash if there is none."""
    return "–" if number is None else (number, form)


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
    if form == "estimate":
        ends = "" if number.low is None else f" [{number.low:.3f}, {number.high:.3f}]"
        return f"{number.value:.3f}{ends}"
    if form == "percent_interval":
        ends = "" if number.low is None else f" [{number.low:.0%}, {number.high:.0%}]"
        return f"{percent(number.value)}{ends}"
    return percent(number.value) if form == "percent" else short(number.value)


def join_names(names: Sequence[str]) -> str:
    """Names as in a sentence.

    >>> join_names(["a", "b", "c"]), join_names(["a"])
    ('a, b and c', 'a')
    """
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def compare(
    sentence: str,
    values: Mapping[str, float],
    form: Callable[[float], str] = short,
    *,
    single: str = "",
) -> str:
    """``sentence`` with the names and values of the ``{high}`` and the ``{low}`` end.

    ``single`` is the sentence for a single value; without any there is none.

    >>> compare("DIV is largest for {high} and smallest for {low}.", {"adp": 2.0, "ldr": 1.0})
    'DIV is largest for adp (2.00) and smallest for ldr (1.00).'
    """
    if not values:
        return ""
    high, low = max(values, key=lambda name: values[name]), min(values, key=lambda n: values[n])
    named = {end: f"{name} ({form(values[name])})" for end, name in (("high", high), ("low", low))}
    return (single if len(values) == 1 and single else sentence).format(**named)
