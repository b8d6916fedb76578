"""Shards and large folders on the command line, by every command that takes data by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dissensus.runs import DataSummary, read_config
from tests.cli.test_train import same_weights
from tests.data.shard_files import write_pictures, write_vectors

SMALL = ["--model", "linear", "--members", 2, "--batch-size", 16, "--threads", 1]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_a_run_on_shards_is_trained_resumed_and_judged(dissensus: Callable[..., Any]) -> None:
    write_vectors(Path("shards"), [40, 60], "train")
    write_vectors(Path("shards"), [30], "val")
    pattern = ["--data", "shards/train-{000..001}.tar", "--data-option", "workers=0"]
    pattern += ["--data-option", "test_shards=shards/val-*.tar", "--checkpoint-every", "3"]
    first = dissensus("train", *pattern, *SMALL, "--epochs", 1)
    assert first.status == 0, first.err
    out = Path("runs/train-independent-0")
    assert read_config(out)["data"]["name"] == str(Path.cwd() / "shards/train-{000..001}.tar")
    facts = DataSummary.read(out)
    assert facts is not None
    assert facts.rows == {"train": 80, "val": 20, "test": 30}
    assert len(facts.sha256) == 64
    # From another folder, with other workers: paths are kept whole, workers are no setting.
    os.chdir("/")
    top = Path(os.environ["XDG_CACHE_HOME"]).parent
    words = ["--resume", "--out", top / out, "--epochs", 2, "--data-option", "workers=1"]
    assert dissensus("train", *words).status == 0
    os.chdir(top)
    whole = dissensus("train", *pattern, *SMALL, "--epochs", 2, "--out", "runs/whole")
    assert whole.status == 0
    assert same_weights(out, Path("runs/whole"))

    judged = dissensus("evaluate", out, "--json")
    own = json.loads((out / "record.json").read_text())["test"]
    assert json.loads(judged.out)["accuracy"] == own["accuracy"]
    other = json.loads(dissensus("evaluate", out, "--data", "shards/val-*.tar", "--json").out)
    assert (other["accuracy"], other["examples"]) == (own["accuracy"], 30)
    by_folder = json.loads(dissensus("evaluate", out, "--data", "shards", "--json").out)
    assert by_folder["accuracy"] == own["accuracy"]
    predicted = dissensus("predict", out, "--input", "shards/val-000.tar", "--output", "p.npz")
    assert predicted.status == 0, predicted.err
    with np.load("p.npz") as arrays:
        labels = np.arange(30) % 3
        assert (arrays["labels"] == labels).mean() == pytest.approx(own["accuracy"])

    write_vectors(Path("shards"), [40, 61], "train")
    changed = dissensus("evaluate", out)
    assert changed.status == 2
    assert "is not what" in changed.err


@pytest.mark.slow
def test_a_folder_of_images_is_streamed(dissensus: Callable[..., Any]) -> None:
    write_pictures(Path("pictures/train"), {"ant": 12, "bee": 12})
    write_pictures(Path("pictures/val"), {"ant": 3, "bee": 3})
    streamed = ["--data-option", "stream=true", "--data-option", "size=8", "--normalize"]
    words = ["--data", "pictures", *streamed, *SMALL, "--epochs", 1, "--augment", "adp"]
    answer = dissensus("train", *words, "--adversarial", "fgsm", "--out", "run")
    assert answer.status == 0, answer.err
    assert json.loads((Path("run") / "record.json").read_text())["test"]["examples"] == 6
    attacked = dissensus("attack", "run", "--attacks", "fgsm:eps=0.1", "--out", "attacked")
    assert attacked.status == 2
    assert "--limit" in attacked.err
    words = ["--attacks", "fgsm:eps=0.1", "--limit", 6, "--curve", "none", "--out", "attacked"]
    assert dissensus("attack", "run", *words).status == 0

    words = ["--ood", "corrupt:1", "--scores", "entropy", "--out", "ood"]
    assert dissensus("ood", "run", *words).status == 0
