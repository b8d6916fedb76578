"""The overview as HTML: findings in short, and the table of runs that can be sorted."""

from __future__ import annotations

from collections.abc import Sequence

from dissensus.report.elements import Elements, missing, own_color, scrolling
from dissensus.report.figures import FIGURES
from dissensus.report.found import Contents, Method
from dissensus.report.html import Html, element, joined
from dissensus.report.overview import Column, Entry, columns, findings

__all__ = ["overview_section"]

_LACKING = (
    ("auroc", "AUROC", FIGURES["roc"].needs),
    ("robust", "robust accuracy", FIGURES["accuracy-epsilon"].needs),
)


def overview_section(contents: Contents, make: Elements) -> Html:
    """All runs in one table; what no run has is said, with the command that would fill it."""
    if not contents.methods:
        return missing("No runs", "`dissensus train`")
    made = columns(contents)
    known = {column.name for column in made}
    lacking = [
        missing(f"No column of {what}", needs)
        for name, what, needs in _LACKING
        if name not in known and not (name == "robust" and _values_alone(contents))
    ]
    head = [_heading("method", "The run's folder and objective", "")]
    head += [_heading(column.heading, column.meaning, "value") for column in made]
    rows = [_row(place, method, made, make) for place, method in enumerate(contents.methods)]
    table = element(
        "table",
        element("caption", "Runs, one a row; headings sort", class_="hidden"),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        class_="overview",
        id="runs",
    )
    meanings = [
        element("li", element("b", column.heading), f": {column.meaning}") for column in made
    ]
    return joined(
        element("ul", *(element("li", text) for text in findings(contents)), class_="short"),
        scrolling(table, "Overview of the runs"),
        element(
            "p",
            "The best of each column is shaded. Every number leads to its record: click it, or "
            "press Enter on it.",
            class_="notes",
        ),
        element("details", element("summary", "What the columns mean"), element("ul", *meanings)),
        *lacking,
    )


def _values_alone(contents: Contents) -> bool:
    """Whether no run is a classifier, so that attacks do not apply."""
    return all(method.task == "regression" for method in contents.methods)


def _heading(text: str, meaning: str, kind: str) -> Html:
    button = element("button", text, type="button", title=meaning)
    return element("th", button, scope="col", aria_sort="none", class_=kind or None)


def _row(place: int, method: Method, made: Sequence[Column], make: Elements) -> Html:
    told = f"{method.objective}, {method.members} members, {method.data} ({method.split})"
    if not method.standing.startswith("finished"):
        told += f"; {method.standing}"
    name = element(
        "th",
        element("span", class_="dot", style=own_color(place)),
        method.name,
        element("span", told, class_="objective"),
        scope="row",
        data_value=method.name,
    )
    cells = [_cell(column.name, column.entries[place], make) for column in made]
    return element("tr", name, *cells, data_method=place)


def _cell(name: str, entry: Entry | None, make: Elements) -> Html:
    if entry is None:
        return element("td", "–", class_="value", data_value="")
    if name == "verdict":
        word = entry.text if entry.text in ("healthy", "suspicious", "colluding") else ""
        link = make.traced(entry.text, entry.source, entry.text)
        return element(
            "td",
            element("span", link, class_=f"verdict {word}".rstrip()),
            class_="value",
            data_value=entry.value,
        )
    link = make.traced(entry.text, entry.source, f"{entry.value:.10g}")
    marked = element("span", " (best)", class_="hidden") if entry.best else None
    interval = element("span", entry.interval, class_="interval") if entry.interval else None
    kind = "value best" if entry.best else "value"
    return element("td", link, marked, interval, class_=kind, data_value=entry.value)
