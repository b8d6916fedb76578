"""Damaged files: no flipped bit is loaded as if it were right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import dissensus as ds
from dissensus.data import FeatureStore, FeatureWriter
from dissensus.detection import Mahalanobis
from dissensus.outputs import Predictions
from dissensus.scores import score_file
from dissensus.tools.files import read_safetensors
from dissensus.training.run_folder import read_checkpoint

Load = Callable[[], Any]


def _toy() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    return x, x[:, :3].argmax(-1)


def _ensemble() -> ds.Ensemble:
    return ds.Ensemble(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), 2)


def checkpoint(folder: Path) -> tuple[Path, Load]:
    ds.fit(_ensemble(), _toy(), epochs=2, batch_size=16, out=folder, progress=False)
    return folder / "checkpoint.safetensors", lambda: read_checkpoint(folder)


def predictions(folder: Path) -> tuple[Path, Load]:
    file = folder / "test.safetensors"
    Predictions(torch.randn(2, 9, 3), torch.arange(9) % 3, {"split": "test"}).save(file)
    return file, lambda: (vars(Predictions.load(file)), score_file(file, ["bma"]))


def hub(folder: Path) -> tuple[Path, Load]:
    _ensemble().save(folder)
    file = folder / "model.safetensors"
    return file, lambda: read_safetensors(file)[0]


def distance(folder: Path) -> tuple[Path, Load]:
    file, x = folder / "detector.json", torch.randn(30, 4)
    ds.Detector(abs, Mahalanobis()).fit(x, train=(x, torch.arange(30) % 3)).save(file)
    return file.with_suffix(".safetensors"), lambda: ds.Detector.load(file, abs).score(x)


def detector(folder: Path) -> tuple[Path, Load]:
    file, ens = folder / "detector.json", _ensemble()
    ds.Detector(ens, score="pds").fit(_toy()[0]).save(file)

    def load() -> Any:
        one = ds.Detector.load(file, ens)
        return one.score_name, one.threshold, one.accept, one.count, one.quantiles

    return file, load


def features(name: str, folder: Path) -> tuple[Path, Load]:
    with FeatureWriter(folder, (4,), classes=["a", "b"]) as writer:
        writer.add("train", np.random.default_rng(0).normal(size=(10, 4)), np.arange(10) % 2)

    def load() -> Any:
        x, y = FeatureStore(folder, verify=True).parts["train"]
        return x[:], y

    return folder / "train" / name, load


KINDS: dict[str, Callable[[Path], tuple[Path, Load]]] = {
    "checkpoint": checkpoint,
    "predictions": predictions,
    "hub": hub,
    "distance": distance,
    "detector": detector,
    "features": partial(features, "pass0.npy"),
    "labels": partial(features, "labels.npy"),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return all(map(same, a, b))
    return bool(a == b)


def failure(file: Path, load: Load, wanted: Any, bit: int) -> str:
    """How a flipped bit went unnoticed; empty if it did not."""
    whole = file.read_bytes()
    content = bytearray(whole)
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    try:
        return "" if same(load(), wanted) else "it was loaded as if it were right"
    except ValueError as error:
        return "" if file.name in str(error) else f"it is not named: {error}"
    except Exception as error:
        return repr(error)
    finally:
        file.write_bytes(whole)


def cases(folder: Path, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """``count`` flipped bits, as many for each kind of file."""
    for kind, make in KINDS.items():
        (folder / kind).mkdir()
        file, load = make(folder / kind)
        bits = range(8 * file.stat().st_size)
        for bit in random.Random(kind).sample(bits, -(-count // len(KINDS))):
            yield f"bit {bit} of {file.name}", partial(failure, file, load, load(), bit)
