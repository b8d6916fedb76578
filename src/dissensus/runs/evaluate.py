"""Evaluation of a run on data: accuracy, calibration, diversity, and each member on its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.data import DataSummary, data_of, load_data, table_layout
from dissensus.runs.folder import RunDescription, describe, read_config
from dissensus.runs.load import load
from dissensus.runs.prediction_files import PredictionOptions, read_predictions
from dissensus.tools.verbs import (
    Result,
    collect,
    data_dir_option,
    device_option,
    option,
    trust_option,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from torch import Tensor

    from dissensus.decomposition import Decomposition
    from dissensus.outputs import Predictions


@dataclass(frozen=True)
class Evaluate(PredictionOptions):
    """Options of :func:`evaluate`."""

    data: str | None = option(
        None, "Other data: the name of a data set, or a file or shards (all their examples)."
    )
    split: str = option("test", "train, val, test, or an extra set of the data.")
    data_dir: Path | None = data_dir_option()
    trust: bool = trust_option()
    device: str = device_option()


@dataclass(frozen=True, repr=False)
class RunEvaluation(Result):
    """Metrics of a run on some data, as :func:`compute_metrics` names them.

    ``evaluated_on`` says which data they are; ``run`` is None for a file of predictions.
    """

    run: RunDescription | None
    evaluated_on: str
    metrics: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The run's state, the data and the metrics, on one level."""
        if self.run is None:
            return {"evaluated_on": self.evaluated_on, **self.metrics}
        return {
            "run": str(self.run.path),
            "state": self.run.state,
            "epochs": self.run.epochs,
            "best_epoch": self.run.best_epoch,
            "objective": self.run.asked("training", "objective"),
            "evaluated_on": self.evaluated_on,
            **self.metrics,
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for the ensemble and one for each member: error and, if it has one, accuracy."""
        values = self.metrics
        columns = {
            "member": ["ensemble", *range(len(values["per_member_error"]))],
            "error": [values["ensemble_error"], *values["per_member_error"]],
        }
        if "accuracy" in values:
            columns["accuracy"] = [values["accuracy"], *values["per_member_accuracy"]]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def display(self) -> Iterator[RenderableType]:
        """The run, the data, and a table of the ensemble and one of its members."""
        run, examples = self.run, f"{self.metrics['examples']} examples: {self.evaluated_on}"
        if run is None:
            yield examples
        else:
            yield f"{run.path}: {run.asked('training', 'objective')}, {run.standing()}"
            yield f"Epoch {run.best_epoch}, {examples}"
        yield ""
        yield metrics_table({"ensemble": self.metrics})
        yield ""
        yield members_table(self.metrics)


def evaluate(
    source: str | Path | Sequence[str | Path],
    options: Evaluate | None = None,
    *,
    progress: bool = False,
    **settings: Any,
) -> RunEvaluation:
    """Evaluate the weights of a run's best epoch; ``settings`` are the fields of :class:`Evaluate`.

    Instead of a run, ``source`` may be a file of predictions (``.npz``, ``.safetensors``) with
    outputs and targets, or two ``.npy`` files; ``keys={"outputs": "logits", "targets": "y"}`` if
    its arrays have other names.

    ::

        evaluation = ds.runs.evaluate("runs/ldr", split="val")
        evaluation.metrics["accuracy"], evaluation.to_frame()
    """
    options = collect(Evaluate, options, settings)
    paths = [Path(path) for path in ([source] if isinstance(source, str | Path) else source)]
    if len(paths) == 1 and paths[0].is_dir():
        return _evaluate_run(paths[0], options, progress=progress)
    return _evaluate_files(paths, options)


def _evaluate_files(paths: Sequence[Path], options: Evaluate) -> RunEvaluation:
    from dissensus.diagnostics import Split
    from dissensus.outputs import Predictions

    if options.data is not None:
        raise ValueError("--data is for a run; a file of predictions has its own targets")
    predictions = read_predictions(paths, options)
    split = Split.of(predictions, loss=options.loss_name, combine=options.combine)
    checked = Predictions(split.outputs, split.targets)
    metrics = compute_metrics(checked, split.combine)
    return RunEvaluation(None, ", ".join(map(str, paths)), metrics)


def _evaluate_run(run: Path, options: Evaluate, *, progress: bool) -> RunEvaluation:
    from dissensus.training import predict

    if options.keys or options.probs or options.regression or options.combine:
        raise ValueError("--key, --probs, --regression and --combine are for files of predictions")
    description = describe(run)
    ens = load(run, trust=options.trust, device=options.device)
    name, x, y = _examples(run, options)
    predictions = predict(ens, (x, y), progress=progress)
    metrics = compute_metrics(predictions, ens.combine, ens.weights, DataSummary.read(run))
    return RunEvaluation(description, name, metrics)


def _examples(run: str | Path, options: Evaluate) -> tuple[str, Tensor, Tensor]:
    """The name of what to evaluate on, the inputs and the targets."""
    from dissensus.data import find_inputs, is_shards, take_part

    config, summary = read_config(run), DataSummary.read(run)
    data, split, data_dir = options.data, options.split, options.data_dir
    if data is None or summary is None:
        named = {"data": {"name": data, "data_dir": data_dir}}
        source = data_of(run, data_dir=data_dir) if data is None else load_data(named)
        inputs, name = take_part(source, split, labelled=True), f"{split} of {source.name}"
    else:
        asked = config.get("data", {})
        inputs = find_inputs(
            data,
            summary,
            part=split,
            labelled=True,
            data_dir=data_dir,
            **table_layout(config),
            **{key: asked[key] for key in ("seed", "val", "test") if key in asked},
            **_reading_options(config, data),
        )
        whole = Path(data).is_file() or (is_shards(data) and not Path(data).is_dir())
        name = f"all examples of {data}" if whole else f"{split} of {inputs.name}"
    assert inputs.y is not None
    return name, inputs.x, inputs.y


def _reading_options(config: dict[str, dict[str, Any]], data: str) -> dict[str, Any]:
    """The options with which the run read its images, for those in another folder."""
    from dissensus.data import is_shards

    if not Path(data).is_dir():
        return {}
    options = config.get("data_options", {})
    known = ["size", "workers", "on_error"] + ([] if is_shards(data) else ["stream"])
    return {key: options[key] for key in known if key in options}


# ---- metrics ------------------------------------------------------------------------------------


def compute_metrics(
    predictions: Predictions,
    combine: str,
    weights: Tensor | None = None,
    summary: DataSummary | None = None,
) -> dict[str, Any]:
    """Accuracy, calibration and diversity of ``predictions``, which must have targets.

    The names are those of an epoch's record in ``metrics.jsonl``. ``combine`` and ``weights`` are
    the ensemble's; ``summary`` knows the units of a regression's targets.

    >>> import torch
    >>> from dissensus.outputs import Predictions
    >>> predictions = Predictions(torch.zeros(3, 4, 2), torch.tensor([0, 0, 0, 1]))
    >>> metrics = compute_metrics(predictions, "probability")
    >>> metrics["accuracy"], round(metrics["nll"], 4), metrics["diversity"]
    (0.75, 0.6931, 0.0)
    """
    from dissensus.calibration import calibration
    from dissensus.decomposition import decompose

    if predictions.targets is None:
        raise ValueError("metrics need targets, got predictions without any")
    outputs = predictions.outputs.double()
    weights = None if weights is None else weights.to(outputs.device)
    if combine == "mean":
        return _regression_metrics(outputs, predictions.targets.double(), weights, summary)
    labels = predictions.targets
    zero_one = decompose(outputs, labels, "zero_one", combine, weights)
    quality = calibration(outputs, labels, combine, weights)
    return {
        "examples": len(predictions),
        "accuracy": quality.accuracy,
        "nll": quality.nll,
        "brier": quality.brier,
        "ece_width": quality.ece_width,
        "ece_mass": quality.ece_mass,
        **_errors(decompose(outputs, labels, "cross_entropy", combine, weights)),
        "per_member_accuracy": [1 - error for error in zero_one.per_member.tolist()],
        "zero_one": _errors(zero_one),
    }


def _regression_metrics(
    outputs: Tensor, targets: Tensor, weights: Tensor | None, summary: DataSummary | None
) -> dict[str, Any]:
    from dissensus.decomposition import decompose
    from dissensus.outputs import combine

    errors = _errors(decompose(outputs, targets, "mse", "mean", weights))
    prediction = combine(outputs, "mean", weights)
    if summary is not None:
        prediction, targets = summary.original(prediction), summary.original(targets)
    rmse = (prediction - targets).square().mean().sqrt()
    return {"examples": outputs.shape[1], "rmse": float(rmse), **errors}


def _errors(terms: Decomposition) -> dict[str, Any]:
    return {
        "ensemble_error": float(terms.ensemble_error),
        "member_error": float(terms.member_error),
        "diversity": float(terms.diversity),
        "per_member_error": terms.per_member.tolist(),
    }


# ---- tables -------------------------------------------------------------------------------------

#: Rows of the table, by the keys of the metrics: their name, and the format of the number.
_ROWS = {
    "accuracy": ("accuracy", "{:.2%}"),
    "per_member_accuracy": ("members", "{:.2%}"),
    "rmse": ("RMSE (units of the target)", "{:.4g}"),
    "ensemble_error": ("ERR", "{:.4f}"),
    "member_error": ("mean ERR", "{:.4f}"),
    "diversity": ("DIV = mean ERR − ERR", "{:.4f}"),
    "nll": ("NLL", "{:.4f}"),
    "brier": ("Brier", "{:.4f}"),
    "ece_width": ("ECE, bins of equal width", "{:.4f}"),
    "ece_mass": ("ECE, bins of equal mass", "{:.4f}"),
    "zero_one.ensemble_error": ("ERR, 0-1 loss", "{:.4f}"),
    "zero_one.member_error": ("mean ERR, 0-1 loss", "{:.4f}"),
    "zero_one.diversity": ("DIV, 0-1 loss", "{:.4f}"),
}

#: Rows that a short table leaves out.
_DETAILS = ("brier", "ece_mass", "zero_one")


def metrics_table(columns: Mapping[str, Mapping[str, Any]], *, short: bool = False) -> Table:
    """Metrics of one or more splits side by side; ``short`` leaves out the less usual ones."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for path, (name, form) in _ROWS.items():
        group, _, key = path.rpartition(".")
        values = [(m.get(group, {}) if group else m).get(key) for m in columns.values()]
        if any(value is not None for value in values) and not (short and path.startswith(_DETAILS)):
            table.add_row(name, *(_format(value, form) for value in values))
    return table


def members_table(metrics: Mapping[str, Any]) -> Table:
    """One line for each member: its accuracy, where it has one, and its error."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    accuracies = metrics.get("per_member_accuracy")
    table.add_column("member", justify="right")
    if accuracies is not None:
        table.add_column("accuracy", justify="right")
    table.add_column("ERR", justify="right")
    for number, error in enumerate(metrics["per_member_error"]):
        accuracy = [] if accuracies is None else [f"{accuracies[number]:.2%}"]
        table.add_row(str(number), *accuracy, f"{error:.4f}")
    return table


def _format(value: Any, form: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        low, high = form.format(min(value)), form.format(max(value))
        return low if low == high else f"{low} to {high}"
    return form.format(value)
