"""``dissensus evaluate`` and ``dissensus diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dissensus import runs
from dissensus.cli.options import AsJson, note, print_result, with_options
from dissensus.runs import Diagnose, Evaluate

Source = Annotated[
    list[Path], typer.Argument(help="A run, a file, or two .npy files.", show_default=False)
]


@with_options
def evaluate(source: Source, options: Evaluate, as_json: AsJson = False) -> None:
    """
    Evaluate a run, or saved predictions: accuracy, calibration, diversity, and each member.

    Uses the weights of the best epoch; for a run that was stopped, of the best epoch so far. ERR is
    the ensemble's error (cross-entropy, or squared error in regression), mean ERR the mean error of
    its members, and DIV how much combining them takes off.

    Instead of a run, SOURCE may be a file of predictions, .npz or .safetensors, of any framework:
    outputs [members, batch, outputs] and targets, or other names with --key. Two .npy files,
    outputs and targets, do as well.

    Examples

      dissensus evaluate runs/ldr   on the test split of its data

      dissensus evaluate runs/ldr --split val

      dissensus evaluate runs/ldr --json   numbers for a script

      dissensus evaluate runs/ldr/predictions/test.safetensors   saved predictions

    Examples that need other data or packages

      dissensus evaluate runs/flats --data new_flats.csv   all rows of a file

      dissensus evaluate predictions.npz --key outputs=logits --key targets=y
    """
    evaluation = runs.evaluate(source, options, progress=not as_json)
    print_result(evaluation, as_json=as_json)


@with_options
def diagnose(source: Source, options: Diagnose, as_json: AsJson = False) -> None:
    """
    Judge whether an ensemble's diversity is real or its members collude: healthy, suspicious,
    colluding.

    SOURCE is a run folder; or a file of predictions, .npz or .safetensors, of any framework, with
    outputs [members, batch, outputs] and targets, or other names with --key; or two .npy files,
    outputs and targets. Outputs are logits, or predicted values in a regression. The diagnosis of a
    run is kept in its folder, as diagnosis.json.

    Examples

      dissensus diagnose runs/joint   its training and test data, with the best weights

      dissensus diagnose runs/ldr/predictions/test.safetensors

    Examples that need other data or packages

      dissensus diagnose test.npz --train train.npz

      dissensus diagnose outputs.npy targets.npy --regression

      dissensus diagnose probabilities.npz --probs --key outputs=probs --json
    """
    diagnosis = runs.diagnose(source, options, progress=not as_json)
    if source[0].is_dir():
        try:
            diagnosis.save()
        except OSError as error:  # a folder that takes no files is no reason to fail
            note(f"dissensus: the diagnosis is not kept: {error.strerror}: {source[0]}")
    print_result(diagnosis, as_json=as_json)
