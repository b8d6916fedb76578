"""Tabular results: a short repr, an HTML table in notebooks, a DataFrame and a plot.

>>> class Prices(Tabular):
...     def to_rows(self):
...         return [{"fruit": "apple", "price": 1.25}, {"fruit": "<pear>", "price": 2 / 3}]
...     def headline(self):
...         return "2 fruits"
>>> Prices()
<Prices: 2 fruits>
>>> Prices()._repr_html_().partition("<tbody>")[2].partition("</tbody>")[0]
'<tr><td>apple</td><td>1.25</td></tr><tr><td>&lt;pear&gt;</td><td>0.6667</td></tr>'
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

__all__ = ["Tabular", "html_table"]

#: The most rows and columns that a notebook shows; a DataFrame has all of them.
_ROWS, _COLUMNS = 30, 16


class Tabular(ABC):
    """A result whose content is a table or a curve; dataclasses need ``repr=False``."""

    @abstractmethod
    def to_rows(self) -> list[dict[str, Any]]:
        """Its main table: for each row, values by the name of their column."""

    @abstractmethod
    def headline(self) -> str:
        """What came out, in one short line."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_html_(self) -> str:
        return html_table(self.to_rows(), self.headline())

    def to_frame(self) -> Any:
        """:meth:`to_rows` as a ``pandas.DataFrame``."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install 'dissensus[tables]'") from error
        return DataFrame(self.to_rows())

    def plot(self) -> Figure:
        """A matplotlib figure of it; ``figure.savefig("name.png")`` writes it to a file."""
        # The imports of a higher layer; docs/architecture.md says why.
        from dissensus.show.results import plot_result

        return plot_result(self)

    def draw(self, path: str | Path | None = None) -> list[Path]:
        """Draw all figures of it into a folder, by default its own; needs matplotlib."""
        from dissensus.show.results import draw_files

        return draw_files(self, path)


def html_table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> str:
    """``rows`` as an HTML table below ``caption``, everything escaped and long tables cut short."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    first = columns[:_COLUMNS]
    lines = (_html_cells("td", [_text(row.get(name)) for name in first]) for row in rows[:_ROWS])
    left = {"rows": len(rows) - _ROWS, "columns": len(columns) - _COLUMNS}
    more = " and ".join(f"{count} more {what}" for what, count in left.items() if count > 0)
    return (
        f"<div><p>{escape(caption)}</p><table><thead>{_html_cells('th', first)}</thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
        f"{f'<p>{more} in to_frame()</p>' if more else ''}</div>"
    )


def _html_cells(tag: str, texts: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in texts)}</tr>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if type(value) is float else str(value)
