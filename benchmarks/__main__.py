"""Run the benchmarks: ``python -m benchmarks [--only NAME] [--quick]``."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks.timing import Result, table, write_record

# Each benchmark and its module, which has `run(quick: bool) -> list[Result]`.
BENCHMARKS = {
    "objectives": "benchmarks.objectives",
    "scores": "benchmarks.scores",
    "score_file": "benchmarks.score_file",
    "training": "benchmarks.training",
    "checkpoints": "benchmarks.checkpoints",
    "fleet": "benchmarks.fleet",
    "robustness": "benchmarks.robustness",
    "heads": "benchmarks.heads",
    "streaming": "benchmarks.streaming",
    "distributed": "benchmarks.distributed",
    "estimators": "benchmarks.estimators",
    "shards": "benchmarks.shards",
    "ray": "benchmarks.ray_engine",
}

RECORDS = Path(__file__).parents[1] / "results" / "bench"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=list(BENCHMARKS),
        metavar="NAME",
        help=f"run this one; may be given again: {', '.join(BENCHMARKS)}",
    )
    parser.add_argument("--quick", action="store_true", help="few repeats: does it run at all?")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--out", type=Path, default=RECORDS, help="folder of the JSON records")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, show and record the benchmarks; return 1 when a limit is not met."""
    options = parse_arguments(arguments)
    import torch

    torch.set_num_threads(options.threads)
    console = Console()
    missed = []
    for name in options.only or BENCHMARKS:
        results: list[Result] = import_module(BENCHMARKS[name]).run(options.quick)
        for result in results:
            console.print(table(result))
            missed += [f"{result.title}: {entry}" for entry in result.missed]
        path = write_record(name, results, options.quick, options.out)
        console.print(f"Record: {path}\n", style="dim", soft_wrap=True)
    if missed:
        console.print("Limits not met: " + "; ".join(missed), style="bold red")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
