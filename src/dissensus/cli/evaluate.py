"""``dissensus evaluate``."""

from __future__ import annotations

from dissensus import runs
from dissensus.cli.options import AsJson, RunFolder, print_result, with_options
from dissensus.runs import Evaluate

__all__ = ["evaluate"]


@with_options
def evaluate(run: RunFolder, options: Evaluate, as_json: AsJson = False) -> None:
    """
    Evaluate a run on data: accuracy, calibration, diversity, and each member on its own.

    Uses the weights of the best epoch; for a run that was stopped, of the best epoch so far. ERR is
    the ensemble's error (cross-entropy, or squared error in regression), mean ERR the mean error of
    its members, and DIV how much combining them takes off.

    Examples

      dissensus evaluate runs/ldr   on the test split of its data

      dissensus evaluate runs/ldr --split val

      dissensus evaluate runs/flats --data new_flats.csv   all rows of a file

      dissensus evaluate runs/ldr --json   numbers for a script
    """
    evaluation = runs.evaluate(run, options, progress=not as_json)
    print_result(evaluation, as_json=as_json)
