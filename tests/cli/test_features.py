"""``dissensus features``, and training on what it makes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dissensus.data import FeatureStore
from dissensus.tools.records import read_record

OWN = """
import torch
from torch import nn

def make_backbone():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

def stops():
    class Stops(nn.Module):
        calls = 0
        def forward(self, x):
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return x.flatten(1)
    return Stops()
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


def test_features_are_made_and_trained_on(
    dissensus: Callable[..., Any], own: Path, tmp_path: Path
) -> None:
    out, run = tmp_path / "features", tmp_path / "run"
    made = ("features", "--backbone", f"{own}:make_backbone", "--data", "digits", "--out", out)
    answer = dissensus(*made, "--split", "3", "--ood", "corrupt:5", "--limit", "200")
    assert answer.status == 0, answer.err
    assert f"dissensus train --data {out} --model ldr_head" in answer.out
    store = FeatureStore(out, verify=True)
    assert list(store.parts) == ["train", "val", "test", "corrupt5"]
    assert store.shape == (16,)
    assert store.facts["backbone"]["split"] == "3"
    trained = dissensus(
        "train", "--data", out, "--model", "ldr_head", "--model-option", "expansion=1",
        "--members", "2", "--epochs", "2", "--objective", "ldr", "--out", run,
    )  # fmt: skip
    assert trained.status == 0, trained.err
    assert read_record(run / "record.json")["data"]["rows"]["train"] == 200
    assert dissensus("evaluate", run).status == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backbone", "resnet"], "there is no backbone 'resnet'"),
        (["--transform", "imagnet"], "did you mean 'imagenet'?"),
        (["--augment", "none", "--passes", "2"], "several passes are all the same"),
        (["--tokens", "1"], "needs a place to split"),
        (["--dtype", "float64"], "dtype must be one of float16, float32, got 'float64'"),
    ],
)
def test_mistakes_are_one_sentence(
    mistake: Callable[..., str], own: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    asked = ["--backbone", f"{own}:make_backbone", "--data", "digits", "--out", tmp_path / "f"]
    assert message in mistake("features", *asked, *words)


def test_a_backbone_with_other_channels(mistake: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\ndef make():\n    return nn.Conv2d(3, 4, 3)\n")
    words = ["--data", "digits", "--backbone", f"{file}:make", "--out", tmp_path / "out"]
    assert "net.py:make cannot take inputs" in mistake("features", *words)
