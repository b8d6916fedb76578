"""``dissensus diagnose``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dissensus.cli.options import DataDir, Device, Trust

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.diagnostics import Diagnosis
    from dissensus.outputs import Predictions

__all__ = ["HELP", "diagnose", "diagnose_run", "of_run"]

HELP = """
Say whether an ensemble's diversity is real or its members collude: healthy, suspicious, colluding.

SOURCE is a run folder; or a file of predictions, .npz or .safetensors, with outputs (members,
batch, outputs) and targets, of any framework; or two .npy files, outputs and targets. Outputs are
logits, or predicted values in a regression. What is found of a run is kept there, as
diagnosis.json.

[bold]Examples[/bold]

  [cyan]dissensus diagnose runs/joint[/cyan]   its training and test data, with the best weights

  [cyan]dissensus diagnose test.npz --train train.npz[/cyan]

  [cyan]dissensus diagnose outputs.npy targets.npy --regression[/cyan]

  [cyan]dissensus diagnose probabilities.npz --probs --json[/cyan]
"""


def diagnose(
    source: Annotated[
        list[Path],
        typer.Argument(help="A run, a file, or two .npy files.", show_default=False),
    ],
    train: Annotated[
        Path | None,
        typer.Option("--train", help="Predictions on training data.", show_default=False),
    ] = None,
    regression: Annotated[
        bool, typer.Option("--regression", help="Outputs are values; the loss is mse.")
    ] = False,
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            help="mse, cross_entropy, brier or zero_one; else by the targets.",
            show_default=False,
        ),
    ] = None,
    combine: Annotated[
        str | None,
        typer.Option(
            "--combine",
            help="How members are averaged: probability, score, mean.",
            show_default=False,
        ),
    ] = None,
    probs: Annotated[
        bool, typer.Option("--probs", help="Outputs are probabilities: take their log.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws of members left out.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    data_dir: DataDir = None,
    trust: Trust = False,
    device: Device = "auto",
) -> None:
    """Diagnose a run or saved predictions; the help text is ``HELP``."""
    from dissensus import diagnostics
    from dissensus.cli.shown import say

    if regression and loss not in (None, "mse"):
        raise ValueError(f"--regression means --loss mse, got --loss {loss}; leave one out")
    wanted = "mse" if regression else loss
    if len(source) == 1 and source[0].is_dir():
        if train is not None or probs:
            raise ValueError("a run has its own training data and logits; leave --train, --probs")
        record, found = diagnose_run(
            source[0],
            loss=wanted,
            combine=combine,
            seed=seed,
            data_dir=data_dir,
            trust=trust,
            device=device,
        )
    else:
        pairs = [
            None if part is None else _prepared(part, wanted, combine, probs=probs)
            for part in (None if train is None else _read([train]), _read(source))
        ]
        found = diagnostics.diagnose(*pairs, loss=wanted, combine=combine, seed=seed)
        record = {"source": [str(path) for path in source], **found.to_dict()}
    if as_json:
        print(json.dumps(record, indent=1))
    else:
        for line in found.report().splitlines():
            say(line)


def diagnose_run(
    run: Path,
    *,
    loss: str | None = None,
    combine: str | None = None,
    seed: int = 0,
    data_dir: Path | None = None,
    trust: bool = False,
    device: str = "cpu",
) -> tuple[dict[str, Any], Diagnosis]:
    """Diagnose a run by its train and test data, and keep ``diagnosis.json`` in its folder."""
    from dissensus import diagnostics

    before, after, weights = of_run(run, data_dir, trust=trust, device=device)
    pairs = [
        None if part is None else _prepared(part, loss, combine, probs=False)
        for part in (before, after)
    ]
    found = diagnostics.diagnose(*pairs, loss=loss, combine=combine, weights=weights, seed=seed)
    record = {"source": [str(run)], **found.to_dict()}
    _keep(run, record)
    return record, found


def _keep(run: Path, record: dict[str, Any]) -> None:
    """Write ``diagnosis.json`` to the run; a folder that takes no files is no reason to fail."""
    from dissensus.cli.shown import note
    from dissensus.records import environment, write_record

    kept = {"format": "dissensus.diagnosis/1", **record, "environment": environment()}
    try:
        write_record(run / "diagnosis.json", kept)
    except OSError as error:
        note(f"dissensus: the diagnosis is not kept: {error.strerror}: {run}")


def of_run(
    run: Path, data_dir: Path | None, *, trust: bool, device: str
) -> tuple[Predictions | None, Predictions | None, Tensor | None]:
    """Train and test predictions of a run's best epoch, and its members' weights."""
    from dissensus.runs import data_of, load
    from dissensus.training import predict

    ens = load(run, trust=trust, device=device)
    data = data_of(run, data_dir=data_dir)
    before, after = (
        predict(ens, part, meta={"combine": ens.combine}) if len(part[0]) else None
        for part in (data.train, data.test)
    )
    return before, after, None if ens.weights is None else ens.weights.cpu()


def _read(paths: list[Path]) -> Predictions:
    """Predictions with targets from one file, or from two ``.npy`` files."""
    import torch

    from dissensus.outputs import Predictions

    for path in paths:
        if not path.is_file():
            raise ValueError(f"there is no run and no file {path}")
    suffixes = [path.suffix.lower() for path in paths]
    if suffixes == [".npy", ".npy"]:
        outputs, targets = (torch.as_tensor(_array(path)) for path in paths)
        return Predictions(outputs, targets)
    if suffixes == [".npy"]:
        raise ValueError(f"{paths[0]} needs the targets beside it: pass outputs.npy targets.npy")
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths)
        raise ValueError(f"pass one run, one .npz or .safetensors file, or two .npy, got {names}")
    if suffixes[0] not in (".npz", ".safetensors"):
        raise ValueError(f"predictions must be .npz, .safetensors or .npy, got {paths[0].name}")
    found = Predictions.load(paths[0])
    if found.targets is None:
        raise ValueError(f"{paths[0]} must hold outputs and targets, got no targets")
    return found


def _array(path: Path) -> object:
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be read as .npy: it is damaged, cut short, or holds Python objects, "
            f"which are never loaded ({error})"
        ) from error
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{path} must hold numbers, got {array.dtype}")
    return array


def _prepared(
    predictions: Predictions, loss: str | None, combine: str | None, *, probs: bool
) -> Predictions:
    """Log-probabilities where ``probs`` is said; an error where it should have been."""
    from dissensus.diagnostics import looks_like_probs
    from dissensus.outputs import Predictions

    outputs, targets = predictions.outputs, predictions.targets
    assert targets is not None
    valued = targets.is_floating_point() and predictions.meta.get("combine", "mean") == "mean"
    if not probs:
        if loss == "mse" or combine == "mean" or (loss is None and combine is None and valued):
            return predictions
        if looks_like_probs(outputs):
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
