"""Damaged files: no flipped bit is loaded as if it were right, and a run goes back a checkpoint."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dissensus as ds
from dissensus.data import FeatureStore, FeatureWriter
from dissensus.detection import Mahalanobis
from dissensus.outputs import Predictions
from dissensus.scores import score_file
from dissensus.tools.files import read_safetensors
from dissensus.training.run_folder import read_checkpoint
from tests.runs.small_runs import make_member, toy, trained
from tests.training.problems import same_bits, state

Load = Callable[[], Any]


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def checkpoint(folder: Path) -> tuple[Path, Load]:
    trained(folder)
    return folder / "checkpoint.safetensors", lambda: read_checkpoint(folder)


def predictions(folder: Path) -> tuple[Path, Load]:
    file = folder / "test.safetensors"
    Predictions(torch.randn(2, 9, 3), torch.arange(9) % 3, {"split": "test"}).save(file)
    return file, lambda: (vars(Predictions.load(file)), score_file(file, ["bma"]))


def hub(folder: Path) -> tuple[Path, Load]:
    ds.Ensemble(make_member, members=2).save(folder)
    file = folder / "model.safetensors"
    return file, lambda: read_safetensors(file)[0]


def distance(folder: Path) -> tuple[Path, Load]:
    file, x = folder / "distance.safetensors", torch.randn(30, 4)
    Mahalanobis.fit(x, torch.arange(30) % 3).save(file)
    return file, lambda: Mahalanobis.load(file)(x)


def detector(folder: Path) -> tuple[Path, Load]:
    file, ens = folder / "detector.json", ds.Ensemble(make_member, members=2)
    ds.Detector(ens, score="pds").fit(toy()[0]).save(file)

    def load() -> Any:
        one = ds.Detector.load(file, ens)
        return one.score_name, one.threshold, one.accept, one.count, one.quantiles

    return file, load


def features(folder: Path, name: str) -> tuple[Path, Load]:
    with FeatureWriter(folder, (4,), classes=["a", "b"]) as writer:
        writer.add("train", np.random.default_rng(0).normal(size=(10, 4)), np.arange(10) % 2)

    def load() -> Any:
        x, y = FeatureStore(folder).parts["train"]
        return x[:], y

    return folder / "train" / name, load


KINDS: dict[str, Callable[[Path], tuple[Path, Load]]] = {
    "checkpoint": checkpoint,
    "predictions": predictions,
    "hub": hub,
    "distance": distance,
    "detector": detector,
    "features": lambda folder: features(folder, "pass0-00000.npy"),
    "labels": lambda folder: features(folder, "labels.npy"),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return all(map(same, a, b))
    return bool(a == b)


def flipped_bits(kind: str, folder: Path, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """``count`` times a flipped bit of a file, and a function that says how it went unnoticed."""
    file, load = KINDS[kind](folder)
    whole, wanted = file.read_bytes(), load()

    def failure() -> str:
        try:
            right = same(load(), wanted)
        except ValueError as error:
            return "" if file.name in str(error) else f"{file} is not named: {error}"
        except Exception as error:
            return f"{file.name}: {error!r}"
        return "" if right else f"{file.name} was loaded as if it were right"

    for bit in random.Random(kind).sample(range(8 * len(whole)), count):
        flip(file, bit)
        yield f"bit {bit} of {file.name}", failure
        file.write_bytes(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_an_error_or_changes_nothing(kind: str, tmp_path: Path) -> None:
    failures = {bit: failure() for bit, failure in flipped_bits(kind, tmp_path, 40)}
    assert not {bit: problem for bit, problem in failures.items() if problem}


@pytest.mark.parametrize("bit", [5, 8 * 400, -8 * 3])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(bit: int, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", epochs=5)
    trained(tmp_path / "run", epochs=3)
    file = tmp_path / "run" / "checkpoint.safetensors"
    flip(file, bit % (8 * file.stat().st_size))
    with pytest.raises(ValueError, match="resume the run, to go back to the checkpoint before it"):
        ds.load(tmp_path / "run", make_member=make_member)
    with pytest.warns(UserWarning, match=r"ckpoint\.safetensors .*; going on from the checkpoint"):
        ens = trained(tmp_path / "run", epochs=5, resume=True)
    assert same_bits(state(ens), state(whole))
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("run", "whole")]
    assert metrics[0] == metrics[1]
    names = [sorted(p.name for p in (tmp_path / name).iterdir()) for name in ("run", "whole")]
    assert names[0] == names[1]


def test_where_both_checkpoints_are_damaged_nothing_is_touched(tmp_path: Path) -> None:
    trained(tmp_path)
    files = [tmp_path / f"checkpoint.{name}safetensors" for name in ("", "previous.")]
    for file in files:
        flip(file, 8 * file.stat().st_size - 40)
    before = [file.read_bytes() for file in files]
    with pytest.raises(ValueError, match="does not match its checksum"):
        trained(tmp_path, epochs=5, resume=True)
    assert [file.read_bytes() for file in files] == before


def test_a_checkpoint_of_before_checksums_is_read(tmp_path: Path) -> None:
    """And a tensor that it lacks is a sentence."""
    from safetensors.torch import save_file

    trained(tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    tensors, values = read_checkpoint(tmp_path) or ({}, {})
    header = {"format": "dissensus.checkpoint/1", "values": json.dumps(values)}
    save_file(tensors, file, header)
    trained(tmp_path, epochs=4, resume=True)
    tensors = {name.replace("optimizer.", "optimized."): t for name, t in tensors.items()}
    save_file(tensors, file, header)
    with pytest.raises(ValueError, match="lacks the tensor"):
        trained(tmp_path, epochs=5, resume=True)
