"""Diagnosis of a run, or of saved predictions: is the diversity real, or do members collude?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.files import read_npy
from dissensus.records import environment, write_record
from dissensus.runs.config import data_of
from dissensus.runs.load import load
from dissensus.verbs import Result, collect, data_dir_option, device_option, option, trust_option

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.diagnostics import Diagnosis
    from dissensus.outputs import Predictions

__all__ = ["Diagnose", "RunDiagnosis", "diagnose"]


@dataclass(frozen=True)
class Diagnose:
    """Options of :func:`diagnose`."""

    train: Path | None = option(None, "Predictions on training data.")
    regression: bool = option(False, "Outputs are values; the loss is mse.")
    loss: str | None = option(
        None, "mse, cross_entropy, brier or zero_one; by default, the targets decide."
    )
    combine: str | None = option(None, "How members are averaged: probability, score, mean.")
    probs: bool = option(False, "Outputs are probabilities: take their log.")
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


@dataclass(frozen=True, eq=False)
class RunDiagnosis(Result):
    """A :class:`~dissensus.diagnostics.Diagnosis` and the run, or the files, that it is of."""

    sources: Sequence[Path]
    diagnosis: Diagnosis

    def to_dict(self) -> dict[str, Any]:
        """The verdict with its reasons, and every diagnostic."""
        return {"source": [str(path) for path in self.sources], **self.diagnosis.to_dict()}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each split: ERR, mean ERR, DIV and the shares that offsets explain."""
        rows = []
        for split, terms in self.to_dict()["explosion"].items():
            shares = self.diagnosis.shares[split].items()
            explained = {f"offsets_explain_{space}": share.share for space, share in shares}
            keys = ("ensemble_error", "member_error", "diversity", "ratio")
            rows.append({"split": split, **{key: terms[key] for key in keys}, **explained})
        return rows

    def display(self) -> Iterator[str]:
        """The verdict, a table, and a sentence for each diagnostic."""
        yield from self.diagnosis.report().splitlines()

    def save(self, path: str | Path | None = None) -> None:
        """Write ``diagnosis.json`` to the run, or another file."""
        content = {"format": "dissensus.diagnosis/1", **self.to_dict()}
        file = self.sources[0] / "diagnosis.json" if path is None else path
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
    outputs and targets, or two ``.npy`` files.

    ::

        diagnosis = ds.runs.diagnose("runs/joint")
        diagnosis.diagnosis.verdict.word, diagnosis.to_frame()
    """
    from dissensus import diagnostics

    options = collect(Diagnose, options, settings)
    paths = [Path(path) for path in ([source] if isinstance(source, str | Path) else source)]
    weights = None
    if len(paths) == 1 and paths[0].is_dir():
        if options.train is not None or options.probs:
            raise ValueError("a run has its own training data and logits; leave --train, --probs")
        train, test, weights = _predict(paths[0], options, progress=progress)
    else:
        train = None if options.train is None else _read([Path(options.train)])
        test = _read(paths)
    splits = [None if split is None else _to_logits(split, options) for split in (train, test)]
    diagnosis = diagnostics.diagnose(
        *splits,
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


def _read(paths: Sequence[Path]) -> Predictions:
    """Predictions with targets from one file, or from two ``.npy`` files."""
    import torch

    from dissensus.outputs import Predictions

    for path in paths:
        if not path.is_file():
            raise ValueError(f"there is no run and no file {path}")
    suffixes = [path.suffix.lower() for path in paths]
    if suffixes == [".npy", ".npy"]:
        arrays = [read_npy(path) for path in paths]
        for path, array in zip(paths, arrays, strict=True):
            if array.dtype.kind not in "fiub":
                raise ValueError(f"{path} must hold numbers, got {array.dtype}")
        outputs, targets = map(torch.as_tensor, arrays)
        return Predictions(outputs, targets)
    if suffixes == [".npy"]:
        raise ValueError(f"{paths[0]} needs the targets beside it: pass outputs.npy targets.npy")
    if suffixes not in ([".npz"], [".safetensors"]):
        names = ", ".join(path.name for path in paths)
        raise ValueError(f"predictions must be .npz, .safetensors or two .npy files, got {names}")
    predictions = Predictions.load(paths[0])
    if predictions.targets is None:
        raise ValueError(f"{paths[0]} must hold outputs and targets, got no targets")
    return predictions


def _to_logits(predictions: Predictions, options: Diagnose) -> Predictions:
    """Log-probabilities if the option ``probs`` is set; an error where it should have been."""
    from dissensus.diagnostics import looks_like_probs
    from dissensus.outputs import Predictions

    outputs, targets = predictions.outputs, predictions.targets
    assert targets is not None
    loss, combine = options.loss_name, options.combine
    if not options.probs:
        values = targets.is_floating_point() and predictions.meta.get("combine", "mean") == "mean"
        regression = loss == "mse" or combine == "mean" or (loss is combine is None and values)
        if not regression and looks_like_probs(outputs):
            raise ValueError(
                "the outputs look like probabilities, as every row is non-negative and sums to 1, "
                "but logits are expected; pass --probs to take their log"
            )
        return predictions
    if not looks_like_probs(outputs):
        raise ValueError(
            "--probs needs rows that are non-negative and sum to 1, got values from "
            f"{float(outputs.min()):.4g} to {float(outputs.max()):.4g}"
        )
    # A probability of 0 has no log; this floor keeps its loss large and finite.
    logs = outputs.double().clamp_min(1e-12).log()
    return Predictions(logs, targets, predictions.meta)
