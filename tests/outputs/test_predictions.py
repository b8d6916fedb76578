"""Predictions on disk: they come back, damaged files are refused by name, and none runs code."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dissensus.outputs import Predictions
from dissensus.tools.files import replace_atomically

GOOD = torch.zeros(2, 4, 3)


def example(dtype: torch.dtype = torch.float32) -> Predictions:
    meta = {"data": "moons", "seed": 3, "labels": ["a", "β"], "nested": {"beta": 0.5}}
    return Predictions(torch.randn(3, 4, 2).to(dtype), torch.tensor([0, 1, 1, 0]), meta)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_predictions_come_back_as_they_were(tmp_path: Path, dtype: torch.dtype) -> None:
    saved = example(dtype)
    path = tmp_path / "new folder" / "predictions.safetensors"
    saved.save(path)
    loaded = Predictions.load(path)
    assert loaded.outputs.dtype == dtype
    assert torch.equal(loaded.outputs, saved.outputs)
    assert torch.equal(loaded.targets, saved.targets)
    assert loaded.meta == saved.meta
    assert (loaded.members, len(loaded)) == (3, 4)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_predictions_without_targets_or_with_soft_ones(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    for targets in (None, torch.randn(4, 2)):
        # neither contiguous nor a leaf; NaN is kept, for whoever wants to find it
        outputs = torch.randn(2, 4, 3, requires_grad=True).transpose(0, 2) / torch.tensor(0.0)
        Predictions(outputs, targets).save(str(path))
        loaded = Predictions.load(str(path))
        torch.testing.assert_close(loaded.outputs, outputs.detach(), equal_nan=True)
        assert (loaded.targets is None) == (targets is None)
        assert targets is None or torch.equal(loaded.targets, targets)
        assert not loaded.outputs.requires_grad


def write_example(folder: Path, kind: str) -> Path:
    saved, path = example(), folder / f"predictions.{kind.split()[0]}"
    if kind == "safetensors":
        saved.save(path)
    else:
        save = np.savez_compressed if "compressed" in kind else np.savez
        save(path, outputs=saved.outputs.numpy(), targets=saved.targets.numpy())
        assert torch.equal(Predictions.load(path).outputs, saved.outputs)
        assert torch.equal(Predictions.load(path).targets, saved.targets)
    return path


@pytest.mark.parametrize("kind", ["safetensors", "npz", "npz compressed"])
def test_a_file_cut_anywhere_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = write_example(tmp_path, kind)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"damaged, cut short") as caught:
            Predictions.load(path)
        assert str(path) in str(caught.value)


class Trap:
    """An object whose unpickling would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_an_archive_with_python_objects_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    trapped = np.array([Trap(mark)], dtype=object)
    for arrays in ({"outputs": trapped}, {"outputs": np.zeros((2, 3, 4)), "targets": trapped}):
        np.savez(tmp_path / "trap.npz", **arrays)
        with pytest.raises(
            ValueError, match=r"trap\.npz .* Python objects, which are never loaded"
        ):
            Predictions.load(tmp_path / "trap.npz")
    assert not mark.exists()


def test_files_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2), "bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors must hold 'outputs', got bias, wei"):
        Predictions.load(tmp_path / "model.safetensors")
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(ValueError, match=r"empty\.npz must hold 'outputs', got nothing"):
        Predictions.load(tmp_path / "empty.npz")
    np.savez(tmp_path / "one.npz", outputs=np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"one\.npz: outputs must be .* for one model pass"):
        Predictions.load(tmp_path / "one.npz")
    np.savez(tmp_path / "words.npz", outputs=np.array(["a", "b"]))
    with pytest.raises(ValueError, match=r"words\.npz must hold numbers"):
        Predictions.load(tmp_path / "words.npz")
    np.save(tmp_path / "single.npy", np.zeros((2, 4, 3)))
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    with pytest.raises(ValueError, match=r"single\.npz cannot be read"):
        Predictions.load(tmp_path / "single.npz")
    header = {"format": "dissensus.predictions/1", "meta": "{"}
    save_file({"outputs": GOOD}, tmp_path / "meta.safetensors", metadata=header)
    with pytest.raises(ValueError, match=r"meta\.safetensors: its metadata cannot be read as JSON"):
        Predictions.load(tmp_path / "meta.safetensors")
    for missing in (tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(ValueError, match="there is no such file"):
            Predictions.load(missing)


def test_predictions_check_their_shapes() -> None:
    with pytest.raises(ValueError, match=r"outputs must be .* got \(4, 3\); for one model pass"):
        Predictions(GOOD[0])
    with pytest.raises(ValueError, match=r"with a batch of 4, got \(3,\)"):
        Predictions(GOOD, torch.zeros(3))
    with pytest.raises(ValueError, match=r"with a batch of 4, got \(4, 1, 1\)"):
        Predictions(GOOD, torch.zeros(4, 1, 1))


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "predictions.safetensors"
    example().save(path)
    before = path.read_bytes()

    def half(part: Path) -> None:
        part.write_bytes(before[:20])
        raise OSError("no space left on device")

    replace = "dissensus.tools.files.tensors.replace_atomically"
    monkeypatch.setattr(replace, lambda path, write: replace_atomically(path, half))
    with pytest.raises(OSError, match="no space left"):
        example().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]  # and no half-written neighbour


@pytest.mark.parametrize("meta", [{"net": torch.nn.Linear(1, 1)}, {"loss": math.nan}, {(1, 2): 3}])
def test_meta_that_is_not_json_is_refused(tmp_path: Path, meta: dict[str, object]) -> None:
    path = tmp_path / "predictions.safetensors"
    with pytest.raises(ValueError, match="meta must be plain JSON values"):
        Predictions(GOOD, None, meta).save(path)
    assert not path.exists()


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    """Whoever reads safetensors can read predictions: tensors by name, meta as JSON."""
    path = tmp_path / "predictions.safetensors"
    example().save(path)
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["outputs"]["shape"] == [3, 4, 2]
    assert header["targets"]["dtype"] == "I64"
    assert json.loads(header["__metadata__"]["meta"])["nested"] == {"beta": 0.5}
