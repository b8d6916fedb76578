"""``dissensus predict`` and ``dissensus export``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dissensus import runs
from dissensus.cli.options import RunFolder, note, say, with_options
from dissensus.export import Export, export_run
from dissensus.runs import Predict


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
    table, or shards (.tar, 'new-*.parquet'), in the units of the source: missing values, encodings
    and scales are handled as in training, by the same statistics. The output, .npz or .csv, has for
    a classifier probs [rows, classes], labels [rows] (positions in classes) and classes, for a
    regression mean [rows, outputs] in the units of the target.

    Examples

      dissensus predict runs/ldr --input runs/adp/robustness/adversarial.npz --output p.csv

      dissensus predict runs/ldr --input runs/adp/robustness/adversarial.npz --output p.npz
      --members --score pds --score entropy

    Examples that need other data or packages

      dissensus predict runs/ldr --input x.npz --output p.npz

      dissensus predict runs/flats --input new_flats.csv --output prices.csv
    """
    predictions = runs.predict(run, input, output, options, progress=True)
    if predictions.ignored_columns:
        unknown = ", ".join(predictions.ignored_columns)
        note(f"columns of {input} that the run does not know: {unknown}")
    for text in predictions.remarks:
        note(text)
    say(f"{len(predictions)} predictions written to {output}: {', '.join(predictions.arrays)}")


@with_options
def export(run: RunFolder, options: Export) -> None:
    """
    Write a run's ensemble for use elsewhere: one file for a runtime, or a folder to share.

    onnx and pt2 are one graph that needs no Dissensus. It takes inputs x in the units of the source
    (what training standardised is standardised inside) and gives what `predict` writes: probs, or
    mean for a regression, members [members, batch, outputs], a score_NAME for each --score, and
    is_ood with a --detector. The batch may have any size. The file also holds its classes, columns,
    their preparation, scores and versions. To load a pt2 is to load a program: take it from people
    whose programs you would run.

    hub is a folder with model.safetensors, config.json and README.md, a model card made from the
    run's records; ds.load brings it back, and no file in it can run code. Choose a license and add
    it.

    Examples

      dissensus export runs/ldr --out ldr.pt2 --score pds --detector detector.json

      dissensus export runs/ldr --format hub --out ldr-ensemble/ --license apache-2.0

    Examples that need other data or packages

      dissensus export runs/ldr --out ldr.onnx   needs pip install 'dissensus[export]'

      dissensus export runs/photos --out photos.onnx --bytes   pixels from 0 to 255
    """
    exported = export_run(run, options, progress=True)
    for text in exported.notes:
        note(text)
    exported.show()
    if options.kind == "hub":
        words = ["predict", str(options.out), "--input", "x.npz", "--output", "p.npz"]
        words += ["--trust"] if exported.code else []
        say(f"Use it with {shlex.join(['dissensus', *words])}")
