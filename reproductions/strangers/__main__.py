"""Run cells of the comparison on unknown inputs: ``python -m reproductions.strangers --help``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reproductions.strangers import RESULTS
from reproductions.strangers.cells import SEEDS, run_cells
from reproductions.strangers.contenders import CONTENDERS
from reproductions.strangers.page import write_page
from reproductions.strangers.settings import SETTINGS


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m reproductions.strangers", description=__doc__)
    add = parser.add_argument
    everything = [name for name in SETTINGS if name != "cifar10"]
    add("--settings", type=lambda text: text.split(","), default=everything, metavar="NAMES")
    add(
        "--contenders", type=lambda text: text.split(","), default=list(CONTENDERS), metavar="NAMES"
    )
    add("--seeds", type=lambda text: [int(n) for n in text.split(",")], default=list(SEEDS))
    add("--again", action="store_true", help="run cells that have a record, too")
    add("--out", type=Path, default=RESULTS / "strangers", help="folder of the records")
    add("--work", type=Path, help="folder in which long trainings are kept, to go on from")
    add("--page", action="store_true", help="run nothing, only write the page")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has no record yet, and write the page."""
    import torch

    options = parse_arguments(arguments)
    torch.set_num_threads(1)
    if not options.page:
        run_cells(
            options.out,
            options.settings,
            options.contenders,
            options.seeds,
            again=options.again,
            work=options.work,
            report=lambda line: print(line, flush=True),
        )
    if options.out == RESULTS / "strangers":
        print(write_page(RESULTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
