"""Experiments: a table or figure of a paper, with the claims that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dissensus.tools.specs import close_names
from reproductions.comparisons import Check, Quantity
from reproductions.study import Record, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from reproductions.figures import Plot

Labels = TypeVar("Labels", bound=tuple[str, ...])


@dataclass(frozen=True)
class Claim:
    """A claim in a few words, its place in the paper, and how records decide on it.

    ``published`` is the number or word that the paper prints. ``ours``: a question of our own, not
    a claim of the paper. ``again`` names the experiment that asks larger networks the same.
    """

    text: str
    where: str
    check: Check
    published: str = ""
    ours: bool = False
    again: str = ""


@dataclass(frozen=True)
class Table:
    """A table as printed; the first ``labels`` columns name a row, no two rows alike."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1

    def by_row(self) -> dict[str, dict[str, str]]:
        """The cells by the labels of their row and the name of their column.

        >>> Table(["data", "β", "error"], [["MNIST", "0", "0.02"]], labels=2).by_row()
        {'MNIST, 0': {'error': '0.02'}}
        """
        columns = self.header[self.labels :]
        rows = {
            ", ".join(row[: self.labels]): dict(zip(columns, row[self.labels :], strict=True))
            for row in self.rows
        }
        if len(rows) < len(self.rows) or len(set(columns)) < len(columns):
            raise ValueError(f"rows and columns need different names: {self.header}, {list(rows)}")
        return rows


def quantity_table(
    labels: Sequence[str],
    rows: Mapping[Labels, Sequence[Record]],
    quantities: Sequence[Quantity],
) -> Table:
    """A row for each of some runs: its labels, then the mean and interval of each quantity."""
    header = [*labels, *(quantity.name for quantity in quantities)]
    cells = [
        [*names, *(quantity.text(runs) for quantity in quantities)] for names, runs in rows.items()
    ]
    return Table(header, cells, len(labels))


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper: its study, its claims, and how it is tabulated and drawn.

    Checks, ``table`` and ``draw`` get the records of finished cells, in the order in which the
    study plans them, and nothing else, so that results can be built again without running anything.
    """

    full_name: str  # "collusion/explosion": the key of the registry
    shows: str
    title: str
    study: Study
    claims: tuple[Claim, ...]
    table: Callable[[list[Record]], Table] | None = None
    draw: Callable[[list[Record]], Plot | Figure] | None = None

    @property
    def paper(self) -> str:
        """``"collusion"``."""
        return self.full_name.partition("/")[0]

    @property
    def name(self) -> str:
        """``"explosion"``."""
        return self.full_name.partition("/")[2]


def select(names: Iterable[str], known: Mapping[str, Experiment]) -> list[Experiment]:
    """The experiments that ``names`` ask for, each once: full names, papers, or short names."""
    chosen: dict[str, Experiment] = {}
    for name in names:
        asked = name.strip("/").lower().replace("_", "-")
        full = [one for one in known if asked in (one, *one.split("/"))]
        if not full:
            every = [*known, *(part for one in known for part in one.split("/"))]
            close = close_names(asked, every)
            hint = f"did you mean {close[0]!r}?" if close else "see --list for all"
            raise ValueError(f"there is no experiment {name!r}; {hint}")
        chosen |= {one: known[one] for one in full}
    return list(chosen.values())
