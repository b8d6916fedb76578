"""Diagnosis of a run, or of saved predictions: is the diversity real, or do members collude?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.data import data_of
from dissensus.runs.folder import RESULTS
from dissensus.runs.load import load
from dissensus.runs.prediction_files import PANEL, PredictionOptions, read_predictions
from dissensus.tools.records import environment, write_record
from dissensus.tools.verbs import (
    Result,
    collect,
    data_dir_option,
    device_option,
    option,
    trust_option,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.diagnostics import Diagnosis
    from dissensus.outputs import Predictions


@dataclass(frozen=True)
class Diagnose(PredictionOptions):
    """Options of :func:`diagnose`."""

    train: Path | None = option(None, "Predictions on training data.", panel=PANEL)
    loss: str | None = option(
        None, "mse, cross_entropy, brier or zero_one; by default, the targets decide."
    )
    seed: int = option(0, "Seed of the draws of members that are left out.")
    data_dir: Path | None = data_dir_option()
    trust: bool = trust_option()
    device: str = device_option()

    def __post_init__(self) -> None:
        if self.regression and self.loss not in (None, "mse"):
            raise ValueError(
                f"--regression means --loss mse, got --loss {self.loss}; leave one out"
            )

    @property
    def loss_name(self) -> str | None:
        """The loss asked for; None where the targets decide."""
        return "mse" if self.regression else self.loss


@dataclass(frozen=True, eq=False, repr=False)
class RunDiagnosis(Result):
    """A :class:`~dissensus.diagnostics.Diagnosis` and the run, or the files, that it is of."""

    sources: Sequence[Path]
    diagnosis: Diagnosis

    def to_dict(self) -> dict[str, Any]:
        """The verdict with its reasons, and every diagnostic."""
        return {"source": [str(path) for path in self.sources], **self.diagnosis.to_dict()}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each split: ERR, mean ERR, DIV and the shares that offsets explain."""
        return self.diagnosis.to_rows()

    def display(self) -> Iterator[str]:
        """The verdict, a table, and a sentence for each diagnostic."""
        yield from self.diagnosis.report().splitlines()

    def save(self, path: str | Path | None = None) -> None:
        """Write ``diagnosis.json`` to the run, or another file."""
        content = {"format": RESULTS["diagnose"][1], **self.to_dict()}
        file = self.sources[0] / RESULTS["diagnose"][0] if path is None else path
        write_record(file, {**content, "environment": environment()})


def diagnose(
    source: str | Path | Sequence[str | Path],
    options: Diagnose | None = None,
    *,
    progress: bool = False,
    **settings: Any,
) -> RunDiagnosis:
    """Diagnose a run by its training and test data; ``settings`` are fields of :class:`Diagnose`.

    Instead of a run, ``source`` may be a file of predictions (``.npz``, ``.safetensors``) with
    outputs and targets, or two ``.npy`` files; ``keys={"outputs": "logits", "targets": "y"}`` if
    its arrays have other names.

    ::

        diagnosis = ds.runs.diagnose("runs/joint")
        diagnosis.diagnosis.verdict.word, diagnosis.to_frame()
    """
    from dissensus import diagnostics

    options = collect(Diagnose, options, settings)
    paths = [Path(path) for path in ([source] if isinstance(source, str | Path) else source)]
    weights = None
    if len(paths) == 1 and paths[0].is_dir():
        if options.train is not None or options.probs or options.keys:
            raise ValueError(
                "a run has its own training data and logits; leave out --train, --probs and --key"
            )
        train, test, weights = _predict(paths[0], options, progress=progress)
    else:
        train = None if options.train is None else read_predictions([Path(options.train)], options)
        test = read_predictions(paths, options)
    diagnosis = diagnostics.diagnose(
        train,
        test,
        loss=options.loss_name,
        combine=options.combine,
        weights=weights,
        seed=options.seed,
    )
    return RunDiagnosis(paths, diagnosis)


def _predict(
    run: Path, options: Diagnose, *, progress: bool
) -> tuple[Predictions | None, Predictions | None, Tensor | None]:
    """Predictions of a run's best epoch on its train and test data, and its members' weights."""
    from dissensus.training import predict

    ens = load(run, trust=options.trust, device=options.device)
    data = data_of(run, data_dir=options.data_dir)
    train, test = (
        predict(ens, part, meta={"combine": ens.combine}, progress=progress)
        if len(part[0])
        else None
        for part in (data.train, data.test)
    )
    return train, test, None if ens.weights is None else ens.weights.cpu()
