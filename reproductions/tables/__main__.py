"""Run cells of the comparison on tables: ``python -m reproductions.tables --help``."""

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from reproductions.tables import RESULTS
from reproductions.tables.cells import LIMIT, run_cells
from reproductions.tables.contenders import CONTENDERS
from reproductions.tables.page import write_page
from reproductions.tables.sources import PARTS, TABLES


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m reproductions.tables", description=__doc__)
    add = parser.add_argument
    add("--tables", type=list_of(TABLES), default=list(TABLES), metavar="NAMES")
    add("--part", choices=PARTS, help="only the tables of this part")
    add("--contenders", type=list_of(CONTENDERS), default=list(CONTENDERS), metavar="NAMES")
    add("--splits", type=lambda text: [int(n) for n in text.split(",")], default=[0, 1, 2, 3, 4])
    add("--again", action="store_true", help="run cells that have a record, too")
    add("--limit", type=float, default=LIMIT, help="CPU seconds of a fit (default: %(default)g)")
    add("--out", type=Path, default=RESULTS / "tables", help="folder of the records")
    add("--page", action="store_true", help="run nothing, only write the page")
    return parser.parse_args(arguments)


def list_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """A reader of names with commas, each of which must be known."""

    def names(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return found

    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has no record yet, and write the page."""
    options = parse_arguments(arguments)
    tables = [n for n in options.tables if options.part in (None, TABLES[n].part)]
    if not options.page:
        run_cells(
            options.out,
            tables,
            options.contenders,
            options.splits,
            again=options.again,
            limit=options.limit,
            report=lambda line: print(line, flush=True),
        )
    if options.out == RESULTS / "tables":
        print(write_page(RESULTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
