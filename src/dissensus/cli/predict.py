"""``dissensus predict``."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dissensus.cli.options import Device, Trust

if TYPE_CHECKING:
    import numpy as np

    from dissensus.ensemble import Ensemble
    from dissensus.outputs import Predictions
    from dissensus.runs import Facts

    Arrays = dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"]

__all__ = ["HELP", "predict"]

HELP = """
Predict new inputs with a run.

Inputs are .npz (the array x, or the only one), .npy, a table with the columns of the training
table, or shards (.tar, 'new-*.parquet'), in the units of the source: what training standardised is
standardised here, by the same statistics. The output, .npz or .csv, has for a classifier probs
\\[rows, classes], labels \\[rows] (positions in classes) and classes, for a regression mean
\\[rows, outputs] in the units of the target.

[bold]Examples[/bold]

  [cyan]dissensus predict runs/ldr --input x.npz --output p.npz[/cyan]

  [cyan]dissensus predict runs/ldr --input x.npz --output p.npz --score pds --score entropy[/cyan]

  [cyan]dissensus predict runs/flats --input new_flats.csv --output prices.csv[/cyan]

  [cyan]dissensus predict runs/ldr --input x.npy --output p.npz --members[/cyan]
"""


def predict(
    run: Annotated[Path, typer.Argument(help="The run folder.", show_default=False)],
    source: Annotated[Path, typer.Option("--input", help="The inputs.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", help="Where to write, .npz or .csv.", show_default=False)
    ],
    members: Annotated[
        bool,
        typer.Option(
            "--members", help="Add members \\[members, rows, outputs]: logits, or predictions."
        ),
    ] = False,
    score: Annotated[
        list[str] | None,
        typer.Option(
            "--score",
            help="Add a score of `dissensus scores`, higher for stranger inputs; may be repeated.",
            show_default=False,
        ),
    ] = None,
    trust: Trust = False,
    device: Device = "auto",
) -> None:
    """Predict new inputs; the help text is ``HELP``."""
    from dissensus.cli.shown import note, say
    from dissensus.data import read_inputs
    from dissensus.runs import Facts, load, read_config
    from dissensus.training import predict as predict_all

    _check_output(output, members=members)
    config, facts = read_config(run), Facts.read(run)
    if facts is None:
        raise ValueError(
            f"{run} does not know its data, as it was not made by `dissensus train`; use "
            "dissensus.load and predict in Python"
        )
    ens = load(run, trust=trust, device=device)
    target = config["data"].get("target")
    header = bool(config.get("data_options", {}).get("header", True))
    inputs = read_inputs(source, facts, target=target, header=header)
    if inputs.ignored:
        note(f"columns of {source} that the run does not know: {', '.join(inputs.ignored)}")
    predictions = predict_all(ens, inputs.x, progress=True)
    arrays = _arrays(ens, predictions, facts, score or [], members=members)
    _write(output, arrays)
    say(f"{len(inputs.x)} predictions written to {output}: {', '.join(arrays)}")


def _check_output(output: Path, *, members: bool) -> None:
    suffix = output.suffix.lower()
    if suffix not in (".npz", ".csv"):
        raise ValueError(f"the output must end in .npz or .csv, got {output.name}")
    if suffix == ".csv" and members:
        raise ValueError("--members does not fit into a .csv; write to .npz")


def _arrays(
    ens: Ensemble, predictions: Predictions, facts: Facts, scores: list[str], *, members: bool
) -> Arrays:
    """What is written, by name."""
    import numpy as np

    from dissensus.outputs import combine

    outputs = predictions.outputs
    combined = combine(outputs, ens.combine, None if ens.weights is None else ens.weights.cpu())
    arrays: Arrays = {}
    if facts.task == "classification":
        arrays["probs"] = combined.numpy()
        arrays["labels"] = combined.argmax(-1).numpy()
        arrays["classes"] = np.array(facts.classes)
    else:
        arrays["mean"] = facts.original(combined).numpy()
    if members:
        arrays["members"] = (
            outputs if facts.task == "classification" else facts.original(outputs)
        ).numpy()
    return arrays | _scores(predictions, facts.task, scores)


def _scores(predictions: Predictions, task: str, names: list[str]) -> Arrays:
    from dissensus.scores import SCORES, score_all

    if task == "classification":
        found = score_all(predictions.outputs, names) if names else {}
    else:
        for name in names:
            if name != "variance":
                raise ValueError(f"a regression has the score variance alone, got {name!r}")
        found = {name: SCORES[name](predictions.outputs) for name in names}
    return {f"score_{name}": values.numpy() for name, values in found.items()}


def _write(output: Path, arrays: Arrays) -> None:
    import numpy as np

    from dissensus.files import replace_atomically, write_text

    if output.suffix.lower() == ".csv":
        write_text(output, _csv(arrays))
        return

    def save(part: Path) -> None:
        with part.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    replace_atomically(output, save)


def _csv(arrays: Arrays) -> str:
    """One line an example: label and probabilities by class, or the prediction, and scores."""
    columns: dict[str, list[object]] = {}
    if "probs" in arrays:
        names = arrays["classes"].tolist()
        columns["label"] = [names[number] for number in arrays["labels"].tolist()]
        columns |= {f"p={name}": arrays["probs"][:, i].tolist() for i, name in enumerate(names)}
    else:
        width = arrays["mean"].shape[1]
        for i in range(width):
            columns["mean" if width == 1 else f"mean_{i}"] = arrays["mean"][:, i].tolist()
    columns |= {name: a.tolist() for name, a in arrays.items() if name.startswith("score_")}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()
