"""Prediction of new inputs with a run: probabilities or means, and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.data import DataSummary, table_layout
from dissensus.runs.folder import read_config
from dissensus.runs.load import load
from dissensus.tools.files import write_csv, write_npz
from dissensus.tools.progress import ProgressBar
from dissensus.tools.verbs import Result, collect, device_option, option, trust_option

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType

    from dissensus.data import Inputs
    from dissensus.detection import Detector
    from dissensus.ensemble import Ensemble

    Arrays = dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"]

#: Rows at once.
_BATCH = 1024


@dataclass(frozen=True)
class Predict:
    """Options of :func:`predict`."""

    members: bool = option(
        False, "Add members [members, rows, outputs]: logits, or predictions in a regression."
    )
    score: tuple[str, ...] = option(
        (), "Add a score of `dissensus scores`, higher for stranger inputs; may be repeated."
    )
    trust: bool = trust_option()
    device: str = device_option()


@dataclass(frozen=True, eq=False, repr=False)
class PredictedInputs(Result):
    """Predictions of new inputs, as arrays by name.

    For a classifier ``probs`` [rows, classes], ``labels`` [rows] (positions in ``classes``) and
    ``classes``; for a regression ``mean`` [rows, outputs] in the units of the target. Where asked
    for, ``members`` [members, rows, outputs] and ``score_NAME`` [rows]. ``ignored_columns`` are
    those of a table that the run does not know; ``remarks`` are about values in it that the
    training table did not have.
    """

    arrays: Arrays
    ignored_columns: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrays["probs" if "probs" in self.arrays else "mean"])

    def to_dict(self) -> dict[str, Any]:
        """The arrays as lists."""
        return {name: array.tolist() for name, array in self.arrays.items()}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each input, with the columns of a CSV file."""
        columns = self._columns()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def display(self) -> Iterator[RenderableType]:
        """What there is."""
        yield f"{len(self)} predictions: {', '.join(self.arrays)}"

    def save(self, path: str | Path) -> None:
        """Write the arrays to an ``.npz`` file, or one line for each input to a ``.csv`` file."""
        path = Path(path)
        _check_output(path, members="members" in self.arrays)
        if path.suffix.lower() == ".csv":
            columns = self._columns()
            write_csv(path, columns, zip(*columns.values(), strict=True))
        else:
            write_npz(path, self.arrays, compress=False)

    def _columns(self) -> dict[str, list[Any]]:
        """Label and probabilities by class, or the prediction; then scores."""
        arrays, columns = self.arrays, {}
        if "probs" in arrays:
            names = arrays["classes"].tolist()
            columns["label"] = [names[number] for number in arrays["labels"].tolist()]
            columns |= {f"p={name}": arrays["probs"][:, i].tolist() for i, name in enumerate(names)}
        else:
            width = arrays["mean"].shape[1]
            for i in range(width):
                columns["mean" if width == 1 else f"mean_{i}"] = arrays["mean"][:, i].tolist()
        return columns | {n: a.tolist() for n, a in arrays.items() if n.startswith("score_")}


def predict(
    run: str | Path,
    input: Any,
    output: str | Path | None = None,
    options: Predict | None = None,
    *,
    progress: bool = False,
    **settings: Any,
) -> PredictedInputs:
    """Predict the inputs in a file or DataFrame; ``settings`` are the fields of :class:`Predict`.

    Inputs are in the units of the source: missing values, encodings and scales are handled as in
    training, by the same statistics. With ``output``, an ``.npz`` or ``.csv`` file, the predictions
    are saved there.

    ::

        predictions = ds.runs.predict("runs/ldr", "x.npz", score=["pds"])
        predictions = ds.runs.predict("runs/flats", frame)    # of pandas or polars, or a dict
        predictions.arrays["probs"], predictions.to_frame()
    """
    from dissensus.data import read_inputs
    from dissensus.detection import Detector

    options = collect(Predict, options, settings)
    if output is not None:
        _check_output(Path(output), members=options.members)
    summary = DataSummary.require(run, "dissensus.load and dissensus.predict")
    ens = load(run, trust=options.trust, device=options.device)
    inputs = read_inputs(input, summary, **table_layout(read_config(run)))
    detectors = {name: Detector(ens, name) for name in options.score}
    arrays = _run(ens, detectors, inputs, summary, options, progress=progress)
    predictions = PredictedInputs(arrays, inputs.ignored, inputs.remarks)
    if output is not None:
        predictions.save(output)
    return predictions


def _check_output(path: Path, *, members: bool) -> None:
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".csv"):
        raise ValueError(f"the output must end in .npz or .csv, got {path.name}")
    if suffix == ".csv" and members:
        raise ValueError("--members does not fit into a .csv; write to .npz")


def _run(
    ens: Ensemble,
    detectors: Mapping[str, Detector],
    inputs: Inputs,
    summary: DataSummary,
    options: Predict,
    *,
    progress: bool,
) -> Arrays:
    """Predictions and scores, from one pass over the inputs."""
    import numpy as np
    import torch

    from dissensus.detection import ForwardPass, score_together
    from dissensus.outputs import combine

    parts: list[torch.Tensor] = []
    with ProgressBar("predicting", len(inputs), show=progress) as bar:

        def watch(forward: ForwardPass) -> None:
            parts.append(forward.outputs(ens).cpu())
            bar.advance(len(forward.x))

        batches = inputs.batches(_BATCH)
        scores = score_together(list(detectors.values()), batches, watch=watch)
    outputs = torch.cat(parts, 1)
    combined = combine(outputs, ens.combine, None if ens.weights is None else ens.weights.cpu())
    arrays: Arrays = {}
    if summary.task == "classification":
        arrays["probs"] = combined.numpy()
        arrays["labels"] = combined.argmax(-1).numpy()
        arrays["classes"] = np.array(summary.classes)
    else:
        arrays["mean"] = summary.original(combined).numpy()
        outputs = summary.original(outputs)
    if options.members:
        arrays["members"] = outputs.numpy()
    found = zip(detectors, scores, strict=True)
    return arrays | {f"score_{name}": values.cpu().numpy() for name, values in found}
