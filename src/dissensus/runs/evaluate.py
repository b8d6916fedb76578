"""Evaluation of a run on data: accuracy, calibration, diversity, and each member on its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.data_summary import DataSummary
from dissensus.runs.folder import Run, describe, read_config
from dissensus.runs.load import load
from dissensus.runs.metrics import compute_metrics, members_table, metrics_table
from dissensus.runs.training_data import data_of, load_data
from dissensus.verbs import (
    Result,
    collect,
    data_dir_option,
    device_option,
    option,
    trust_option,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor

__all__ = ["Evaluate", "Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluate:
    """Options of :func:`evaluate`."""

    data: str | None = option(
        None, "Other data: the name of a data set, or a file or shards (all their examples)."
    )
    split: str = option("test", "train, val, test, or an extra set of the data.")
    data_dir: Path | None = data_dir_option()
    trust: bool = trust_option()
    device: str = device_option()


@dataclass(frozen=True)
class Evaluation(Result):
    """Metrics of a run on some data, as :func:`dissensus.runs.metrics.compute_metrics` names them.

    ``evaluated_on`` says which data they are.
    """

    run: Run
    evaluated_on: str
    metrics: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The run's state, the data and the metrics, on one level."""
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
        run = self.run
        yield f"{run.path}: {run.asked('training', 'objective')}, {run.standing()}"
        yield f"Epoch {run.best_epoch}, {self.metrics['examples']} examples: {self.evaluated_on}"
        yield ""
        yield metrics_table({"ensemble": self.metrics})
        yield ""
        yield members_table(self.metrics)


def evaluate(
    run: str | Path, options: Evaluate | None = None, *, progress: bool = False, **settings: Any
) -> Evaluation:
    """Evaluate the weights of a run's best epoch; ``settings`` are the fields of :class:`Evaluate`.

    ::

        evaluation = ds.runs.evaluate("runs/ldr", split="val")
        evaluation.metrics["accuracy"], evaluation.to_frame()
    """
    from dissensus.training import predict

    options = collect(Evaluate, options, settings)
    description = describe(run)
    ens = load(run, trust=options.trust, device=options.device)
    name, x, y = _examples(run, options)
    predictions = predict(ens, (x, y), progress=progress)
    metrics = compute_metrics(predictions, ens.combine, ens.weights, DataSummary.read(run))
    return Evaluation(description, name, metrics)


def _examples(run: str | Path, options: Evaluate) -> tuple[str, Tensor, Tensor]:
    """The name of what to evaluate on, the inputs and the targets."""
    from dissensus.data import find_inputs, is_shards, take_part

    config, summary = read_config(run), DataSummary.read(run)
    data, split, data_dir = options.data, options.split, options.data_dir
    if data is None:
        source = data_of(run, data_dir=data_dir)
        inputs, name = take_part(source, split, labelled=True), f"{split} of {source.name}"
    elif summary is None:
        source = load_data({"data": {"name": data, "data_dir": data_dir}})
        inputs, name = take_part(source, split, labelled=True), f"{split} of {source.name}"
    else:
        asked = config.get("data", {})
        inputs = find_inputs(
            data,
            summary,
            part=split,
            labelled=True,
            target=asked.get("target"),
            header=bool(config.get("data_options", {}).get("header", True)),
            data_dir=data_dir,
            **{key: asked[key] for key in ("seed", "val", "test") if key in asked},
            **_reading_options(config, data),
        )
        one = Path(data).is_file() or (is_shards(data) and not Path(data).is_dir())
        name = f"all examples of {data}" if one else f"{split} of {inputs.name}"
    assert inputs.y is not None
    return name, inputs.x, inputs.y


def _reading_options(config: dict[str, dict[str, Any]], data: str) -> dict[str, Any]:
    """The options with which the run read its images, for those in another folder."""
    from dissensus.data import is_shards

    own = config.get("data_options", {}) if Path(data).is_dir() else {}
    known = ["size", "workers", "on_error"] + ([] if is_shards(data) else ["stream"])
    return {key: own[key] for key in known if key in own}
