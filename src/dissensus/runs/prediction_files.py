"""Files of predictions: outputs and targets that any framework has saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.tools.files import read_npy
from dissensus.tools.verbs import option

if TYPE_CHECKING:
    from dissensus.outputs import Predictions

PANEL = "Files of predictions"


def keys_option() -> Any:
    """The option ``keys`` of verbs that read files of predictions."""
    return option(
        (),
        "The name that outputs or targets have in the files: outputs=logits; may be repeated.",
        flag="--key",
        metavar="ARRAY=NAME",
        panel=PANEL,
    )


def probs_option() -> Any:
    """The option ``probs`` of verbs that read files of predictions."""
    return option(False, "Outputs are probabilities: take their log.", panel=PANEL)


def array_keys(keys: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """``{"outputs": "logits"}`` from ``["outputs=logits"]``, or from itself.

    >>> array_keys(["outputs=logits", "targets=y"])
    {'outputs': 'logits', 'targets': 'y'}
    """
    if isinstance(keys, Mapping):
        return dict(keys)
    names = {}
    for text in keys:
        array, _, names[array] = text.partition("=")
        if array not in ("outputs", "targets") or not names[array]:
            raise ValueError(f"--key must be such as outputs=logits or targets=y, got {text!r}")
    return names


@dataclass(frozen=True)
class PredictionOptions:
    """Options of verbs that take a file of predictions in place of a run."""

    keys: tuple[str, ...] | dict[str, Any] = keys_option()
    regression: bool = option(False, "Outputs are values; the loss is mse.", panel=PANEL)
    probs: bool = probs_option()
    combine: str | None = option(
        None, "How members are averaged: probability, score, mean.", panel=PANEL
    )

    @property
    def loss_name(self) -> str | None:
        """The loss asked for; None where the targets decide."""
        return "mse" if self.regression else None


def read_predictions(paths: Sequence[Path], options: PredictionOptions) -> Predictions:
    """Predictions with targets from one file, or from two ``.npy`` files; they know their space."""
    import torch

    from dissensus.outputs import KEY_HINT, Predictions

    keys = array_keys(options.keys)
    for path in paths:
        if path.is_dir() and len(paths) > 1:
            raise ValueError(f"{path} is a folder: give one run, one file or two .npy files")
        if not path.is_file():
            raise ValueError(f"there is no run and no file {path}")
    suffixes = [path.suffix.lower() for path in paths]
    if suffixes == [".npy", ".npy"]:
        if keys:
            raise ValueError("--key is for arrays with names, and .npy files have none")
        arrays = [read_npy(path) for path in paths]
        for path, array in zip(paths, arrays, strict=True):
            if array.dtype.kind not in "fiub":
                raise ValueError(f"{path} must hold numbers, got {array.dtype}")
        outputs, targets = map(torch.as_tensor, arrays)
        predictions = Predictions(outputs, targets)
    elif suffixes == [".npy"]:
        raise ValueError(f"{paths[0]} needs the targets beside it: pass outputs.npy targets.npy")
    elif suffixes not in ([".npz"], [".safetensors"]):
        names = ", ".join(path.name for path in paths)
        raise ValueError(f"predictions must be .npz, .safetensors or two .npy files, got {names}")
    else:
        predictions = Predictions.load(paths[0], keys)
    if predictions.targets is None:
        raise ValueError(f"{paths[0]} must hold outputs and targets, got no targets; {KEY_HINT}")
    if options.probs:
        predictions = replace(predictions, meta={**predictions.meta, "space": "probs"})
    return predictions
