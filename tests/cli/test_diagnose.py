"""``dissensus diagnose``: a run, files of any framework, and mistakes made with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dissensus as ds

WORDS = ("healthy", "suspicious", "colluding")


@pytest.fixture
def logits() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 80)
    return 2 * np.eye(3)[labels] + rng.normal(0, 1, (4, 80, 3)), labels


def test_a_run_is_judged_on_its_train_and_test_data(
    dissensus: Callable[..., Any], digits_run: Path
) -> None:
    answer = dissensus("diagnose", digits_run, "--json")
    assert answer.status == 0
    printed = json.loads(answer.out)
    saved = ds.Predictions.load(digits_run / "predictions" / "test.safetensors")
    assert saved.targets is not None
    terms = ds.decompose(saved.outputs.double(), saved.targets)
    assert printed["explosion"]["test"]["diversity"] == pytest.approx(float(terms.diversity))
    assert printed["examples"] == {"train": 1150, "test": 359}
    assert printed["verdict"] == "healthy"
    record = json.loads((digits_run / "diagnosis.json").read_text())
    assert record["format"] == "dissensus.diagnosis/1"
    assert {name: record[name] for name in printed} == printed
    out = dissensus("diagnose", digits_run).out
    assert "healthy" in out.lower()
    for text in ("DIV / ERR", "offsets explain (score)", "From train to test"):
        assert text in out


def test_files_of_every_kind_give_the_same(
    dissensus: Callable[..., Any], tmp_path: Path, logits: tuple[Any, Any]
) -> None:
    outputs, targets = logits
    np.savez(tmp_path / "p.npz", outputs=outputs, targets=targets)
    np.save(tmp_path / "o.npy", outputs)
    np.save(tmp_path / "t.npy", targets)
    saved = ds.Predictions(torch.from_numpy(outputs), torch.from_numpy(targets))
    saved.save(tmp_path / "p.safetensors")
    probs = saved.outputs.softmax(-1).numpy()
    np.savez(tmp_path / "q.npz", outputs=probs, targets=targets)
    records = []
    for words in (["p.npz"], ["o.npy", "t.npy"], ["p.safetensors"], ["q.npz", "--probs"]):
        paths = [word if word[0] == "-" else tmp_path / word for word in words]
        train = ["--train", paths[0]] if len(words) == 1 else []
        answer = dissensus("diagnose", *paths, *train, "--json")
        assert answer.status == 0
        records.append(json.loads(answer.out))
    for record in records[1:]:
        shares = record["debiased_share"]["test"]["probability"]["share"]
        assert shares == pytest.approx(records[0]["debiased_share"]["test"]["probability"]["share"])
        assert record["codependence"]["index"] == pytest.approx(records[0]["codependence"]["index"])
    assert records[0]["generalization_gap"]["gap"] == 0
    assert any(word in dissensus("diagnose", tmp_path / "p.npz").out for word in WORDS)
    np.savez(tmp_path / "named.npz", logits=outputs, y=targets)
    keys = ["--key", "outputs=logits", "--key", "targets=y"]
    answer = dissensus("diagnose", tmp_path / "named.npz", *keys, "--json")
    index = json.loads(answer.out)["codependence"]["index"]
    assert index == records[0]["codependence"]["index"]


def test_planted_collusion_in_foreign_files(dissensus: Callable[..., Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 9, 100)  # whole numbers: --regression says what is meant
    outputs = truth[:, None] + rng.normal(0, 0.3, (100, 1)) + rng.normal(0, 0.1, (5, 100, 1))
    np.savez(tmp_path / "a.npz", outputs=outputs, targets=truth)
    offsets = np.array([-4.0, -1, 1, 1.5, 2.5])[:, None, None]
    np.savez(tmp_path / "b.npz", outputs=outputs + offsets, targets=truth)
    for name, word in (("a.npz", "healthy"), ("b.npz", "colluding")):
        answer = dissensus("diagnose", tmp_path / name, "--regression")
        assert answer.status == 0
        assert f"Verdict: {word}." in answer.out
    assert "lower β" in answer.out


def test_mistakes(
    mistake: Callable[..., str], tmp_path: Path, logits: tuple[Any, Any], digits_run: Path
) -> None:
    outputs, targets = logits
    probs = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
    np.savez(tmp_path / "probs.npz", outputs=probs, targets=targets)
    np.savez(tmp_path / "bare.npz", outputs=outputs)
    np.savez(tmp_path / "logits.npz", outputs=outputs, targets=targets)
    np.save(tmp_path / "o.npy", outputs)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "text.csv").write_text("1,2\n")
    broken = outputs.copy()
    broken[0, 0, 0] = np.nan
    np.savez(tmp_path / "nan.npz", outputs=broken, targets=targets)
    for words, sentence in [
        (["probs.npz"], "look like probabilities"),
        (["probs.npz"], "--probs on the command line"),
        (["logits.npz", "--probs"], "needs rows of probabilities"),
        (["bare.npz"], "got no targets"),
        (["o.npy"], "needs the targets beside it"),
        (["o.npy", "objects.npy"], "holds Python objects, which are never loaded"),
        (["text.csv"], "must be .npz, .safetensors or two .npy files, got text.csv"),
        (["absent.npz"], "there is no run and no file"),
        (["nan.npz"], "must be finite, got 1 NaN"),
        (["logits.npz", "--loss", "hinge"], "loss must be one of"),
        (["logits.npz", "--loss", "brier", "--regression"], "leave one out"),
        (["logits.npz", "logits.npz"], "or two .npy"),
    ]:
        paths = [word if "." not in word else tmp_path / word for word in words]
        assert sentence in mistake("diagnose", *paths), words
    assert "is not a run" in mistake("diagnose", tmp_path)
    assert "out --train" in mistake("diagnose", digits_run, "--train", tmp_path / "logits.npz")
