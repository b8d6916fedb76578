"""``dissensus predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dissensus import runs
from dissensus.cli.console import note, say
from dissensus.cli.options import RunFolder, with_options
from dissensus.runs import Predict

__all__ = ["predict"]


@with_options
def predict(
    run: RunFolder,
    input: Annotated[Path, typer.Option("--input", help="The inputs.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", help="The file to write, .npz or .csv.", show_default=False)
    ],
    options: Predict,
) -> None:
    """
    Predict new inputs with a run.

    Inputs are .npz (the array x, or the only one), .npy, a table with the columns of the training
    table, or shards (.tar, 'new-*.parquet'), in the units of the source: what training standardised
    is standardised here, by the same statistics. The output, .npz or .csv, has for a classifier
    probs [rows, classes], labels [rows] (positions in classes) and classes, for a regression
    mean [rows, outputs] in the units of the target.

    Examples

      dissensus predict runs/ldr --input x.npz --output p.npz

      dissensus predict runs/ldr --input x.npz --output p.npz --score pds --score entropy

      dissensus predict runs/flats --input new_flats.csv --output prices.csv

      dissensus predict runs/ldr --input x.npy --output p.npz --members
    """
    predictions = runs.predict(run, input, output, options, progress=True)
    if predictions.ignored_columns:
        unknown = ", ".join(predictions.ignored_columns)
        note(f"columns of {input} that the run does not know: {unknown}")
    say(f"{len(predictions)} predictions written to {output}: {', '.join(predictions.arrays)}")
